"""Which files a command reads, and a file that it writes whole or not at all."""

from __future__ import annotations

import glob
import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from blockc.cli.common import USAGE, plain, stop
from blockc.cli.specs import named, no_such

SUFFIXES = (".yaml", ".yml")
STDIN = "-"


def in_a_folder(path: Path | None) -> Path | None:
    """Of a file to be written: refused before any work is done, where it could not be."""
    if path is not None and not path.parent.is_dir():
        stop(USAGE, f"{plain(str(path))}: cannot be written, since there is no folder {plain(str(path.parent))}")
    return path


Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write to a file, whole or not at all.",
        dir_okay=False,
        callback=in_a_folder,
    ),
]


def spec_files(paths: list[str]) -> list[str]:
    """The files at these paths, each once: files, folders of specs, globs such as specs/**/*.yaml, names of specs that
    come with blockc, and - for stdin."""
    found = {os.path.normpath(file): file for path in paths for file in _at(path)}
    return list(found.values())


def _at(path: str) -> list[str]:
    if path == STDIN:
        return [path]
    if os.path.isdir(path):
        return _below(path)
    if os.path.lexists(path):
        return [path]
    if (found := named(path)) is not None:
        return [str(found)]
    if not glob.has_magic(path):
        stop(USAGE, no_such(path))
    all_kinds = glob.has_magic(os.path.basename(path).rpartition(".")[2]) or "." not in os.path.basename(path)
    found = [file for file in sorted(glob.glob(path, recursive=True)) if os.path.isfile(file)]
    return [file for file in found if file.endswith(SUFFIXES)] if all_kinds else found


def _below(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).rglob("*") if path.suffix in SUFFIXES and path.is_file())


def write_whole(path: Path, text: str, mode: int | None = None) -> None:
    """Under another name beside it first. A link is replaced, not followed; a pipe or a device is written to.

    `mode` are the permissions of the file, those of a new one by default.
    """
    if path.exists() and not path.is_symlink() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    try:
        _write_whole(path, text, mode)
    except OSError as error:  # which may name the file that is to take the name
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _write_whole(path: Path, text: str, mode: int | None) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            os.fchmod(stream.fileno(), 0o666 & ~_umask() if mode is None else mode) if hasattr(os, "fchmod") else None
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
