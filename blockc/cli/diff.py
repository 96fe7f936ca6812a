"""blockc diff: what changed between two specs, and whom it breaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blockc.cli.common import USAGE, WRONG, app, complete_spec, stop
from blockc.cli.specs import spec_file
from blockc.cli.terminal import plain

if TYPE_CHECKING:
    from blockc.diff import Side


@app.command()
def diff(
    specs: Annotated[
        list[Path],
        typer.Argument(
            metavar="A B",
            help="Two spec files, or names of specs; one with --against.",
            show_default=False,
            autocompletion=complete_spec,
        ),
    ],
    against: Annotated[
        str | None, typer.Option(metavar="git:REF", help="Compare with the file as it was at this revision.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The changes as JSON.")] = False,
    fail_on: Annotated[
        str, typer.Option(metavar="CLASSES", help="Exit with 1 if there is a change of these, such as CHECKPOINT,IO.")
    ] = "",
) -> None:
    """Say what changed between two specs: checkpoint, numbers, inputs and outputs, cost, or text alone."""
    from blockc.diff import CLASSES, text
    from blockc.diff import diff as compare

    wanted = [word.strip() for word in fail_on.split(",") if word.strip()]
    if unknown := [word for word in wanted if word not in CLASSES]:
        stop(USAGE, f"--fail-on {plain(unknown[0])}: expected some of {','.join(CLASSES)}")
    if len(specs) != (2 if against is None else 1):
        expected = "two, or one with --against git:REF" if against is None else "one beside --against"
        stop(USAGE, f"{len(specs)} specs are given; expected {expected}")
    new = spec_file(specs[-1])
    old = _side(spec_file(specs[0])) if against is None else _past(new, against)
    found = compare(old, _side(new))
    print(json.dumps(found.data(), indent=2) if as_json else "\n".join(map(plain, text(found).split("\n"))))
    if set(wanted) & set(found.classes):
        raise typer.Exit(WRONG)


def _side(path: Path) -> Side:
    from blockc import api
    from blockc.diff import Side
    from blockc.source import read_bytes

    return Side(str(path), read_bytes(path), api.compile(path))


def _past(path: Path, against: str) -> Side:
    """The file as a revision has it. Its `expect` was compared then."""
    from blockc.checking import misses
    from blockc.compile import compiled
    from blockc.diff import Side
    from blockc.diff.revision import RevisionError, at_revision
    from blockc.source import MAX_BYTES, SpecError, parse
    from blockc.spec import from_tree

    kind, _, ref = against.partition(":")
    if kind != "git" or not ref:
        stop(USAGE, f"--against {plain(against)}: expected git:REF, such as git:HEAD")
    try:
        text = at_revision(path, ref, MAX_BYTES + 1)
    except RevisionError as error:
        stop(USAGE, str(error))
    file = f"{against}:{path}"
    model = compiled(from_tree(parse(text, file)))
    if found := misses(model, expectations=False):
        raise SpecError(found)
    return Side(file, text, model)
