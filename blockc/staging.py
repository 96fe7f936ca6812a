"""A folder that is written all or nothing: every file is whole under another name before the first takes its own.

New files lie in a folder inside the output. One rename of that folder decides; from there on a build that is killed is
carried on by whoever writes or verifies next, so that what is found is the old build or the new one. A folder without
a manifest is no build: the manifest goes first and comes last. Two builds into one folder take turns by a lock of the
folder itself, which ends with its holder: no file of a lock is left to grow stale.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blockc.errors import BlockcError

try:
    import fcntl
except ImportError:  # not on Windows: there two builds into one folder are the user's to keep apart
    fcntl = None

MANIFEST = "manifest.json"
WAIT = 60.0  # seconds for another build's files to take their names
_PREFIX = ".blockc-"
_DECIDED = ".blockc.next"
_ORDER = ".order.json"  # in the folder of new files: their names in order, and the names that go
_STEP = 0.02  # seconds between two looks at a lock


class FolderError(BlockcError):
    """A folder that is no build, or that must not become one."""


@contextmanager
def staging(out: Path) -> Generator[Path]:
    """A folder inside `out` for the files to come, gone afterwards; and `out` too if it was made for nothing."""
    new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    with _locked(out):
        _carry_on(out)
        for left in out.glob(f"{_PREFIX}*"):
            _clear_abandoned(left)
        stage = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=out))
        held = _lock(stage)
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
    file of weights would fall that no build put there, and IsADirectoryError where a folder has a file's name.
    """
    with _locked(out):
        _carry_on(out)
        ours = set(_listed(out))
        for name in names:
            if (out / name).is_dir() and not (out / name).is_symlink():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(out / name))
            if name.endswith(".safetensors") and name not in ours and _is_other(out / name, stage / name):
                raise FolderError(f"{out / name}: these weights are of no build: move them, or build elsewhere")
        order = {"names": list(names), "gone": sorted({*ours, *surplus} - set(names))}
        (stage / _ORDER).write_text(json.dumps(order), encoding="utf-8")
        os.rename(stage, out / _DECIDED)
        try:
            _carry_on(out)
        except KeyboardInterrupt:  # too late: a few renames are left
            _carry_on(out)
            raise


def settle(out: Path) -> None:
    """Before a build is read: what a killed one had decided is carried on. Raises FolderError, OSError."""
    if (out / _DECIDED).is_dir():
        with _locked(out):
            _carry_on(out)


def _carry_on(out: Path) -> None:
    """From wherever a build stopped behind its decision; each step can be taken twice. Nothing where none did."""
    decided = out / _DECIDED
    if not os.path.lexists(decided):
        return
    if os.path.lexists(decided / MANIFEST):
        names, gone = _order(decided)
        (out / MANIFEST).unlink(missing_ok=True)
        for name in gone:
            _remove(out / name)
        for name in names:
            if os.path.lexists(decided / name):
                os.replace(decided / name, out / name)
    shutil.rmtree(decided)


def _order(decided: Path) -> tuple[list[str], list[str]]:
    try:
        order: Any = {} if decided.is_symlink() else json.loads((decided / _ORDER).read_text(encoding="utf-8"))
        names, gone = list[str](order["names"]), list[str](order["gone"])
        if any(Path(name).name != name for name in (*names, *gone)) or names[-1] != MANIFEST:
            raise ValueError(names)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise FolderError(f"{decided}: not what a build leaves: remove it, and build again") from None
    return names, gone


def _is_other(there: Path, staged: Path) -> bool:
    return os.path.lexists(there) and not (there.exists() and os.path.samefile(there, staged))


def _listed(out: Path) -> Iterator[str]:
    """The names in the manifest of the build that lies there."""
    try:
        manifest: Any = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
        names = [*manifest["files"], *(source["name"] for source in manifest.get("weights", {}).get("sources", ()))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return
    yield from (name for name in names if isinstance(name, str) and Path(name).name == name)


def _remove(path: Path) -> None:
    """Of weights never the last name: the file that this is a link of may have been deleted since."""
    if path.suffix != ".safetensors" or (path.is_file() and path.stat().st_nlink > 1):
        path.unlink(missing_ok=True)


def _clear_abandoned(stage: Path) -> None:
    """A living build holds its folder's lock."""
    try:
        held = _lock(stage)
    except BlockingIOError:
        return
    if held is not None:
        shutil.rmtree(stage, ignore_errors=True)
        os.close(held)


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Raises TimeoutError where another holds the folder for longer than it can need."""
    end = time.monotonic() + WAIT
    while True:
        try:
            held = _lock(folder)
            break
        except BlockingIOError:
            if time.monotonic() > end:
                why = f"another build{_holder(folder)} has held this folder's lock for {WAIT:g} s: end it, or wait"
                raise TimeoutError(errno.ETIMEDOUT, why, str(folder)) from None
            time.sleep(_STEP)
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock until it is closed; None where none can be had.

    Raises BlockingIOError where another process, or another descriptor of this one, holds it.
    """
    if fcntl is None:
        return None
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise
    except OSError:  # a file system without locks
        os.close(held)
        return None
    return held


def _holder(folder: Path) -> str:
    """Who holds the lock, as far as the system says: ", process 4711,"."""
    try:
        locks = Path("/proc/locks").read_text(encoding="utf-8")
    except OSError:
        return ""
    held = re.findall(rf"FLOCK +\S+ +WRITE +([1-9]\d*) +\S+:{folder.stat().st_ino} ", locks)
    return f", process {held[0]}," if len(set(held)) == 1 else ""
