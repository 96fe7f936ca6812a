"""Rotary positions: a table of angles by position, and queries and keys turned by it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import ClassVar

import numpy as np

from blockc.ir import Array, Arrays, Fact, OnnxBuilder, OnnxValue, Op, Sample, Sides, TokenAxes, Type, dim, expect
from blockc.ir.reach import Constant, Length, Reach
from blockc.ops.base import rand
from blockc.ops.scaling import (
    ByLength,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongropeByLength,
    LongropeScaling,
    Scaling,
    YarnScaling,
)


@dataclass(frozen=True)
class RotaryTable(Op):
    """cos, sin of p * theta^(-2i/over) for i < pairs: (B, S) -> two of (B, S, pairs)  (Su et al. 2021)

    `still` more pairs follow with frequency 0: they are part of the rotated width and stay as they are. cos and sin are
    multiplied by `amplitude`. A scaling by length reads the length of the call, (), as a second operand.
    """

    theta: float
    pairs: int
    over: int
    still: int = 0
    scaling: Scaling | None = None
    amplitude: float | None = None  # as it is where there is none
    output_names = ("cos", "sin")

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (Type("float", (*args[0].shape, dim(self.pairs + self.still))),) * 2

    def sides(self) -> tuple[Sides, ...]:
        return () if self.by_length is None else (self.by_length.sides,)

    def figures(self, *args: Type) -> Iterable[tuple[str, Fact]]:
        at, moving = "attention.rope", self.unscaled
        yield f"{at}.theta", self.theta
        yield f"{at}.scaling", tuple((moving / self.frequencies[: self.pairs]).tolist())
        yield f"{at}.scaling.type", self.scaling.kind if self.scaling else None
        yield f"{at}.scaling.attention_factor", self.factor
        for key, number in self.scaling.figures if self.scaling else ():
            yield f"{at}.scaling.{key}", number

    @property
    def unscaled(self) -> Array:
        return float(self.theta) ** (-2.0 * np.arange(self.pairs) / self.over)

    @property
    def by_length(self) -> ByLength | None:
        return self.scaling if isinstance(self.scaling, ByLength) else None

    @property
    def frequencies(self) -> Array:
        """The frequencies; for a scaling by length, those within the original context."""
        return self.at(np.array(0))

    def at(self, length: Array) -> Array:
        """The frequencies in a call of this length."""
        match self.scaling:
            case None:
                scaled = self.unscaled
            case LongropeByLength() | DynamicScaling() as rule:
                scaled = rule.numpy(self.unscaled, length)
            case rule:
                scaled = rule.numpy(self.unscaled)
        return np.concatenate((scaled, np.zeros(self.still)))

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        angles = args[0][..., None] * self.at(*args[1:] or (np.array(0),))
        return self.factor * np.cos(angles), self.factor * np.sin(angles)

    @property
    def helpers(self) -> tuple[str, ...]:
        scaling = self.scaling.helpers if self.scaling else ()
        still = ("still_pairs",) if self.still else ()
        amplified = ("amplified_rotary_table",) if self.amplitude is not None else ()
        return ("rotary_frequencies", *scaling, *still, "rotary_table", *amplified)

    @property
    def factor(self) -> float:
        return 1.0 if self.amplitude is None else self.amplitude

    def torch(self, me: str, *args: str) -> str:
        text, table = me, self.helpers[-1]
        given = f", {self.amplitude!r}" if self.amplitude is not None else ""
        if self.by_length is None:
            return f"{table}({args[0]}, {text}{given})"
        text = self._with_still(self.by_length.torch(text, *args[1:]))
        more = f"    {given[2:]},\n" if given else ""
        return f"{table}(\n    {args[0]},\n    {indent(text, '    ').lstrip()},\n{more})"

    def constant(self) -> tuple[str, str] | None:
        """The frequencies; for a scaling by length, those that it scales."""
        text = f"rotary_frequencies({self.theta!r}, pairs={self.pairs}, over={self.over})"
        match self.scaling:
            case LongropeByLength() | DynamicScaling():
                return "frequencies", text
            case None:
                return "frequencies", self._with_still(text)
            case rule:
                return "frequencies", self._with_still(rule.torch(text))

    def _with_still(self, text: str) -> str:
        """The pairs that turn, and those that do not."""
        if not self.still:
            return text
        if "\n" in text:
            return f"still_pairs(\n    {indent(text, '    ').lstrip()},\n    {self.still},\n)"
        return f"still_pairs({text}, {self.still})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        turns = angles(g, args[0], self.lower_frequencies(g, *args[1:]))
        return [self.amplify(g, g.op(turn, turns)) for turn in ("Cos", "Sin")]

    def lower_frequencies(self, g: OnnxBuilder, *length: OnnxValue) -> OnnxValue:
        """The frequencies in a call, (R,) in fp32."""
        if self.by_length is None:
            return g.constant(self.frequencies.astype(np.float32))
        moving = self.by_length.onnx(g, self.unscaled, *length)
        return g.op("Concat", moving, g.constant(np.zeros(self.still, np.float32)), axis=0) if self.still else moving

    def amplify(self, g: OnnxBuilder, turn: OnnxValue) -> OnnxValue:
        """A cosine or sine in fp32, times the amplitude, in the model's type."""
        if self.amplitude is not None:
            turn = g.op("Mul", turn, g.constant(np.array(self.amplitude, np.float32)))
        return g.narrow(turn)

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1, None)[: len(args)], (1, 1))

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        """The length of the call is the only thing about later tokens that an earlier one may depend on."""
        positions, *length = reaches
        if self.by_length is not None and length == [Length()]:
            return super().reach(types, (positions, Constant()))
        return super().reach(types, reaches)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        positions = np.array([[0, 1, 2], [7, 8, 30]])
        scaled = Llama3Scaling(8.0, 1.0, 4.0, 32)
        return (
            Sample(RotaryTable(10000.0, 4, 8), (positions,)),
            Sample(RotaryTable(10000.0, 2, 8, 2), (positions,)),
            Sample(RotaryTable(5.0, 8, 16, 0, scaled), (positions,)),
            Sample(RotaryTable(5.0, 4, 16, 4, LinearScaling(8.0)), (positions,)),
            Sample(RotaryTable(5.0, 8, 16, 0, YarnScaling(4.0, 1.5, 5.0), 1.25), (positions,)),
            Sample(RotaryTable(5.0, 2, 8, 2, LongropeScaling((1.5, 8.0)), 0.75), (positions,)),
            *(
                Sample(RotaryTable(5.0, 2, 8, still, rule, 0.75), (positions, np.array(length)))
                for rule in (LongropeByLength(16, (1.0, 1.5), (4.0, 8.0)), DynamicScaling(4.0, 16, 8))
                for length, still in ((16, 0), (17, 2), (31, 0))
            ),
        )


