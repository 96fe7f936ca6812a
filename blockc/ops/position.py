"""Position as a value: who stands where, who sees whom, and the tables made from it.

Padding is a key at a position that no query reaches, so full, cached, chunked, windowed and padded runs are one rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import ClassVar

import numpy as np

from blockc.ir import Type, dim
from blockc.ir.reach import Allows, Clock, Constant, Leaks, Reach, Tokens, along
from blockc.ops.base import Array, Arrays, Elementwise, OnnxBuilder, OnnxValue, Op, Sample, TokenAxes, expect, rand
from blockc.ops.scaling import LinearScaling, Llama3Scaling, LongropeScaling, Scaling, YarnScaling

FAR = 2**30  # the position of padding: beyond every query


def _clock(reaches: tuple[Reach, ...], far: bool) -> tuple[Reach, ...]:
    """A running count of the mask up to t reads no later token."""
    reach = along(reaches[0])
    return (
        (Clock(1, far=far),)
        if reach in (Tokens(1), Constant())
        else (Leaks("positions counted from a value that leaks"),)
    )


@dataclass(frozen=True)
class QueryPositions(Op):
    """p = cumsum(attention_mask) - 1 at the new tokens: (B, T), (B, S) -> (B, S). The second operand says how many."""

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (Type("int", args[1].shape),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        positions = np.cumsum(args[0], axis=1) - 1
        return (positions[:, positions.shape[1] - args[1].shape[1] :],)

    @property
    def helpers(self) -> tuple[str, ...]:
        return ("query_positions",)

    def torch(self, me: str, *args: str) -> str:
        return f"query_positions({args[0]}, {args[1]}.shape[1])"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        positions = g.op("Sub", g.op("CumSum", args[0], g.constant(np.array(1))), g.constant(np.array(1)))
        first = g.op("Neg", g.op("Shape", args[1], start=1, end=2))
        return [g.op("Slice", positions, first, g.constant([FAR]), g.constant([1]))]

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        return _clock(reaches, far=False)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        mask = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 0, 1]])
        return (Sample(QueryPositions(), (mask, np.zeros((2, 3), np.int64))),)


@dataclass(frozen=True)
class KeyPositions(Op):
    """p = cumsum(attention_mask) - 1, and FAR where the mask is 0: (B, T) -> (B, T)"""

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return args

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (np.where(args[0] == 0, FAR, np.cumsum(args[0], axis=1) - 1),)

    @property
    def helpers(self) -> tuple[str, ...]:
        return ("key_positions",)

    def torch(self, me: str, *args: str) -> str:
        return f"key_positions({args[0]})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        positions = g.op("Sub", g.op("CumSum", args[0], g.constant(np.array(1))), g.constant(np.array(1)))
        padding = g.op("Equal", args[0], g.constant(np.array(0)))
        return [g.op("Where", padding, g.constant(np.array(FAR)), positions)]

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        return _clock(reaches, far=True)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(KeyPositions(), (np.array([[0, 0, 1, 1, 1], [1, 1, 1, 0, 1]]),)),)


@dataclass(frozen=True)
class Visible(Op):
    """mask = 0 <= q - k < window: (B, S), (B, T) -> (B, 1, S, T). Without a window: 0 <= q - k."""

    window: int | None = None
    output_names = ("mask",)

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (Type("bool", (args[0].shape[0], dim(1), args[0].shape[1], args[1].shape[1])),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        distance = args[0][:, None, :, None] - args[1][:, None, None, :]
        return ((distance >= 0) & (distance < (self.window or FAR)),)

    @property
    def helpers(self) -> tuple[str, ...]:
        return ("visible_within",) if self.window else ("visible",)

    def torch(self, me: str, *args: str) -> str:
        if self.window:
            return f"visible_within({self.window}, {args[0]}, {args[1]})"
        return f"visible({args[0]}, {args[1]})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        query = g.op("Unsqueeze", args[0], g.constant([1, 3]))
        key = g.op("Unsqueeze", args[1], g.constant([1, 2]))
        seen = g.op("GreaterOrEqual", query, key)
        if self.window is None:
            return [seen]
        near = g.op("Less", g.op("Sub", query, key), g.constant(np.array(self.window)))
        return [g.op("And", seen, near)]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1, None), (2,))

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        query, key = reaches
        if not (isinstance(query, Clock) and isinstance(key, Clock)):
            return (Leaks("a mask that is not made from positions"),)
        if query.far:
            return (Leaks("a query that stands where padding does"),)
        if query.ahead > key.ahead:
            return (Leaks(f"a mask shifted by {query.ahead - key.ahead}: a query sees later keys"),)
        return (Allows(2, 3),)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        query, key = np.array([[2, 3], [0, 1]]), np.array([[FAR, 0, 1, 2, 3], [FAR, FAR, FAR, 0, 1]])
        return Sample(Visible(), (query, key)), Sample(Visible(2), (query, key))


@dataclass(frozen=True)
class VisibleBothWays(Op):
    """mask = key is not padding: (B, S), (B, T) -> (B, 1, S, T). What an encoder sees."""

    output_names = ("mask",)

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (Type("bool", (args[0].shape[0], dim(1), args[0].shape[1], args[1].shape[1])),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        query, key = args[0][:, None, :, None], args[1][:, None, None, :]
        return (np.broadcast_to(key, np.broadcast_shapes(query.shape, key.shape)) < FAR,)

    @property
    def helpers(self) -> tuple[str, ...]:
        return ("visible_both_ways",)

    def torch(self, me: str, *args: str) -> str:
        return f"visible_both_ways({args[0]}, {args[1]})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        query = g.op("Unsqueeze", args[0], g.constant([1, 3]))
        real = g.op("Less", g.op("Unsqueeze", args[1], g.constant([1, 2])), g.constant(np.array(FAR)))
        return [g.op("And", real, g.op("GreaterOrEqual", query, query))]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1, None), (2,))

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        return (Leaks("a mask that sees both ways"),)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(VisibleBothWays(), (np.array([[0, 1], [-1, 0]]), np.array([[0, 1], [FAR, 0]]))),)


@dataclass(frozen=True)
class Shift(Elementwise):
    """y = x + by, of whole numbers: (B, S) -> (B, S)"""

    by: int

    def infer(self, *args: Type) -> tuple[Type, ...]:
        expect(args[0].dtype == "int", "what is shifted", "int", args[0])
        return args

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (args[0] + self.by,)

    def torch(self, me: str, *args: str) -> str:
        return f"{args[0]} + {self.by}"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Add", args[0], g.constant(np.array(self.by)))]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(Shift(2), (np.array([[0, 1, 2], [7, 8, 30]]),)),)


@dataclass(frozen=True)
class Sinusoidal(Op):
    """y[2i] = sin(p / 10000^(2i/width)), y[2i+1] = cos(same): (B, S), (B, S, width) -> (B, S, width)

    The second operand only says what the positions will be added to. Source: Vaswani et al. 2017.
    """

    width: int

    def infer(self, *args: Type) -> tuple[Type, ...]:
        expect(args[1] == Type("float", (*args[0].shape, dim(self.width))), "the stream", self.width, args[1])
        return (args[1],)

    @property
    def frequencies(self) -> Array:
        return 10000.0 ** (-np.arange(0, self.width, 2) / self.width)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        angles = args[0][..., None] * self.frequencies
        return (np.stack((np.sin(angles), np.cos(angles)), axis=-1).reshape(*args[0].shape, self.width),)

    @property
    def helpers(self) -> tuple[str, ...]:
        return ("sinusoidal",)

    def torch(self, me: str, *args: str) -> str:
        return f"sinusoidal({args[0]}, like={args[1]})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        # A sine shifted by a quarter turn is a cosine, but not to the last bit: the two are computed and interleaved.
        angles = _angles(g, args[0], self.frequencies)
        pairs = [g.op("Unsqueeze", g.op(f, angles), g.constant([3])) for f in ("Sin", "Cos")]
        shape = g.constant([0, 0, self.width])
        return [g.narrowed(g.op("Reshape", g.op("Concat", *pairs, axis=3), shape))]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1, 1), (1,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(Sinusoidal(8), (np.array([[0, 1, 2], [7, 8, 30]]), rand(2, 3, 8))),)


@dataclass(frozen=True)
class RotaryTable(Op):
    """cos, sin of p * theta^(-2i/over) for i < pairs: (B, S) -> two of (B, S, pairs)  (Su et al. 2021)

    `still` more pairs follow with frequency 0: they are part of the rotated width and stay as they are. cos and sin are
    multiplied by `amplitude`.
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

    @property
    def frequencies(self) -> Array:
        moving = float(self.theta) ** (-2.0 * np.arange(self.pairs) / self.over)
        scaled = self.scaling.numpy(moving) if self.scaling else moving
        return np.concatenate((scaled, np.zeros(self.still)))

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        angles = args[0][..., None] * self.frequencies
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
        text = f"rotary_frequencies({self.theta!r}, pairs={self.pairs}, over={self.over})"
        text = self.scaling.torch(text) if self.scaling else text
        text = f"still_pairs({text}, {self.still})" if self.still else text
        table = self.helpers[-1]
        given = f", {self.amplitude!r}" if self.amplitude is not None else ""
        if self.scaling or given:
            more = f"    {given[2:]},\n" if given else ""
            return f"{table}(\n    {args[0]},\n    {indent(text, '    ').lstrip()},\n{more})"
        return f"{table}({args[0]}, {text}{given})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        angles = _angles(g, args[0], self.frequencies)
        return [self.amplified(g, g.op(turn, angles)) for turn in ("Cos", "Sin")]

    def amplified(self, g: OnnxBuilder, turn: OnnxValue) -> OnnxValue:
        """A cosine or sine in fp32, as the table holds it."""
        if self.amplitude is not None:
            turn = g.op("Mul", turn, g.constant(np.array(self.amplitude, np.float32)))
        return g.narrowed(turn)

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1,), (1, 1))

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
        )


