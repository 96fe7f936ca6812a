"""blockc new: a spec with a family's ratios for a budget of parameters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from blockc.cli.common import USAGE, app, complete_spec, plain_line, stop
from blockc.cli.files import require_folder


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The name of the new spec.", show_default=False)],
    like: Annotated[
        Path,
        typer.Option(
            metavar="SPEC",
            help="The family: a spec file, or the name of a spec that comes with blockc.",
            autocompletion=complete_spec,
        ),
    ],
    parameters: Annotated[
        str | None,
        typer.Option(metavar="N", help="The budget, such as 350M, 7.5B or 100e9; by default the family's own sizes."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The file to write; by default NAME.yaml.", dir_okay=False, callback=require_folder
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a spec with the ratios of another, and width, depth and heads for a budget of parameters."""
    from blockc import api
    from blockc.authoring.newspec import budget_of
    from blockc.authoring.specfiles import write_whole

    path = out or Path(f"{name}.yaml")
    budget = None if parameters is None else budget_of(parameters)
    if os.path.lexists(path) and not force:
        stop(USAGE, f"{plain_line(str(path))}: exists; give --force to replace it")
    made = api.new(name, like, budget)
    write_whole(path, made.text)
    print(f"{plain_line(str(path))}: {made.line}")
