"""One vector of all tokens: the pool of an encoder, and vectors of length 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from blockc.ir import Arrays, OnnxBuilder, OnnxValue, Op, Sample, Type, expect
from blockc.ops.base import rand

LEAST = 1e-12  # the least that a vector is divided by


@dataclass(frozen=True)
class Pool(Op):
    """y = x at the first or the last token whose mask is not 0, or the mean of x over these tokens

    (B, S, W), (B, S) -> (B, W). 0 for a row that has no such token.
    """

    type: Literal["first", "last", "mean"]

    def infer(self, *args: Type) -> tuple[Type, ...]:
        x, mask = args
        expect(mask == Type("int", x.shape[:2]), "the mask", x.shape[:2], mask)
        return (Type(x.dtype, (x.shape[0], x.shape[2])),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        x, mask = args[0], args[1] != 0
        if self.type == "mean":
            return ((x * mask[..., None]).sum(axis=1) / np.maximum(mask.sum(axis=1, keepdims=True), 1),)
        at = mask.argmax(axis=1) if self.type == "first" else mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
        rows = np.arange(len(x))
        return (x[rows, at] * mask[rows, at][:, None],)

    @property
    def helpers(self) -> tuple[str, ...]:
        return ("mean_of_tokens",) if self.type == "mean" else (f"{self.type}_token",)

    def torch(self, me: str, *args: str) -> str:
        return f"{self.helpers[0]}({args[0]}, {args[1]})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        """A product of a row of weights with the tokens: 1 over their number at each, or 1 at one of them."""
        x, real = args[0], g.op("Cast", args[1], to=1)
        if self.type == "mean":
            count = g.op("ReduceSum", real, g.constant([1]), keepdims=1)
            weights = g.op("Div", real, g.op("Max", count, g.constant(np.array(1, np.float32))))
            row = g.op("Unsqueeze", g.narrow(weights), g.constant([1]))
            return [g.op("Squeeze", g.op("MatMul", row, x), g.constant([1]))]
        at = g.op("ArgMax", real, axis=1, keepdims=1, select_last_index=int(self.type == "last"))
        taken = g.op("GatherND", x, at, batch_dims=1)
        return [g.op("Mul", taken, g.narrow(g.op("GatherElements", real, at, axis=1)))]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        mask = np.array([[0, 1, 1, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
        return tuple(Sample(Pool(each), (rand(3, 5, 4), mask)) for each in ("first", "last", "mean"))


@dataclass(frozen=True)
class Unit(Op):
    """y = x / max(|x|, 1e-12), |x| the root of the sum of squares over the last axis: (B, W) -> (B, W)"""

    def infer(self, *args: Type) -> tuple[Type, ...]:
        expect(args[0].dtype == "float", "a vector", "float", args[0])
        return args

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        length = np.sqrt((args[0] ** 2).sum(axis=-1, keepdims=True))
        return (args[0] / np.maximum(length, LEAST),)

    def torch(self, me: str, *args: str) -> str:
        return f"F.normalize({args[0]}, dim=-1)"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        """In fp32: the sum of many squares is beyond fp16."""
        x = g.widen(args[0])
        length = g.op("Sqrt", g.op("ReduceSum", g.op("Mul", x, x), g.constant([-1]), keepdims=1))
        return [g.narrow(g.op("Div", x, g.op("Max", length, g.constant(np.array(LEAST, np.float32)))))]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        zero = rand(3, 8)
        zero[1] = 0
        return Sample(Unit(), (rand(2, 8),)), Sample(Unit(), (zero,))
