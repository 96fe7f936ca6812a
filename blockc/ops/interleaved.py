"""Rotary positions in the other pairing: neighbours (0, 1), (2, 3), ... instead of the two halves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blockc.ir import Type
from blockc.ops.base import Arrays, OnnxBuilder, OnnxValue, Op, Sample, TokenAxes, rand
from blockc.ops.position import Rotary


@dataclass(frozen=True)
class RotaryInterleaved(Op):
    """(a, b) -> (a cos - b sin, b cos + a sin): (B, H, S, head_dim), two of (B, S, width/2) -> (B, H, S, head_dim)

    a and b are the even and the odd ones of the first `width` coordinates; the rest stays as it is.  (GPT-J)
    """

    width: int
    head_dim: int

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return Rotary(self.width, self.head_dim).infer(*args)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        x, cos, sin = args[0], args[1][:, None], args[2][:, None]
        a, b = x[..., : self.width : 2], x[..., 1 : self.width : 2]
        turned = np.stack((a * cos - b * sin, b * cos + a * sin), axis=-1).reshape(*x.shape[:3], self.width)
        return (np.concatenate((turned, x[..., self.width :]), axis=-1),)

    @property
    def helpers(self) -> tuple[str, ...]:
        return (
            ("rotate_interleaved",)
            if self.width == self.head_dim
            else ("rotate_interleaved", "rotate_first_interleaved")
        )

    def torch(self, me: str, *args: str) -> str:
        if self.width == self.head_dim:
            return f"rotate_interleaved({', '.join(args)})"
        return f"rotate_first_interleaved({self.width}, {', '.join(args)})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        width = 0 if self.width == self.head_dim else self.width  # 0 is the operator's word for the whole head
        return [g.op("RotaryEmbedding", *args, rotary_embedding_dim=width, interleaved=1)]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((2, 1, 1), (2,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        def sample(width: int) -> Sample:
            angle = rand(2, 3, width // 2, seed=1)
            return Sample(RotaryInterleaved(width, 16), (rand(2, 5, 3, 16), np.cos(angle), np.sin(angle)))

        return sample(16), sample(4)
