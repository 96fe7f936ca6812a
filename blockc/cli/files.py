"""Which files a command reads, and a file that it writes whole or not at all."""

from __future__ import annotations

import glob
import os
import tempfile
from pathlib import Path

from blockc.cli.common import USAGE, plain, stop

SUFFIXES = (".yaml", ".yml")
STDIN = "-"


def spec_files(paths: list[str]) -> list[str]:
    """The files at these paths, each once: files, folders of specs, globs such as specs/**/*.yaml, and - for stdin."""
    found = {os.path.normpath(file): file for path in paths for file in _at(path)}
    return list(found.values())


def _at(path: str) -> list[str]:
    if path == STDIN:
        return [path]
    if os.path.isdir(path):
        return _below(path)
    if os.path.lexists(path):
        return [path]
    if not glob.has_magic(path):
        stop(USAGE, f"{plain(path)}: no such file or folder")
    named = glob.has_magic(os.path.basename(path).rpartition(".")[2]) or "." not in os.path.basename(path)
    found = [file for file in sorted(glob.glob(path, recursive=True)) if os.path.isfile(file)]
    return [file for file in found if file.endswith(SUFFIXES)] if named else found


def _below(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).rglob("*") if path.suffix in SUFFIXES and path.is_file())


def write_whole(path: Path, text: str, mode: int | None = None) -> None:
    """Under another name beside it first. A link is replaced, not followed; a pipe or a device is written to.

    `mode` are the permissions of the file, those of a new one by default.
    """
    if path.exists() and not path.is_symlink() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
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
