"""Writes a folder all or nothing: every new file is complete before the first one gets its final name.

New files are written to a staging folder inside the output. One rename of the staging folder commits the build; if the
build is killed after that, the next build finishes it, so the folder always has the old build or the new one. A folder
without a manifest is not a build: the old manifest is removed first, and the new one is moved last. Two builds into one
folder take turns by a lock on the folder itself, which ends with its process, so no stale lock file remains.

Files of a killed build are untrusted, since someone else may have put them there. The staging folder must belong to
this user, name only files that a build writes, and replace only the files that were there at the commit.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from blockc.basics.errors import shorten
from blockc.basics.jsonfile import FileError, read_typed
from blockc.products.manifest import MANIFEST, FolderError, is_weights, writable
from blockc.products.ownership import Identity, OutputFolder, identity_of, refuse_detour

try:
    import fcntl
except ImportError:  # not on Windows: there two builds into one folder are the user's to keep apart
    fcntl = None

WAIT = 60.0  # seconds to wait for another build
_PREFIX = ".blockc-"
_STAGE = re.compile(re.escape(_PREFIX) + r"\w{8}")  # as tempfile names it
_DECIDED = ".blockc.next"
_MARK = ".stage"  # an empty file that marks a staging folder
_ORDER = ".order.json"  # in the staging folder: the names of new files in order, and of files to remove
_STEP = 0.02  # seconds between two looks at a lock
# What to do about an operating system's error while a build is written.
_ADVICE = {
    errno.ENOSPC: "free some space, or build elsewhere with --out DIR",
    errno.EDQUOT: "free some space, or build elsewhere with --out DIR",
    errno.EFBIG: "a limit of this system (ulimit -f): raise it, or build elsewhere with --out DIR",
    errno.EROFS: "build where you may write, with --out DIR",
    errno.EACCES: "build where you may write, with --out DIR",
    errno.EPERM: "build where you may write, with --out DIR",
}


class _Order(BaseModel):
    """What a build commits. `there` identifies the old file of each name; no other file may be replaced."""

    model_config = ConfigDict(extra="forbid")
    names: list[str]
    gone: list[str]
    there: dict[str, Identity]


@contextmanager
def staging(out: Path) -> Generator[Path]:
    """A staging folder inside `out`, removed afterwards, as is `out` if it was made for a build that failed.

    An OSError names the final path of the file that was being written, and says what to do.
    """
    made = [folder for folder in (out, *out.parents) if not os.path.lexists(folder)]
    stage: Path | None = None
    held: int | None = None
    try:
        out.mkdir(parents=True, exist_ok=True)
        with _hold_lock(out):
            _carry_on(out)
            for left in out.glob(f"{_PREFIX}*"):
                _clear_abandoned(left)
            stage = Path(os.path.abspath(tempfile.mkdtemp(prefix=_PREFIX, dir=out)))
            held = _lock(stage)
            (stage / _MARK).touch()
        yield stage
    except OSError as error:
        raise _explain(error, out, stage) from None
    finally:
        if stage is not None:
            shutil.rmtree(stage, ignore_errors=True)
        if held is not None:
            os.close(held)
        with suppress(OSError):  # what is not empty
            for folder in made:
                folder.rmdir()


def _explain(error: OSError, out: Path, stage: Path | None) -> OSError:
    """The error with the file's final path and with advice; unchanged if it is about a path elsewhere."""
    here = Path(os.path.abspath(out))
    named = here if error.filename is None else Path(os.path.abspath(os.fsdecode(error.filename)))
    path = here / named.relative_to(stage) if stage is not None and named.is_relative_to(stage) else named
    if error.errno not in _ADVICE or not (path.is_relative_to(here) or here.is_relative_to(path)):
        return error
    shown = out / path.relative_to(here) if path.is_relative_to(here) else path
    return OSError(error.errno, f"{os.strerror(error.errno)}: {_ADVICE[error.errno]}", str(shown))


def make_ready(output: OutputFolder) -> None:
    """Finishes a build that was killed, and refuses a build that would lose files, before anything is computed."""
    if output.folder.exists():
        with _hold_lock(output.folder):
            _carry_on(output.folder)
            output.refuse()


def commit(stage: Path, output: OutputFolder, names: Sequence[str]) -> None:
    """Moves the staged files to their names, in this order; the manifest is the last of them.

    Files that an earlier build wrote and this one does not are removed. Raises what `OutputFolder.refuse` does.
    """
    out = output.folder
    with _hold_lock(out):
        _carry_on(out)
        output.refuse()
        gone = output.gone()
        there = {name: identity_of(out / name) for name in (*names, *gone) if os.path.lexists(out / name)}
        order = _Order(names=list(names), gone=gone, there=there)
        (stage / _ORDER).write_text(order.model_dump_json(), encoding="utf-8")
        os.rename(stage, out / _DECIDED)
        try:
            _carry_on(out)
        except KeyboardInterrupt:  # too late: a few renames are left
            _carry_on(out)
            raise


