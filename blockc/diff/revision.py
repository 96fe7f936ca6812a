"""A file's text at a revision of git. Git is run without a shell."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from blockc.basics.errors import UsageError

MAX_WAIT = 60  # seconds


class RevisionError(UsageError):
    """Git is missing, or has no such revision, or the revision has no such file."""


def at_revision(path: Path, ref: str, limit: int) -> bytes:
    """The bytes of the file at `ref`, at most `limit` of them. Raises RevisionError."""
    if not re.fullmatch(r"[A-Za-z0-9_@][A-Za-z0-9_./@{}^~+-]*", ref):
        raise RevisionError(f"{ref!r} is not a revision of git: give a branch, a tag or a commit, such as git:HEAD~1")
    words = ["git", "-C", str(path.parent.resolve()), "cat-file", "blob", f"{ref}:./{path.name}"]
    try:
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as git:
            assert git.stdout
            assert git.stderr
            data = git.stdout.read(limit)
            if len(data) == limit:
                git.kill()
                return data
            said = git.stderr.read().decode("utf-8", "replace").strip()
            code = git.wait(MAX_WAIT)
    except FileNotFoundError:
        raise RevisionError("git is not installed, and --against git:REF reads the file through it") from None
    if code:
        reason = said.splitlines()[0] if said else f"git ended with {code}"
        raise RevisionError(f"{path} at {ref}: {reason}")
    return data
