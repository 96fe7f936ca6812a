"""Ops that the fusion pass puts in the place of several: what onnxruntime has one kernel for.

Each carries the oracle rule like any other, so that fused = unfused is proved in float64 before a kernel runs. They are
never emitted as PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blockc.ir import Dim, Param, Type, dim
from blockc.ir.reach import Allows, Constant, Leaks, Reach, Tokens, along
from blockc.ops.attention import Attention, Extend, MergeHeads, SplitHeads
from blockc.ops.base import Array, Arrays, OnnxBuilder, OnnxValue, Op, Sample, TokenAxes, expect, rand
from blockc.ops.interleaved import RotaryInterleaved
from blockc.ops.matrix import LayerNorm, RmsNorm
from blockc.ops.position import Rotary, RotaryTable

MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class SkipNorm(Op):
    """s = a + b, y = norm(s): (B, S, width) twice -> y, s"""

    norm: RmsNorm | LayerNorm
    output_names = ("normalised", "sum")

    def infer(self, *args: Type) -> tuple[Type, ...]:
        expect(args[0] == args[1], "what is added", args[0], args[1])
        return (*self.norm.infer(args[0]), args[0])

    def params(self) -> tuple[Param, ...]:
        return self.norm.params()

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        total = args[0] + args[1]
        return (*self.norm.numpy((total,), params), total)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        rms = isinstance(self.norm, RmsNorm)
        name = "SkipSimplifiedLayerNormalization" if rms else "SkipLayerNormalization"
        outputs = g.ops(name, 4, *args, *params, domain=MICROSOFT, epsilon=self.norm.eps)
        return outputs[0], outputs[3]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1, 1), (1, 1))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        args = (rand(2, 3, 8), rand(2, 3, 8, seed=1))
        return tuple(
            Sample(SkipNorm(norm), args)
            for norm in (RmsNorm(8, 1e-5), LayerNorm(8, 1e-5, True), LayerNorm(8, 1e-2, False))
        )


@dataclass(frozen=True)
class MaskBias(Op):
    """0 where the mask is true, `low` where it is not: (B, 1, S, T) -> (B, 1, S, T)

    -inf gives 0 for a row that sees nothing. A kernel that has no numbers for such a row is given a finite one: the
    row, which is padding, is then the mean of the values, and nobody reads it.
    """

    low: float = -np.inf

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (Type("float", args[0].shape),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (np.where(args[0], 0.0, self.low),)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Where", args[0], g.real(0.0), g.real(self.low))]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((2,), (2,))

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        return reaches

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        mask = np.tril(np.ones((2, 1, 3, 3), bool))
        return Sample(MaskBias(), (mask,)), Sample(MaskBias(-3e4), (mask,))


@dataclass(frozen=True)
class Slots(Op):
    """p = min(index, cumsum(attention_mask) - 1 + padding on the left), at the new tokens: (B, T), (B, S) -> (B, S)

    Where a token of a prompt lies in its row, if the prompt's real tokens follow one another. The kernel turns a prompt
    by this and not by position_ids, which comes to the same: a rotation shifted for a whole row leaves its scores.
    """

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (Type("int", args[1].shape),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        counted = np.cumsum(args[0], axis=1) - 1 + np.argmax(args[0], axis=1, keepdims=True)
        slots = np.clip(counted, 0, np.arange(args[0].shape[1]))
        return (slots[:, slots.shape[1] - args[1].shape[1] :],)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        zero, one = g.constant(np.array(0)), g.constant(np.array(1))
        padding = g.op("ArgMax", args[0], axis=1, keepdims=1, select_last_index=0)
        counted = g.op("Add", g.op("Sub", g.op("CumSum", args[0], one), one), padding)
        total = g.op("Squeeze", g.op("Shape", args[0], start=1, end=2), g.constant([0]))
        slots = g.op("Max", g.op("Min", counted, g.op("Range", zero, total, one)), zero)
        first = g.op("Neg", g.op("Shape", args[1], start=1, end=2))
        return [g.op("Slice", slots, first, g.constant([2**30]), g.constant([1]))]

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        # The padding on a row's left is known by the time its first real token comes.
        return (Tokens(1),) if along(reaches[0]) in (Tokens(1), Constant()) else (Leaks("slots of a value that leaks"),)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        mask = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
        return (Sample(Slots(), (mask, np.zeros((3, 3), np.int64))),)


@dataclass(frozen=True)
class Lengths(Op):
    """T - 1 for each row, and T: (B, T) -> (B), (). What the kernel asks of the keys; the bias says the rest."""

    output_names = ("last", "total")

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return Type("int32", args[0].shape[:1]), Type("int32", ())

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        rows, total = args[0].shape
        return np.full(rows, total - 1, np.int32), np.array(total, np.int32)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        total = g.op("Cast", g.op("Shape", args[0], start=1, end=2), to=6)
        last = g.op("Sub", total, g.constant(np.array([1], np.int32)))
        rows = g.op("Expand", last, g.op("Shape", args[0], start=0, end=1))
        return rows, g.op("Squeeze", total, g.constant([0]))

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        return Constant(), Constant()  # of the shape alone

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(Lengths(), (np.ones((2, 5), np.int64),)),)


@dataclass(frozen=True)
class RotaryRows(Op):
    """cos and sin of the rotary table at 0, 1, ..., T-1: (B, T) -> two of (T, pairs)"""

    table: RotaryTable
    output_names = ("cos", "sin")

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (Type("float", (args[0].shape[1], dim(self.table.pairs + self.table.still))),) * 2

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        cos, sin = self.table.numpy((np.arange(args[0].shape[1])[None],), ())
        return cos[0], sin[0]

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        total = g.op("Squeeze", g.op("Shape", args[0], start=1, end=2), g.constant([0]))
        positions = g.op("Range", g.constant(np.array(0)), total, g.constant(np.array(1)))
        turned = g.op("Unsqueeze", g.op("Cast", positions, to=1), g.constant([1]))
        angles = g.op("Mul", turned, g.constant(self.table.frequencies.astype(np.float32)))
        return [g.narrowed(g.op("Cos", angles)), g.narrowed(g.op("Sin", angles))]

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        return Constant(), Constant()  # of the shape alone

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(RotaryRows(RotaryTable(10000.0, 4, 8)), (np.ones((2, 5), np.int64),)),)


@dataclass(frozen=True)
class GroupQueryAttention(Op):
    """y, key, value = join(attend([past, turned k], [past, v])), with q and k split and turned at their slots

    q (B, S, heads * d), k and v (B, S, kv_heads * d), the pasts (B, kv_heads, P, d), bias (B, 1, S, T), last (B),
    total (), and with rope slots (B, S), cos and sin (T, width/2) -> (B, S, heads * d), presents (B, kv_heads, T, d).
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None = None
    rotary: Rotary | None = None
    output_names = ("out", "key", "value")

    def infer(self, *args: Type) -> tuple[Type, ...]:
        q, k, v, past, *_ = args
        batch, tokens, _ = q.shape
        total: Dim = past.shape[2] + tokens
        wide = Type("float", (batch, tokens, dim(self.heads * self.head_dim)))
        narrow = Type("float", (batch, tokens, dim(self.kv_heads * self.head_dim)))
        expect(q == wide, "queries", wide, q)
        expect((k, v) == (narrow, narrow), "keys and values", narrow, k)
        bias = Type("float", (batch, dim(1), tokens, total))
        expect(args[5] == bias, "the bias", bias, args[5])
        present = Type("float", (batch, dim(self.kv_heads), total, dim(self.head_dim)))
        return q, present, present

    def flops(self, *args: Type) -> Dim:
        return self.scratch(*args) * (4 * self.head_dim)

    def scratch(self, *args: Type) -> Dim:
        bias = args[5].shape
        return bias[0] * bias[2] * bias[3] * self.heads

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        q, k, v, past_key, past_value, bias, _last, _total, *rope = args
        q = SplitHeads(self.heads, self.head_dim).numpy((q,), ())[0]
        k, v = (SplitHeads(self.kv_heads, self.head_dim).numpy((x,), ())[0] for x in (k, v))
        if self.rotary is not None:
            slots, cos, sin = rope
            q, k = (self.rotary.numpy((x, cos[slots], sin[slots]), ())[0] for x in (q, k))
        key, value = Extend().numpy((past_key, k), ())[0], Extend().numpy((past_value, v), ())[0]
        attend = Attention(self.heads, self.kv_heads, self.scale, self.softcap)
        mixed = attend.numpy((q, key, value, bias == 0), ())[0]
        return MergeHeads().numpy((mixed,), ())[0], key, value

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        q, k, v, past_key, past_value, bias, last, total, *rope = args
        slots, cos, sin = rope or (None, None, None)
        return g.ops(
            "GroupQueryAttention", 3, q, k, v, past_key, past_value, last, total, cos, sin, slots, bias,
            domain=MICROSOFT, num_heads=self.heads, kv_num_heads=self.kv_heads, scale=self.scale,
            softcap=self.softcap or 0.0, do_rotary=int(self.rotary is not None),
            rotary_interleaved=self.rotary.interleaved if self.rotary else 0,
        )  # fmt: skip

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        leaks = (Leaks("fused attention over something else than tokens"),) * 3
        q, k, v, past_key, past_value, bias, *_ = reaches
        held = all(along(reach) in (Tokens(1), Constant()) for reach in (q, k, v))
        if not held or (past_key, past_value) != (Constant(), Constant()):
            return leaks
        return (Tokens(1), Tokens(2), Tokens(2)) if isinstance(bias, Allows) else leaks

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        def sample(heads: int, kv_heads: int, softcap: float | None, turn: type[Rotary] | None) -> Sample:
            flat = (rand(2, 3, heads * 16), *(rand(2, 3, kv_heads * 16, seed=i) for i in (1, 2)))
            empty = np.zeros((2, kv_heads, 0, 16))
            bias = np.where(np.tril(np.ones((3, 3), bool)), 0.0, -np.inf)[None, None].repeat(2, axis=0)
            lengths = Lengths().numpy((np.ones((2, 3), np.int64),), ())
            table = RotaryRows(RotaryTable(100.0, 8, 16)).numpy((np.ones((2, 3)),), ())
            rope: tuple[Array, ...] = (np.arange(3)[None].repeat(2, axis=0), *table) if turn else ()
            op = GroupQueryAttention(heads, kv_heads, 16, 0.3, softcap, turn(16, 16) if turn else None)
            return Sample(op, (*flat, empty, empty, bias, *lengths, *rope))

        return (
            sample(4, 4, None, None),
            sample(4, 2, 0.8, None),
            sample(8, 2, None, Rotary),
            sample(4, 2, None, RotaryInterleaved),
        )


FUSED: tuple[type[Op], ...] = (SkipNorm, MaskBias, Slots, Lengths, RotaryRows, GroupQueryAttention)
