"""blockc new: a spec of a family's shape for a budget of parameters."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated

import typer

from blockc.cli.common import USAGE, WRONG, app, plain, spec_file, stop
from blockc.cli.files import write_whole


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Of the new spec.", show_default=False)],
    like: Annotated[
        Path, typer.Option(metavar="SPEC", help="A spec file, or the name of a spec that comes with blockc.")
    ],
    parameters: Annotated[
        float | None, typer.Option(metavar="N", help="The budget, such as 100e9; the sizes of the family without.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to; NAME.yaml by default.", dir_okay=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a spec with the ratios of another: width, depth and heads for a budget of parameters."""
    from blockc.newspec import NoDesignError, new_spec
    from blockc.source import read
    from blockc.spec.keys import name_fault

    if fault := name_fault(name):
        stop(USAGE, f"{plain(name)}: {fault}")
    if parameters is not None and not (math.isfinite(parameters) and 1e3 <= parameters <= 1e15):
        stop(USAGE, f"--parameters {parameters:g}: expected a number from 1e3 to 1e15")
    path = out or Path(f"{name}.yaml")
    if os.path.lexists(path) and not force:
        stop(USAGE, f"{plain(str(path))}: is there already; --force writes over it")
    family = spec_file(like)
    try:
        text, sizes, counted = new_spec(name, read(family), family.stem, parameters)
    except NoDesignError as error:
        stop(WRONG, plain(str(error)))
    write_whole(path, text)
    off = "" if parameters is None else f" ({counted / parameters - 1:+.1%})"
    print(
        f"{plain(str(path))}: {counted:,} parameters{off}: width {sizes.width}, depth {sizes.depth}, "
        f"{sizes.heads} heads of {sizes.head_dim}, {sizes.kv_heads} of keys and values, mlp {sizes.mlp} wide"
    )
