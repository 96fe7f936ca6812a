"""blockc new: a spec of a family's shape for a budget of parameters."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from blockc.cli.common import USAGE, WRONG, app, complete_spec, plain, stop
from blockc.cli.files import in_a_folder, write_whole
from blockc.cli.specs import spec_file

UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The name of the new spec.", show_default=False)],
    like: Annotated[
        Path,
        typer.Option(
            metavar="SPEC",
            help="A spec file, or the name of a spec that comes with blockc.",
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
            metavar="FILE", help="Where to write; by default NAME.yaml.", dir_okay=False, callback=in_a_folder
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a spec with the ratios of another: width, depth and heads for a budget of parameters."""
    from blockc.newspec import NoDesignError, new_spec
    from blockc.source import read
    from blockc.spec.keys import name_fault

    if fault := name_fault(name):
        stop(USAGE, f"{plain(name)}: {fault}")
    budget = None if parameters is None else _budget(parameters)
    path = out or Path(f"{name}.yaml")
    if os.path.lexists(path) and not force:
        stop(USAGE, f"{plain(str(path))}: is there already; give --force to write over it")
    family = spec_file(like)
    try:
        text, sizes, counted = new_spec(name, read(family), family.stem, budget)
    except NoDesignError as error:
        stop(WRONG, str(error))
    write_whole(path, text)
    off = "" if budget is None else f" ({counted / budget - 1:+.1%})"
    print(
        f"{plain(str(path))}: {counted:,} parameters{off}: width {sizes.width}, depth {sizes.depth}, "
        f"{sizes.heads} heads of {sizes.head_dim}, {sizes.kv_heads} of keys and values, mlp {sizes.mlp} wide"
    )


def _budget(said: str) -> float:
    """From 100e9, 7500000000, 7.5B or 350M."""
    found = re.fullmatch(
        r"([0-9]{1,20}(?:\.[0-9]{1,20})?(?:e\+?[0-9]{1,2})?)([KMGBT]?)", said.replace(",", ""), re.IGNORECASE
    )
    number = float(found[1]) * UNITS[found[2].upper()] if found else 0.0
    if not 1e3 <= number <= 1e15:
        stop(USAGE, f"--parameters {plain(said)}: expected a number from 1e3 to 1e15, such as 350M, 7.5B or 100e9")
    return number
