"""blockc doctor: what is installed, whether it works, and the fix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from blockc.cli.common import ENVIRONMENT, app


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False) -> None:
    """Try every package and provider that blockc uses: exit with 0 if all that are installed work, with 3 if not."""
    from blockc import api

    health = api.doctor(Path.cwd())
    print(json.dumps(health.data(), indent=2) if as_json else health.text())
    if health.problems:
        raise typer.Exit(ENVIRONMENT)
