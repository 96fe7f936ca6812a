"""How far a long work is, said to whoever asked: the library itself prints nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]  # what is done; how much of it; of how much


def silent(what: str, done: int, whole: int) -> None:
    """Nobody asked."""
