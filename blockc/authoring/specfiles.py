"""Finds spec files by a path or a bundled spec's name, and writes a file whole or not at all.

A word of the command line is the path of a file, or the name of a spec that comes with blockc. No spec is read here.
"""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from blockc.basics.distribution import specs
from blockc.basics.errors import UsageError
from blockc.source import PATH_SHOWN, escape_text, suggest

SUFFIXES = (".yaml", ".yml")


class NoSpecError(UsageError):
    """There is no such file and no such bundled spec; the message suggests a similar name."""


# One spec


def find_bundled(word: str) -> Path | None:
    """The path of the bundled spec with this name; None if there is none, or if a file has this name."""
    if os.path.lexists(word) and not os.path.isdir(word):
        return None
    found = specs().get(word)
    return None if found is None else _shorten_path(found)


def _shorten_path(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def spec_file(path: Path | str) -> Path:
    """The file of a spec, given by its path or by a bundled spec's name. Raises NoSpecError."""
    path = Path(path)
    if (found := find_bundled(str(path))) is not None:
        return found
    if path.is_dir():
        raise NoSpecError(f"{escape_text(str(path), PATH_SHOWN)}: is a folder, expected one spec")
    if not path.exists():
        raise NoSpecError(missing_message(str(path)))
    return path


def model_file(path: Path | str) -> Path:
    """The file of a spec as above, or a path to import: a config.json or a folder with one."""
    from blockc.importing import find_config  # which the other words need not wait for

    path = Path(path)
    return path if find_config(path) is not None and path.exists() else spec_file(path)


def missing_message(word: str) -> str:
    """A message that there is no such file, with a similar name if there is one."""
    folder, name = os.path.split(word)
    if folder or name.endswith(SUFFIXES):
        near = suggest(name, _specs_in(folder or "."))
        near = os.path.join(folder, near) if near else None
        more = ""
    else:
        near, more = suggest(name, specs()), "; `blockc list` names the specs that come with blockc"
    return f"{escape_text(word, PATH_SHOWN)}: no such file or folder" + (
        f"; did you mean {escape_text(near, PATH_SHOWN)}?" if near else more
    )


def _specs_in(folder: str) -> Iterable[str]:
    try:
        return [entry.name for entry in os.scandir(folder) if entry.name.endswith(SUFFIXES)]
    except OSError:
        return []


# Several


def files_at(word: str) -> list[str]:
    """The files for a word: a file, all specs of a folder, those of a glob such as specs/**/*.yaml, or a bundled spec.

    Raises NoSpecError.
    """
    if os.path.isdir(word) and (found := _specs_below(word)):
        return found
    refuse_config(word)
    if os.path.isdir(word):
        return []
    if os.path.lexists(word):
        return [word]
    if (spec := find_bundled(word)) is not None:
        return [str(spec)]
    if not glob.has_magic(word):
        raise NoSpecError(missing_message(word))
    all_kinds = glob.has_magic(os.path.basename(word).rpartition(".")[2]) or "." not in os.path.basename(word)
    found = [file for file in sorted(glob.glob(word, recursive=True)) if os.path.isfile(file)]
    return [file for file in found if file.endswith(SUFFIXES)] if all_kinds else found


def refuse_config(word: str) -> None:
    """Raises NoSpecError for a config.json or a folder with one, where a spec file is needed."""
    if not word.endswith(".json") and not os.path.isdir(word):
        return
    from blockc.importing import find_config  # which the other words need not wait for

    if (file := find_config(Path(word))) is not None and file.exists():
        shown = escape_text(word, PATH_SHOWN)
        held = "has a config.json, not a spec" if file != Path(word) else "a .json file is a model's config, not a spec"
        raise NoSpecError(f"{shown}: {held}: `blockc import {shown}` writes its spec")


def _specs_below(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).rglob("*") if path.suffix in SUFFIXES and path.is_file())


# Writing


def write_whole(path: Path, said: str | bytes, mode: int | None = None) -> None:
    """Writes a file under a temporary name, then renames it. A link is replaced; pipes and devices are written to.

    A text is written in UTF-8. `mode` are the file's permissions, by default those of a new file.
    """
    data = said.encode() if isinstance(said, str) else said
    special = path.exists() and not path.is_symlink() and not path.is_file()
    try:
        path.write_bytes(data) if special else _write_whole(path, data, mode)
    except OSError as error:  # the error may name the temporary file
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _write_whole(path: Path, data: bytes, mode: int | None) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            os.fchmod(stream.fileno(), 0o666 & ~_umask() if mode is None else mode) if hasattr(os, "fchmod") else None
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
