"""norm: RMSNorm and LayerNorm, and the norms that stand inside other parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from blockc.diagnostics import Code
from blockc.diagnostics.meaning import NORM_BIAS, QK_NORM, SUB_NORM, V_NORM
from blockc.ir import Value, apply
from blockc.language.parts.base import Mark, Model, OrNone, Part, Problem, Scope
from blockc.language.parts.numbers import Epsilon, Real
from blockc.ops import HeadGain, LayerNorm, RmsNorm
from blockc.source import Place

EPS = "Added to the mean square (rms) or the variance (layer) before the root. A number of 0 or more, such as 1e-5."
NormType = Literal["rms", "layer"]


def norm_op(
    type_: NormType | None,
    width: int,
    eps: float,
    offset: float | None,
    *,
    bias: bool | None = None,
    bare: bool = False,
) -> RmsNorm | LayerNorm:
    """The op of a norm. Bare: without parameters."""
    if type_ == "layer":
        return LayerNorm(width, eps, bool(bias), bare, offset or None)
    return RmsNorm(width, eps, offset or 0.0, bare)


def _check_rms_bias(code: Code, type_: NormType | None, bias: bool | None) -> Iterator[Problem]:
    if type_ == "rms" and bias is not None:
        yield Problem(code, ("bias",), "an rms norm has no bias", "no such key beside type: rms")


def _check_inherited(code: Code, type_: NormType | None, eps: float | None) -> Iterator[Problem]:
    """Of a norm inside a part, which is of the type of the layer's norm unless it says its own."""
    if type_ is None or eps is None:
        yield Problem(code, (), "there is no norm to take type and eps from", "a norm, or type and eps here")


class Norm(Part):
    """y = x / rms(x) * (offset + weight), or (x - mean) / std * (offset + weight) + bias.

    `weight: false` leaves out both weight and bias.
    """

    type: NormType = Field(
        description="rms: x / rms(x) * weight. layer: (x - mean) / std * weight, with a bias or without."
    )
    eps: Epsilon = Field(description=EPS)
    weight: bool | None = Field(
        default=None,
        description="Whether the norm has parameters: false for x / rms(x) or (x - mean) / std. Absent: true.",
        json_schema_extra={"default": True},
    )
    bias: bool | None = Field(
        default=None,
        description="Whether a layer norm adds width numbers. It must be said for layer, and is refused for rms.",
    )
    offset: OrNone[Real] = Field(
        default=None, description="Number added to the gain: (offset + weight) in the place of weight. Absent: 0."
    )

    def resolve(self, width: int) -> Norm:
        """(0 + weight) is weight, which is there unless it is said not to be."""
        bare = self.weight is False
        bias = False if bare and self.type == "layer" else self.bias
        return self.model_copy(update={"offset": self.offset or None, "weight": False if bare else None, "bias": bias})

    def problems(self, width: int, context: int) -> Iterator[Problem]:
        for key in ("bias", "offset"):
            if self.weight is False and getattr(self, key):
                message = "a norm without weight has no parameters"
                yield Problem(NORM_BIAS, (key,), message, f"no {key}", also=(("without weight", ("weight",)),))
        if self.type == "layer" and self.bias is None and self.weight is not False:
            yield Problem(NORM_BIAS, (), "a layer norm must say whether it has a bias", "bias: true or bias: false")
        yield from _check_rms_bias(NORM_BIAS, self.type, self.bias)

    def expand(self, scope: Scope, x: Value, label: str, place: Place | None) -> Value:
        op = norm_op(self.type, scope.width, self.eps, self.offset, bias=self.bias, bare=self.weight is False)
        return apply(op, x, name=label, place=place)


