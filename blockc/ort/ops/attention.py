"""Attention with its heads, rope and cache, as one kernel of onnxruntime computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from blockc.ir import Array, Arrays, Dim, OnnxBuilder, OnnxValue, Op, Sample, Type, dim, expect
from blockc.ir.reach import Allows, Constant, Leaks, Reach, Tokens, as_tokens
from blockc.ops.attention import Attention, Extend, MergeHeads, SplitHeads
from blockc.ops.base import rand
from blockc.ops.interleaved import RotaryInterleaved
from blockc.ops.rotary import Rotary, RotaryTable
from blockc.ops.sinks import SinkAttention
from blockc.ort.ops.rows import MICROSOFT, Lengths, RotaryRows, RowLengths

T = TypeVar("T")


@dataclass(frozen=True)
class GroupQueryAttention(Op):
    """y, key, value = join(attend([past, rotated k], [past, v])), with q and k split and rotated at their slots

    q (B, S, heads * d), k and v (B, S, kv_heads * d), the pasts (B, kv_heads, P, d), bias (B, 1, S, T) or by head
    (B, heads, S, T) if it is more than a mask, last (B), total (); with rope: slots (B, S), cos and sin (T, width/2);
    with sinks: sinks (heads) -> y (B, S, heads * d), the presents (B, kv_heads, T, d).
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None = None
    rotary: Rotary | None = None
    packed: bool = False  # queries, keys and values side by side in one operand: (B, S, (heads + 2 kv_heads) * d)
    biased: bool = False
    output_names = ("out", "key", "value")
    one_row = True

    def infer(self, *args: Type) -> tuple[Type, ...]:
        q, present, rest = _infer_outputs(self, args)
        bias = Type("float", (q.shape[0], dim(self.heads if self.biased else 1), q.shape[1], present.shape[2]))
        expect(rest[0] == bias, "the bias", bias, rest[0])
        return q, present, present

    def flops(self, *args: Type) -> Dim:
        return self.scratch(*args) * (4 * self.head_dim)

    def scratch(self, *args: Type) -> Dim:
        bias = args[3 if self.packed else 5].shape
        return bias[0] * bias[2] * bias[3] * self.heads

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        q, k, v, past_key, past_value, bias, _last, _total, *rest = _split_packed(self, args)
        rope, sinks = _split_sinks(self, rest)
        q = SplitHeads(self.heads, self.head_dim).numpy((q,), ())[0]
        k, v = (SplitHeads(self.kv_heads, self.head_dim).numpy((x,), ())[0] for x in (k, v))
        if self.rotary is not None:
            slots, cos, sin = rope
            q, k = (self.rotary.numpy((x, cos[slots], sin[slots]), ())[0] for x in (q, k))
        key, value = Extend().numpy((past_key, k), ())[0], Extend().numpy((past_value, v), ())[0]
        mixed = _attend(self, (q, key, value, bias if self.biased else bias == 0, *sinks), self.biased)
        return MergeHeads().numpy((mixed,), ())[0], key, value

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        args = (*args[:1], None, None, *args[1:]) if self.packed else args
        q, k, v, past_key, past_value, bias, last, total, *rest = args
        rope, sinks = _split_sinks(self, rest)
        slots, cos, sin = rope or (None, None, None)
        return g.ops(
            "GroupQueryAttention", 3, q, k, v, past_key, past_value, last, total, cos, sin, slots, bias, *sinks,
            domain=MICROSOFT, num_heads=self.heads, kv_num_heads=self.kv_heads, scale=self.scale,
            softcap=self.softcap or 0.0, do_rotary=int(self.rotary is not None),
            rotary_interleaved=self.rotary.interleaved if self.rotary else 0,
        )  # fmt: skip

    def shares(self) -> Mapping[int, int]:
        return _shares_of(self)

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        leaks = (Leaks("fused attention over something else than tokens"),) * 3
        q, k, v, past_key, past_value, bias, *_ = (*reaches[:1] * 3, *reaches[1:]) if self.packed else reaches
        held = all(as_tokens(reach) in (Tokens(1), Constant()) for reach in (q, k, v))
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

        def biased(made: Sample) -> Sample:
            assert isinstance(made.op, GroupQueryAttention)
            at, heads = (3 if made.op.packed else 5), made.op.heads
            bias = made.args[at] + rand(2, heads, 3, 3, seed=7)
            return Sample(replace(made.op, biased=True), (*made.args[:at], bias, *made.args[at + 1 :]))

        return (
            sample(4, 4, None, None),
            sample(4, 2, 0.8, None),
            sample(8, 2, None, Rotary),
            sample(4, 2, None, RotaryInterleaved),
            _pack_sample(sample(8, 2, None, Rotary)),
            biased(sample(4, 4, None, None)),
            biased(sample(4, 2, 0.8, Rotary)),
            biased(_pack_sample(sample(8, 2, None, None))),
            _add_sinks(sample(4, 2, None, Rotary)),
            _add_sinks(_pack_sample(sample(8, 2, None, None))),
        )


