"""blockc import: a config.json to a spec."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blockc.cli.common import app, print_findings
from blockc.cli.files import Output
from blockc.cli.terminal import write_text


@app.command("import")
def import_(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A config.json, or a checkpoint's folder.", show_default=False)
    ],
    output: Output = None,
) -> None:
    """Write the spec of a published model. The import fails if any key of its config.json is not understood."""
    from blockc import api
    from blockc.authoring.specfiles import write_whole

    imported = api.imported_spec(path)
    print_findings(imported.warnings)
    if output is None:
        write_text(imported.text)
    else:
        write_whole(output, imported.text)
