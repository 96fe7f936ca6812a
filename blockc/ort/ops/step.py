"""Attention of one new token of each row, over a cache in buffers: products of one row a head.

A product of one row reads keys and values where they lie. A kernel for several rows, such as GroupQueryAttention's,
first copies the whole cache into an order of its own, at each call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from blockc.basics.opsets import BUFFERED
from blockc.ir import Array, Arrays, Dim, OnnxBuilder, OnnxValue, Op, Sample, Type, dim, expect
from blockc.ir.reach import Allows, Constant, Leaks, Reach, Tokens, as_tokens
from blockc.ops.base import rand
from blockc.ops.buffer import Write
from blockc.ops.interleaved import RotaryInterleaved
from blockc.ops.rotary import Rotary
from blockc.ort.ops.rows import HIDDEN, MICROSOFT


@dataclass(frozen=True)
class StepRows(Op):
    """cos', sin', at = rope's rows for q, k and v at once: two of (B, 1, R) -> two of (B N, R), (B, N)

    N = heads + 2 kv_heads. q's rows are scale cos and scale sin, k's cos and sin, v's 1 and 0, so that one rotation
    also multiplies q by the scale, and leaves v as it is. `at` is the row of each head.
    """

    heads: int
    kv_heads: int
    scale: float = 1.0
    output_names = ("cos", "sin", "at")

    @property
    def count(self) -> int:
        return self.heads + 2 * self.kv_heads

    def infer(self, *args: Type) -> tuple[Type, ...]:
        cos, sin = args
        expect(cos.shape[1] == dim(1), "the new tokens of a row", 1, cos.shape[1])
        expect(sin == cos, "the table of sines", cos, sin)
        rows = Type("float", (cos.shape[0] * self.count, cos.shape[2]))
        return rows, rows, Type("int", (cos.shape[0], dim(self.count)))

    def _of_heads(self, q: float, k: float, v: float) -> Array:
        """(N, 1): a number for each head."""
        return np.repeat((q, k, v), (self.heads, self.kv_heads, self.kv_heads))[:, None]

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        turned = self._of_heads(self.scale, 1, 0)
        cos, sin = args[0] * turned + self._of_heads(0, 0, 1), args[1] * turned
        at = np.arange(len(cos) * self.count, dtype=np.int64)
        return cos.reshape(len(at), -1), sin.reshape(len(at), -1), at.reshape(len(cos), self.count)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        turned = g.real(self._of_heads(self.scale, 1, 0))
        cos = g.op("Add", g.op("Mul", args[0], turned), g.real(self._of_heads(0, 0, 1)))
        cos, sin = (g.op("Flatten", x, axis=2) for x in (cos, g.op("Mul", args[1], turned)))
        rows = g.op("Squeeze", g.op("Shape", cos, start=0, end=1), g.constant([0]))
        at = g.op("Range", g.constant(np.array(0)), rows, g.constant(np.array(1)))
        return cos, sin, g.op("Reshape", at, g.constant([-1, self.count]))

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        """All rows are of the one new token."""
        held = all(as_tokens(reach) in (Tokens(1), Constant()) for reach in reaches)
        return (Constant() if held else Leaks("rows of a table that leaks"),) * 3

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        table = (rand(2, 1, 8), rand(2, 1, 8, seed=1))
        return Sample(StepRows(4, 2, 0.3), table), Sample(StepRows(3, 3), table)


@dataclass(frozen=True)
class GroupBias(Op):
    """A bias for heads in groups: (B, kv_heads * group, 1, M) -> (B, kv_heads, group, 1, M). One for all is 1 by 1."""

    kv_heads: int = 1
    group: int = 1

    def infer(self, *args: Type) -> tuple[Type, ...]:
        batch, heads, *rest = args[0].shape
        expect(heads == dim(self.kv_heads * self.group), "the heads of the bias", self.kv_heads * self.group, heads)
        return (Type("float", (batch, dim(self.kv_heads), dim(self.group), *rest)),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        batch, _, *rest = args[0].shape
        return (args[0].reshape(batch, self.kv_heads, self.group, *rest),)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Reshape", args[0], g.constant([0, self.kv_heads, self.group, 1, -1]))]

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        seen = reaches[0]
        if isinstance(seen, Allows):
            return (Allows(seen.query_axis + 1, seen.key_axis + 1),)
        return (Leaks("a bias that is not made from a mask"),)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return Sample(GroupBias(), (rand(2, 1, 1, 5),)), Sample(GroupBias(2, 3), (rand(2, 6, 1, 5),))


@dataclass(frozen=True)
class StepAttention(Op):
    """y, key, value = softmax(cap(scale q key^T) + bias) value, of one new token: key = write(past, k), value likewise

    q (B, 1, heads * d), k and v (B, 1, kv_heads * d), the pasts (B, kv_heads, M, d), bias (B, 1, 1, M) or by head
    (B, heads, 1, M) if it is more than a mask, the slots to write at (B); with rope: cos', sin', at of StepRows. Where
    heads share keys, the bias is a GroupBias, and the pasts are (B, kv_heads, 1, M, d), which is the same memory.
    q, k and v are rotated by their heads' rows -> y (B, 1, heads * d), the presents, shaped as the pasts.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float = 1.0
    softcap: float | None = None
    rotary: Rotary | None = None
    packed: bool = False  # queries, keys and values side by side in one operand: (B, 1, (heads + 2 kv_heads) * d)
    biased: bool = False
    output_names = ("out", "key", "value")
    since = BUFFERED

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.heads, self.kv_heads, self.kv_heads

    @property
    def axis(self) -> int:
        """The axis of the pasts along which they hold tokens."""
        return 3 if self.group > 1 else 2

    def past_type(self, batch: Dim, length: Dim) -> Type:
        shared = (1,) if self.group > 1 else ()
        return _floats(batch, self.kv_heads, *shared, length, self.head_dim)

    def infer(self, *args: Type) -> tuple[Type, ...]:
        flat, (key, value, bias, where, *rope) = (args[:1], args[1:]) if self.packed else (args[:3], args[3:])
        batch, length = key.shape[0], key.shape[-2]
        widths = [count * self.head_dim for count in self.counts]
        wanted = tuple(_floats(batch, 1, width) for width in ([sum(widths)] if self.packed else widths))
        expect(flat == wanted, "queries, keys and values", ", ".join(map(str, wanted)), ", ".join(map(str, flat)))
        past = self.past_type(batch, length)
        expect((key, value) == (past, past), "the pasts", past, f"{key}, {value}")
        by_head = (self.kv_heads, self.group) if self.biased else (1, 1)
        seen = _floats(batch, *(by_head if self.group > 1 else by_head[:1]), 1, length)
        expect(bias == seen, "the bias", seen, bias)
        expect(where == Type("int", (batch,)), "where to write", Type("int", (batch,)), where)
        if self.rotary is not None:
            cos, sin, at = rope
            rows = _floats(batch * sum(self.counts), self.rotary.width // 2)
            expect((cos, sin) == (rows, rows), "rows of the rotary table", rows, f"{cos}, {sin}")
            expect(at == Type("int", (batch, dim(sum(self.counts)))), "the rows of the heads", sum(self.counts), at)
        return _floats(batch, 1, widths[0]), past, past

    def flops(self, *args: Type) -> Dim:
        return self.scratch(*args) * (4 * self.head_dim)

    def scratch(self, *args: Type) -> Dim:
        past = args[1 if self.packed else 3].shape
        return past[0] * past[-2] * self.heads

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        x, (past_key, past_value, bias, where, *rope) = self._join_heads(args)
        if self.rotary is not None:
            cos, sin, at = rope
            x = self.rotary.numpy((x, cos[at], sin[at]), ())[0]
        q, k, v = np.split(x.swapaxes(1, 2), np.cumsum(self.counts)[:2], axis=1)
        shape = past_key.shape
        held = (past.reshape(*shape[:2], *shape[-2:]) for past in (past_key, past_value))
        key, value = (Write().numpy((past, new, where), ())[0] for past, new in zip(held, (k, v), strict=True))
        keys, values = (np.repeat(each, self.group, axis=1) for each in (key, value))
        scores = self.scale * q @ keys.swapaxes(2, 3)
        if self.softcap is not None:
            scores = self.softcap * np.tanh(scores / self.softcap)
        scores = scores + bias.reshape(len(bias), -1, *bias.shape[-2:])
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = weights @ values / weights.sum(axis=-1, keepdims=True)
        return mixed.reshape(len(mixed), 1, -1), key.reshape(shape), value.reshape(shape)

    def _join_heads(self, args: Arrays) -> tuple[Array, Arrays]:
        """(The heads of queries, keys and values (B, 1, N, d); the other operands)."""
        flat, rest = (args[0], args[1:]) if self.packed else (np.concatenate(args[:3], axis=2), args[3:])
        return flat.reshape(len(flat), 1, -1, self.head_dim), rest

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        args = args if self.packed else (g.op("Concat", *args[:3], axis=2), *args[3:])
        x, past_key, past_value, bias, where, *rope = args
        ones = [1] * (self.axis - 1)
        x = g.op("Reshape", self._rotate(g, x, *rope), g.constant([0, -1, *ones, self.head_dim]))
        q, k, v = g.ops("Split", 3, x, g.constant(self.counts), axis=1)
        write = Write(self.axis)
        key, value = (write.onnx(g, (past, new, where), ())[0] for past, new in ((past_key, k), (past_value, v)))
        if self.scale != 1:
            q = g.op("Mul", q, g.real(self.scale))
        if self.group > 1:
            # With a row for each head of the group, (B, kv_heads, group, d), the product would copy keys and values.
            q = g.op("Reshape", q, g.constant([0, self.kv_heads, self.group, 1, self.head_dim]))
        scores = g.op("FusedMatMul", q, key, domain=MICROSOFT, transA=0, transB=1, alpha=1.0)
        if self.softcap is not None:
            scores = g.op("Tanh", g.op("Mul", scores, g.real(1 / self.softcap)))
            scores = g.op("Mul", scores, g.real(self.softcap))
        weights = g.op("Softmax", g.op("Add", scores, bias), axis=-1)
        return g.op("Reshape", g.op("MatMul", weights, value), g.constant([0, 1, -1])), key, value

    def _rotate(self, g: OnnxBuilder, x: OnnxValue, *rope: OnnxValue) -> OnnxValue:
        """The heads stand where the kernel expects tokens, so that each has a row of its own."""
        if self.rotary is None:
            return x
        cos, sin, at = rope
        part = self.rotary.width < self.head_dim
        named = {"num_heads": 1, "rotary_embedding_dim": self.rotary.width} if part else {}
        heads = g.op("Reshape", x, g.constant([0, 0, -1, self.head_dim]))
        return g.op(
            "RotaryEmbedding", heads, at, cos, sin, domain=MICROSOFT, interleaved=self.rotary.interleaved, **named
        )

    def shares(self) -> Mapping[int, int]:
        key = 1 if self.packed else 3
        return {key: 1, key + 1: 2}

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        flat, rest = (reaches[:1], reaches[1:]) if self.packed else (reaches[:3], reaches[3:])
        held = all(as_tokens(reach) in (Tokens(1), Constant()) for reach in flat)
        past_key, past_value, bias, *others = rest
        if held and {past_key, past_value, *others} == {Constant()} and isinstance(bias, Allows):
            return Tokens(1), Tokens(self.axis), Tokens(self.axis)
        return (Leaks("fused attention over something else than tokens"),) * 3

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        plain, shared = StepAttention(4, 4, 16, 0.3), StepAttention(6, 2, 16, 0.3)
        turned = replace(shared, scale=1.0, rotary=Rotary(16, 16))
        return (
            _sample(plain),
            _sample(replace(plain, softcap=0.8)),
            _sample(replace(plain, biased=True)),
            _sample(replace(plain, rotary=Rotary(16, 16))),
            _sample(shared),
            _sample(replace(shared, softcap=0.8, biased=True)),
            _sample(replace(shared, packed=True, biased=True)),
            _sample(turned),
            _sample(replace(turned, packed=True)),
            _sample(replace(turned, packed=True, rotary=RotaryInterleaved(16, 16), softcap=0.8)),
            _sample(replace(shared, packed=True, rotary=Rotary(8, 16))),
            _sample(replace(shared, rotary=RotaryInterleaved(8, 16))),
            _sample(replace(turned, packed=True), window=2),
            _sample(replace(turned, heads=4, kv_heads=1), window=2),
        )


def _floats(*shape: Dim | int) -> Type:
    return Type("float", tuple(map(dim, shape)))


def _sample(op: StepAttention, window: int = 9) -> Sample:
    """Two rows in a buffer of 9: one writes at 6 after padding in 0 and 1, the other at 3."""
    where, empty, places = np.array([6, 3]), np.array([2, 0]), np.arange(9)
    flat = [rand(2, 1, count * op.head_dim, seed=i) for i, count in enumerate(op.counts)]
    shared = (1,) if op.group > 1 else ()
    pasts = (rand(2, op.kv_heads, *shared, 9, op.head_dim, seed=i) for i in (3, 4))
    seen = (places <= where[:, None]) & (places >= empty[:, None]) & (places > where[:, None] - window)
    bias = np.where(seen, 0.0, HIDDEN)[:, None, None]
    if op.biased:
        bias = np.maximum(bias + rand(2, op.heads, 1, 9, seed=5), HIDDEN)
    if op.group > 1:
        bias = GroupBias(*((op.kv_heads, op.group) if op.biased else (1, 1))).numpy((bias,), ())[0]
    rope: Arrays = ()
    if op.rotary is not None:
        angle = rand(2, 1, op.rotary.width // 2, seed=6)
        rope = StepRows(op.heads, op.kv_heads, 0.3 / op.scale).numpy((np.cos(angle), np.sin(angle)), ())
    return Sample(op, (*([np.concatenate(flat, axis=2)] if op.packed else flat), *pasts, bias, where, *rope))
