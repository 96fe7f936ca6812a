"""How a key shrinks in a tiny twin: rules that a key states beside its type, and the sizes that they use."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from blockc.source import ScalarNode, SequenceNode, Tree

SCALES = (0.75, 1.5)  # of branches and logits: a branch scaled to nothing would not be tested
SOFTCAP = 2.0  # near the spread of random scores, so that the cap has an effect
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

    def scale_by_heads(self, size: int) -> int:
        """A size that shrinks as heads do."""
        return max(1, int(size * self.factor))

    def scale_by_width(self, size: int) -> int:
        """A size that keeps its ratio to the width."""
        return max(1, size * self.width // self.was)


class ShrinkRule:
    """The value of a key in a twin. A key without a rule keeps its value."""

    def shrink_value(self, value: Tree, twin: Twin) -> Tree | None:
        """The value as a tree; None where the twin has no such key."""
        raise NotImplementedError


class NumberRule(ShrinkRule):
    """A rule for a number; a word in its place, such as none, stays."""

    def shrink_number(self, number: int | float, twin: Twin) -> int | float:
        raise NotImplementedError

    def shrink_value(self, value: Tree, twin: Twin) -> Tree | None:
        if not isinstance(value, ScalarNode) or not isinstance(value.value, int | float):
            return value
        new = self.shrink_number(value.value, twin)
        return ScalarNode(new, value.place, str(new))


@dataclass(frozen=True)
class AtMost(NumberRule):
    """At most this, so that a short run crosses it: a limit that no run crosses is not tested."""

    most: int | float

    def shrink_number(self, number: int | float, twin: Twin) -> int | float:
        return min(number, self.most)


@dataclass(frozen=True)
class Within(NumberRule):
    """Between these, so that it neither hides the rest nor vanishes beside it."""

    least: float
    most: float

    def shrink_number(self, number: int | float, twin: Twin) -> int | float:
        return min(max(number, self.least), self.most)


@dataclass(frozen=True)
class OfHeads(NumberRule):
    """Shrinks as heads do."""

    def shrink_number(self, number: int | float, twin: Twin) -> int | float:
        return twin.scale_by_heads(int(number))


@dataclass(frozen=True)
class OfWidth(NumberRule):
    """Keeps its ratio to the width; unlike it, where they may not be equal."""

    unlike: bool = False

    def shrink_number(self, number: int | float, twin: Twin) -> int | float:
        size = twin.scale_by_width(int(number))
        return size + (self.unlike and size == twin.width)


@dataclass(frozen=True)
class OnePerPair(ShrinkRule):
    """A list with a number for each pair that turns: as many fewer as heads are smaller, from all of the list."""

    def shrink_value(self, value: Tree, twin: Twin) -> Tree | None:
        if not isinstance(value, SequenceNode):
            return value
        many, few = len(value.items), twin.scale_by_heads(len(value.items))
        return SequenceNode(tuple(value.items[i * many // few] for i in range(few)), value.place)


@dataclass(frozen=True)
class LeftOut(ShrinkRule):
    """A key that the twin does not have."""

    def shrink_value(self, value: Tree, twin: Twin) -> Tree | None:
        return None
