"""Frequencies of rotary positions, changed for a context longer than they were trained at."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
from textwrap import fill, indent

import numpy as np

from blockc.ops.base import Array


@dataclass(frozen=True)
class LinearScaling:
    """f' = f / factor: positions are squeezed into the original context  (Chen et al. 2023)"""

    factor: float
    helpers = ()

    def numpy(self, frequencies: Array) -> Array:
        return frequencies / self.factor

    def torch(self, frequencies: str) -> str:
        return f"{frequencies} / {self.factor!r}"


@dataclass(frozen=True)
class Llama3Scaling:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended  (Llama 3.1)

    f' = f where wavelength < original/high; f/factor where wavelength > original/low; else
    (1-s) f/factor + s f with s = (original/wavelength - low) / (high - low).
    """

    factor: float
    low: float
    high: float
    original: int
    helpers = ("llama3_scaling",)

    def numpy(self, frequencies: Array) -> Array:
        turns = self.original * frequencies / (2 * pi)  # within the original context
        smooth = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        return (1 - smooth) * frequencies / self.factor + smooth * frequencies

    def torch(self, frequencies: str) -> str:
        return (
            f"llama3_scaling(\n    {frequencies},\n    factor={self.factor!r},\n    low={self.low!r},\n"
            f"    high={self.high!r},\n    original={self.original},\n)"
        )


@dataclass(frozen=True)
class YarnScaling:
    """f_i' = f_i (1 - r) + f_i / factor r with r = (i - first) / (last - first), between 0 and 1  (Peng et al. 2023)

    Pairs up to `first` turn often within the original context and are kept, those from `last` on are stretched.
    """

    factor: float
    first: float
    last: float
    helpers = ("yarn_scaling",)

    def numpy(self, frequencies: Array) -> Array:
        room = max(self.last - self.first, 1e-3)  # a ramp without room is a step
        ramp = np.clip((np.arange(len(frequencies)) - self.first) / room, 0, 1)
        return frequencies * (1 - ramp) + frequencies / self.factor * ramp

    def torch(self, frequencies: str) -> str:
        return (
            f"yarn_scaling(\n    {frequencies},\n    factor={self.factor!r},\n    first={self.first!r},\n"
            f"    last={self.last!r},\n)"
        )


@dataclass(frozen=True)
class LongropeScaling:
    """f_i' = f_i / factors_i, a factor found for each pair  (Ding et al. 2024)"""

    factors: tuple[float, ...]
    helpers = ("divided_frequencies",)

    def numpy(self, frequencies: Array) -> Array:
        return frequencies / np.array(self.factors)

    def torch(self, frequencies: str) -> str:
        listed = indent(fill(", ".join(map(repr, self.factors)) + ",", 80), " " * 8)
        return f"divided_frequencies(\n    {frequencies},\n    [\n{listed}\n    ],\n)"


Scaling = LinearScaling | Llama3Scaling | YarnScaling | LongropeScaling
