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
    """Entry t along `axis` is the position of token t as the caller gives it: it depends on no token's content."""

    axis: int


@dataclass(frozen=True)
class Length:
    """The number of tokens of the call, and nothing else about them.

    An op that reads it allows it in its own rule. It is causal only among calls of one length: an earlier output does
    not depend on what a later token is, but depends on whether there is one.
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


def as_tokens(reach: Reach) -> Reach:
    """The reach of a value that is used as an ordinary number: a clock is one unless it runs ahead of its token."""
    if isinstance(reach, Places):
        return Tokens(reach.axis)
    if isinstance(reach, Length):
        return Leaks("a value that changes with the length of the call")
    if isinstance(reach, Clock):
        return Tokens(reach.axis) if reach.ahead <= 0 and not reach.far else Leaks("a clock that runs ahead")
    return reach


@dataclass(frozen=True)
class Sides:
    """Which lengths of a call have the same frequencies: all up to `original`; beyond it, all or (`grows`) none."""

    original: int
    grows: bool

    def side_of(self, length: int) -> int:
        """A number that is equal for lengths with the same frequencies."""
        return max(length, self.original) if self.grows else int(length > self.original)

    def are_alike(self, lengths: Iterable[int]) -> bool:
        return len({self.side_of(length) for length in lengths}) <= 1
