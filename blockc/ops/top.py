"""Which logits leave the device: those of the last tokens, or of the likeliest ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blockc.ir import Arrays, OnnxBuilder, OnnxValue, Op, Sample, TokenAxes, Type, at_most, dim, expect
from blockc.ir.reach import Clock, Constant, Leaks, Reach
from blockc.ops.base import last_axis, rand


@dataclass(frozen=True)
class LastIndices(Op):
    """i[b, j] = max(last[b] - L + 1 + j, 0), L = min(S, count): (B, 1), (B, S) -> (B, L)

    The places of the last tokens of each row, the last one at the end. Of the second operand only the shape counts. In
    a row with fewer tokens than L, the places before theirs are of padding on the left, or 0 several times.
    """

    count: int

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (args[0].with_axis(1, at_most(args[1].shape[1], self.count)),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        last, positions = args
        return (np.maximum(last + np.arange(1 - min(positions.shape[1], self.count), 1), 0),)

    def torch(self, me: str, *args: str) -> str:
        few = f"min({args[1]}.shape[1], {self.count})"
        return f"({args[0]} + torch.arange(1 - {few}, 1, device={args[0]}.device)).clamp(min=0)"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        zero, one = g.constant(np.array(0)), g.constant(np.array(1))
        few = g.op("Min", g.op("Shape", args[1], start=1, end=2), g.constant([self.count]))
        first = g.op("Sub", one, g.op("Squeeze", few, g.constant([0])))
        return [g.op("Max", g.op("Add", args[0], g.op("Range", first, one, one)), zero)]

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        counted = reaches[0] == Constant() and isinstance(reaches[1], Clock)
        return (Constant(),) if counted else (Leaks("the last of something else than positions"),)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        last, positions = np.array([[4], [1]]), np.zeros((2, 5), np.int64)
        return tuple(Sample(LastIndices(count), (last, positions)) for count in (1, 3, 9))


@dataclass(frozen=True)
class Top(Op):
    """y = the k largest of x, i = where: (B, S, V) -> (B, S, k) in fp32, (B, S, k); of equal ones the first come first.

    The comparison is in fp32, which holds all numbers of fp16 and bf16: some runtimes have no kernel for those.
    """

    k: int

    output_names = ("values", "tokens")

    def infer(self, *args: Type) -> tuple[Type, ...]:
        width = last_axis(args[0]).value
        expect(args[0].dtype == "float" and (width is None or width >= self.k), "logits", f"{self.k} or more", args[0])
        shape = (*args[0].shape[:-1], dim(self.k))
        return Type("float32", shape), Type("int", shape)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        tokens = np.argsort(-args[0], axis=-1, kind="stable")[..., : self.k]
        return np.take_along_axis(args[0], tokens, axis=-1), tokens

    def torch(self, me: str, *args: str) -> str:
        return f"tuple(y[..., :{self.k}] for y in {args[0]}.float().sort(dim=-1, descending=True, stable=True))"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return g.ops("TopK", 2, g.widen(args[0]), g.constant([self.k]), axis=-1, largest=1, sorted=1)

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1,), (1, 1))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        equal = np.array([[[0.5, 2.0, -1.0, 2.0, 0.5, 2.0, 0.5, -3.0], [1.0] * 8]])
        return (
            Sample(Top(3), (rand(2, 3, 11),)),
            Sample(Top(1), (equal,)),
            Sample(Top(5), (equal,)),
            Sample(Top(8), (equal,)),
        )
