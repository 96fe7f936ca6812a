"""Who can see whom: for each value, which tokens its entries may depend on.

This is the abstract domain of the causality proof. An op's `reach` rule maps the reach of its operands to that of its
outputs; `passes.verify` walks the graph with it and refuses a function that declares itself causal and is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Constant:
    """Depends on no token."""


@dataclass(frozen=True)
class Tokens:
    """Entry t along `axis` depends on tokens up to its own time t and on no later one."""

    axis: int


@dataclass(frozen=True)
class Clock:
    """Entry t along `axis` is the time of token t itself, plus `ahead`. `far`: padding stands beyond all."""

    axis: int
    ahead: int = 0
    far: bool = False


@dataclass(frozen=True)
class Places:
    """Entry t along `axis` is where token t stands, as the caller says it: it depends on no token's content."""

    axis: int


@dataclass(frozen=True)
class Length:
    """How far the call goes: how many tokens there are, and nothing else of them.

    What reads it says so in its own rule, and is causal among calls of one length alone: an earlier output does not
    depend on what a later token is, but does on whether it is there.
    """


@dataclass(frozen=True)
class Allows:
    """A mask that is true only where the key's time is at most the query's."""

    query_axis: int
    key_axis: int


@dataclass(frozen=True)
class Leaks:
    """Some entry may depend on a later token; `why` says through what."""

    why: str


Reach = Constant | Tokens | Clock | Places | Length | Allows | Leaks


def along(reach: Reach) -> Reach:
    """A clock is also an ordinary value that stands at its own token, as long as it does not run ahead of it."""
    if isinstance(reach, Places):
        return Tokens(reach.axis)
    if isinstance(reach, Length):
        return Leaks("a value that changes with the length of the call")
    if isinstance(reach, Clock):
        return Tokens(reach.axis) if reach.ahead <= 0 and not reach.far else Leaks("a clock that runs ahead")
    return reach


@dataclass(frozen=True)
class Sides:
    """Which lengths of a call have the same frequencies: all up to `original`, and beyond it all, or each its own."""

    original: int
    grows: bool

    def of(self, length: int) -> int:
        """Lengths of one number are alike."""
        return max(length, self.original) if self.grows else int(length > self.original)

    def alike(self, lengths: Iterable[int]) -> bool:
        return len({self.of(length) for length in lengths}) <= 1
