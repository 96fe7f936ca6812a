"""Progress of long work, passed to a callback: the library itself prints nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]  # (what is being done, how much is done, of how much)


def no_progress(what: str, done: int, whole: int) -> None:
    """The default callback: it does nothing."""
