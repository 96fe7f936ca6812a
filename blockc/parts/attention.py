"""attention: query heads that read key-value heads, with rotary positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from blockc.diagnostics.meaning import BIAS_TWICE, HEADS, KV_HEADS, ROPE_BANDS, ROPE_ODD, ROPE_PART, WINDOW
from blockc.ir import Value, apply
from blockc.ops import (
    Attention as AttentionOp,
)
from blockc.ops import (
    Linear,
    Llama3Scaling,
    MergeHeads,
    Rotary,
    RotaryInterleaved,
    RotaryTable,
    SplitHeads,
    Visible,
    VisibleBothWays,
)
from blockc.parts.base import NOTHING, Model, OrNone, Part, Problem, Scope, Shared
from blockc.parts.norm import QkNorm
from blockc.source import Place

Positive = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]


class Llama3(Model):
    """Frequencies stretched by wavelength, as Llama 3.1 does it."""

    type: Literal["llama3"]
    factor: PositiveFloat
    low_freq_factor: PositiveFloat
    high_freq_factor: PositiveFloat
    original: Positive

    def problems(self) -> Iterator[Problem]:
        if self.low_freq_factor >= self.high_freq_factor:
            yield Problem(
                ROPE_BANDS,
                ("high_freq_factor",),
                "the bands of wavelengths cross",
                f"more than low_freq_factor {self.low_freq_factor:g}",
                f"{self.high_freq_factor:g}",
                also=(("low_freq_factor", ("low_freq_factor",)),),
            )

    @property
    def rule(self) -> Llama3Scaling:
        return Llama3Scaling(
            float(self.factor), float(self.low_freq_factor), float(self.high_freq_factor), self.original
        )


class Rope(Model):
    """`dims: N` turns the first N coordinates with frequencies over N; `pairs: N` the first N pairs, over head_dim."""

    theta: PositiveFloat
    pairing: Literal["half", "interleaved"]
    dims: OrNone[Positive] = None
    pairs: OrNone[Positive] = None
    scaling: OrNone[Llama3] = None

    def problems(self, head_dim: int) -> Iterator[Problem]:
        if self.dims is not None and self.pairs is not None:
            both = "dims and pairs are two meanings of partial"
            yield Problem(ROPE_PART, ("pairs",), both, "one of them", also=(("dims", ("dims",)),))
            return
        for key, count, most in (("dims", self.dims, head_dim), ("pairs", self.pairs, head_dim // 2)):
            if count is not None and count > most:
                message = f"{key} is more than a head of {head_dim} has"
                yield Problem(ROPE_PART, (key,), message, f"at most {most}", str(count))
        width = self.dims if self.dims is not None else head_dim
        if width % 2:
            yield Problem(ROPE_ODD, ("dims",) if self.dims else (), "rope turns pairs", "an even width", str(width))
        for problem in self.scaling.problems() if self.scaling else ():
            yield problem.under("scaling")

    def resolved(self, head_dim: int) -> Rope:
        """A part that is the whole head is no part."""
        whole = {"dims": head_dim, "pairs": head_dim // 2}
        return self.model_copy(update={key: None for key, all_ in whole.items() if getattr(self, key) == all_})

    def width(self, head_dim: int) -> int:
        return self.dims if self.dims is not None else head_dim

    def turn(self, head_dim: int) -> Rotary:
        """The halves against each other, or each even coordinate with the odd one after it."""
        op = {"half": Rotary, "interleaved": RotaryInterleaved}[self.pairing]
        return op(self.width(head_dim), head_dim)

    def table(self, head_dim: int) -> RotaryTable:
        width = self.width(head_dim)
        moving = self.pairs if self.pairs is not None else width // 2
        scaling = self.scaling.rule if self.scaling else None
        return RotaryTable(float(self.theta), moving, width, width // 2 - moving, scaling)


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
    softcap: OrNone[PositiveFloat] = None
    qk_norm: OrNone[QkNorm] = None

    def resolved(self, width: int) -> Attention:
        head_dim = self.head_dim or width // self.heads
        derived = {
            "kv_heads": self.kv_heads or self.heads,
            "head_dim": head_dim,
            "scale": float(self.scale or head_dim**-0.5),
            "bias": tuple(m for m in ("q", "k", "v", "o") if m in self.bias),
            "rope": self.rope.resolved(head_dim) if self.rope else None,
            "qk_norm": self.qk_norm.resolved() if self.qk_norm else None,
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
            for problem in self.rope.problems(head_dim):
                yield problem.under("rope")
        for problem in self.qk_norm.problems() if self.qk_norm else ():
            yield problem.under("qk_norm")

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
        visible = Visible(a.window) if a.causal else VisibleBothWays()
        mask_label = f"mask_{a.window}" if a.window else "mask"
        (mask,) = inner.ask(Shared(mask_label, visible, ("queries_at", "keys_at")))
        q, k, v = (a._in_heads(inner, name, place) for name in ("q", "k", "v"))
        if a.rope:
            cos, sin = inner.ask(Shared("rotary", a.rope.table(head_dim), ("position_ids",)))
            rotary = a.rope.turn(head_dim)
            q = apply(rotary, q, cos, sin, name="q_rotated", place=place)
            k = apply(rotary, k, cos, sin, name="k_rotated", place=place)
        op = AttentionOp(heads, kv_heads, scale, a.softcap)
        mixed = apply(op, q, k, v, mask, name="mixed", place=place)
        joined = apply(MergeHeads(), mixed, name="joined", place=place)
        o = apply(Linear(heads * head_dim, scope.width, "o" in a.bias), joined, name="o", place=place)
        normed = f", q and k normed over the {a.qk_norm.over}" if a.qk_norm else ""
        doc = f"{heads} query heads of {head_dim} read {kv_heads} key-value heads{normed}."
        return scope.call(inner.close("Attention", o, doc), x, name=label, place=place)

    def _in_heads(self, inner: Scope, name: str, place: Place | None) -> Value:
        """q, k or v, of a resolved part. A norm stands on either side of the split."""
        count, head_dim = (self.heads if name == "q" else self.kv_heads) or 0, self.head_dim or 0
        norm = self.qk_norm if name != "v" else None
        x = apply(Linear(inner.width, count * head_dim, name in self.bias), inner.x[0], name=name, place=place)
        if norm and norm.over == "projection":
            x = apply(norm.op(count * head_dim), x, name=f"{name}_norm", place=place)
        x = apply(SplitHeads(count, head_dim), x, name=f"{name}_heads", place=place)
        if norm and norm.over == "head":
            x = apply(norm.op(head_dim), x, name=f"{name}_norm", place=place)
        return x


def _near(width: int, heads: int) -> str:
    """The divisors of width on either side of heads."""
    below = next((h for h in range(min(heads, width), max(heads - 10_000, 0), -1) if width % h == 0), 1)
    above = next((h for h in range(heads, min(heads + 10_000, width) + 1) if width % h == 0), width)
    return " or ".join(dict.fromkeys((str(below), str(above))))
