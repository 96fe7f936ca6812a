"""attention: query heads that read key-value heads, with rotary positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from blockc.diagnostics.meaning import ALIBI, BIAS_TWICE, HEADS, INERT, KV_HEADS, RELATIVE_BIAS, SINKS, WINDOW
from blockc.ir import Value, apply
from blockc.language.parts.base import NOTHING, KindName, Lent, Mark, Model, OrNone, Part, Problem, Scope, Shared
from blockc.language.parts.latent import UNDEFINED, Latent
from blockc.language.parts.norm import QkNorm, SubNorm, VNorm
from blockc.language.parts.numbers import Positive, PositiveFloat
from blockc.language.parts.rope import Rope
from blockc.language.parts.twin import SOFTCAP, AtMost, Edits, Twin
from blockc.ops import Alibi as AlibiOp
from blockc.ops import Attention as AttentionOp
from blockc.ops import Clip, Linear, MergeHeads, SinkAttention, Sinks, SplitHeads, Visible, VisibleBothWays
from blockc.ops import RelativeBias as RelativeBiasOp
from blockc.source import MappingNode, Place, to_plain

SEEN = 5  # tokens of a window in a twin
GROUP = 4  # the most query heads that read one key-value head in a twin
SHARPNESS = 0.5  # the least of scores, over their scale by head_dim alone: under a smaller one all keys weigh alike
BESIDE = 2  # tokens on each side of a query in a twin
BUCKETS = 8  # of distances in a twin: with both sides, 2 on each have one distance, and 2 have several
CLIP = 1.0  # of queries, keys and values, whose spread in a twin is about 1


class Alibi(Model):
    """A number for each head, times the distance of a key, taken from its score. Source: Press et al. 2022.

    `scale` multiplies these numbers, where a model takes them from scores that are scaled only then.
    """

    max_bias: PositiveFloat = Field(
        description="The slope of head h of n is 2^(-max_bias h/n). A number above 0, such as 8."
    )
    scale: OrNone[PositiveFloat] = Field(
        default=None,
        description="Number that the slopes are multiplied by, such as head_dim^-0.5 where they are taken from "
        "scores that are scaled only then. Absent or none: 1.",
    )

    def op(self, heads: int, window: int | None) -> AlibiOp:
        return AlibiOp(heads, float(self.max_bias), window, None if self.scale in (None, 1) else float(self.scale))


class EachSide(Model):
    """A window to both sides."""

    each_side: Annotated[Positive, AtMost(BESIDE)] = Field(
        description="Tokens that a query sees on each side of it: keys [i - N, i + N]. Less than context."
    )


def _how_far(value: object) -> str:
    return "each side" if isinstance(value, dict | EachSide) else "back"  # no word that could be a key


Window = Annotated[
    Annotated[Positive, Tag("back")] | Annotated[EachSide, Tag("each side")],
    Discriminator(_how_far),
]


class RelativeBias(Model):
    """A learned number for each head and bucket of distances, added to the scores. Source: Raffel et al. 2020."""

    buckets: Annotated[Positive, AtMost(BUCKETS)] = Field(
        description="Rows of the table that all layers share; half of them are for keys ahead where causal is false."
    )
    max_distance: Annotated[Positive, AtMost(BUCKETS)] = Field(
        description="The distance from which all keys have the last bucket. More than the distances that have one each."
    )

    def problems(self, causal: bool) -> Iterator[Problem]:
        side = self.buckets if causal else self.buckets // 2
        if side < 2 or self.buckets % (1 if causal else 2):
            expected = "2 or more" if causal else "an even number, 4 or more"
            yield Problem(RELATIVE_BIAS, ("buckets",), "too few buckets, or not as many on each side", expected,
                          str(self.buckets))  # fmt: skip
        elif self.max_distance <= side // 2:
            yield Problem(RELATIVE_BIAS, ("max_distance",), "distances of one bucket each reach further than that",
                          f"more than {side // 2}", str(self.max_distance))  # fmt: skip


class Attention(Part):
    """softmax(q k^T * scale) v in heads; o reads the concatenated heads."""

    heads: Positive = Field(description="Query heads. An integer above 0.")
    kv_heads: OrNone[Positive] = Field(
        default=None,
        description="Key-value heads, each read by heads / kv_heads query heads; a divisor of heads. Absent or "
        "none: heads.",
    )
    head_dim: OrNone[Positive] = Field(
        default=None,
        description="Numbers of one head's query, key and value. Absent or none: width / heads, which must divide.",
    )
    latent: OrNone[Latent] = Field(
        default=None,
        description="Keys and values are made of one small vector a token, which is what the cache holds. Absent or "
        "none: each has a matrix.",
    )
    scale: OrNone[PositiveFloat] = Field(
        default=None, description="Number that the scores q k^T are multiplied by. Absent or none: head_dim^-0.5."
    )
    causal: bool = Field(
        default=True,
        description="true: a token sees itself and what is before it. false: it sees all, and there is no cache.",
    )
    bias: Annotated[tuple[Literal["q", "k", "v", "o"], ...], Field(strict=False), NOTHING] = Field(
        default=(), description="The matrices that have a bias, of q, k, v, o. Absent, none or []: none of them."
    )
    window: Annotated[OrNone[Window], AtMost(SEEN)] = Field(
        default=None,
        description="Tokens that a query sees, itself among them: keys (i - window, i]. Beside causal: false, "
        "{each_side: N}. Less than context. Absent or none: all that causal lets it see.",
    )
    rope: Annotated[OrNone[Rope], Mark.LAST] = Field(
        default=None, description="Rotary positions of queries and keys. Absent or none: they are not turned."
    )
    alibi: Annotated[OrNone[Alibi], Mark.LAST] = Field(
        default=None,
        description="A number for each head times the distance of a key, taken from its score. Absent or none: none.",
    )
    relative_bias: OrNone[RelativeBias] = Field(
        default=None,
        description="A learned number for each head and how far a key is, added to its score. Absent or none: none.",
    )
    softcap: Annotated[OrNone[PositiveFloat], AtMost(SOFTCAP)] = Field(
        default=None,
        description="Scores become cap * tanh(scores / cap), before the mask. A number above 0. Absent or none: "
        "no cap.",
    )
    clip: Annotated[OrNone[PositiveFloat], AtMost(CLIP)] = Field(
        default=None,
        description="Queries, keys and values are kept inside (-clip, clip), behind their biases. A number "
        "above 0. Absent or none: they are not.",
    )
    sinks: OrNone[bool] = Field(
        default=None,
        description="Whether each head has a learned logit that joins the softmax of its scores, and whose "
        "weight goes nowhere. true or false. Absent or none: false.",
    )
    qk_norm: OrNone[QkNorm] = Field(
        default=None,
        description="A norm of the queries and one of the keys, before rope or behind it. Absent or none: none.",
    )
    v_norm: OrNone[VNorm] = Field(
        default=None, description="A norm of the values of each head, without parameters. Absent or none: none."
    )
    sub_norm: OrNone[SubNorm] = Field(
        default=None, description="A norm of the concatenated heads, which o reads. Absent or none: none."
    )
    v_from: OrNone[Literal["k"]] = Field(
        default=None,
        description="k: there is no matrix of values; they are the keys before their norm and rope. Absent or "
        "none: values have a matrix of their own.",
    )
    kv_from: OrNone[KindName] = Field(
        default=None,
        description="A layer kind: there are no matrices of keys and values; those of the latest earlier layer "
        "of that kind which makes its own are read. Absent or none: it makes its own.",
    )

    def resolve(self, width: int) -> Attention:
        """Heads of latent keys and values have the sizes that latent says, and no others."""
        head_dim = self.key_dim or width // self.heads
        derived = {
            "kv_heads": None if self.latent else self.kv_heads or self.heads,
            "head_dim": None if self.latent else head_dim,
            "scale": float(self.scale or head_dim**-0.5),
            "bias": tuple(m for m in ("q", "k", "v", "o") if m in self.bias),
            "rope": self.rope.resolve(head_dim) if self.rope else None,
            "qk_norm": self.qk_norm.resolve(turned=self.rope is not None) if self.qk_norm else None,
            "sub_norm": self.sub_norm.resolve() if self.sub_norm else None,
            "sinks": self.sinks or None,
        }
        return self.model_copy(update=derived)

    @property
    def key_dim(self) -> int | None:
        """Numbers of one head's query and key, where they are said."""
        return self.latent.head_dim if self.latent else self.head_dim

    @property
    def grouped(self) -> bool:
        """Whether several query heads read one key-value head; of those that latent makes, each has its own."""
        return self.kv_heads not in (None, self.heads)

    def few_heads(self, grouped: bool) -> tuple[int, int]:
        """The heads of a twin and their key-value heads, `grouped` where any attention of the model has fewer of these.

        Two key-value heads at least, so that their order shows, and as many queries to each, up to GROUP. As many
        key-value heads become as many, whatever reads them: layers may read those of others.
        """
        kv_heads = self.kv_heads or self.heads
        few = min(kv_heads, 2 if grouped else 4)
        return few * min(self.heads // kv_heads, GROUP), few

    def shrink_keys(self, said: MappingNode, twin: Twin) -> Edits:
        """Heads, their size, and the scale of scores with it: of what is said, laid over this attention."""
        words = {key: to_plain(entry.value) for key, entry in said.entries.items()}
        sizes = {key: words[key] for key in ("heads", "kv_heads", "head_dim") if key in words}
        own = {key: size if isinstance(size, int) else None for key, size in sizes.items()}
        a = self.model_copy(update=own).resolve(twin.was)
        was = a.key_dim or 1
        head_dim = a.latent.least_head_dim if a.latent else twin.scale_by_heads(was)
        heads, kv_heads = a.few_heads(twin.grouped)
        new = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        edits: Edits = {key: new[key] for key, size in own.items() if size is not None}
        whole = a.latent is not None or heads * head_dim == twin.width
        if "heads" in said.entries and "head_dim" not in said.entries and not whole:
            edits["head_dim"] = head_dim
        scale = words.get("scale")
        if isinstance(scale, int | float) and scale != 1:  # 1 is no scaling, whatever the head
            edits["scale"] = max(scale * (was / head_dim) ** 0.5, SHARPNESS * head_dim**-0.5)
        return edits

    def problems(self, width: int, context: int) -> Iterator[Problem]:
        if self.key_dim is None and width % self.heads:
            near = _divisors_near(width, self.heads)
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
        of_latent = list(self._latent_problems())
        yield from of_latent
        if self.rope and not of_latent:
            turned = self.latent.rope_dim if self.latent else self.head_dim or width // self.heads
            for problem in self.rope.problems(turned, context):
                yield problem.under("rope")
        for key, norm in (("qk_norm", self.qk_norm), ("v_norm", self.v_norm), ("sub_norm", self.sub_norm)):
            for problem in norm.problems() if norm else ():
                yield problem.under(key)
        yield from self._inert_problems()
        for problem in self.relative_bias.problems(self.causal) if self.relative_bias else ():
            yield problem.under("relative_bias")
        if self.alibi and self.relative_bias:
            yield Problem(RELATIVE_BIAS, ("relative_bias",), "alibi says how much a key counts by its distance",
                          "one of them", also=(("alibi", ("alibi",)),))  # fmt: skip
        for key in ("softcap", "alibi", "relative_bias"):
            if self.sinks and getattr(self, key):
                yield Problem(SINKS, (key,), f"{key} changes scores, and no sink is defined beside it", f"no {key}",
                              also=(("sinks", ("sinks",)),))  # fmt: skip
        if self.alibi and not self.causal:
            yield Problem(ALIBI, ("alibi",), "alibi looks back, and causal: false looks both ways", "no alibi",
                          also=(("causal", ("causal",)),))  # fmt: skip

    def _latent_problems(self) -> Iterator[Problem]:
        if self.latent is not None:
            said = [key for key in UNDEFINED if getattr(self, key)]
            yield from self.latent.problems(said, self.rope)

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
        both = isinstance(self.window, EachSide)
        reached = self.window.each_side if isinstance(self.window, EachSide) else self.window
        if reached >= context:
            yield Problem(
                WINDOW, ("window", "each_side") if both else ("window",), "a window this long hides nothing",
                f"less than context {context}", str(reached),
                "write window: none, or leave the key out",
            )  # fmt: skip
        also = (("causal", ("causal",)),)
        if not both and not self.causal:
            yield Problem(WINDOW, ("window",), "a window looks back, and causal: false looks both ways",
                          f"{{each_side: {reached}}}, or no window", also=also)  # fmt: skip
        if both and self.causal:
            yield Problem(WINDOW, ("window",), "each_side looks both ways, and causal attention looks back",
                          "a number, or causal: false", also=also)  # fmt: skip

    def expand(self, scope: Scope, x: Value, label: str, place: Place | None) -> Value:
        a, inner = self.resolve(scope.width), Scope(scope.width)
        mixed = a._mix_latent(inner, place) if a.latent else a._mix(scope, inner, label, place)
        joined = apply(MergeHeads(), mixed, name="joined", place=place)
        size = a.heads * (a.latent.v_dim if a.latent else a.head_dim or 0)
        if a.sub_norm:
            joined = a.sub_norm.apply_to(joined, size, place)
        o = apply(Linear(size, scope.width, "o" in a.bias), joined, name="o", place=place)
        return scope.call(inner.close("Attention", o, a._doc), x, name=label, place=place)

    def _mix_latent(self, inner: Scope, place: Place | None) -> Value:
        """The heads before they are joined, of latent keys and values."""
        assert self.latent is not None and self.rope is not None
        (mask,) = inner.ask(self._mask)
        operands = self.latent.operands(self.heads, self.rope, inner, place)
        return apply(self.latent.op(self.heads, self.scale or 0.0), *operands, mask, name="mixed", place=place)

    def _mix(self, scope: Scope, inner: Scope, label: str, place: Place | None) -> Value:
        """The heads before they are joined."""
        heads, kv_heads, head_dim, scale = self.heads, self.kv_heads or 0, self.head_dim or 0, self.scale or 0.0
        (mask,) = inner.ask(self._mask)
        q = self._in_heads(self._flat(inner, "q", place), "q", place)
        lent, borrowed = Lent(label, kv_heads, head_dim), self.kv_from is not None
        k, v = inner.ask(lent) if borrowed else self._keys_and_values(inner, place)
        if self.rope:
            cos, sin = inner.ask(self.rope.shared_table(head_dim))
            rotary = self.rope.rotary_op(head_dim)
            q = apply(rotary, q, cos, sin, name="q_rotated", place=place)
            q = self._behind_rope(q, "q", place)
            if not borrowed:
                k = apply(rotary, k, cos, sin, name="k_rotated", place=place)
                k = self._behind_rope(k, "k", place)
        if label in scope.lends:
            inner.lent[lent] = k, v
        biased = (self.alibi or self.relative_bias) is not None
        op = AttentionOp(heads, kv_heads, scale, self.softcap, biased=biased, borrowed=borrowed)
        sinks: tuple[Value, ...] = ()
        if self.sinks:
            op = SinkAttention(heads, kv_heads, scale, borrowed=borrowed)
            sinks = (apply(Sinks(heads), name="sinks", place=place),)
        return apply(op, q, k, v, mask, *sinks, name="mixed", place=place)

    @property
    def _doc(self) -> str:
        """What the emitted class is, of a resolved part."""
        if self.latent is not None:
            sizes = f"{self.latent.nope_dim} + {self.latent.rope_dim} turned"
            return f"{self.heads} heads of {sizes}, keys and values made of {self.latent.kv_rank}{self._details}."
        read = "heads" if self.kv_heads != 1 else "head"
        groups = f"query heads of {self.head_dim} read {self.kv_heads} key-value {read}"
        return f"{self.heads} {groups if self.grouped else f'heads of {self.head_dim}'}{self._details}."

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
        said += ", scores changed by distance" if self.relative_bias else ""
        return said + (", scores lowered by distance" if self.alibi else ", with a sink each" if self.sinks else "")

    @property
    def _mask(self) -> Shared:
        """What a query sees; with alibi or a relative bias, how much each key counts."""
        match self.window:
            case EachSide(each_side=reached):
                seen, suffix = VisibleBothWays(reached), f"_{reached}"
            case None:
                seen, suffix = Visible() if self.causal else VisibleBothWays(), ""
            case window:
                seen, suffix = Visible(window), f"_{window}"
        label, op = "mask", seen
        if self.alibi:
            label, op = "bias", self.alibi.op(self.heads, seen.window if isinstance(seen, Visible) else None)
        elif self.relative_bias:
            buckets, most = self.relative_bias.buckets, self.relative_bias.max_distance
            label, op = "relative_bias", RelativeBiasOp(self.heads, buckets, most, seen)
        return Shared(f"{label}{suffix}", op, ("queries_at", "keys_at"))

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
            return norm.normalise_heads(x, (count, head_dim), name, place)
        if name == "v" and self.v_norm:
            return apply(self.v_norm.op(head_dim), x, name="v_norm", place=place)
        return x

    def _behind_rope(self, x: Value, name: str, place: Place | None) -> Value:
        """q or k of a resolved part, turned, with the norm that stands behind rope."""
        norm = self.qk_norm
        return norm.normalise_heads(x, self._sizes(name), name, place) if norm and norm.order else x


def _divisors_near(width: int, heads: int) -> str:
    """The divisors of width on either side of heads."""
    below = next((h for h in range(min(heads, width), max(heads - 10_000, 0), -1) if width % h == 0), 1)
    above = next((h for h in range(heads, min(heads + 10_000, width) + 1) if width % h == 0), width)
    return " or ".join(dict.fromkeys((str(below), str(above))))
