"""blockc diff: what changed between two specs, and what the changes break."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from blockc.cli.common import USAGE, WRONG, app, complete_spec, stop
from blockc.cli.terminal import plain_line


@app.command()
def diff(
    specs: Annotated[
        list[Path],
        typer.Argument(
            metavar="A B",
            help="Two spec files, names of specs or folders of builds; with --against, one spec.",
            show_default=False,
            autocompletion=complete_spec,
        ),
    ],
    against: Annotated[
        str | None, typer.Option(metavar="git:REF", help="Compare with the file at this revision of git.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the changes as JSON.")] = False,
    fail_on: Annotated[
        str,
        typer.Option(
            metavar="CLASSES", help="Exit with 1 if there is a change in one of these classes, such as CHECKPOINT,IO."
        ),
    ] = "",
) -> None:
    """Show what changed between two specs: checkpoint, numbers, inputs and outputs, cost, or only the text."""
    from blockc import api
    from blockc.diff import CLASSES

    wanted = [word.strip() for word in fail_on.split(",") if word.strip()]
    if unknown := [word for word in wanted if word not in CLASSES]:
        stop(USAGE, f"--fail-on {plain_line(unknown[0])}: expected some of {','.join(CLASSES)}")
    if len(specs) != (2 if against is None else 1):
        expected = "two, or one with --against git:REF" if against is None else "one beside --against"
        stop(USAGE, f"{len(specs)} specs given; expected {expected}")
    found = api.diff(*specs, against=against)
    print(json.dumps(found.data(), indent=2) if as_json else "\n".join(map(plain_line, found.text().split("\n"))))
    if set(wanted) & set(found.classes):
        raise typer.Exit(WRONG)
