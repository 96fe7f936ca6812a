"""Types of values, the parameters that nodes hold, and the error of a graph that is not valid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from blockc.basics.errors import BlockcError
from blockc.ir.dims import Dim, dim
from blockc.source import Place

Dtype = Literal["float", "float32", "int", "int32", "int8", "int4", "uint8", "bool"]


class GraphError(BlockcError):
    """A graph that is not valid: the message, and the place in the spec that it comes from, where known."""

    def __init__(self, message: str, place: Place | None = None, *, expected: str = "", got: str = "") -> None:
        super().__init__(message)
        self.place, self.expected, self.got = place, expected, got


@dataclass(frozen=True)
class Type:
    """What a value is: dtype (float is the model's own, int is int64, the others themselves), symbolic shape."""

    dtype: Dtype
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    def with_axis(self, axis: int, size: Dim | int) -> Type:
        return Type(self.dtype, (*self.shape[:axis], dim(size), *self.shape[axis + 1 :]))


def tensor(dtype: Dtype, *shape: Dim | int) -> Type:
    return Type(dtype, tuple(dim(size) for size in shape))


@dataclass(frozen=True)
class Param:
    """One tensor that a node owns, named relative to the function that holds it. Sharing a Param is tying.

    A `buffer` is not learned: it is held and stored like the others, and no parameter count has it.
    """

    name: str
    shape: tuple[int, ...]
    role: Literal["matrix", "table", "gain", "bias"]
    neutral: float = 0.0  # where an untrained model starts: 1 for a gain, 0 for a bias or for the gain of (1 + w)
    dtype: Dtype = "float"
    buffer: bool = False

    @property
    def size(self) -> int:
        total = 1
        for extent in self.shape:
            total *= extent
        return total

    @property
    def learned(self) -> int:
        """How many of its numbers count as parameters."""
        return 0 if self.buffer else self.size