@dataclass(frozen=True)
class RowQueryAttention(Op):
    """y, key, value = attend(write(past, rotated k), write(past, v)): rows padded on the right, by their lengths

    q (B, S, heads * d), k and v (B, S, kv_heads * d), the pasts (B, kv_heads, P, d), last (B), total (); with rope: cos
    and sin (T, width/2); with sinks: sinks (heads). A row's new tokens are in its cache from `first` on, which is 0 in
    a prompt (S = T), else last + 1 - S. Query i sees the keys first + i - window < j <= first + i. A cache's numbers
    after a row's last token have no meaning.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None = None
    window: int | None = None
    rotary: Rotary | None = None
    packed: bool = False  # queries, keys and values side by side in one operand: (B, S, (heads + 2 kv_heads) * d)
    output_names = ("out", "key", "value")
    by_rows = True
    one_row = True

    def infer(self, *args: Type) -> tuple[Type, ...]:
        q, present, _ = _infer_outputs(self, args)
        return q, present, present

    def flops(self, *args: Type) -> Dim:
        return self.scratch(*args) * (4 * self.head_dim)

    def scratch(self, *args: Type) -> Dim:
        batch, tokens, _ = args[0].shape
        return batch * tokens * (args[1 if self.packed else 3].shape[2] + tokens) * self.heads

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        q, k, v, past_key, past_value, last, total, *rest = _split_packed(self, args)
        rope, sinks = _split_sinks(self, rest)
        tokens = q.shape[1]
        first = np.where(total == tokens, 0, last.astype(np.int64) + 1 - tokens)
        at = np.maximum(first[:, None] + np.arange(tokens), 0)
        q = SplitHeads(self.heads, self.head_dim).numpy((q,), ())[0]
        k, v = (SplitHeads(self.kv_heads, self.head_dim).numpy((x,), ())[0] for x in (k, v))
        if self.rotary is not None:
            cos, sin = rope
            q, k = (self.rotary.numpy((x, cos[at], sin[at]), ())[0] for x in (q, k))
        key, value = _write_tokens(past_key, k, at), _write_tokens(past_value, v, at)
        distance = at[:, None, :, None] - np.arange(key.shape[2])
        seen = (distance >= 0) & (distance < (self.window or 2**30))
        mixed = _attend(self, (q, key, value, seen, *sinks))
        return MergeHeads().numpy((mixed,), ())[0], key, value

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        rotary = int(self.rotary is not None)
        args = (*args[:1], None, None, *args[1:]) if self.packed else args
        rope, sinks = _split_sinks(self, args[7:])
        if sinks:
            rope = (*(rope or (None, None)), None, None)  # no slots and no bias before the sinks
        return g.ops(
            "GroupQueryAttention", 3, *args[:7], *rope, *sinks, domain=MICROSOFT, num_heads=self.heads,
            kv_num_heads=self.kv_heads, scale=self.scale, softcap=self.softcap or 0.0,
            local_window_size=self.window or -1, do_rotary=rotary,
            rotary_interleaved=self.rotary.interleaved if self.rotary else 0,
        )  # fmt: skip

    def shares(self) -> Mapping[int, int]:
        return _shares_of(self)

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        q, k, v, *pasts = ((*reaches[:1] * 3, *reaches[1:]) if self.packed else reaches)[:5]
        if all(as_tokens(reach) in (Tokens(1), Constant()) for reach in (q, k, v)) and set(pasts) == {Constant()}:
            return Tokens(1), Tokens(2), Tokens(2)
        return (Leaks("fused attention over something else than tokens"),) * 3

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        def sample(op: RowQueryAttention, past: int, mask: Array, tokens: int) -> Sample:
            batch = len(mask)
            q, *kv = (rand(batch, tokens, n * 16, seed=i) for i, n in enumerate((op.heads, *(op.kv_heads,) * 2)))
            tokens_before = (np.arange(past) < mask.sum(axis=1, keepdims=True) - tokens)[:, None, :, None]
            held = (rand(batch, op.kv_heads, past, 16, seed=i) * tokens_before for i in (3, 4))
            table = RotaryRows(RotaryTable(100.0, 8, 16)).numpy((mask,), ()) if op.rotary else ()
            return Sample(op, (q, *kv, *held, *RowLengths().numpy((mask,), ()), *table))

        whole, ragged = np.ones((2, 5), np.int64), np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
        return (
            sample(RowQueryAttention(4, 4, 16, 0.3), 0, whole, 5),
            sample(RowQueryAttention(4, 2, 16, 0.3, 0.8, 3), 0, whole, 5),
            sample(RowQueryAttention(8, 2, 16, 0.3, None, None, Rotary(16, 16)), 4, ragged, 1),
            sample(RowQueryAttention(4, 2, 16, 0.3, None, 2, RotaryInterleaved(16, 16)), 4, ragged, 1),
            sample(RowQueryAttention(4, 2, 16, 0.3, None, 2, Rotary(16, 16)), 3, whole[:1], 2),
            _pack_sample(sample(RowQueryAttention(8, 2, 16, 0.3, None, None, Rotary(16, 16)), 4, ragged, 1)),
            _add_sinks(sample(RowQueryAttention(4, 2, 16, 0.3, None, 3), 0, whole, 5)),
            _add_sinks(sample(RowQueryAttention(8, 2, 16, 0.3, None, 2, Rotary(16, 16)), 4, ragged, 1)),
            _add_sinks(
                _pack_sample(sample(RowQueryAttention(4, 4, 16, 0.3, None, None, Rotary(16, 16)), 3, whole[:1], 2))
            ),
        )


def _shares_of(op: GroupQueryAttention | RowQueryAttention) -> Mapping[int, int]:
    """The outputs that extend the pasts of keys and values in place."""
    key = 1 if op.packed else 3
    return {key: 1, key + 1: 2}


def _attend(op: GroupQueryAttention | RowQueryAttention, operands: Arrays, biased: bool = False) -> Array:
    """Attention of queries, keys, values and a mask, with sinks if they follow."""
    if len(operands) > 4:
        return SinkAttention(op.heads, op.kv_heads, op.scale).numpy(operands, ())[0]
    return Attention(op.heads, op.kv_heads, op.scale, op.softcap, biased).numpy(operands, ())[0]


def _split_sinks(op: GroupQueryAttention | RowQueryAttention, rest: Sequence[T]) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """(The operands of rope; the sinks), from the operands after those that every attention has."""
    rope = (3 if isinstance(op, GroupQueryAttention) else 2) if op.rotary else 0
    return tuple(rest[:rope]), tuple(rest[rope:])


def _write_tokens(past: Array, new: Array, at: Array) -> Array:
    """The past (B, heads, P, d), longer by S, with new tokens written at each row's own places (B, S)."""
    whole = np.concatenate((past, np.zeros_like(new)), axis=2)
    whole[np.arange(len(at))[:, None], :, at] = new.swapaxes(1, 2)
    return whole


