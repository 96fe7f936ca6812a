"""How a key shrinks in a tiny twin: rules that a key states beside its type, and the sizes that they go by."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from blockc.source import ScalarNode, SequenceNode, Tree

SCALES = (0.75, 1.5)  # of branches and logits: what is scaled to nothing proves nothing
SOFTCAP = 2.0  # near the spread of random scores: a cap that bends nothing proves nothing
LENGTH = 16  # past which a rope scaled by length turns otherwise: runs are made of fewer tokens, and beyond it

Edits = dict[str, str | int | float]


@dataclass(frozen=True)
class Twin:
    """The sizes of a model and its twin that the keys of more than one part follow."""

    was: int  # the model's width
    width: int
    factor: Fraction  # of all heads
    grouped: bool  # whether any key-value head is read by several query heads
    by_length: bool  # whether a rope goes by the length of a call

    def of_heads(self, size: int) -> int:
        """A size that shrinks as heads do."""
        return max(1, int(size * self.factor))

    def of_width(self, size: int) -> int:
        """A size that keeps its ratio to the width."""
        return max(1, size * self.width // self.was)


class Rule:
    """What a key's value is in a twin. A key without a rule keeps its value."""

    def shrunk(self, value: Tree, twin: Twin) -> Tree | None:
        """The value as a tree; None where the twin has no such key."""
        raise NotImplementedError


class Number(Rule):
    """A rule of a number; a word in its place, such as none, stays."""

    def of(self, number: int | float, twin: Twin) -> int | float:
        raise NotImplementedError

    def shrunk(self, value: Tree, twin: Twin) -> Tree | None:
        if not isinstance(value, ScalarNode) or not isinstance(value.value, int | float):
            return value
        new = self.of(value.value, twin)
        return ScalarNode(new, value.place, str(new))


@dataclass(frozen=True)
class AtMost(Number):
    """So small that a short run crosses it, for what a run never crosses it never tests."""

    most: int | float

    def of(self, number: int | float, twin: Twin) -> int | float:
        return min(number, self.most)


@dataclass(frozen=True)
class Within(Number):
    """Neither so small nor so large that nothing else shows."""

    least: float
    most: float

    def of(self, number: int | float, twin: Twin) -> int | float:
        return min(max(number, self.least), self.most)


@dataclass(frozen=True)
class OfHeads(Number):
    """Shrinks as heads do."""

    def of(self, number: int | float, twin: Twin) -> int | float:
        return twin.of_heads(int(number))


@dataclass(frozen=True)
class OfWidth(Number):
    """Keeps its ratio to the width; unlike it, where they may not be equal."""

    unlike: bool = False

    def of(self, number: int | float, twin: Twin) -> int | float:
        size = twin.of_width(int(number))
        return size + (self.unlike and size == twin.width)


@dataclass(frozen=True)
class OnePerPair(Rule):
    """A list with a number for each pair that turns: as many fewer as heads are smaller, from all of the list."""

    def shrunk(self, value: Tree, twin: Twin) -> Tree | None:
        if not isinstance(value, SequenceNode):
            return value
        many, few = len(value.items), twin.of_heads(len(value.items))
        return SequenceNode(tuple(value.items[i * many // few] for i in range(few)), value.place)


@dataclass(frozen=True)
class Dropped(Rule):
    """What is said of the model, and not of its twin."""

    def shrunk(self, value: Tree, twin: Twin) -> Tree | None:
        return None
