"""Attention without a cache, on flat heads: all queries of a call and all its keys.

A key that is not seen has a finite bias, so a row that sees no key, which is padding, gives a mean of the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from blockc.ir import Array, Arrays, Dim, OnnxBuilder, OnnxValue, Op, Param, Sample, TokenAxes, Type, dim, expect
from blockc.ops.attention import Attention, MergeHeads, SplitHeads
from blockc.ops.base import rand
from blockc.ops.interleaved import RotaryInterleaved
from blockc.ops.rotary import Rotary
from blockc.ort.ops.rows import HIDDEN, MICROSOFT


@dataclass(frozen=True)
class FlatRotary(Op):
    """Rotary of each head: (B, S, heads * d), two of (B, S, width/2) -> (B, S, heads * d)"""

    rotary: Rotary
    heads: int
    since = 23

    def infer(self, *args: Type) -> tuple[Type, ...]:
        x, cos, sin = args
        width = dim(self.heads * self.rotary.head_dim)
        expect(x.shape[2] == width, "heads * head_dim of what is rotated", width, x.shape[2])
        table = Type("float", (*x.shape[:2], dim(self.rotary.width // 2)))
        expect((cos, sin) == (table, table), "the rotary table", table, f"{cos}, {sin}")
        return (x,)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        heads = SplitHeads(self.heads, self.rotary.head_dim).numpy(args[:1], ())
        return MergeHeads().numpy(self.rotary.numpy((*heads, *args[1:]), ()), ())

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        width = 0 if self.rotary.width == self.rotary.head_dim else self.rotary.width  # 0: the whole head
        said = {"num_heads": self.heads, "rotary_embedding_dim": width, "interleaved": self.rotary.interleaved}
        return [g.op("RotaryEmbedding", *args, **said)]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1, 1, 1), (1,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        def sample(rotary: Rotary) -> Sample:
            angle = rand(2, 3, rotary.width // 2, seed=1)
            return Sample(FlatRotary(rotary, 5), (rand(2, 3, 5 * 16), np.cos(angle), np.sin(angle)))

        return tuple(sample(turn(width, 16)) for turn in (Rotary, RotaryInterleaved) for width in (16, 4))


@dataclass(frozen=True)
class FlatAttention(Op):
    """y = join(softmax(cap(scale q k^T) + bias) v), with heads split inside

    q (B, S, heads * d), k and v (B, T, kv_heads * d), bias (B, 1 or heads, S, T) -> (B, S, heads * d)
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None = None
    since = 23

    def infer(self, *args: Type) -> tuple[Type, ...]:
        q, k, v, bias = args
        wide, narrow = (dim(count * self.head_dim) for count in (self.heads, self.kv_heads))
        keys = Type("float", (q.shape[0], k.shape[1], narrow))
        expect(q.shape[2] == wide, "queries", wide, q.shape[2])
        expect((k, v) == (keys, keys), "keys and values", keys, f"{k}, {v}")
        _expect_bias(bias, self.heads, q, k)
        return (q,)

    def flops(self, *args: Type) -> Dim:
        return self.scratch(*args) * (4 * self.head_dim)

    def scratch(self, *args: Type) -> Dim:
        return _count_scores(self.heads, args[0], args[1])

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (_attend(Attention(self.heads, self.kv_heads, self.scale, self.softcap, biased=True), *args),)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        heads = {"q_num_heads": self.heads, "kv_num_heads": self.kv_heads}
        return [g.op("Attention", *args, **heads, scale=self.scale, softcap=self.softcap or 0.0, is_causal=0)]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1, None, None, 2), (1,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        def sample(op: FlatAttention, by_head: bool) -> Sample:
            flat = (rand(2, 3, count * 16, seed=i) for i, count in enumerate((op.heads, op.kv_heads, op.kv_heads)))
            return Sample(op, (*flat, _sample_bias(op.heads if by_head else 1)))

        several = FlatAttention(4, 4, 16, 0.3), FlatAttention(4, 2, 16, 0.3), FlatAttention(4, 1, 16, 0.3, 0.8)
        return tuple(sample(op, by_head) for op in several for by_head in (False, True))


@dataclass(frozen=True)
class RealKeys(Op):
    """The attention mask in 32 bits: (B, S) -> (B, S)"""

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (Type("int32", args[0].shape),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (args[0].astype(np.int32),)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Cast", args[0], to=6)]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1,), (1,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(RealKeys(), (np.array([[0, 0, 1, 1], [1, 1, 1, 0]]),)),)


@dataclass(frozen=True)
class PackedAttention(Op):
    """y = join(softmax(scale q k^T + bias) v), [q k v] = x W + b: a matrix of three, and the attention of its product

    x (B, S, width) -> (B, S, heads * d). W (width, 3 * heads * d) is the transpose of the joined matrices of queries,
    keys and values. With `apart` the node has these as they are stored, and a session joins and transposes them when it
    opens the graph. The bias is the second operand, (B, 1 or heads, S, S); or that is a mask (B, S), `by_keys`, and the
    bias is 0 where it is 1, and HIDDEN where it is 0.
    """

    width: int
    heads: int
    head_dim: int
    scale: float
    bias: bool = False  # whether there is a b
    apart: bool = False
    by_keys: bool = False
    kernel = "Attention"

    def infer(self, *args: Type) -> tuple[Type, ...]:
        x, bias = args
        expect(x.shape[2] == dim(self.width), "the width read by attention", self.width, x.shape[2])
        if self.by_keys:
            expect(bias == Type("int32", x.shape[:2]), "the mask", Type("int32", x.shape[:2]), bias)
        else:
            _expect_bias(bias, self.heads, x, x)
        return (x.with_axis(2, self.heads * self.head_dim),)

    def params(self) -> tuple[Param, ...]:
        own = self.heads * self.head_dim
        if self.apart:
            weights = tuple(Param(f"{what}_weight", (own, self.width), "matrix") for what in "qkv")
            biases = tuple(Param(f"{what}_bias", (own,), "bias") for what in "qkv")
        else:
            weights = (Param("weight", (self.width, 3 * own), "matrix"),)
            biases = (Param("bias", (3 * own,), "bias"),)
        return (*weights, *biases) if self.bias else weights

    def flops(self, *args: Type) -> Dim:
        batch, tokens, _ = args[0].shape
        product = batch * tokens * (2 * self.width * 3 * self.heads * self.head_dim)
        return product + self.scratch(*args) * (4 * self.head_dim)

    def scratch(self, *args: Type) -> Dim:
        return _count_scores(self.heads, args[0], args[0])

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        if self.apart:
            params = (np.concatenate(params[:3]).T, *([np.concatenate(params[3:])] if self.bias else []))
        product = args[0] @ params[0]
        q, k, v = np.split(product + params[1] if self.bias else product, 3, axis=2)
        bias = np.where(args[1], 0, HIDDEN)[:, None, None] if self.by_keys else args[1]
        return (_attend(Attention(self.heads, self.heads, self.scale, biased=True), q, k, v, bias),)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        if self.apart:
            weight = g.op("Transpose", g.op("Concat", *params[:3], axis=0), perm=[1, 0])
            params = (weight, *([g.op("Concat", *params[3:], axis=0)] if self.bias else []))
        x, bias = args
        weights = params if self.bias else (*params, None)
        seen = (bias,) if self.by_keys else (None, None, bias)
        said = {"num_heads": self.heads, "qkv_hidden_sizes": [self.heads * self.head_dim] * 3}
        return [
            g.op(self.kernel, x, *weights, *seen, domain=MICROSOFT, **said, scale=self.scale, mask_filter_value=HIDDEN)
        ]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        op, x = PackedAttention(24, 4, 16, 0.3), rand(2, 3, 24)
        forms = (replace(op, bias=bias, apart=apart) for bias in (False, True) for apart in (False, True))
        mask = np.array([[0, 1, 1], [0, 0, 0]], np.int32)
        return (
            *(Sample(form, (x, _sample_bias(heads))) for form in forms for heads in (1, 4)),
            Sample(replace(op, bias=True, by_keys=True), (x, mask)),
        )


def _attend(op: Attention, q: Array, k: Array, v: Array, bias: Array) -> Array:
    """Attention of flat queries, keys and values."""
    counts, head_dim = (op.heads, op.kv_heads, op.kv_heads), q.shape[2] // op.heads
    heads = (SplitHeads(n, head_dim).numpy((x,), ())[0] for n, x in zip(counts, (q, k, v), strict=True))
    return MergeHeads().numpy(op.numpy((*heads, bias), ()), ())[0]


def _count_scores(heads: int, q: Type, k: Type) -> Dim:
    return q.shape[0] * q.shape[1] * k.shape[1] * heads


def _expect_bias(bias: Type, heads: int, q: Type, k: Type) -> None:
    wanted = [Type("float", (q.shape[0], dim(count), q.shape[1], k.shape[1])) for count in (1, heads)]
    expect(bias in wanted, "the bias", " or ".join(map(str, wanted)), bias)


def _sample_bias(heads: int) -> Array:
    """The bias of a row that begins with padding, and of a row of nothing else."""
    seen = np.array([[False, True, True], [False, False, False]])[:, None, None]
    return np.where(seen, rand(2, heads, 3, 3, seed=7), HIDDEN)
