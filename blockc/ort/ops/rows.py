"""Ops that all fused attentions of a graph share: the bias of the mask, the rows' lengths, the table of rope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blockc.ir import Arrays, OnnxBuilder, OnnxValue, Op, Sample, Sides, TokenAxes, Type, dim, expect
from blockc.ir.reach import Constant, Leaks, Length, Reach, Tokens, as_tokens
from blockc.ops.base import rand
from blockc.ops.rotary import RotaryTable
from blockc.ops.scaling import DynamicScaling, LinearScaling

MICROSOFT = "com.microsoft"
HIDDEN = -3e38  # the bias of a key that is not seen: finite, and no score changes it


@dataclass(frozen=True)
class MaskBias(Op):
    """0 where the mask is true, `low` where it is not: (B, 1, S, T) -> (B, 1, S, T)

    With -inf, a row that sees no key gives 0. A kernel that would give NaN there needs a finite `low`: the row, which
    is padding, then gives the mean of the values, and nothing reads it.
    """

    low: float = -np.inf

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (Type("float", args[0].shape),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (np.where(args[0], 0.0, self.low),)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Where", args[0], g.real(0.0), g.real(self.low))]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((2,), (2,))

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        return reaches

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        mask = np.tril(np.ones((2, 1, 3, 3), bool))
        return Sample(MaskBias(), (mask,)), Sample(MaskBias(-3e4), (mask,))


@dataclass(frozen=True)
class BoundedBias(Op):
    """y = max(x, low): (B, heads, S, T) -> (B, heads, S, T). A bias of -inf for a kernel that takes finite ones."""

    low: float

    def infer(self, *args: Type) -> tuple[Type, ...]:
        expect(args[0].dtype == "float", "a bias", "float", args[0])
        return args

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (np.maximum(args[0], self.low),)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Max", args[0], g.real(self.low))]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((2,), (2,))

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        return reaches

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        seen = np.tril(np.ones((2, 2, 3, 3), bool))
        return (Sample(BoundedBias(-3e4), (np.where(seen, rand(2, 2, 3, 3), -np.inf),)),)


@dataclass(frozen=True)
class Slots(Op):
    """p = min(index, cumsum(attention_mask) - 1 + padding on the left), at the new tokens: (B, T), (B, S) -> (B, S)

    The place of a prompt's token in its row, if the prompt's real tokens are adjacent. The kernel rotates a prompt by
    this instead of position_ids. The scores are the same, because shifting all positions of a row does not change them.
    """

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (Type("int", args[1].shape),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        counted = np.cumsum(args[0], axis=1) - 1 + np.argmax(args[0], axis=1, keepdims=True)
        slots = np.clip(counted, 0, np.arange(args[0].shape[1]))
        return (slots[:, slots.shape[1] - args[1].shape[1] :],)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        zero, one = g.constant(np.array(0)), g.constant(np.array(1))
        padding = g.op("ArgMax", args[0], axis=1, keepdims=1, select_last_index=0)
        counted = g.op("Add", g.op("Sub", g.op("CumSum", args[0], one), one), padding)
        total = g.op("Squeeze", g.op("Shape", args[0], start=1, end=2), g.constant([0]))
        slots = g.op("Max", g.op("Min", counted, g.op("Range", zero, total, one)), zero)
        first = g.op("Neg", g.op("Shape", args[1], start=1, end=2))
        return [g.op("Slice", slots, first, g.constant([2**30]), g.constant([1]))]

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        # The padding on a row's left is known by the time its first real token comes.
        return (
            (Tokens(1),)
            if as_tokens(reaches[0]) in (Tokens(1), Constant())
            else (Leaks("slots of a value that leaks"),)
        )

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        mask = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
        return (Sample(Slots(), (mask, np.zeros((3, 3), np.int64))),)


@dataclass(frozen=True)
class Lengths(Op):
    """T - 1 for each row, and T: (B, T) -> (B), (). The lengths that the kernel wants; the bias masks the rest."""

    output_names = ("last", "total")

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return Type("int32", args[0].shape[:1]), Type("int32", ())

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        rows, total = args[0].shape
        return np.full(rows, total - 1, np.int32), np.array(total, np.int32)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        total = g.op("Cast", g.op("Shape", args[0], start=1, end=2), to=6)
        last = g.op("Sub", total, g.constant(np.array([1], np.int32)))
        rows = g.op("Expand", last, g.op("Shape", args[0], start=0, end=1))
        return rows, g.op("Squeeze", total, g.constant([0]))

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        return Constant(), Constant()  # of the shape alone

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(Lengths(), (np.ones((2, 5), np.int64),)),)


@dataclass(frozen=True)
class RowLengths(Op):
    """The index of each row's last token, and T: (B, T) -> (B), (). For rows padded on the right."""

    output_names = ("last", "total")

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return Type("int32", args[0].shape[:1]), Type("int32", ())

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        last = args[0].sum(axis=1) - 1
        return last.astype(np.int32), np.array(args[0].shape[1], np.int32)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        tokens = g.op("ReduceSum", args[0], g.constant([1]), keepdims=0)
        last = g.op("Cast", g.op("Sub", tokens, g.constant(np.array(1))), to=6)
        total = g.op("Cast", g.op("Shape", args[0], start=1, end=2), to=6)
        return last, g.op("Squeeze", total, g.constant([0]))

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        # Only the number of tokens is read, so no token depends on the content of a later one.
        return Constant(), Constant()

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(RowLengths(), (np.array([[1, 1, 1, 0], [1, 1, 1, 1]]),)),)


@dataclass(frozen=True)
class RotaryRows(Op):
    """cos and sin of the rotary table at 0, 1, ..., T-1: (B, T) -> two (T, pairs). A table by length also reads ()."""

    table: RotaryTable
    output_names = ("cos", "sin")

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (Type("float", (args[0].shape[1], dim(self.table.pairs + self.table.still))),) * 2

    def sides(self) -> tuple[Sides, ...]:
        return self.table.sides()

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        cos, sin = self.table.numpy((np.arange(args[0].shape[1])[None], *args[1:]), ())
        return cos[0], sin[0]

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        total = g.op("Squeeze", g.op("Shape", args[0], start=1, end=2), g.constant([0]))
        positions = g.op("Range", g.constant(np.array(0)), total, g.constant(np.array(1)))
        turned = g.op("Unsqueeze", g.op("Cast", positions, to=1), g.constant([1]))
        angles = g.op("Mul", turned, self.table.lower_frequencies(g, *args[1:]))
        return [self.table.amplify(g, g.op(turn, angles)) for turn in ("Cos", "Sin")]

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        if reaches[1:] not in ((), (Length(),), (Constant(),)):
            return (Leaks("a table by something else than a length"),) * 2
        return Constant(), Constant()  # of the shape alone, and of the length

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        amplified = RotaryTable(10000.0, 4, 8, 0, LinearScaling(4.0), 1.5)
        dynamic = RotaryTable(10000.0, 4, 8, 0, DynamicScaling(4.0, 4, 8))
        mask = np.ones((2, 5), np.int64)
        return (
            Sample(RotaryRows(RotaryTable(10000.0, 4, 8)), (mask,)),
            Sample(RotaryRows(amplified), (mask,)),
            Sample(RotaryRows(dynamic), (mask, np.array(5))),
        )
