"""blockc check: what is wrong with specs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blockc.cli.common import NOTHING, USAGE, WRONG, Set, app, plain, stop
from blockc.cli.files import STDIN, spec_files, write_whole

if TYPE_CHECKING:
    from blockc.formats import Checked


class Format(StrEnum):
    text = "text"
    json = "json"
    github = "github"
    sarif = "sarif"
    junit = "junit"


@app.command()
def check(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...", help="Spec files, folders of them, quoted globs, or - for stdin.", show_default=False
        ),
    ],
    assignments: Set = NOTHING,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Bounds that every spec must keep.", exists=True, dir_okay=False)
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings are held against a spec too.")] = False,
    format_: Annotated[Format, typer.Option("--format", help="For people, programs or services.")] = Format.text,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to a file, whole or not at all.", dir_okay=False),
    ] = None,
) -> None:
    """Read specs and say what is wrong, at file:line:column. Exit code 1 if anything is."""
    from blockc.formats import FORMATS

    files = spec_files(paths)
    if not files:
        stop(USAGE, f"no spec files at {', '.join(map(plain, paths))}")
    checked = _checked(files, assignments, policy, strict)
    if output is None and format_ is Format.text:
        wrong = _print(checked)
    else:
        every = list(checked)
        said, wrong = FORMATS[format_.value](every), any(each.wrong for each in every)
        if output is None:
            sys.stdout.write(said)
        else:
            write_whole(output, said)
    if wrong:
        raise typer.Exit(WRONG)


def _checked(files: Sequence[str], assignments: Sequence[str], policy: Path | None, strict: bool) -> Iterator[Checked]:
    """In the order of the files."""
    from blockc.checking import check_files, check_text
    from blockc.formats import Checked
    from blockc.policy import load_policy
    from blockc.source import MAX_BYTES

    bounds = load_policy(policy) if policy else None
    named = check_files([file for file in files if file != STDIN], assignments, bounds)
    for file in files:
        if file == STDIN:
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
            yield Checked("<stdin>", check_text(data, "<stdin>", assignments, bounds), strict)
        else:
            yield Checked(file, next(named), strict)


def _print(checked: Iterator[Checked]) -> bool:
    """Findings to stderr, what is right to stdout, as they come; whether anything is wrong."""
    from blockc.formats import text

    every: list[Checked] = []
    for each in checked:
        found, right = text.lines(each)
        if found:
            print(found, file=sys.stderr)
        if right:
            print(right)
        every.append(each)
    if said := text.verdict(every):
        print(said, file=sys.stderr)
    return bool(said)
