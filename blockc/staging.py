"""A folder that is written all or nothing: each file whole under another name before the first takes its own.

A folder without a manifest is no build, so the manifest goes first and comes last. Two builds into one folder take
turns, and one that was killed leaves a staging folder that the next one clears away.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not on Windows: there two builds into one folder are the user's to keep apart
    fcntl = None

MANIFEST = "manifest.json"
_PREFIX = ".blockc-"


class FolderError(Exception):
    """A folder that is no build, or that must not become one."""


@contextmanager
def staging(out: Path) -> Generator[Path]:
    """A folder inside `out` for the files to come, gone afterwards; and `out` too if it was made for nothing."""
    new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    with _locked(out):
        for left in out.glob(f"{_PREFIX}*"):
            _clear_abandoned(left)
        stage = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=out))
        held = _lock(stage, wait=False)
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        if held is not None:
            os.close(held)
        if new and not any(out.iterdir()):
            out.rmdir()


def commit(stage: Path, out: Path, names: Sequence[str], surplus: Sequence[str]) -> None:
    """The staged files take their names, in this order; the manifest is the last of them.

    What an earlier build wrote and this one does not is removed, and so is the `surplus`. Raises FolderError where a
    file of weights would fall that no build put there.
    """
    with _locked(out):
        ours = set(_listed(out))
        for name in names:
            if name.endswith(".safetensors") and name not in ours and _is_other(out / name, stage / name):
                raise FolderError(f"{out / name}: these weights are of no build: move them, or build elsewhere")
        (out / MANIFEST).unlink(missing_ok=True)
        for name in {*ours, *surplus} - set(names):
            _remove(out / name)
        for name in names:
            os.replace(stage / name, out / name)


def _is_other(there: Path, staged: Path) -> bool:
    return os.path.lexists(there) and not (there.exists() and os.path.samefile(there, staged))


def _listed(out: Path) -> Iterator[str]:
    """The names in the manifest of the build that lies there."""
    try:
        manifest: Any = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
        names = [*manifest["files"], *(source["name"] for source in manifest.get("weights", {}).get("sources", ()))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    yield from (name for name in names if isinstance(name, str) and Path(name).name == name)


def _remove(path: Path) -> None:
    """Of weights never the last name: the file that this is a link of may have been deleted since."""
    if path.suffix != ".safetensors" or (path.is_file() and path.stat().st_nlink > 1):
        path.unlink(missing_ok=True)


def _clear_abandoned(stage: Path) -> None:
    """A living build holds its folder's lock."""
    held = _lock(stage, wait=False)
    if held is not None:
        shutil.rmtree(stage, ignore_errors=True)
        os.close(held)


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    held = _lock(folder, wait=True)
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def _lock(folder: Path, wait: bool) -> int | None:
    """A file descriptor that holds the folder's lock until it is closed; None where none can be had."""
    if fcntl is None:
        return None
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # taken, or a file system without locks
        os.close(held)
        return None
    return held
