"""Attention with linear biases: how far a key is, as a number added to its score."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf, log2

import numpy as np

from blockc.ir import Array, Arrays, Fact, OnnxBuilder, OnnxValue, Op, Sample, TokenAxes, Type, dim, expect
from blockc.ir.reach import Reach
from blockc.ops.position import FAR, Visible


@dataclass(frozen=True)
class Alibi(Op):
    """y = -slope * (q - k) where 0 <= q - k < window, -inf elsewhere: (B, S), (B, T) -> (B, heads, S, T)

    Of n heads, a power of two, head h = 1, 2, ..., n has the slope 2^(-max_bias h/n). Where heads is no power of two, n
    is the next: the slopes of even h come first, those of odd h after them, and the first `heads` are taken. `scale`
    multiplies them.
    Source: Press et al. 2022, with its max_bias of 8.
    """

    heads: int
    max_bias: float
    window: int | None = None
    scale: float | None = None  # of the slopes
    output_names = ("bias",)

    def figures(self, *args: Type) -> Iterable[tuple[str, Fact]]:
        yield from (("attention.window", self.window), ("attention.alibi.max_bias", self.max_bias))
        yield "attention.alibi.scale", self.scale

    @property
    def seen(self) -> Visible:
        return Visible(self.window)

    @property
    def slopes(self) -> Array:
        n = 2 ** ceil(log2(self.heads))
        slopes = (self.scale or 1.0) * 2.0 ** (-self.max_bias * np.arange(1, n + 1) / n)
        return slopes if n == self.heads else np.concatenate((slopes[1::2], slopes[::2]))[: self.heads]

    def infer(self, *args: Type) -> tuple[Type, ...]:
        expect(args[0].dtype == args[1].dtype == "int", "positions", "int", args)
        return (Type("float", (args[0].shape[0], dim(self.heads), args[0].shape[1], args[1].shape[1])),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        distance = args[0][:, None, :, None] - args[1][:, None, None, :]
        return (np.where(self.seen.numpy(args, ())[0], -self.slopes[:, None, None] * distance, -inf),)

    @property
    def helpers(self) -> tuple[str, ...]:
        return (*self.seen.helpers, "alibi_slopes", "alibi")

    def constant(self) -> tuple[str, str] | None:
        return "slopes", f"alibi_slopes({self.heads}, {self.max_bias!r})"

    def torch(self, me: str, *args: str) -> str:
        given = f"{self.seen.torch('', *args)}, {', '.join(args)}, {me}"
        text = f"alibi({given})"
        return text if self.scale is None else f"{self.scale!r} * {text}"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        query, key = (g.op("Unsqueeze", x, g.constant(axes)) for x, axes in zip(args, ([1, 3], [1, 2]), strict=True))
        distance = g.op("Cast", g.op("Sub", query, key), to=1)  # in fp32: half precision has not all whole numbers
        bias = g.narrow(g.op("Mul", distance, g.constant(-self.slopes.astype(np.float32)[:, None, None])))
        return [g.op("Where", *self.seen.onnx(g, args, ()), bias, g.real(-inf))]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return self.seen.tokenwise(*args)

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        return self.seen.reach(types, reaches)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        query, key = np.array([[2, 3], [0, 1]]), np.array([[FAR, 0, 1, 2, 3], [FAR, FAR, FAR, 0, 1]])
        return (
            Sample(Alibi(4, 8.0), (query, key)),
            Sample(Alibi(6, 8.0), (query, key)),
            Sample(Alibi(1, 3.5, window=2), (query, key)),
            Sample(Alibi(4, 8.0, scale=0.25), (query, key)),
        )
