"""Frequencies of rotary positions, changed for a longer context than the model was trained at."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
from textwrap import fill, indent

import numpy as np

from blockc.ir import Array, Fact, OnnxBuilder, OnnxValue
from blockc.ir.reach import Sides


@dataclass(frozen=True)
class LinearScaling:
    """f' = f / factor: positions are squeezed into the original context  (Chen et al. 2023)"""

    factor: float
    kind = "linear"
    helpers = ()

    @property
    def figures(self) -> tuple[tuple[str, Fact], ...]:
        return (("factor", self.factor),)

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
    kind = "llama3"
    helpers = ("llama3_scaling",)

    @property
    def figures(self) -> tuple[tuple[str, Fact], ...]:
        blend = ("low_freq_factor", self.low), ("high_freq_factor", self.high)
        return ("factor", self.factor), *blend, ("original", self.original)

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
    kind = "yarn"
    helpers = ("yarn_scaling",)

    @property
    def figures(self) -> tuple[tuple[str, Fact], ...]:
        return (("factor", self.factor),)

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
    kind = "longrope"
    helpers = ("divided_frequencies",)

    @property
    def figures(self) -> tuple[tuple[str, Fact], ...]:
        return ()

    def numpy(self, frequencies: Array) -> Array:
        return frequencies / np.array(self.factors)

    def torch(self, frequencies: str) -> str:
        return f"divided_frequencies(\n    {frequencies},\n    {_list_text(self.factors)},\n)"


def _list_text(factors: tuple[float, ...]) -> str:
    return f"[\n{indent(fill(', '.join(map(repr, factors)) + ',', 80), ' ' * 8)}\n    ]"


@dataclass(frozen=True)
class LongropeByLength:
    """f_i' = f_i / short_i in a call of at most `original` tokens, f_i / long_i in a longer one  (Ding et al. 2024)"""

    original: int
    short: tuple[float, ...]
    long: tuple[float, ...]
    kind = "longrope"
    helpers = ("frequencies_by_length",)

    @property
    def figures(self) -> tuple[tuple[str, Fact], ...]:
        return ("original", self.original), ("long", self.long)

    def numpy(self, frequencies: Array, length: Array) -> Array:
        return frequencies / np.where(length > self.original, self.long, self.short)

    def torch(self, frequencies: str, length: str) -> str:
        return (
            f"frequencies_by_length(\n    {frequencies},\n    {length},\n    original={self.original},\n"
            f"    short={_list_text(self.short)},\n    long={_list_text(self.long)},\n)"
        )

    def onnx(self, g: OnnxBuilder, frequencies: Array, length: OnnxValue) -> OnnxValue:
        short, long = (g.constant((frequencies / np.array(f)).astype(np.float32)) for f in (self.short, self.long))
        return g.op("Where", g.op("Greater", length, g.constant(np.array(self.original))), long, short)

    @property
    def sides(self) -> Sides:
        return Sides(self.original, grows=False)


@dataclass(frozen=True)
class DynamicScaling:
    """f_i' = f_i g^(-2i/(over-2)), g = 1 + factor max(length - original, 0) / original: theta grown with the call

    So theta' = theta g^(over/(over-2)), and the slowest pair turns g times slower. Within the original context g is 1.
    """

    factor: float
    original: int
    over: int
    kind = "dynamic"
    helpers = ("grown_frequencies",)

    @property
    def figures(self) -> tuple[tuple[str, Fact], ...]:
        return ("factor", self.factor), ("original", self.original)

    def numpy(self, frequencies: Array, length: Array) -> Array:
        growth = 1 + self.factor / self.original * np.maximum(length - self.original, 0)
        return frequencies * growth ** self._powers(len(frequencies))

    def _powers(self, pairs: int) -> Array:
        return -2.0 * np.arange(pairs) / (self.over - 2)

    def torch(self, frequencies: str, length: str) -> str:
        return (
            f"grown_frequencies(\n    {frequencies},\n    {length},\n    factor={self.factor!r},\n"
            f"    original={self.original},\n    over={self.over},\n)"
        )

    def onnx(self, g: OnnxBuilder, frequencies: Array, length: OnnxValue) -> OnnxValue:
        original = g.constant(np.array(self.original))
        beyond = g.op("Sub", g.op("Max", length, original), original)
        step, one = (g.constant(np.array(x, np.float32)) for x in (self.factor / self.original, 1.0))
        growth = g.op("Add", g.op("Mul", g.op("Cast", beyond, to=1), step), one)
        powers = g.constant(self._powers(len(frequencies)).astype(np.float32))
        return g.op("Mul", g.op("Pow", growth, powers), g.constant(frequencies.astype(np.float32)))

    @property
    def sides(self) -> Sides:
        return Sides(self.original, grows=True)


# A rule by length reads how many tokens the longest row of the call has, past and new.
ByLength = LongropeByLength | DynamicScaling
Scaling = LinearScaling | Llama3Scaling | YarnScaling | LongropeScaling | ByLength
