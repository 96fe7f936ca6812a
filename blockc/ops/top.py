"""The likeliest tokens, found on the device of the logits, so that few numbers leave it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blockc.ir import Arrays, OnnxBuilder, OnnxValue, Op, Sample, TokenAxes, Type, dim, expect
from blockc.ops.base import last_axis, rand


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
