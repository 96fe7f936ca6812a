"""blockc fmt: formats specs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from blockc.cli.common import USAGE, WRONG, app, complete_spec, plain_line, print_findings, say, stop
from blockc.cli.files import STDIN, spec_files
from blockc.cli.terminal import write_text

if TYPE_CHECKING:
    from blockc.api import Formatted


@app.command()
def fmt(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="Spec files, folders of them, quoted globs, or - for stdin; names of specs with --check or --diff.",
            show_default=False,
            autocompletion=complete_spec,
        ),
    ],
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; the exit code is 1 if anything would change.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Write nothing; show what would change.")] = False,
) -> None:
    """Format specs: keys in order, numbers at their shortest. Values and comments stay."""
    from blockc.authoring.specfiles import find_bundled

    files = spec_files(paths)
    if not (check or diff) and (comes := [path for path in paths if find_bundled(path)]):
        stop(USAGE, f"{plain_line(comes[0])}: comes with blockc, so only --check and --diff apply to it")
    right = [_stdin(check, diff) if file == STDIN else _file(file, check, diff) for file in files]
    if not all(right):
        raise typer.Exit(WRONG)


def _file(path: str, check: bool, diff: bool) -> bool:
    """Formats a file; returns False if it is wrong, or if --check finds a change."""
    from blockc import api

    try:
        made = api.fmt(path, write=not (check or diff))
    except api.SpecError as error:
        print_findings(error.findings)
        return False
    except api.UsageError as error:  # a link
        say(str(error))
        return False
    if made.changed and diff:
        _show(made)
    if made.changed and check:
        print(f"{plain_line(path)}: would change", file=sys.stderr)
    elif made.changed and not diff:
        print(f"{plain_line(path)}: changed")
    return not (made.changed and check)


def _stdin(check: bool, diff: bool) -> bool:
    from blockc.api import Formatted
    from blockc.checks.formats import STDIN as IN
    from blockc.language.fmt import format_spec
    from blockc.source import MAX_BYTES

    old = sys.stdin.buffer.read(MAX_BYTES + 1)
    made = Formatted(IN, old, format_spec(old, IN))
    if diff:
        _show(made)
    elif not check:
        write_text(made.after.decode())
    return not (made.changed and check)


def _show(made: Formatted) -> None:
    for line in made.diff():
        print(plain_line(line))