def is_unfinished(out: Path) -> bool:
    """Whether a build stopped while its files were moved to their names."""
    return os.path.lexists(out / _DECIDED / MANIFEST) or (out / _DECIDED).is_symlink()


def _carry_on(out: Path) -> None:
    """Finishes a committed build from wherever it stopped, if there is one. Each step may be repeated."""
    decided = out / _DECIDED
    if not os.path.lexists(decided):
        return
    if not _is_own(decided):
        raise FolderError(f"{decided}: not what a build leaves: remove it, and build again")
    if os.path.lexists(decided / MANIFEST):
        order = _read_order(out)
        (out / MANIFEST).unlink(missing_ok=True)
        for name in order.gone:
            _remove(out / name)
            _remove_empty(out, name)
        for name in order.names:
            if os.path.lexists(decided / name):
                (out / name).parent.mkdir(exist_ok=True)
                os.replace(decided / name, out / name)
                (decided / name).unlink(missing_ok=True)  # two names of one file: nothing was moved
            _remove_empty(decided, name)
    for name in (_ORDER, _MARK):
        (decided / name).unlink(missing_ok=True)
    try:
        decided.rmdir()
    except OSError:
        raise FolderError(f"{decided}: has files that no build leaves there: remove it, and build again") from None


def _read_order(out: Path) -> _Order:
    """What a committed build has left to do, checked before any of it is done. Raises FolderError."""
    decided = out / _DECIDED
    try:
        order = read_typed(decided / _ORDER, _Order)
    except (FileNotFoundError, FileError):
        raise FolderError(f"{decided}: not what a build leaves: remove it, and build again") from None
    odd = not all(map(writable, (*order.names, *order.gone))) or order.names[-1:] != [MANIFEST]
    for name in [] if odd else (*order.names, *order.gone):
        refuse_detour(out, name)
        refuse_detour(decided, name)
    new = [name for name in order.names if os.path.lexists(decided / name)]
    if odd or not all(stat.S_ISREG((decided / name).lstat().st_mode) for name in new):
        raise FolderError(f"{decided}: not what a build leaves: remove it, and build again")
    falls = [name for name in dict.fromkeys((*new, *order.gone)) if os.path.lexists(out / name)]
    if other := [name for name in falls if order.there.get(name) != identity_of(out / name)]:
        why = f"{out}: a build was interrupted here, and these files changed since"
        advice = f"remove {decided}, and build again"
        raise FolderError("\n  ".join([f"{why}:", *shorten(other), advice]))
    return order


def _remove(path: Path) -> None:
    """Removes a file, except the last name of weights: the file to which it was linked may have been deleted."""
    if os.path.lexists(path) and not (is_weights(path.name) and path.lstat().st_nlink == 1 and not path.is_symlink()):
        path.unlink()


def _remove_empty(folder: Path, name: str) -> None:
    """Removes the folder of a file below this one, if nothing else is in it."""
    if (parent := (folder / name).parent) != folder:
        with suppress(OSError):
            parent.rmdir()


def _is_own(folder: Path) -> bool:
    """Whether it is a folder, not a link to one, and belongs to this user."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and (not hasattr(os, "geteuid") or status.st_uid == os.geteuid())


def _clear_abandoned(stage: Path) -> None:
    """Removes a staging folder if it has the mark of one and no running build holds its lock."""
    if not _STAGE.fullmatch(stage.name) or not _is_own(stage):
        return
    try:
        held = _lock(stage)
    except BlockingIOError:
        return
    if os.path.lexists(stage / _MARK) or not any(stage.iterdir()):
        shutil.rmtree(stage, ignore_errors=True)
    if held is not None:
        os.close(held)


@contextmanager
def _hold_lock(folder: Path) -> Generator[None]:
    """Holds the folder's lock. Raises TimeoutError if another build holds it longer than it can need."""
    end = time.monotonic() + WAIT
    while True:
        try:
            held = _lock(folder)
            break
        except BlockingIOError:
            if time.monotonic() > end:
                why = f"another build{_name_holder(folder)} has held this folder's lock for {WAIT:g} s: end it, or wait"
                raise TimeoutError(errno.ETIMEDOUT, why, str(folder)) from None
            time.sleep(_STEP)
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock until it is closed; None where the system has no locks.

    Raises BlockingIOError if another process, or another descriptor of this one, holds it.
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


def _name_holder(folder: Path) -> str:
    """The process that holds the lock, as ", process 4711,"; empty where the system does not say."""
    try:
        locks = Path("/proc/locks").read_text(encoding="utf-8")
    except OSError:
        return ""
    held = re.findall(rf"FLOCK +\S+ +WRITE +([1-9]\d*) +\S+:{folder.stat().st_ino} ", locks)
    return f", process {held[0]}," if len(set(held)) == 1 else ""
