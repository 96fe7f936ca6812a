"""attention.latent: keys and values that two matrices make of one small vector a token, which is what a cache holds."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated

from pydantic import Field

from blockc.diagnostics.meaning import LATENT, ROPE_ODD
from blockc.ir import Value, apply
from blockc.language.parts.base import Model, OrNone, Problem, Scope
from blockc.language.parts.numbers import Epsilon, Positive
from blockc.language.parts.rope import Rope
from blockc.language.parts.twin import AtMost
from blockc.ops import LatentAttention, Linear, RmsNorm, Span, SplitHeads
from blockc.source import Place

# Sizes in a twin: all unlike, so that one in the place of another shows, and in the order that models have.
ROPE, VALUE, NOPE, KV_RANK, Q_RANK = 8, 10, 12, 14, 18
# Keys of an attention that have no meaning beside latent keys and values, or none that a model has.
UNDEFINED = (
    "kv_heads", "head_dim", "bias", "alibi", "relative_bias", "softcap", "clip", "sinks", "qk_norm", "v_norm", "v_from",
    "kv_from",
)  # fmt: skip


class LatentNorm(Model):
    """The norms of the latent vectors: x / rms(x) * weight."""

    eps: Epsilon = Field(description="Added to the mean square before the root. A number of 0 or more, such as 1e-6.")


class Latent(Model):
    """Multi-head latent attention. Source: DeepSeek-AI 2024, DeepSeek-V2.

    [c | k_r] = kv_a x, c = rms(c); a head's keys are [k_up c | k_r], its values v_up c, and its queries [nope | rope]
    of q x, or of q_b rms(q_a x). Rope turns k_r and the last rope_dim numbers of a query. A cache holds c and k_r.
    """

    q_rank: Annotated[OrNone[Positive], AtMost(Q_RANK)] = Field(
        default=None,
        description="Numbers of the vector that q_a makes of a token and q_b makes queries of, with a norm between. "
        "Absent or none: one matrix q makes the queries.",
    )
    kv_rank: Annotated[Positive, AtMost(KV_RANK)] = Field(
        description="Numbers of the vector that the keys and values of all heads are made of."
    )
    nope_dim: Annotated[Positive, AtMost(NOPE)] = Field(
        description="Numbers of one head's query and key that are not turned."
    )
    rope_dim: Annotated[Positive, AtMost(ROPE)] = Field(
        description="Numbers of one head's query that rope turns, the last ones, and of the one key that all heads "
        "share; even."
    )
    v_dim: Annotated[Positive, AtMost(VALUE)] = Field(description="Numbers of one head's value.")
    norm: LatentNorm = Field(description="The rms norms of both vectors.")

    @property
    def head_dim(self) -> int:
        """Numbers of one head's query and key."""
        return self.nope_dim + self.rope_dim

    @property
    def least_head_dim(self) -> int:
        """The same in a twin."""
        return min(self.nope_dim, NOPE) + min(self.rope_dim, ROPE)

    def problems(self, said: Collection[str], rope: Rope | None) -> Iterator[Problem]:
        """What does not go with it: `said` are the other keys of its attention that say something."""
        also = (("latent", ("latent",)),)
        for key in (key for key in UNDEFINED if key in said):
            yield Problem(LATENT, (key,), f"{key} is not defined for latent attention", f"no {key}", also=also)
        if self.rope_dim % 2:
            place = ("latent", "rope_dim")
            yield Problem(ROPE_ODD, place, "rope turns pairs", "an even number", str(self.rope_dim))
        if rope is None:
            yield Problem(LATENT, ("latent",), "latent attention without rope", "a rope, which turns rope_dim numbers")
            return
        for key in ("dims", "pairs"):
            if getattr(rope, key):
                message = "rope turns all numbers of rope_dim beside latent"
                yield Problem(LATENT, ("rope", key), message, f"no {key}", also=(("rope_dim", ("latent", "rope_dim")),))

    def op(self, heads: int, scale: float) -> LatentAttention:
        return LatentAttention(heads, self.kv_rank, self.nope_dim, self.rope_dim, self.v_dim, scale)

    def operands(self, heads: int, rope: Rope, inner: Scope, place: Place | None) -> tuple[Value, ...]:
        """What the op reads beside the mask: the latent vector, the shared key, and both parts of the queries."""
        cos, sin = inner.ask(rope.shared_table(self.rope_dim))
        rotary = rope.rotary_op(self.rope_dim)
        q = self._queries(heads, inner, place)
        q_nope = apply(Span(0, self.nope_dim), q, name="q_nope", place=place)
        q_rope = apply(Span(self.nope_dim, self.head_dim), q, name="q_rope", place=place)
        q_rope = apply(rotary, q_rope, cos, sin, name="q_rotated", place=place)
        both = self.kv_rank + self.rope_dim
        kv = apply(Linear(inner.width, both), inner.x[0], name="kv_a", place=place)
        c = apply(Span(0, self.kv_rank), kv, name="kv_latent", place=place)
        c = apply(RmsNorm(self.kv_rank, float(self.norm.eps)), c, name="kv_a_norm", place=place)
        k = apply(Span(self.kv_rank, both), kv, name="k_rope", place=place)
        k = apply(SplitHeads(1, self.rope_dim), k, name="k_head", place=place)
        return c, apply(rotary, k, cos, sin, name="k_rotated", place=place), q_nope, q_rope

    def _queries(self, heads: int, inner: Scope, place: Place | None) -> Value:
        """In heads, not turned yet."""
        name, x, rank = "q", inner.x[0], inner.width
        if self.q_rank is not None:
            name, rank = "q_b", self.q_rank
            x = apply(Linear(inner.width, rank), x, name="q_a", place=place)
            x = apply(RmsNorm(rank, float(self.norm.eps)), x, name="q_a_norm", place=place)
        x = apply(Linear(rank, heads * self.head_dim), x, name=name, place=place)
        return apply(SplitHeads(heads, self.head_dim), x, name="q_heads", place=place)
