"""blockc check: the findings of specs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from blockc.cli.common import NOTHING, WRONG, Quiet, Set, app, complete_spec
from blockc.cli.files import STDIN, Output, spec_files
from blockc.cli.terminal import write_text

if TYPE_CHECKING:
    from blockc.checks.formats import Checked


Format = Literal["text", "json", "github", "sarif", "junit"]


@app.command()
def check(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="Spec files, folders of them, quoted globs, names of specs that come with blockc, or - for stdin.",
            show_default=False,
            autocompletion=complete_spec,
        ),
    ],
    assignments: Set = NOTHING,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file of bounds that every spec must keep.", exists=True, dir_okay=False),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Count a spec with warnings as wrong.")] = False,
    format_: Annotated[
        Format, typer.Option("--format", help="The format of findings: for people, programs or services.")
    ] = "text",
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """Check specs and print what is wrong, with file:line:column. The exit code is 1 if a spec is wrong."""
    from blockc import api
    from blockc.authoring.specfiles import write_whole

    files = spec_files(paths)
    checked = _check_all(files, assignments, policy, strict)
    if output is None and format_ == "text":
        wrong = _print(checked, quiet)
    else:
        every = list(checked)
        said, wrong = api.written(every, format_), any(each.wrong for each in every)
        if output is None:
            write_text(said)
        else:
            write_whole(output, said)
    if wrong:
        raise typer.Exit(WRONG)


def _check_all(
    files: Sequence[str], assignments: Sequence[str], policy: Path | None, strict: bool
) -> Iterator[Checked]:
    """The findings of each file, in the order of the files."""
    from blockc.checks.checking import check_files, check_text
    from blockc.checks.formats import STDIN as IN
    from blockc.checks.formats import Checked
    from blockc.checks.policy import load_policy
    from blockc.source import MAX_BYTES

    bounds = load_policy(policy) if policy else None
    named = check_files([file for file in files if file != STDIN], assignments, bounds)
    for file in files:
        if file == STDIN:
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
            yield Checked(IN, check_text(data, IN, assignments, bounds), strict)
        else:
            yield Checked(file, next(named), strict)


def _print(checked: Iterator[Checked], quiet: bool) -> bool:
    """Prints findings to stderr as they come, and right files to stdout. Returns whether anything is wrong."""
    from blockc.checks.formats import text

    every: list[Checked] = []
    for each in checked:
        found, right = text.render_lines(each)
        if found:
            print(found, file=sys.stderr)
        if right and not quiet:
            print(right)
        every.append(each)
    if said := text.verdict_of(every):
        print(said, file=sys.stderr)
    return bool(said)
