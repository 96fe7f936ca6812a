"""blockc fmt: specs in one form."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Annotated

import typer

from blockc.cli.common import USAGE, WRONG, app, complete_spec, plain, print_findings, say, stop
from blockc.cli.files import STDIN, spec_files, write_whole
from blockc.cli.specs import named
from blockc.cli.terminal import emit


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
    """Put the keys and numbers of specs into one form. Values and comments stay."""
    files = spec_files(paths)
    if not files:
        stop(USAGE, f"no spec files at {', '.join(map(plain, paths))}")
    if not (check or diff) and (comes := [path for path in paths if named(path)]):
        stop(USAGE, f"{plain(comes[0])}: comes with blockc, so that --check and --diff alone are for it")
    right = [_stdin(check, diff) if file == STDIN else _file(Path(file), check, diff) for file in files]
    if not all(right):
        raise typer.Exit(WRONG)


def _file(path: Path, check: bool, diff: bool) -> bool:
    """Whether the file is now, or would have been with --diff, in its form."""
    from blockc.source import SpecError, read_bytes

    try:
        old = read_bytes(path)
        new = _formatted(old, str(path))
    except SpecError as error:
        print_findings(error.findings)
        return False
    name = plain(str(path))
    if new == old:
        return True
    if diff:
        _show(old, new, name)
    if check:
        print(f"{name}: would change", file=sys.stderr)
    elif not diff and path.is_symlink():
        say(f"{name}: is a link; format the file that it leads to")
        return False
    elif not diff:
        write_whole(path, new.decode(), path.stat().st_mode & 0o7777)
        print(f"{name}: changed")
    return not check


def _stdin(check: bool, diff: bool) -> bool:
    from blockc.source import MAX_BYTES

    old = sys.stdin.buffer.read(MAX_BYTES + 1)
    new = _formatted(old, "<stdin>")
    if diff:
        _show(old, new, "<stdin>")
    elif not check:
        emit(new.decode())
    return new == old or not check


def _formatted(data: bytes, file: str) -> bytes:
    from blockc.fmt import formatted

    return formatted(data, file)


def _show(old: bytes, new: bytes, name: str) -> None:
    before, after = (text.decode("utf-8-sig").splitlines(keepends=True) for text in (old, new))
    for line in difflib.unified_diff(before, after, name, f"{name} (formatted)"):
        print(plain(line.rstrip("\r\n")))
