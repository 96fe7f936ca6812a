"""Rotary positions in the other pairing: neighbours (0, 1), (2, 3), ... instead of the two halves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from blockc.ir import Arrays, OnnxBuilder, OnnxValue, Sample
from blockc.ops.rotary import Rotary, rotary_samples


@dataclass(frozen=True)
class RotaryInterleaved(Rotary):
    """(a, b) -> (a cos - b sin, b cos + a sin): (B, H, S, head_dim), two of (B, S, width/2) -> (B, H, S, head_dim)

    a and b are the even and the odd ones of the first `width` coordinates; the rest stays as it is.  (GPT-J)
    """

    suffix: ClassVar[str] = "_interleaved"
    interleaved: ClassVar[int] = 1

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        x, cos, sin = args[0], args[1][:, None], args[2][:, None]
        a, b = x[..., : self.width : 2], x[..., 1 : self.width : 2]
        turned = np.stack((a * cos - b * sin, b * cos + a * sin), axis=-1).reshape(*x.shape[:3], self.width)
        return (np.concatenate((turned, x[..., self.width :]), axis=-1),)

    def _pairs(self, g: OnnxBuilder, x: OnnxValue, half: int) -> Sequence[OnnxValue]:
        end, axis, step = g.constant([self.width]), g.constant([3]), g.constant([2])
        return [g.op("Slice", x, g.constant([first]), end, axis, step) for first in (0, 1)]

    def _join(self, g: OnnxBuilder, a: OnnxValue, b: OnnxValue, still: Sequence[OnnxValue]) -> OnnxValue:
        stacked = g.op("Concat", *(g.op("Unsqueeze", part, g.constant([4])) for part in (a, b)), axis=4)
        turned = g.op("Reshape", stacked, g.constant([0, 0, 0, self.width]))
        return g.op("Concat", turned, *still, axis=3) if still else turned

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return rotary_samples(RotaryInterleaved)
