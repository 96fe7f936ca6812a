"""Experts whose matrices are read from the file one expert after another, while the model runs to be calibrated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from blockc.ir import Array, Arrays, Function, Node, Op, Type, Value, node, transform
from blockc.ops import Experts
from blockc.weights.quantise import whole_rows

Rows = Callable[[str], Iterator[Array]]  # a parameter's numbers in their order, in pieces of any shape
Note = Callable[[str, Array], None]  # a matrix's path, and rows that it multiplies


@dataclass(frozen=True)
class StreamedExperts(Op):
    """y = what `experts` computes, whose parameters lie at `paths`: x, experts, weights -> (B, S, W)"""

    experts: Experts
    paths: tuple[str, ...]
    rows: Rows
    note: Note

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return self.experts.infer(*args)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        own = {param.name: param for param in self.experts.params()}
        paths = dict(zip(own, self.paths, strict=True))
        streams = {name: _Stream(self.rows(paths[name]), param.shape[1:]) for name, param in own.items()}

        def multiply(name: str, x: Array, e: int) -> Array:
            if len(x):
                self.note(paths[name], x)
            return streams[name].multiply(x, streams.get(f"{name}_bias"))

        every = range(self.experts.count)  # an expert that nobody chose is read too: its numbers come before the next
        return (self.experts.add_up(args, every, multiply),)


class _Stream:
    """The slices of a parameter along axis 0, read in order and a few rows at a time."""

    def __init__(self, pieces: Iterator[Array], shape: tuple[int, ...]) -> None:
        self.count, width = (shape[0], shape[1]) if len(shape) == 2 else (1, shape[0])
        self.rows = whole_rows(pieces, width)
        self.held = np.empty((0, width), np.float32)

    def multiply(self, x: Array, bias: _Stream | None) -> Array:
        """x slice^T + bias, by the next slice of each."""
        y = np.concatenate([x @ part.T for part in self._next()], axis=-1)
        return y if bias is None else y + np.concatenate(list(bias._next()))

    def _next(self) -> Iterator[Array]:
        left = self.count
        while left:
            if not len(self.held):
                self.held = next(self.rows)
            yield self.held[:left]
            left, self.held = left - len(self.held[:left]), self.held[left:]


def stream_experts(function: Function, rows: Rows, note: Note) -> Function:
    """The function with its experts read from the file: no parameter of theirs is held whole."""

    def rule(n: Node, inputs: tuple[Value, ...]) -> Node | None:
        if not isinstance(n.op, Experts):
            return None
        op = StreamedExperts(n.op, tuple(param.name for param in n.params), rows, note)
        return node(op, *inputs, name=n.name, place=n.place)

    return transform(function, rule)
