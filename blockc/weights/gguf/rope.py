"""How llama.cpp computes a scaled rope from the keys of a GGUF file.

f_i' = f_i / ff_i ((1 - m_i) / factor + m_i)       amplitude = attn_factor, with yarn times 1 + 0.1 ln(factor)

m_i is 0, except in yarn: there it falls from 1 to 0 between the pairs that make beta_fast and beta_slow turns within
the original context. ff are the factors of a tensor, else 1. A factor without a type is linear.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from blockc.ir import Array
from blockc.weights.gguf.figures import Rotation
from blockc.weights.gguf.keyvalue import CLOSE, KeyValue, value_text

AT = "rope.scaling."
FACTORS = ("rope.scaling.factor", "rope.scale_linear")  # the second in files of 2023
TYPES = ("none", "linear", "yarn")


@dataclass(frozen=True)
class RopeScaling:
    """The keys of a file that scale rope. `text` names them and their values, for messages."""

    text: str
    type: str
    factor: float
    original: float
    fast: float
    slow: float
    amplitude: float
    factors: tuple[float, ...] | None

    def differences(self, turned: Rotation, plain: bool) -> Iterator[str]:
        """A line for frequencies of the table that differ, and one for its amplitude. `plain` layers are not scaled."""
        table, pairs = turned.table, turned.width // 2
        if self.factors is not None and len(self.factors) != pairs and not plain:
            yield f"unlike: {self.text} has {len(self.factors)} factors, and the spec's rope {pairs} pairs"
            return
        unscaled = float(table.theta) ** (-2.0 * np.arange(pairs) / turned.width)
        wanted = np.ones(pairs) if plain else self.divisors(table.theta, turned.width)
        with np.errstate(divide="ignore"):
            found = unscaled / table.frequencies
        if not np.allclose(wanted, found, rtol=CLOSE, atol=0):
            i = int(np.argmin(np.isclose(wanted, found, rtol=CLOSE, atol=0)))
            spec = f"the spec's attention.rope.scaling by {_range_text(found, i)}"
            yield f"unlike: {self.text} divides the frequencies of rope by {_range_text(wanted, i)}, and {spec}"
        amplitude = 1.0 if plain else self.amplitude
        if not math.isclose(amplitude, table.factor, rel_tol=CLOSE):
            spec = f"the spec's by {value_text(table.factor)}"
            yield f"unlike: {self.text} multiplies what rope gives by {value_text(amplitude)}, and {spec}"

    def divisors(self, theta: float, width: int) -> Array:
        """The divisor of each pair's frequency."""
        kept = np.zeros(width // 2)
        if self.type == "yarn":
            first, last = (self._pair(turns, theta, width) for turns in (self.fast, self.slow))
            low, high = max(0, math.floor(first)), min(width - 1, math.ceil(last))
            kept = 1 - np.clip((np.arange(width // 2) - low) / max(0.001, high - low), 0, 1)
        return np.array(self.factors or 1.0) / ((1 - kept) / self.factor + kept)

    def _pair(self, turns: float, theta: float, width: int) -> float:
        """The pair that makes this many turns within the original context."""
        return width * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(theta))


def read_scaling(
    said: Mapping[str, KeyValue], factors: tuple[float, ...] | None, context: float | None
) -> tuple[RopeScaling | None, str]:
    """(The scaling of rope in the file, or None; why that is not read.) `said` has the file's keys."""
    kind = said["rope.scaling.type"].value if "rope.scaling.type" in said else "linear"
    if kind not in TYPES:
        return None, f"not read: {said['rope.scaling.type'].name} is {value_text(kind)}, expected {', '.join(TYPES)}"
    numbers: dict[str, float] = {}
    for key, one in said.items():
        if key in FACTORS or (key.startswith(AT) and key != "rope.scaling.type"):
            if isinstance(one.value, bool) or not isinstance(one.value, int | float) or not 0 <= one.value < math.inf:
                return None, f"not read: {one.name} is {value_text(one.value)}, expected a number of 0 or more"
            numbers[key] = float(one.value)
    factor = next((numbers[key] for key in FACTORS if key in numbers), 0.0) or 1.0
    original = numbers.get(f"{AT}original_context_length") or context
    amplitude = numbers.get(f"{AT}attn_factor", 1.0)
    if kind == "none":
        factor = 1.0
    if kind == "yarn":
        amplitude *= 1 + 0.1 * math.log(factor) if factor > 1 else 1
    if kind == "yarn" and original is None:
        return None, f"not read: {said['rope.scaling.type'].name} is yarn, without the context that it was trained at"
    fast, slow = numbers.get(f"{AT}yarn_beta_fast") or 32.0, numbers.get(f"{AT}yarn_beta_slow") or 1.0
    text = _scaling_text(said, factors)
    return RopeScaling(text, kind, factor, original or 1.0, fast, slow, amplitude, factors), ""


def _scaling_text(said: Mapping[str, KeyValue], factors: tuple[float, ...] | None) -> str:
    """The keys that scale rope, with their values."""
    keys = [key for key in said if key in FACTORS or (key.startswith(AT) and said[key].value != "none")]
    parts = ["rope_freqs.weight"] if factors is not None else []
    parts += [f"{said[key].name} {value_text(said[key].value)}" for key in keys]
    return ", ".join(parts) or "the file's rope, which has no scaling,"


def _range_text(values: Array, i: int) -> str:
    """One number where all are equal; else the least, the largest and the one at i."""
    if np.allclose(values, values[0]):
        return value_text(float(values[0]))
    return f"{values.min():.4g} to {values.max():.4g} (by {values[i]:.5g} at pair {i})"
