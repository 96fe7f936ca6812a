"""blockc verify: the golden matrix of a spec or of a build."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from blockc.basics.errors import shorten
from blockc.cli.common import ENVIRONMENT, NOTHING, USAGE, WRONG, Quiet, Set, app, complete_spec, say, stop
from blockc.cli.terminal import Progress, plain_line


@app.command()
def verify(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="SPEC|DIR",
            help="The folder of a build; or a spec file, or the name of a spec that comes with blockc.",
            show_default=False,
            autocompletion=complete_spec,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the golden matrix as JSON.")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also compare every linked tensor of a build with its digest.")
    ] = False,
    assignments: Set = NOTHING,
    quiet: Quiet = False,
) -> None:
    """Run the golden matrix: compare every backend on every variant with the float64 oracle."""
    from blockc import api

    if deep and not path.is_dir():
        stop(USAGE, "--deep is for the folder of a build")
    with Progress(quiet) as progress:
        checked = api.verify(path, assignments, deep=deep, progress=progress)
    if checked.changed:
        stop(WRONG, _list_files(path, checked.changed, "changed since it was built"))
    if checked.outdated:
        stop(WRONG, _list_files(path, checked.outdated, "not what its spec gives now"))
    proof = checked.proof
    assert proof is not None
    if not quiet:
        print(json.dumps(proof.data(), indent=2) if as_json else proof.table())
    elif not proof.complete:
        say(proof.line)
    if not proof.holds:
        raise typer.Exit(WRONG)
    if proof.missing:
        raise typer.Exit(ENVIRONMENT)


def _list_files(folder: Path, names: Sequence[str], what: str) -> str:
    return "\n".join(shorten([f"{plain_line(str(folder / name))}: {what}" for name in names]))
