"""Multi-head latent attention: keys and values that a matrix makes of one small vector a token, which is the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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
    Param,
    Sample,
    State,
    TokenAxes,
    Type,
    dim,
    expect,
    product,
)
from blockc.ir.reach import Allows, Constant, Leaks, Reach, Tokens, as_tokens
from blockc.ops.attention import Attention
from blockc.ops.base import last_axis, number_text, rand, token_axis

Values = tuple[OnnxValue, ...]
Attend = Callable[..., OnnxValue]  # of a builder, the number of key heads, and q, k, v, mask


@dataclass(frozen=True)
class Span(Op):
    """y = x[..., first:last], some of the numbers of each token or head"""

    first: int
    last: int

    def infer(self, *args: Type) -> tuple[Type, ...]:
        width = last_axis(args[0]).value or 0
        expect(self.first < self.last <= width, "the end of a span", f"at most {width}", self.last)
        return (args[0].with_axis(len(args[0].shape) - 1, self.last - self.first),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (args[0][..., self.first : self.last],)

    def torch(self, me: str, *args: str) -> str:
        return f"{args[0]}[..., {self.first or ''}:{self.last}]"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Slice", args[0], g.constant([self.first]), g.constant([self.last]), g.constant([-1]))]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        axis = token_axis(args[0])
        return TokenAxes((axis,), (axis,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return Sample(Span(0, 3), (rand(2, 4, 8),)), Sample(Span(3, 8), (rand(2, 5, 4, 8),))


@dataclass(frozen=True)
class LatentAttention(Op):
    """y = softmax(scale * [q_n | q_r] [k_up c | k_r]^T where mask, -inf elsewhere) v_up c  (DeepSeek-AI 2024)

    c (B, T, rank), k_r (B, 1, T, rope), q_n (B, heads, S, nope), q_r (B, heads, S, rope), mask bool (B, 1, S, T)
    -> (B, heads, S, v_dim). Each head has its own rows of k_up and v_up; all heads share c and k_r. A row that sees
    nothing is 0.

    Two orders of the products give the same numbers. Expanded: keys and values are made of every c, old ones too.
    Absorbed: q_n k_up takes the place of q_n, scores are of c itself, and v_up is applied to the sum of c. With S new
    tokens of T, a head multiplies
        T rank (nope + v_dim) + S T (nope + rope + v_dim)    expanded,
        S rank (nope + v_dim) + S T (2 rank + rope)          absorbed,
    and the smaller is taken. FLOPs are those of the expanded order where S is T, else of the absorbed one, as a step
    of decoding takes it.
    """

    heads: int
    rank: int
    nope: int
    rope: int
    v_dim: int
    scale: float
    since = 23

    def infer(self, *args: Type) -> tuple[Type, ...]:
        c, k_r, q_n, q_r, mask = args
        batch, keys, _ = c.shape
        tokens = q_n.shape[2]
        for what, value, shape in (
            ("the latent", c, (batch, keys, dim(self.rank))),
            ("the rotated key", k_r, (batch, dim(1), keys, dim(self.rope))),
            ("queries", q_n, (batch, dim(self.heads), tokens, dim(self.nope))),
            ("rotated queries", q_r, (batch, dim(self.heads), tokens, dim(self.rope))),
        ):
            expect(value == Type("float", shape), what, Type("float", shape), value)
        seen = Type("bool", (batch, dim(1), tokens, keys))
        expect(mask == seen, "the mask", seen, mask)
        return (q_n.with_axis(3, self.v_dim),)

    def params(self) -> tuple[Param, ...]:
        return (
            Param("k_up", (self.heads * self.nope, self.rank), "matrix"),
            Param("v_up", (self.heads * self.v_dim, self.rank), "matrix"),
        )

    def figures(self, *args: Type) -> Iterable[tuple[str, Fact]]:
        yield from (("attention.heads", self.heads), ("attention.scale", self.scale))
        sizes = {"kv_rank": self.rank, "nope_dim": self.nope, "rope_dim": self.rope, "v_dim": self.v_dim}
        yield from ((f"attention.latent.{key}", size) for key, size in sizes.items())

    def flops(self, *args: Type) -> Dim:
        batch, _, tokens, _ = args[2].shape
        made = self.nope + self.v_dim
        pair = min(made, 2 * self.rank) if args[0].shape[1] == tokens else 2 * self.rank
        ups = batch * tokens * (2 * self.heads * self.rank * made)
        return ups + self.scratch(*args) * (2 * (pair + self.rope))

    def scratch(self, *args: Type) -> Dim:
        return product((*args[2].shape[:3], args[0].shape[1]))

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        """Expanded."""
        c, k_r, q_n, q_r, mask = args
        k_up, v_up = (each.reshape(self.heads, -1, self.rank).swapaxes(1, 2) for each in params)
        keys, values = c[:, None] @ k_up, c[:, None] @ v_up
        shared = np.broadcast_to(k_r, (*keys.shape[:3], self.rope))
        q, k = np.concatenate((q_n, q_r), axis=-1), np.concatenate((keys, shared), axis=-1)
        return self._plain(self.heads).numpy((q, k, values, mask), ())

    def _plain(self, kv_heads: int) -> Attention:
        return Attention(self.heads, kv_heads, self.scale)

    def declares(self) -> str | None:
        sizes = f"{self.heads}, rank={self.rank}, nope={self.nope}, v_dim={self.v_dim}"
        return f"LatentAttention({sizes}, scale={number_text(self.scale)})"

    @property
    def helpers(self) -> tuple[str, ...]:
        return ("latent_attention",)

    def torch(self, me: str, *args: str) -> str:
        mask = args[-1]
        said = f", is_causal={mask} is None" if isinstance(mask, Operand) and mask.absent == "causal" else ""
        return f"{me}({', '.join(args)}{said})"

    def optional_operands(self) -> tuple[int, ...]:
        return (4,)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return self._choose(g, args, params, self._attend)

    def older(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return self._choose(g, args, params, self._attend_older)

    def absorb(self, g: OnnxBuilder, args: Values, params: Values) -> Sequence[OnnxValue]:
        """The absorbed order alone, in operators of the oldest opset, and without a shape that is read."""
        return self._absorbed(g, args, [self._by_heads(g, each) for each in params], self._attend_older)

    def _choose(self, g: OnnxBuilder, args: Values, params: Values, attend: Attend) -> Sequence[OnnxValue]:
        """Both orders, the one that multiplies less chosen by the lengths of the call."""
        ups = [self._by_heads(g, each) for each in params]
        return g.choose(
            self._absorbs(g, args[0], args[2]),
            lambda h: self._absorbed(h, args, ups, attend),
            lambda h: self._expanded(h, args, ups, attend),
        )

    def _by_heads(self, g: OnnxBuilder, up: OnnxValue) -> OnnxValue:
        return g.op("Reshape", up, g.constant([self.heads, -1, self.rank]))

    def _absorbed(self, g: OnnxBuilder, args: Values, ups: Sequence[OnnxValue], attend: Attend) -> list[OnnxValue]:
        c, k_r, q_n, q_r, mask = args
        c = g.op("Unsqueeze", c, g.constant([1]))
        q = g.op("Concat", g.op("MatMul", q_n, ups[0]), q_r, axis=3)
        mixed = attend(g, 1, q, g.op("Concat", c, k_r, axis=3), c, mask)
        return [g.op("MatMul", mixed, g.op("Transpose", ups[1], perm=[0, 2, 1]))]

    def _expanded(self, g: OnnxBuilder, args: Values, ups: Sequence[OnnxValue], attend: Attend) -> list[OnnxValue]:
        c, k_r, q_n, q_r, mask = args
        c = g.op("Unsqueeze", c, g.constant([1]))
        k, v = (g.op("MatMul", c, g.op("Transpose", up, perm=[0, 2, 1])) for up in ups)
        k = g.op("Concat", k, g.op("Expand", k_r, g.constant([1, self.heads, 1, 1])), axis=3)
        return [attend(g, self.heads, g.op("Concat", q_n, q_r, axis=3), k, v, mask)]

    def _absorbs(self, g: OnnxBuilder, c: OnnxValue, q: OnnxValue) -> OnnxValue:
        """Whether absorbing multiplies less: S T (2 rank - nope - v_dim) < (T - S) rank (nope + v_dim)"""
        keys, tokens = (g.op("Shape", each, start=at, end=at + 1) for at, each in ((1, c), (2, q)))
        made = self.nope + self.v_dim
        scores = g.op("Mul", g.op("Mul", tokens, keys), g.constant([2 * self.rank - made]))
        spared = g.op("Mul", g.op("Sub", keys, tokens), g.constant([self.rank * made]))
        return g.op("Squeeze", g.op("Less", scores, spared), g.constant([0]))

    def _attend(self, g: OnnxBuilder, kv_heads: int, *args: OnnxValue) -> OnnxValue:
        """Where all heads read one key, their queries are rows of one head: its keys are then read once."""
        if kv_heads > 1 or self.heads == 1:
            return self._plain(kv_heads).onnx(g, args, ())[0]
        q, k, v, mask = args
        rows = g.op("Reshape", q, g.constant([0, 1, -1, self.rank + self.rope]))
        seen = g.op("Tile", mask, g.constant([1, 1, self.heads, 1]))
        (y,) = Attention(1, 1, self.scale).onnx(g, (rows, k, v, seen), ())
        return g.op("Reshape", y, g.constant([0, self.heads, -1, self.rank]))

    def _attend_older(self, g: OnnxBuilder, kv_heads: int, *args: OnnxValue) -> OnnxValue:
        return self._plain(kv_heads).older(g, args, ())[0]

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        c, *others = map(as_tokens, reaches[:4])
        if leak := next((each for each in (c, *others) if isinstance(each, Leaks)), None):
            return (leak,)
        if c not in (Tokens(1), Constant()) or any(each not in (Tokens(2), Constant()) for each in others):
            return (Leaks("attention over something else than tokens"),)
        mask = reaches[4]
        if not isinstance(mask, Allows):
            return (mask if isinstance(mask, Leaks) else Leaks("attention without a causal mask"),)
        return (Tokens(mask.query_axis),)

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((None, None, 2, 2, 2), (2,))

    def state(self, *args: Type) -> tuple[State, ...]:
        return Grows("latent", 0, 1), Grows("key", 1, 2)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        """Of two new tokens, which absorb, and of four, which expand."""
        seen = np.tril(np.ones((4, 6), bool), 2)[None, None].repeat(2, axis=0)
        seen[1, 0, 0] = False  # a row that sees nothing

        def sample(heads: int, tokens: int, rank: int) -> Sample:
            c, k_r = rand(2, 6, rank), rand(2, 1, 6, 4, seed=1)
            q_n, q_r = rand(2, heads, tokens, 3, seed=2), rand(2, heads, tokens, 4, seed=3)
            op = LatentAttention(heads, rank, 3, 4, 5, 0.4)
            return Sample(op, (c, k_r, q_n, q_r, seen[:, :, :tokens]))

        return sample(3, 2, 8), sample(3, 4, 8), sample(1, 2, 8), sample(3, 4, 2)
