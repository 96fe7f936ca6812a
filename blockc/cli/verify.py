"""blockc verify: the golden matrix of a spec or of a build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from blockc.cli.common import ENVIRONMENT, NOTHING, USAGE, WRONG, Set, app, plain, spec_file, stop


@app.command()
def verify(
    path: Annotated[
        Path, typer.Argument(metavar="SPEC|DIR", help="A spec file, or the folder of a build.", show_default=False)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="The golden matrix as JSON.")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Of a build: read every linked tensor and compare it with its digest.")
    ] = False,
    assignments: Set = NOTHING,
) -> None:
    """Run the golden matrix: every backend on every variant against the float64 oracle."""
    from blockc import api

    if deep and not path.is_dir():
        stop(USAGE, "--deep speaks of a build: give its folder")
    checked = api.verify(path if path.is_dir() else spec_file(path), assignments, deep=deep)
    if checked.changed:
        stop(WRONG, "\n".join(f"{plain(str(path / name))}: changed since it was built" for name in checked.changed))
    if checked.outdated:
        stop(WRONG, "\n".join(f"{plain(str(path / name))}: not what its spec gives now" for name in checked.outdated))
    proof = checked.proof
    assert proof is not None
    print(json.dumps(proof.data(), indent=2) if as_json else proof.table())
    if not proof.holds:
        raise typer.Exit(WRONG)
    if proof.missing:
        raise typer.Exit(ENVIRONMENT)