@dataclass(frozen=True)
class Rotary(Op):
    """(a, b) -> (a cos - b sin, b cos + a sin): (B, H, S, head_dim), two of (B, S, width/2) -> (B, H, S, head_dim)

    a is the first half of the first `width` coordinates, b their second half; the rest stays as it is.
    """

    width: int
    head_dim: int
    suffix: ClassVar[str] = ""  # of the helpers' names
    interleaved: ClassVar[int] = 0

    def infer(self, *args: Type) -> tuple[Type, ...]:
        x, cos, sin = args
        expect(x.shape[-1] == dim(self.head_dim), "head_dim of what is rotated", self.head_dim, x.shape[-1])
        expect(self.width <= self.head_dim, "the rotated width", f"at most head_dim {self.head_dim}", self.width)
        table = Type("float", (x.shape[0], x.shape[2], dim(self.width // 2)))
        expect(cos == table, "the table of cosines", table, cos)
        expect(sin == table, "the table of sines", table, sin)
        return (x,)

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

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((2, 1, 1), (2,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return turned(Rotary)


def turned(op: type[Rotary]) -> tuple[Sample, ...]:
    """A head turned as a whole, and in part."""

    def sample(width: int) -> Sample:
        angle = rand(2, 3, width // 2, seed=1)
        return Sample(op(width, 16), (rand(2, 5, 3, 16), np.cos(angle), np.sin(angle)))

    return sample(16), sample(4)


def _angles(g: OnnxBuilder, positions: OnnxValue, frequencies: Array) -> OnnxValue:
    """(B, S) int -> (B, S, R) in fp32, whatever the model's type: a position of 8192 has no place in half precision."""
    turned = g.op("Unsqueeze", g.op("Cast", positions, to=1), g.constant([2]))
    return g.op("Mul", turned, g.constant(frequencies.astype(np.float32)))