class QkNorm(Model):
    """A norm of the queries and one of the keys. Type, eps and offset are those of the layer's norm.

    `over: head` norms each head by itself, with one weight that all share, with its own, or with none; `over:
    projection` all heads at once. `order` is the side of rope on which it stands.
    """

    over: Literal["head", "projection"] = Field(description="head: each head by itself. projection: all heads at once.")
    weights: OrNone[Literal["shared", "own"]] = Field(
        default=None,
        description="shared: one gain of head_dim numbers for all heads. own: each head has its own. Said with "
        "over: head unless weight is false, refused with projection.",
    )
    order: OrNone[Literal["before_rope", "after_rope"]] = Field(
        default=None,
        description="before_rope, or after_rope: heads are normed once they are turned. Absent or none: before_rope.",
    )
    type: Annotated[NormType | None, Mark.OF_NORM] = Field(
        default=None, description="rms, or layer. Absent: that of norm."
    )
    eps: Annotated[Epsilon | None, Mark.OF_NORM] = Field(default=None, description=EPS + " Absent: that of norm.")
    weight: bool | None = Field(
        default=None, description="false: x / rms(x) or (x - mean) / std, without parameters. Absent: true."
    )
    bias: OrNone[bool] = Field(
        default=None,
        description="Whether a layer norm adds numbers of its own, head_dim of them or those of the projection. "
        "Absent: false.",
    )
    offset: Annotated[OrNone[Real], Mark.OF_NORM] = Field(
        default=None, description="Number added to the gain: (offset + weight). Absent: that of norm."
    )

    def problems(self) -> Iterator[Problem]:
        if self.over == "head" and self.weights is None and self.weight is not False:
            expected = "weights: shared or own; or weight: false"
            yield Problem(QK_NORM, (), "a norm over each head must say whose its weights are", expected)
        if self.weights is not None and self.weight is False:
            message = "a norm without weight has none that heads could share"
            yield Problem(QK_NORM, ("weights",), message, "no such key", also=(("without weight", ("weight",)),))
        if self.over == "projection" and self.order == "after_rope":
            message = "rope turns heads, and behind it each head is normed by itself"
            yield Problem(QK_NORM, ("order",), message, "over: head", also=(("over", ("over",)),))
        yield from self._bias_problems()
        if self.over == "projection" and self.weights is not None:
            message = "a norm over the projection has a weight for each of its numbers"
            yield Problem(QK_NORM, ("weights",), message, "no such key beside over: projection")
        if self.offset and (self.weights == "own" or self.weight is False):
            message = "offset is part of a norm whose weights are shared: (offset + weight)"
            yield Problem(QK_NORM, ("offset",), message, "offset: none")
        yield from _check_inherited(QK_NORM, self.type, self.eps)

    def _bias_problems(self) -> Iterator[Problem]:
        yield from _check_rms_bias(QK_NORM, self.type, self.bias)
        if self.type != "rms" and self.bias and (self.weights == "own" or self.weight is False):
            message = "a bias stands beside a weight that all heads share, or one of the whole projection"
            yield Problem(QK_NORM, ("bias",), message, "bias: false")

    def resolve(self, turned: bool) -> QkNorm:
        """Without rope there is no other side of it."""
        order = self.order if turned and self.order == "after_rope" else None
        bare, bias = (False if self.weight is False else None), self.bias or None
        return self.model_copy(update={"offset": self.offset or None, "order": order, "weight": bare, "bias": bias})

    def op(self, width: int, bare: bool = False) -> RmsNorm | LayerNorm:
        bare = bare or self.weight is False
        return norm_op(self.type, width, self.eps or 0.0, self.offset, bias=self.bias, bare=bare)

    def normalise_heads(self, x: Value, sizes: tuple[int, int], name: str, place: Place | None) -> Value:
        """Over each of the heads; sizes are their number and head_dim."""
        if self.weights != "own":
            return apply(self.op(sizes[1]), x, name=f"{name}_norm", place=place)
        x = apply(self.op(sizes[1], bare=True), x, name=f"{name}_bare_norm", place=place)
        return apply(HeadGain(*sizes), x, name=f"{name}_norm", place=place)


class VNorm(Model):
    """A norm of each head's values, without parameters. Type and eps are those of the layer's norm."""

    over: Literal["head"] = Field(description="head: each head by itself.")
    weight: Literal[False] = Field(description="false: x / rms(x) or (x - mean) / std, without parameters.")
    type: Annotated[NormType | None, Mark.OF_NORM] = Field(
        default=None, description="rms, or layer. Absent: that of norm."
    )
    eps: Annotated[Epsilon | None, Mark.OF_NORM] = Field(default=None, description=EPS + " Absent: that of norm.")

    def problems(self) -> Iterator[Problem]:
        yield from _check_inherited(V_NORM, self.type, self.eps)

    def op(self, head_dim: int) -> RmsNorm | LayerNorm:
        return norm_op(self.type, head_dim, self.eps or 0.0, None, bare=True)


class SubNorm(Model):
    """A norm inside a part, of what its last matrix reads. Type, eps and offset are those of the layer's norm.

    Source: Wang et al. 2022, sub-LayerNorm.
    """

    weight: bool = Field(
        description="true: a gain for each number. false: x / rms(x) or (x - mean) / std, without parameters."
    )
    type: Annotated[NormType | None, Mark.OF_NORM] = Field(
        default=None, description="rms, or layer. Absent: that of norm."
    )
    eps: Annotated[Epsilon | None, Mark.OF_NORM] = Field(default=None, description=EPS + " Absent: that of norm.")
    bias: OrNone[bool] = Field(default=None, description="Whether a layer norm adds numbers of its own. Absent: false.")
    offset: Annotated[OrNone[Real], Mark.OF_NORM] = Field(
        default=None, description="Number added to the gain: (offset + weight). Absent: that of norm."
    )

    def problems(self) -> Iterator[Problem]:
        yield from _check_inherited(SUB_NORM, self.type, self.eps)
        yield from _check_rms_bias(SUB_NORM, self.type, self.bias)
        for key in ("bias", "offset"):
            if not self.weight and getattr(self, key):
                message = "a norm without weight has no parameters"
                also = (("without weight", ("weight",)),)
                yield Problem(SUB_NORM, (key,), message, f"{key}: {'false' if key == 'bias' else 'none'}", also=also)

    def resolve(self) -> SubNorm:
        return self.model_copy(update={"offset": self.offset or None, "bias": self.bias or None})

    def apply_to(self, x: Value, width: int, place: Place | None) -> Value:
        op = norm_op(self.type, width, self.eps or 0.0, self.offset, bias=self.bias, bare=not self.weight)
        return apply(op, x, name="sub_norm", place=place)
