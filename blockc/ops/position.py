"""Positions as values, the masks computed from them, and sinusoidal tables.

Padding is a key at a position that no query reaches: one rule covers full, cached, chunked, windowed and padded runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from blockc.ir import Array, Arrays, Fact, OnnxBuilder, OnnxValue, Op, Sample, TokenAxes, Type, dim, expect
from blockc.ir.reach import Allows, Clock, Constant, Leaks, Length, Places, Reach, Tokens, as_tokens
from blockc.ops.base import Elementwise, rand
from blockc.ops.rotary import angles

FAR = 2**30  # the position of padding: beyond every query


def _clock(reaches: tuple[Reach, ...], far: bool) -> tuple[Reach, ...]:
    """A running count of the mask up to t reads no later token."""
    reach = as_tokens(reaches[0])
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
class Longest(Op):
    """length = max(positions) + 1, of the whole batch: (B, S) -> ()"""

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (Type("int", ()),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (np.array(args[0].max() + 1),)

    @property
    def helpers(self) -> tuple[str, ...]:
        return ("longest",)

    def torch(self, me: str, *args: str) -> str:
        return f"longest({args[0]})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Add", g.op("ReduceMax", args[0], keepdims=0), g.constant(np.array(1)))]

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        placed = isinstance(reaches[0], Clock | Places)
        return (Length() if placed else Leaks("the largest of numbers that are not positions"),)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(Longest(), (np.array([[0, 1, 2], [7, 8, 30]]),)),)


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

    def figures(self, *args: Type) -> Iterable[tuple[str, Fact]]:
        return ("attention.window", self.window), ("attention.alibi.max_bias", None)

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

    def absent(self) -> str:
        return "causal" if self.window is None else ""

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
    """mask = key is not padding, and |q - k| <= each_side where that is said: (B, S), (B, T) -> (B, 1, S, T)

    What an encoder sees.
    """

    each_side: int | None = None
    output_names = ("mask",)

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (Type("bool", (args[0].shape[0], dim(1), args[0].shape[1], args[1].shape[1])),)

    def figures(self, *args: Type) -> Iterable[tuple[str, Fact]]:
        return (("attention.window.each_side", self.each_side),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        query, key = args[0][:, None, :, None], args[1][:, None, None, :]
        real = np.broadcast_to(key, np.broadcast_shapes(query.shape, key.shape)) < FAR
        return (real if self.each_side is None else real & (np.abs(query - key) <= self.each_side),)

    @property
    def helpers(self) -> tuple[str, ...]:
        return ("visible_both_ways",) if self.each_side is None else ("visible_each_side",)

    def torch(self, me: str, *args: str) -> str:
        if self.each_side is None:
            return f"visible_both_ways({args[0]}, {args[1]})"
        return f"visible_each_side({self.each_side}, {args[0]}, {args[1]})"

    def absent(self) -> str:
        return "whole" if self.each_side is None else ""

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        """Padding stands FAR from every query, so that a window hides it too."""
        query, key = g.op("Unsqueeze", args[0], g.constant([1, 3])), g.op("Unsqueeze", args[1], g.constant([1, 2]))
        if self.each_side is not None:
            distance = g.op("Abs", g.op("Sub", query, key))
            return [g.op("LessOrEqual", distance, g.constant(np.array(self.each_side)))]
        real = g.op("Less", key, g.constant(np.array(FAR)))
        return [g.op("And", real, g.op("GreaterOrEqual", query, query))]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1, None), (2,))

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        return (Leaks("a mask that sees both ways"),)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        few = np.array([[0, 1], [-1, 0]]), np.array([[0, 1], [FAR, 0]])
        many = np.array([[0, 1, 2, 3, 4]]), np.array([[0, 1, 2, 3, FAR]])
        return Sample(VisibleBothWays(), few), Sample(VisibleBothWays(1), few), Sample(VisibleBothWays(2), many)


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
        turns = angles(g, args[0], g.constant(self.frequencies.astype(np.float32)))
        pairs = [g.op("Unsqueeze", g.op(f, turns), g.constant([3])) for f in ("Sin", "Cos")]
        shape = g.constant([0, 0, self.width])
        return [g.narrow(g.op("Reshape", g.op("Concat", *pairs, axis=3), shape))]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1, 1), (1,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(Sinusoidal(8), (np.array([[0, 1, 2], [7, 8, 30]]), rand(2, 3, 8))),)
