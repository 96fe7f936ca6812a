"""The ratios of two sides that were measured in turns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def compare(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """The median of the turns' own ratios, and an interval that holds it in 95 of 100 runs."""
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    out = outside(len(ratios))
    return {"ratio": statistics.median(ratios), "low": ratios[out], "high": ratios[-1 - out]}


def outside(count: int) -> int:
    """How many sorted ratios may be left out at either end of that interval, by the law of a fair coin."""
    tail, out = 0.0, 0
    while (tail := tail + math.comb(count, out) / 2**count) <= 0.025:
        out += 1
    return max(out - 1, 0)
