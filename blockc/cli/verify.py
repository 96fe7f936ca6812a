"""blockc verify: the golden matrix of a spec or of a build, and a build's predictions beside another's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from blockc.basics.errors import shorten
from blockc.cli.common import (
    ENVIRONMENT,
    NOTHING,
    USAGE,
    WRONG,
    Quiet,
    Set,
    app,
    complete_spec,
    require_path,
    say,
    stop,
)
from blockc.cli.terminal import Progress, plain_line
from blockc.graph.target import Provider


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
    as_json: Annotated[bool, typer.Option("--json", help="Print the golden matrix, or the figures, as JSON.")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also compare every linked tensor of a build with its digest.")
    ] = False,
    assignments: Set = NOTHING,
    quality: Annotated[
        bool, typer.Option("--quality", help="Compare the predictions of a build with those of --against instead.")
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The reference of --quality: a build of the same weights in fp32."),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The text for --quality; by default two chapters that come with blockc."),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(min=2, metavar="N", help="Tokens that --quality reads from an empty cache; 256 by default."),
    ] = None,
    max_kl: Annotated[
        float | None, typer.Option(min=0.0, metavar="NATS", help="Fail if the mean KL of --quality is above this.")
    ] = None,
    ep: Annotated[
        Provider | None, typer.Option(help="The provider of onnxruntime for --quality; cpu by default.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run the golden matrix: compare every backend on every variant with the float64 oracle."""
    from blockc import api

    given = {"--against": against, "--text": text, "--window": window, "--max-kl": max_kl, "--ep": ep}
    if quality:
        if deep or assignments:
            stop(USAGE, f"--quality reads builds as they are: leave {'--deep' if deep else '--set'} out")
        if against is None:
            stop(USAGE, "--quality compares with another build: give --against DIR")
        return _compare(path, against, text, window, max_kl, ep or "cpu", as_json, quiet)
    if idle := [option for option, value in given.items() if value is not None]:
        stop(USAGE, f"{idle[0]} is for --quality: give it too")
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


def _compare(
    folder: Path,
    against: Path,
    text: Path | None,
    window: int | None,
    max_kl: float | None,
    ep: Provider,
    as_json: bool,
    quiet: bool,
) -> None:
    from blockc import api
    from blockc.runtime import ProviderError

    try:
        with Progress(quiet) as progress:
            made = api.quality(
                require_path(folder), require_path(against), text, window=window, provider=ep, progress=progress
            )
    except ProviderError as error:
        stop(ENVIRONMENT, str(error))
    if not quiet:
        print(json.dumps(made.data(), indent=2) if as_json else made.table())
    if max_kl is not None and not made.kl.value <= max_kl:
        stop(WRONG, f"{plain_line(str(folder))}: KL is {made.kl.value:.4g} nats, and --max-kl is {max_kl:g}")


def _list_files(folder: Path, names: Sequence[str], what: str) -> str:
    return "\n".join(shorten([f"{plain_line(str(folder / name))}: {what}" for name in names]))
