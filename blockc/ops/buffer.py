"""Ops for a cache of fixed length: writing into it, and the positions of the tokens that are written.

The buffer pass inserts them. Like fused ops they are never emitted as PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from blockc.basics.opsets import BUFFERED
from blockc.ir import Arrays, OnnxBuilder, OnnxValue, Op, Sample, Type, expect
from blockc.ir.op import USUAL
from blockc.ir.reach import Clock, Constant, Leaks, Reach, Tokens, as_tokens
from blockc.ops.base import rand


@dataclass(frozen=True)
class Write(Op):
    """y = past with new at first[b], first[b] + 1, ...: (B, heads, M, d), (B, heads, S, d), (B) -> (B, heads, M, d)

    Along `axis`, which is 2 of keys and values in heads.
    """

    axis: int = field(default=2, metadata=USUAL)
    since = BUFFERED

    def infer(self, *args: Type) -> tuple[Type, ...]:
        past, new, first = args
        wanted = new.with_axis(self.axis, past.shape[self.axis])
        expect(past == wanted, "the past", wanted, past)
        expect(first == Type("int", past.shape[:1]), "where to write", Type("int", past.shape[:1]), first)
        return (past,)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        past, new, first = args
        whole = past.copy()
        at = first[:, None] + np.arange(new.shape[self.axis])
        np.moveaxis(whole, self.axis, 1)[np.arange(len(at))[:, None], at] = np.moveaxis(new, self.axis, 1)
        return (whole,)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("TensorScatter", *args, axis=self.axis)]

    def older(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        """ScatterElements with an index for each number."""
        past, new, first = args
        zero, one = g.constant(np.array(0)), g.constant(np.array(1))
        at = _slots(g, zero, one, g.op("Shape", new, start=self.axis, end=self.axis + 1), first)
        at = g.op("Unsqueeze", at, g.constant([*range(1, self.axis), self.axis + 1]))
        return [g.op("ScatterElements", past, g.op("Expand", at, g.op("Shape", new)), new, axis=self.axis)]

    def shares(self) -> Mapping[int, int]:
        return {0: 0}

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        past, new, first = reaches
        if (past, first) == (Constant(), Constant()) and as_tokens(new) in (Tokens(self.axis), Constant()):
            return (as_tokens(new),)
        return (Leaks("a cache written with a value that leaks"),)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        first = np.array([3, 0])
        flat = Sample(Write(1), (rand(2, 6, 5), rand(2, 2, 5, seed=1), first))
        return Sample(Write(), (rand(2, 3, 6, 5), rand(2, 3, 2, 5, seed=1), first)), flat


@dataclass(frozen=True)
class PositionsFrom(Op):
    """p = cumsum(attention_mask) - 1 at first[b], first[b] + 1, ...: (B, M), (B, S), (B) -> (B, S)"""

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (Type("int", args[1].shape),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        at = args[2][:, None] + np.arange(args[1].shape[1])
        return (np.take_along_axis(np.cumsum(args[0], axis=1) - 1, at, axis=1),)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        zero, one = g.constant(np.array(0)), g.constant(np.array(1))
        positions = g.op("Sub", g.op("CumSum", args[0], one), one)
        at = _slots(g, zero, one, g.op("Shape", args[1], start=1, end=2), args[2])
        return [g.op("GatherElements", positions, at, axis=1)]

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        counted = as_tokens(reaches[0]) in (Tokens(1), Constant()) and reaches[2] == Constant()
        return (Clock(1) if counted else Leaks("positions counted from a value that leaks"),)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        mask = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
        return (Sample(PositionsFrom(), (mask, np.zeros((2, 2), np.int64), np.array([3, 1]))),)


def _slots(g: OnnxBuilder, zero: OnnxValue, one: OnnxValue, tokens: OnnxValue, first: OnnxValue) -> OnnxValue:
    """first[b], first[b] + 1, ... for so many tokens, (1): (B, S)"""
    tokens = g.op("Squeeze", tokens, g.constant([0]))
    return g.op("Add", g.op("Unsqueeze", first, g.constant([1])), g.op("Range", zero, tokens, one))


BUFFER: tuple[type[Op], ...] = (Write, PositionsFrom)
