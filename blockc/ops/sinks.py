"""Attention sinks: each head has a learned logit that joins the softmax, and its weight is dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blockc.ir import Arrays, OnnxBuilder, OnnxValue, Op, Param, Sample, TokenAxes, Type, dim, expect
from blockc.ir.reach import Constant, Reach
from blockc.ops.attention import Attention
from blockc.ops.base import number_text, rand


@dataclass(frozen=True)
class Sinks(Op):
    """y = weight: (heads)"""

    heads: int

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (Type("float", (dim(self.heads),)),)

    def params(self) -> tuple[Param, ...]:
        return (Param("weight", (self.heads,), "bias"),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return params

    def declares(self) -> str | None:
        return f"Sinks({self.heads})"

    @property
    def helpers(self) -> tuple[str, ...]:
        return ("sinks",)

    def torch(self, me: str, *args: str) -> str:
        return f"{me}.weight"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Reshape", params[0], g.constant([self.heads]))]

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        return (Constant(),)  # of no token

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(Sinks(4), ()),)


@dataclass(frozen=True)
class SinkAttention(Attention):
    """y = softmax([scale * q k^T where mask, -inf elsewhere; sink]) [v; 0]: one key more, of value 0

    The operands of an attention without cap or bias, and sinks (heads). A row that sees nothing is 0.
    """

    def infer(self, *args: Type) -> tuple[Type, ...]:
        sinks = Type("float", (dim(self.heads),))
        expect(args[4] == sinks, "the sinks", sinks, args[4])
        return super().infer(*args[:4])

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        q, k, v, mask, sinks = args
        k, v = (np.repeat(x, self.heads // self.kv_heads, axis=1) for x in (k, v))
        scores, sink = q @ k.swapaxes(2, 3) * self.scale, sinks[None, :, None, None]
        peak = np.maximum(np.max(scores, axis=-1, keepdims=True, where=mask, initial=-np.inf), sink)
        weights = np.exp(scores - peak, where=mask, out=np.zeros_like(scores))
        return (weights @ v / (weights.sum(axis=-1, keepdims=True) + np.exp(sink - peak)),)

    @property
    def helpers(self) -> tuple[str, ...]:
        return ("sink_attention",)

    def torch(self, me: str, *args: str) -> str:
        return f"sink_attention({', '.join(args)}, scale={number_text(self.scale)})"

    def optional_operands(self) -> tuple[int, ...]:
        return ()

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        q, k, v, mask, sinks = args
        k, v = (g.op("Concat", x, self._zeros(g, x), axis=2) for x in (k, v))
        hidden = g.op("Where", mask, g.real(np.zeros((1, self.heads, 1, 1))), g.real(-np.inf))
        one = g.op("Expand", g.op("Reshape", sinks, g.constant([1, self.heads, 1, 1])), self._column(g, q))
        bias = g.op("Concat", hidden, one, axis=3)
        return [g.op("Attention", q, k, v, bias, scale=self.scale, is_causal=0)]

    def older(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        """One column more in the softmax, which is cut off behind it. Every row sees its sink."""
        q, k, v, mask, sinks = args
        scores = g.op("Where", mask, self._scores(g, q, k), g.real(-np.inf))
        sink = g.op("Expand", g.op("Reshape", sinks, g.constant([1, self.heads, 1, 1])), self._column(g, q))
        weights = g.op("Softmax", g.op("Concat", scores, sink, axis=3), axis=-1)
        keys = g.op("Slice", weights, g.constant([0]), g.constant([-1]), g.constant([3]))
        return [self._weigh(g, keys, v)]

    def _zeros(self, g: OnnxBuilder, x: OnnxValue) -> OnnxValue:
        """(B, kv_heads, 1, d)"""
        shape = g.op(
            "Concat", g.op("Shape", x, start=0, end=2), g.constant([1]), g.op("Shape", x, start=3, end=4), axis=0
        )
        return g.op("Expand", g.real(np.zeros((1, 1, 1, 1))), shape)

    def _column(self, g: OnnxBuilder, q: OnnxValue) -> OnnxValue:
        """(B, heads, S, 1)"""
        return g.op("Concat", g.op("Shape", q, start=0, end=3), g.constant([1]), axis=0)

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((2, None, None, 2, None), (2,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        mask = np.tril(np.ones((4, 6), bool), 1)[None, None].repeat(2, axis=0)
        mask[1, 0, 0] = False  # a row that sees nothing

        def sample(heads: int, kv_heads: int) -> Sample:
            k, v = rand(2, kv_heads, 6, 8, seed=1), rand(2, kv_heads, 6, 8, seed=2)
            args = (rand(2, heads, 4, 8), k, v, mask, rand(heads, seed=3))
            return Sample(SinkAttention(heads, kv_heads, 0.4), args)

        return sample(4, 4), sample(8, 2)
