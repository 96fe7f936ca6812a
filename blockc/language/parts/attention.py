"""attention: query heads that read key-value heads, with rotary positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from blockc.diagnostics.meaning import ALIBI, BIAS_TWICE, HEADS, INERT, KV_HEADS, SINKS, WINDOW
from blockc.ir import Value, apply
from blockc.language.parts.base import NOTHING, KindName, Lent, Model, OrNone, Part, Problem, Scope, Shared
from blockc.language.parts.norm import QkNorm, SubNorm, VNorm
from blockc.language.parts.numbers import Positive, PositiveFloat
from blockc.language.parts.rope import Rope
from blockc.ops import Alibi as AlibiOp
from blockc.ops import Attention as AttentionOp
from blockc.ops import Clip, Linear, MergeHeads, SinkAttention, Sinks, SplitHeads, Visible, VisibleBothWays
from blockc.source import Place


class Alibi(Model):
    """A number for each head, times the distance of a key, taken from its score. Source: Press et al. 2022.

    `scale` multiplies these numbers, where a model takes them from scores that are scaled only then.
    """

    max_bias: PositiveFloat
    scale: OrNone[PositiveFloat] = None

    def op(self, heads: int, window: int | None) -> AlibiOp:
        return AlibiOp(heads, float(self.max_bias), window, None if self.scale in (None, 1) else float(self.scale))


class Attention(Part):
    """softmax(q k^T * scale) v in heads; o reads the concatenated heads."""

    heads: Positive
    kv_heads: OrNone[Positive] = None
    head_dim: OrNone[Positive] = None
    scale: OrNone[PositiveFloat] = None
    causal: bool = True
    bias: Annotated[tuple[Literal["q", "k", "v", "o"], ...], Field(strict=False), NOTHING] = ()
    window: OrNone[Positive] = None
    rope: OrNone[Rope] = None
    alibi: OrNone[Alibi] = None
    softcap: OrNone[PositiveFloat] = None
    clip: OrNone[PositiveFloat] = None
    sinks: OrNone[bool] = None
    qk_norm: OrNone[QkNorm] = None
    v_norm: OrNone[VNorm] = None
    sub_norm: OrNone[SubNorm] = None
    v_from: OrNone[Literal["k"]] = None
    kv_from: OrNone[KindName] = None

    def resolved(self, width: int) -> Attention:
        head_dim = self.head_dim or width // self.heads
        derived = {
            "kv_heads": self.kv_heads or self.heads,
            "head_dim": head_dim,
            "scale": float(self.scale or head_dim**-0.5),
            "bias": tuple(m for m in ("q", "k", "v", "o") if m in self.bias),
            "rope": self.rope.resolved(head_dim) if self.rope else None,
            "qk_norm": self.qk_norm.resolved(turned=self.rope is not None) if self.qk_norm else None,
            "sub_norm": self.sub_norm.resolved() if self.sub_norm else None,
            "sinks": self.sinks or None,
        }
        return self.model_copy(update=derived)

    def problems(self, width: int, context: int) -> Iterator[Problem]:
        if self.head_dim is None and width % self.heads:
            near = _near(width, self.heads)
            yield Problem(
                HEADS,
                ("heads",),
                f"attention.heads {self.heads} does not divide width {width}, and head_dim is not given",
                f"a divisor of {width}, such as {near}, or a head_dim",
                str(self.heads),
            )
            return
        if self.kv_heads and self.heads % self.kv_heads:
            yield Problem(
                KV_HEADS,
                ("kv_heads",),
                f"attention.kv_heads {self.kv_heads} does not divide attention.heads {self.heads}",
                f"a divisor of {self.heads}: each key-value head serves heads / kv_heads query heads",
                str(self.kv_heads),
                also=(("heads", ("heads",)),),
            )
        if len(set(self.bias)) < len(self.bias):
            yield Problem(BIAS_TWICE, ("bias",), "a matrix is named twice", "each of q, k, v, o at most once")
        yield from self._window_problems(context)
        if self.rope:
            head_dim = self.head_dim or width // self.heads
            for problem in self.rope.problems(head_dim, context):
                yield problem.under("rope")
        for key, norm in (("qk_norm", self.qk_norm), ("v_norm", self.v_norm), ("sub_norm", self.sub_norm)):
            for problem in norm.problems() if norm else ():
                yield problem.under(key)
        yield from self._inert_problems()
        for key in ("softcap", "alibi"):
            if self.sinks and getattr(self, key):
                yield Problem(SINKS, (key,), f"{key} changes scores, and no sink is defined beside it", f"no {key}",
                              also=(("sinks", ("sinks",)),))  # fmt: skip
        if self.alibi and not self.causal:
            yield Problem(ALIBI, ("alibi",), "alibi looks back, and causal: false looks both ways", "no alibi",
                          also=(("causal", ("causal",)),))  # fmt: skip

    def _inert_problems(self) -> Iterator[Problem]:
        """What is said of keys and values that this attention does not make."""
        if self.v_from and "v" in self.bias:
            yield Problem(INERT, ("bias",), "v_from: k leaves no matrix of values to bias", "no v here",
                          also=(("values are keys", ("v_from",)),))  # fmt: skip
        if not self.kv_from:
            return
        others = (("keys and values are read", ("kv_from",)),)
        if "k" in self.bias or "v" in self.bias:
            message = "kv_from leaves no matrix of keys or values to bias"
            yield Problem(INERT, ("bias",), message, "no k and no v here", also=others)
        for key in ("v_norm", "v_from"):
            if getattr(self, key):
                message = f"kv_from leaves no values to make: {key} is of the layer that makes them"
                yield Problem(INERT, (key,), message, f"{key}: none", also=others)

    def _window_problems(self, context: int) -> Iterator[Problem]:
        if self.window is None:
            return
        if self.window >= context:
            yield Problem(
                WINDOW, ("window",), "a window this long hides nothing",
                f"less than context {context}", str(self.window),
                "write window: none, or leave the key out",
            )  # fmt: skip
        if not self.causal:
            yield Problem(WINDOW, ("window",), "a window looks back, and causal: false looks both ways", "no window",
                          also=(("causal", ("causal",)),))  # fmt: skip

    def expand(self, scope: Scope, x: Value, label: str, place: Place | None) -> Value:
        a = self.resolved(scope.width)
        heads, kv_heads, head_dim, scale = a.heads, a.kv_heads or 0, a.head_dim or 0, a.scale or 0.0
        inner = Scope(scope.width)
        (mask,) = inner.ask(a._mask)
        q = a._in_heads(a._flat(inner, "q", place), "q", place)
        lent, borrowed = Lent(label, kv_heads, head_dim), a.kv_from is not None
        k, v = inner.ask(lent) if borrowed else a._keys_and_values(inner, place)
        if a.rope:
            table = a.rope.table(head_dim)
            read = ("position_ids",) if table.by_length is None else ("position_ids", "length")
            cos, sin = inner.ask(Shared("rotary", table, read))
            rotary = a.rope.turn(head_dim)
            q = apply(rotary, q, cos, sin, name="q_rotated", place=place)
            q = a._behind_rope(q, "q", place)
            if not borrowed:
                k = apply(rotary, k, cos, sin, name="k_rotated", place=place)
                k = a._behind_rope(k, "k", place)
        if label in scope.lends:
            inner.lent[lent] = k, v
        op = AttentionOp(heads, kv_heads, scale, a.softcap, biased=a.alibi is not None, borrowed=borrowed)
        sinks: tuple[Value, ...] = ()
        if a.sinks:
            op = SinkAttention(heads, kv_heads, scale, borrowed=borrowed)
            sinks = (apply(Sinks(heads), name="sinks", place=place),)
        mixed = apply(op, q, k, v, mask, *sinks, name="mixed", place=place)
        joined = apply(MergeHeads(), mixed, name="joined", place=place)
        if a.sub_norm:
            joined = a.sub_norm.of(joined, heads * head_dim, place)
        o = apply(Linear(heads * head_dim, scope.width, "o" in a.bias), joined, name="o", place=place)
        doc = f"{heads} query heads of {head_dim} read {kv_heads} key-value heads{a._details}."
        return scope.call(inner.close("Attention", o, doc), x, name=label, place=place)

    @property
    def _details(self) -> str:
        """What a reader of the emitted class is told beside its sizes."""
        said = " of an earlier layer" if self.kv_from else ""
        if self.qk_norm:
            side = " behind rope" if self.qk_norm.order else ""
            said += f", q {'' if self.kv_from else 'and k '}normed over the {self.qk_norm.over}{side}"
        if self.v_norm:
            said += ", v over the head" if self.qk_norm else ", v normed over the head"
        said += ", v made as k" if self.v_from else ""
        said += ", a norm before o" if self.sub_norm else ""
        return said + (", scores lowered by distance" if self.alibi else ", with a sink each" if self.sinks else "")

    @property
    def _mask(self) -> Shared:
        """What a query sees, and with alibi how much each key counts."""
        visible = Visible(self.window) if self.causal else VisibleBothWays()
        op = self.alibi.op(self.heads, self.window) if self.alibi else visible
        label = "bias" if self.alibi else "mask"
        return Shared(f"{label}_{self.window}" if self.window else label, op, ("queries_at", "keys_at"))

    def _sizes(self, name: str) -> tuple[int, int]:
        """How many heads of q, k or v there are, and their size, of a resolved part."""
        return (self.heads if name == "q" else self.kv_heads) or 0, self.head_dim or 0

    def _flat(self, inner: Scope, name: str, place: Place | None) -> Value:
        """q, k or v of all heads: linear, bias, clip."""
        count, head_dim = self._sizes(name)
        x = apply(Linear(inner.width, count * head_dim, name in self.bias), inner.x[0], name=name, place=place)
        return x if self.clip is None else apply(Clip(float(self.clip)), x, name=f"{name}_clipped", place=place)

    def _keys_and_values(self, inner: Scope, place: Place | None) -> tuple[Value, Value]:
        """Not turned yet."""
        keys = self._flat(inner, "k", place)
        k = self._in_heads(keys, "k", place)
        values = keys if self.v_from else self._flat(inner, "v", place)
        return k, self._in_heads(values, "v", place)

    def _in_heads(self, x: Value, name: str, place: Place | None) -> Value:
        """q, k or v split, with a norm on either side of the split."""
        count, head_dim = self._sizes(name)
        norm = self.qk_norm if name != "v" else None
        if norm and norm.over == "projection":
            x = apply(norm.op(count * head_dim), x, name=f"{name}_norm", place=place)
        x = apply(SplitHeads(count, head_dim), x, name=f"{name}_heads", place=place)
        if norm and norm.over == "head" and not norm.order:
            return norm.of_heads(x, (count, head_dim), name, place)
        if name == "v" and self.v_norm:
            return apply(self.v_norm.op(head_dim), x, name="v_norm", place=place)
        return x

    def _behind_rope(self, x: Value, name: str, place: Place | None) -> Value:
        """q or k of a resolved part, turned, with the norm that stands behind rope."""
        norm = self.qk_norm
        return norm.of_heads(x, self._sizes(name), name, place) if norm and norm.order else x


def _near(width: int, heads: int) -> str:
    """The divisors of width on either side of heads."""
    below = next((h for h in range(min(heads, width), max(heads - 10_000, 0), -1) if width % h == 0), 1)
    above = next((h for h in range(heads, min(heads + 10_000, width) + 1) if width % h == 0), width)
    return " or ".join(dict.fromkeys((str(below), str(above))))
