"""rope: queries and keys turned by angles that grow with the position, and how a longer context changes the angles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from blockc.diagnostics.meaning import ROPE_BANDS, ROPE_LENGTH, ROPE_LISTS, ROPE_ODD, ROPE_PART
from blockc.language.parts.base import Mark, Model, OrNone, Problem, Shared
from blockc.language.parts.numbers import AtLeastOne, Positive, PositiveFloat
from blockc.language.parts.twin import LENGTH, AtMost, OfHeads, OnePerPair
from blockc.ops import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongropeByLength,
    LongropeScaling,
    Rotary,
    RotaryInterleaved,
    RotaryTable,
    YarnScaling,
)
from blockc.ops import Scaling as ScalingRule

BANDS = 64  # the original context of a twin scaled by wavelength: its wavelengths then fall into all three bands
Factors = Annotated[tuple[PositiveFloat, ...], Field(strict=False)]


class Linear(Model):
    """All frequencies divided by factor: positions are squeezed into the original context."""

    type: Literal["linear"] = Field(description="linear: all frequencies divided by factor.")
    factor: PositiveFloat = Field(description="How much all wavelengths are stretched. A number above 0, such as 8.")

    def problems(self, theta: float, pairs: int) -> Iterator[Problem]:
        return iter(())

    def resolve(self) -> Linear:
        return self

    def rule(self, theta: float, over: int) -> LinearScaling:
        return LinearScaling(float(self.factor))


class Llama3(Model):
    """Frequencies stretched by wavelength, as Llama 3.1 does it."""

    type: Literal["llama3"] = Field(
        description="llama3: long wavelengths stretched by factor, short ones kept, a smooth passage between."
    )
    factor: PositiveFloat = Field(
        description="How much the longest wavelengths are stretched. A number above 0, such as 8."
    )
    low_freq_factor: PositiveFloat = Field(
        description="Wavelengths above original / this are stretched whole. A number above 0."
    )
    high_freq_factor: PositiveFloat = Field(
        description="Wavelengths below original / this are kept. A number above low_freq_factor."
    )
    original: Annotated[Positive, AtMost(BANDS)] = Field(
        description="Tokens of the context that the frequencies were trained at."
    )

    def problems(self, theta: float, pairs: int) -> Iterator[Problem]:
        if self.low_freq_factor >= self.high_freq_factor:
            yield Problem(
                ROPE_BANDS,
                ("high_freq_factor",),
                "the bands of wavelengths cross",
                f"more than low_freq_factor {self.low_freq_factor:g}",
                f"{self.high_freq_factor:g}",
                also=(("low_freq_factor", ("low_freq_factor",)),),
            )

    def resolve(self) -> Llama3:
        return self

    def rule(self, theta: float, over: int) -> Llama3Scaling:
        return Llama3Scaling(
            float(self.factor), float(self.low_freq_factor), float(self.high_freq_factor), self.original
        )


class Yarn(Model):
    """Pairs that turn often within the original context kept, those that turn seldom stretched, a ramp between.

    attention_factor multiplies cos and sin, and so the scores by its square. Source: Peng et al. 2023.
    """

    type: Literal["yarn"] = Field(
        description="yarn: pairs that turn beta_fast times or more within the original context kept, those that turn "
        "beta_slow times or less stretched by factor, a ramp between."
    )
    factor: PositiveFloat = Field(
        description="How much the longest wavelengths are stretched. A number above 0, such as 32."
    )
    original: Positive = Field(description="Tokens of the context that the frequencies were trained at.")
    beta_fast: PositiveFloat = Field(
        description="Turns within the original context from which a pair is kept. A number of at least beta_slow, "
        "such as 32."
    )
    beta_slow: PositiveFloat = Field(
        description="Turns within the original context up to which a pair is stretched whole. A number above 0, such "
        "as 1."
    )
    truncate: bool = Field(
        description="Whether the ramp starts and ends at whole pairs. true or false; there is no default."
    )
    attention_factor: Annotated[OrNone[PositiveFloat], Mark.LAST] = Field(
        default=None,
        description="Number that cosines and sines are multiplied by. Absent or none: 0.1 ln(factor) + 1, and 1 "
        "for a factor of at most 1.",
    )

    def problems(self, theta: float, pairs: int) -> Iterator[Problem]:
        if self.beta_fast < self.beta_slow:
            yield Problem(
                ROPE_BANDS,
                ("beta_fast",),
                "the bands of wavelengths cross",
                f"at least beta_slow {self.beta_slow:g}",
                f"{self.beta_fast:g}",
                also=(("beta_slow", ("beta_slow",)),),
            )
        if theta <= 1:
            message = "yarn tells pairs apart by their frequencies, which are alike"
            yield Problem(ROPE_BANDS, (), message, "a theta above 1", f"{theta:g}")

    def resolve(self) -> Yarn:
        derived = 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0
        return self.model_copy(update={"attention_factor": float(self.attention_factor or derived)})

    def rule(self, theta: float, over: int) -> YarnScaling:
        """The pairs that turn beta_fast and beta_slow times within the original context bound the ramp."""

        def pair(turns: float) -> float:
            at = over * math.log(self.original / (2 * math.pi * turns)) / (2 * math.log(theta))
            return min(max(at, 0.0), over - 1.0)

        first, last = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            first, last = float(math.floor(first)), float(math.ceil(last))
        return YarnScaling(float(self.factor), first, last)


class Longrope(Model):
    """Each pair's frequency divided by a factor of its own, from a list for short contexts or from one for long ones.

    by_length takes the short list for a call of at most `original` tokens, past and new, the long one for a longer one.
    attention_factor multiplies cos and sin, and so the scores by its square. Source: Ding et al. 2024.
    """

    type: Literal["longrope"] = Field(description="longrope: each pair's frequency divided by a factor of its own.")
    short: Annotated[OrNone[Factors], OnePerPair()] = Field(
        default=None,
        description="Factors for contexts up to the original one, a number above 0 for each pair that turns. "
        "Absent or none: there is no such list.",
    )
    long: Annotated[OrNone[Factors], OnePerPair()] = Field(
        default=None,
        description="Factors for longer contexts, a number above 0 for each pair that turns. Absent or none: "
        "there is no such list.",
    )
    choose: Literal["short", "long", "by_length"] = Field(
        description="The list that is used: short or long, and the other has no effect; or by_length, short in a call "
        "of at most original tokens, long in a longer one."
    )
    original: Annotated[OrNone[Positive], AtMost(LENGTH)] = Field(
        default=None,
        description="The most tokens, past and new, of a call that takes the short list; for choose: by_length, "
        "which needs it. Absent or none: one list for all lengths.",
    )
    attention_factor: Annotated[PositiveFloat, Mark.LAST] = Field(
        description="Number that cosines and sines are multiplied by. A number above 0."
    )

    def problems(self, theta: float, pairs: int) -> Iterator[Problem]:
        by_length = self.choose == "by_length"
        for key in ("short", "long") if by_length else (self.choose,):
            if getattr(self, key) is None:
                yield Problem(ROPE_LISTS, ("choose",), f"there is no list {key}", f"{key}: [...]")
        if by_length and self.original is None:
            expected = "original: the most tokens of a call that takes the short list"
            yield Problem(ROPE_LENGTH, ("choose",), "by_length must say its original", expected)
        if not by_length and self.original is not None:
            message = f"choose: {self.choose} takes one list for all lengths"
            yield Problem(ROPE_LENGTH, ("original",), message, "no original, or choose: by_length", str(self.original))
        for key in ("short", "long"):
            listed: tuple[float, ...] | None = getattr(self, key)
            if listed is not None and len(listed) != pairs:
                message = "a list of another length than there are pairs that turn"
                yield Problem(ROPE_LISTS, (key,), message, f"{pairs} numbers", str(len(listed)))

    def resolve(self) -> Longrope:
        """The list that is not chosen has no effect."""
        unread = {"long": "short", "short": "long"}.get(self.choose)
        return self.model_copy(update={unread: None} if unread else {})

    def rule(self, theta: float, over: int) -> LongropeScaling | LongropeByLength:
        short, long = (tuple(map(float, factors or ())) for factors in (self.short, self.long))
        if self.choose == "by_length":
            return LongropeByLength(self.original or 0, short, long)
        return LongropeScaling(short if self.choose == "short" else long)


class Dynamic(Model):
    """Theta grown with a call of more than `original` tokens, past and new; within, nothing is scaled.

    theta' = theta * (1 + factor * (length - original) / original) ^ (over / (over - 2)). Source: the NTK-aware scaling
    of Peng et al. 2023, made dynamic.
    """

    type: Literal["dynamic"] = Field(
        description="dynamic: theta grows with the tokens of a call beyond the original context."
    )
    factor: PositiveFloat = Field(
        description="How fast it grows: theta times (1 + factor * beyond / original) ^ (R / (R - 2)), R being the "
        "coordinates. A number above 0."
    )
    original: Annotated[Positive, AtMost(LENGTH)] = Field(
        description="Tokens of the context within which nothing is scaled. An integer below context."
    )

    def problems(self, theta: float, pairs: int) -> Iterator[Problem]:
        return iter(())

    def resolve(self) -> Dynamic:
        return self

    def rule(self, theta: float, over: int) -> DynamicScaling:
        return DynamicScaling(float(self.factor), self.original, over)


Scaling = Annotated[Linear | Llama3 | Yarn | Longrope | Dynamic, Field(discriminator="type")]


class Rope(Model):
    """`dims: N` turns the first N coordinates with frequencies over N; `pairs: N` the first N pairs, over head_dim."""

    theta: AtLeastOne = Field(
        description="Base of the frequencies theta^(-2i/n) of the pairs i, in radians a token. A number above 0, such "
        "as 10000."
    )
    pairing: Literal["half", "interleaved"] = Field(
        description="Which coordinates turn together. half: i and i + n/2. interleaved: 2i and 2i + 1."
    )
    dims: Annotated[OrNone[Positive], OfHeads()] = Field(
        default=None,
        description="Coordinates of a head that are turned, the first ones, with frequencies over this number; "
        "even. Absent or none: all.",
    )
    pairs: Annotated[OrNone[Positive], OfHeads()] = Field(
        default=None,
        description="Pairs that are turned, the first ones, with frequencies over head_dim. Absent or none: all.",
    )
    scaling: OrNone[Scaling] = Field(
        default=None, description="Frequencies changed for a longer context. Absent or none: as they are."
    )

    def problems(self, head_dim: int, context: int) -> Iterator[Problem]:
        if self.dims is not None and self.pairs is not None:
            both = "dims and pairs are two meanings of partial"
            yield Problem(ROPE_PART, ("pairs",), both, "one of them", also=(("dims", ("dims",)),))
            return
        for key, count, most in (("dims", self.dims, head_dim), ("pairs", self.pairs, head_dim // 2)):
            if count is not None and count > most:
                message = f"{key} is more than a head of {head_dim} has"
                yield Problem(ROPE_PART, (key,), message, f"at most {most}", str(count))
        width = self.dims if self.dims is not None else head_dim
        if width % 2:
            yield Problem(ROPE_ODD, ("dims",) if self.dims else (), "rope turns pairs", "an even width", str(width))
        for problem in self._scaling_problems(head_dim, context):
            yield problem.under("scaling")

    def _scaling_problems(self, head_dim: int, context: int) -> Iterator[Problem]:
        scaling = self.scaling
        if scaling is None:
            return
        yield from scaling.problems(self.theta, self.turning_pairs(head_dim))
        if isinstance(scaling, Dynamic) and self.width(head_dim) <= 2:
            message = "dynamic slows all pairs but the first, and one alone turns"
            yield Problem(ROPE_LENGTH, ("type",), message, "a wider head or rope", str(self.width(head_dim)))
        if self.original and self.original >= context:
            message, expected = "no call is longer than this, so that nothing is chosen", f"less than context {context}"
            hint = "say a longer context, or a scaling that does not go by length"
            yield Problem(ROPE_LENGTH, ("original",), message, expected, str(self.original), hint)

    def resolve(self, head_dim: int) -> Rope:
        """A part that is the whole head is no part."""
        whole = {"dims": head_dim, "pairs": head_dim // 2}
        derived: dict[str, object] = {key: None for key, all_ in whole.items() if getattr(self, key) == all_}
        return self.model_copy(update=derived | {"scaling": self.scaling.resolve() if self.scaling else None})

    def width(self, head_dim: int) -> int:
        return self.dims if self.dims is not None else head_dim

    def turning_pairs(self, head_dim: int) -> int:
        """How many pairs turn."""
        return self.pairs if self.pairs is not None else self.width(head_dim) // 2

    def rotary_op(self, head_dim: int) -> Rotary:
        """The halves against each other, or each even coordinate with the odd one after it."""
        op = {"half": Rotary, "interleaved": RotaryInterleaved}[self.pairing]
        return op(self.width(head_dim), head_dim)

    def table_op(self, head_dim: int) -> RotaryTable:
        width, moving = self.width(head_dim), self.turning_pairs(head_dim)
        rule: ScalingRule | None = self.scaling.rule(self.theta, width) if self.scaling else None
        return RotaryTable(float(self.theta), moving, width, width // 2 - moving, rule, self.amplitude)

    def shared_table(self, head_dim: int) -> Shared:
        """The cosines and sines, which layers that turn alike share."""
        table = self.table_op(head_dim)
        return Shared("rotary", table, ("position_ids",) if table.by_length is None else ("position_ids", "length"))

    @property
    def original(self) -> int | None:
        """The longest call in which a scaling by length changes nothing, if there is one."""
        return self.scaling.original if isinstance(self.scaling, Dynamic | Longrope) else None

    @property
    def amplitude(self) -> float | None:
        """What cos and sin are multiplied by, of a resolved part, where that is not 1."""
        factor = self.scaling.attention_factor if isinstance(self.scaling, Yarn | Longrope) else None
        return None if factor in (None, 1) else float(factor)
