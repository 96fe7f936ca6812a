"""Heads, attention, and the ops that a cache and last-token logits add."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from blockc.ir import (
    Arrays,
    Dim,
    Fact,
    Grows,
    OnnxBuilder,
    OnnxValue,
    Op,
    Operand,
    Sample,
    State,
    TokenAxes,
    Type,
    dim,
    expect,
    product,
)
from blockc.ir.op import USUAL
from blockc.ir.reach import Allows, Clock, Constant, Leaks, Reach, Tokens, as_tokens
from blockc.ops.base import last_axis, number_text, rand


@dataclass(frozen=True)
class SplitHeads(Op):
    """(B, S, heads * head_dim) -> (B, heads, S, head_dim)"""

    heads: int
    head_dim: int

    def infer(self, *args: Type) -> tuple[Type, ...]:
        batch, tokens, width = args[0].shape
        expect(width == dim(self.heads * self.head_dim), "heads * head_dim", self.heads * self.head_dim, width)
        return (Type(args[0].dtype, (batch, dim(self.heads), tokens, dim(self.head_dim))),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        batch, tokens, _ = args[0].shape
        return (args[0].reshape(batch, tokens, self.heads, self.head_dim).transpose(0, 2, 1, 3),)

    def torch(self, me: str, *args: str) -> str:
        return f"{args[0]}.unflatten(2, (-1, {self.head_dim})).transpose(1, 2)"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        split = g.op("Reshape", args[0], g.constant([0, 0, self.heads, self.head_dim]))
        return [g.op("Transpose", split, perm=[0, 2, 1, 3])]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1,), (2,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(SplitHeads(2, 4), (rand(3, 5, 8),)),)


@dataclass(frozen=True)
class MergeHeads(Op):
    """(B, heads, S, head_dim) -> (B, S, heads * head_dim): the concatenated heads"""

    def infer(self, *args: Type) -> tuple[Type, ...]:
        batch, heads, tokens, head_dim = args[0].shape
        return (Type(args[0].dtype, (batch, tokens, heads * head_dim)),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        batch, heads, tokens, head_dim = args[0].shape
        return (args[0].transpose(0, 2, 1, 3).reshape(batch, tokens, heads * head_dim),)

    def torch(self, me: str, *args: str) -> str:
        return f"{args[0]}.transpose(1, 2).flatten(2)"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Reshape", g.op("Transpose", args[0], perm=[0, 2, 1, 3]), g.constant([0, 0, -1]))]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((2,), (1,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(MergeHeads(), (rand(3, 2, 5, 4),)),)


@dataclass(frozen=True)
class Attention(Op):
    """y = softmax(cap(scale * q k^T) where mask, -inf elsewhere) v, and 0 for a row that sees nothing

    q (B, heads, S, d), k (B, kv_heads, T, d), v (B, kv_heads, T, d), mask bool (B, 1, S, T) -> (B, heads, S, d).
    Query head h reads key-value head h // (heads / kv_heads). cap(x) = softcap * tanh(x / softcap), before the mask.
    With `biased` the mask is of floats (B, heads, S, T), added to the scores, and -inf where a key is not seen.
    With `borrowed` the keys and values come from another attention, which keeps them in its cache.
    """

    heads: int
    kv_heads: int
    scale: float
    softcap: float | None = None
    biased: bool = False
    borrowed: bool = False
    since = 23

    def infer(self, *args: Type) -> tuple[Type, ...]:
        q, k, v, mask = args
        batch, heads, tokens, width = q.shape
        keys = Type("float", (batch, dim(self.kv_heads), k.shape[2], width))
        expect(heads == dim(self.heads), "query heads", self.heads, heads)
        expect(k == keys, "keys", keys, k)
        expect(v == keys, "values", keys, v)
        one = Type("float", (heads,)) if self.biased else Type("bool", (dim(1),))
        seen = Type(one.dtype, (batch, *one.shape, tokens, k.shape[2]))
        expect(mask == seen, "the mask", seen, mask)
        return (q,)

    def figures(self, *args: Type) -> Iterable[tuple[str, Fact]]:
        sizes = (("heads", self.heads), ("kv_heads", self.kv_heads), ("head_dim", args[0].shape[-1].value))
        return ((f"attention.{key}", fact) for key, fact in (*sizes, ("scale", self.scale), ("softcap", self.softcap)))

    def flops(self, *args: Type) -> Dim:
        _, k, v, *_ = args
        return self.scratch(*args) * (last_axis(k) + last_axis(v)) * 2

    def scratch(self, *args: Type) -> Dim:
        q, k, *_ = args
        return product((*q.shape[:3], k.shape[2]))

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        q, k, v, mask = args
        k, v = (np.repeat(x, self.heads // self.kv_heads, axis=1) for x in (k, v))
        scores = q @ k.swapaxes(2, 3) * self.scale
        if self.softcap is not None:
            scores = self.softcap * np.tanh(scores / self.softcap)
        if self.biased:
            mask, scores = mask > -np.inf, scores + mask
        # A key that is not seen has weight 0, and a row that sees no key gives 0 instead of 0/0.
        peak = np.max(scores, axis=-1, keepdims=True, where=mask, initial=-np.inf)
        weights = np.exp(scores - np.where(np.isfinite(peak), peak, 0), where=mask, out=np.zeros_like(scores))
        total = weights.sum(axis=-1, keepdims=True)
        return (weights @ v / np.where(total == 0, 1, total),)

    @property
    def helpers(self) -> tuple[str, ...]:
        if self.softcap is None:
            return ()
        attention = "biased_softcap_attention" if self.biased else "softcap_attention"
        return (attention,) if self.heads == self.kv_heads else (attention, "grouped")

    def torch(self, me: str, *args: str) -> str:
        q, k, v, mask = args
        shared = self.heads != self.kv_heads
        if self.softcap is None:
            said = f"attn_mask={mask}.to({q}.dtype)" if self.biased else f"attn_mask={mask}"
            if isinstance(mask, Operand) and mask.absent == "causal":
                said += f", is_causal={mask} is None"
            if not (isinstance(q, Operand) and self.scale == (last_axis(q.type).value or 0) ** -0.5):
                said += f", scale={number_text(self.scale)}"
            gqa = ", enable_gqa=True" if shared else ""
            return f"F.scaled_dot_product_attention({q}, {k}, {v}, {said}{gqa})"
        if shared:
            k, v = (f"grouped({x}, {self.heads // self.kv_heads})" for x in (k, v))
        return f"{self.helpers[0]}({q}, {k}, {v}, {mask}, scale={number_text(self.scale)}, softcap={self.softcap!r})"

    def optional_operands(self) -> tuple[int, ...]:
        return (3,) if self.softcap is None and not self.biased else ()

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Attention", *args, scale=self.scale, softcap=self.softcap or 0.0, is_causal=0)]

    def older(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        """A row that sees nothing is 0/0 in the softmax, and 0 where it is masked again."""
        q, k, v, mask = args
        scores, nothing = self._scores(g, q, k), g.real(-np.inf)
        if self.biased:
            weights = g.op("Softmax", g.op("Add", scores, mask), axis=-1)
            seen = g.op("Greater", mask, nothing)
        else:
            weights = g.op("Softmax", g.op("Where", mask, scores, nothing), axis=-1)
            seen = mask
        return [self._weigh(g, g.op("Where", seen, weights, g.real(0.0)), v)]

    def _scores(self, g: OnnxBuilder, q: OnnxValue, k: OnnxValue) -> OnnxValue:
        """scale * q k^T, capped: (B, heads, S, T)"""
        scaled = self._group_heads(g, g.op("Mul", q, g.real(self.scale)))
        scores = g.op("MatMul", scaled, g.op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self._split_groups(g, scores)
        if self.softcap is None:
            return scores
        cap = g.real(self.softcap)
        return g.op("Mul", g.op("Tanh", g.op("Div", scores, cap)), cap)

    def _weigh(self, g: OnnxBuilder, weights: OnnxValue, v: OnnxValue) -> OnnxValue:
        """(B, heads, S, T), (B, kv_heads, T, d) -> (B, heads, S, d)"""
        return self._split_groups(g, g.op("MatMul", self._group_heads(g, weights), v))

    def _group_heads(self, g: OnnxBuilder, x: OnnxValue) -> OnnxValue:
        """Stacks the rows of all heads that read one key-value head, so that no keys and values are repeated."""
        return x if self.heads == self.kv_heads else g.op("Reshape", x, g.constant([0, self.kv_heads, -1, 0]))

    def _split_groups(self, g: OnnxBuilder, x: OnnxValue) -> OnnxValue:
        return x if self.heads == self.kv_heads else g.op("Reshape", x, g.constant([0, self.heads, -1, 0]))

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((2, None, None, 2), (2,))

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        for reach in map(as_tokens, reaches[:3]):
            if isinstance(reach, Leaks):
                return (reach,)
            if reach not in (Tokens(2), Constant()):
                return (Leaks("attention over something else than tokens"),)
        mask = reaches[3]
        if not isinstance(mask, Allows):
            return (mask if isinstance(mask, Leaks) else Leaks("attention without a causal mask"),)
        return (Tokens(mask.query_axis),)

    def state(self, *args: Type) -> tuple[State, ...]:
        return () if self.borrowed else (Grows("key", 1, 2), Grows("value", 2, 2))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        mask = np.tril(np.ones((4, 6), bool), 1)[None, None].repeat(2, axis=0)
        mask[1, 0, 0] = False  # a row that sees nothing

        def sample(heads: int, kv_heads: int, softcap: float | None, biased: bool = False) -> Sample:
            k, v = rand(2, kv_heads, 6, 8, seed=1), rand(2, kv_heads, 6, 8, seed=2)
            seen = np.where(mask, rand(2, heads, 4, 6, seed=3), -np.inf) if biased else mask
            return Sample(Attention(heads, kv_heads, 0.4, softcap, biased), (rand(2, heads, 4, 8), k, v, seen))

        plain = sample(4, 4, None), sample(8, 2, None), sample(4, 1, None), sample(4, 4, 0.8), sample(8, 2, 0.8)
        return (
            *plain,
            *(sample(heads, 4, cap, biased=True) for heads, cap in ((4, None), (8, None), (4, 0.8), (8, 0.8))),
        )


@dataclass(frozen=True)
class Extend(Op):
    """y = [past, new] along the token axis: of keys (B, heads, P, d), (B, heads, S, d) -> (B, heads, P + S, d)"""

    axis: int = field(default=2, metadata=USUAL)

    def infer(self, *args: Type) -> tuple[Type, ...]:
        past, new = args
        wanted = new.with_axis(self.axis, past.shape[self.axis])
        expect(past == wanted, "the past", wanted, past)
        return (new.with_axis(self.axis, past.shape[self.axis] + new.shape[self.axis]),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (np.concatenate(args, axis=self.axis),)

    def torch(self, me: str, *args: str) -> str:
        past, new = args
        return f"{new} if {past.partition('[')[0]} is None else torch.cat(({past}, {new}), dim={self.axis})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Concat", *args, axis=self.axis)]

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        past, new = reaches
        if past == Constant() and as_tokens(new) in (Tokens(self.axis), Constant()):
            return (as_tokens(new),)
        return (Leaks("a cache extended with a value that leaks"),)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        flat = Sample(Extend(1), (rand(2, 4, 5), rand(2, 1, 5, seed=1)))
        return Sample(Extend(), (rand(2, 3, 4, 5), rand(2, 3, 1, 5, seed=1))), flat


@dataclass(frozen=True)
class LastIndex(Op):
    """i = the first index of the largest position: (B, S) -> (B, 1). Right, whichever side the padding is on."""

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (args[0].with_axis(1, 1),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (np.argmax(args[0], axis=1, keepdims=True),)

    def torch(self, me: str, *args: str) -> str:
        return f"{args[0]}.argmax(dim=1, keepdim=True)"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("ArgMax", args[0], axis=1, keepdims=1, select_last_index=0)]

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        # The index only selects a token; it says nothing about what later tokens are.
        return (Constant(),) if isinstance(reaches[0], Clock) else (Leaks("the last of something else than positions"),)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(LastIndex(), (np.array([[-1, 0, 1], [0, 1, 1], [-1, -1, -1]]),)),)


@dataclass(frozen=True)
class TakeToken(Op):
    """y[b, l] = x[b, index[b, l]]: (B, S, ...), (B, L) -> (B, L, ...)"""

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (args[0].with_axis(1, args[1].shape[1]),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        rows = np.arange(len(args[0]))[:, None]
        return (args[0][rows, args[1]],)

    @property
    def helpers(self) -> tuple[str, ...]:
        return ("take_token",)

    def torch(self, me: str, *args: str) -> str:
        return f"take_token({args[0]}, {args[1]})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("GatherND", args[0], g.op("Unsqueeze", args[1], g.constant([2])), batch_dims=1)]

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        token, index = reaches
        return (token,) if index == Constant() else (Leaks("a token picked by a value that reads tokens"),)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        index, several = np.array([[2], [0]]), np.array([[1, 2], [0, 0]])
        whole, numbers = rand(2, 3, 4), np.arange(6).reshape(2, 3)
        return tuple(Sample(TakeToken(), args) for args in ((whole, index), (numbers, index), (whole, several)))
