"""blockc import: a config.json to a spec."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from blockc.cli.common import USAGE, app, plain, stop, there
from blockc.cli.files import write_whole


@app.command("import")
def import_(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A config.json, or a checkpoint's folder.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to a file, whole or not at all.", dir_okay=False),
    ] = None,
) -> None:
    """Write the spec of a published model. Every key of its config.json is understood, or the import fails."""
    from blockc import api
    from blockc.importing import config_file

    if config_file(there(path)) is None:
        stop(USAGE, f"{plain(str(path))}: no config.json, nor a folder with one")
    text = api.import_spec(path)
    if output is None:
        sys.stdout.write(text)
    else:
        write_whole(output, text)