@dataclass(frozen=True)
class Rotary(Op):
    """(a, b) -> (a cos - b sin, b cos + a sin): (B, H, S, head_dim), two of (B, S, width/2) -> (B, H, S, head_dim)

    a is the first half of the first `width` coordinates, b their second half; the rest stays as it is.
    """

    width: int
    head_dim: int
    switch: ClassVar[str | None] = "rope"
    suffix: ClassVar[str] = ""  # of the helpers' names
    interleaved: ClassVar[int] = 0
    since = 23

    def infer(self, *args: Type) -> tuple[Type, ...]:
        x, cos, sin = args
        expect(x.shape[-1] == dim(self.head_dim), "head_dim of what is rotated", self.head_dim, x.shape[-1])
        expect(self.width <= self.head_dim, "the rotated width", f"at most head_dim {self.head_dim}", self.width)
        table = Type("float", (x.shape[0], x.shape[2], dim(self.width // 2)))
        expect(cos == table, "the table of cosines", table, cos)
        expect(sin == table, "the table of sines", table, sin)
        return (x,)

    def figures(self, *args: Type) -> Iterable[tuple[str, Fact]]:
        at = "attention.rope"
        yield from ((f"{at}.dims", self.width), (f"{at}.dims over head_dim", self.width / self.head_dim))
        yield f"{at}.pairing", "interleaved" if self.interleaved else "half"

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        x, cos, sin = args[0], args[1][:, None], args[2][:, None]
        a, b, rest = np.split(x, (self.width // 2, self.width), axis=-1)
        return (np.concatenate((a * cos - b * sin, b * cos + a * sin, rest), axis=-1),)

    @property
    def helpers(self) -> tuple[str, ...]:
        first = () if self.width == self.head_dim else (f"rotate_first{self.suffix}",)
        return (f"rotate{self.suffix}", *first)

    def torch(self, me: str, *args: str) -> str:
        if self.width == self.head_dim:
            return f"rotate{self.suffix}({', '.join(args)})"
        return f"rotate_first{self.suffix}({self.width}, {', '.join(args)})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        width = 0 if self.width == self.head_dim else self.width  # 0 is the operator's word for the whole head
        return [g.op("RotaryEmbedding", *args, rotary_embedding_dim=width, interleaved=self.interleaved)]

    def older(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        """In fp32, rounded once."""
        x, cos, sin = (g.widen(value) for value in args)
        cos, sin = (g.op("Unsqueeze", table, g.constant([1])) for table in (cos, sin))
        half, rest = self.width // 2, self.head_dim - self.width
        turning, *still = g.ops("Split", 2, x, g.constant([self.width, rest]), axis=3) if rest else [x]
        a, b = self._pairs(g, turning, half)
        real = g.op("Sub", g.op("Mul", a, cos), g.op("Mul", b, sin))
        imaginary = g.op("Add", g.op("Mul", b, cos), g.op("Mul", a, sin))
        return [g.narrow(self._join(g, real, imaginary, still))]

    def _pairs(self, g: OnnxBuilder, x: OnnxValue, half: int) -> Sequence[OnnxValue]:
        return g.ops("Split", 2, x, g.constant([half, half]), axis=3)

    def _join(self, g: OnnxBuilder, a: OnnxValue, b: OnnxValue, still: Sequence[OnnxValue]) -> OnnxValue:
        return g.op("Concat", a, b, *still, axis=3)

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((2, 1, 1), (2,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return rotary_samples(Rotary)


def rotary_samples(op: type[Rotary]) -> tuple[Sample, ...]:
    """A head turned as a whole, and in part."""

    def sample(width: int) -> Sample:
        angle = rand(2, 3, width // 2, seed=1)
        return Sample(op(width, 16), (rand(2, 5, 3, 16), np.cos(angle), np.sin(angle)))

    return sample(16), sample(4)


def angles(g: OnnxBuilder, positions: OnnxValue, frequencies: OnnxValue) -> OnnxValue:
    """(B, S) int -> (B, S, R) in fp32, whatever the model's type: a position of 8192 has no place in half precision."""
    return g.op("Mul", g.op("Unsqueeze", g.op("Cast", positions, to=1), g.constant([2])), frequencies)