def _infer_outputs(
    op: GroupQueryAttention | RowQueryAttention, args: tuple[Type, ...]
) -> tuple[Type, Type, tuple[Type, ...]]:
    """(Type of y; of a present; of the operands after the pasts). Checks queries, keys, values and sinks."""
    wide, narrow = op.heads * op.head_dim, op.kv_heads * op.head_dim
    flat, past, rest = (args[:1], args[1], args[3:]) if op.packed else (args[:3], args[3], args[5:])
    widths = (wide + 2 * narrow,) if op.packed else (wide, narrow, narrow)
    batch, tokens, _ = flat[0].shape
    wanted = tuple(Type("float", (batch, tokens, dim(width))) for width in widths)
    always = 3 if isinstance(op, GroupQueryAttention) else 2
    for sinks in _split_sinks(op, rest[always:])[1]:
        expect(op.softcap is None, "the softcap of scores with sinks", "none", op.softcap)
        expect(sinks == Type("float", (dim(op.heads),)), "the sinks", f"float[{op.heads}]", sinks)
    expect(flat == wanted, "queries, keys and values", ", ".join(map(str, wanted)), ", ".join(map(str, flat)))
    present = Type("float", (batch, dim(op.kv_heads), past.shape[2] + tokens, dim(op.head_dim)))
    return Type("float", (batch, tokens, dim(wide))), present, rest


def _split_packed(op: GroupQueryAttention | RowQueryAttention, args: Arrays) -> Arrays:
    if not op.packed:
        return args
    wide, narrow = op.heads * op.head_dim, op.kv_heads * op.head_dim
    return (*np.split(args[0], (wide, wide + narrow), axis=2), *args[1:])


def _pack_sample(sample: Sample) -> Sample:
    """The sample with queries, keys and values joined into one operand."""
    op = sample.op
    assert isinstance(op, GroupQueryAttention | RowQueryAttention)
    return Sample(replace(op, packed=True), (np.concatenate(sample.args[:3], axis=2), *sample.args[3:]))


def _add_sinks(sample: Sample) -> Sample:
    """The sample with a sink for each head."""
    op = sample.op
    assert isinstance(op, GroupQueryAttention | RowQueryAttention)
    return Sample(op, (*sample.args, rand(op.heads, seed=9)))
