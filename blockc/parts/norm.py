"""norm: RMSNorm and LayerNorm, and the norms of queries and keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from blockc.diagnostics.meaning import NORM_BIAS, QK_NORM
from blockc.ir import Value, apply
from blockc.ops import LayerNorm, RmsNorm
from blockc.parts.base import Model, OrNone, Part, Problem, Scope
from blockc.source import Place


class Norm(Part):
    """y = x / rms(x) * (offset + weight), or (x - mean) / std * weight + bias."""

    type: Literal["rms", "layer"]
    eps: Annotated[float, Field(ge=0)]
    bias: bool | None = None
    offset: OrNone[float] = None

    def resolved(self, width: int) -> Norm:
        """(0 + weight) is weight."""
        return self.model_copy(update={"offset": self.offset or None})

    def problems(self, width: int, context: int) -> Iterator[Problem]:
        if self.type == "layer" and self.bias is None:
            yield Problem(NORM_BIAS, (), "a layer norm must say whether it has a bias", "bias: true or bias: false")
        if self.type == "rms" and self.bias is not None:
            yield Problem(NORM_BIAS, ("bias",), "an rms norm has no bias", "no such key beside type: rms")
        if self.type == "layer" and self.offset is not None:
            message = "offset is part of an rms norm: (offset + weight)"
            yield Problem(NORM_BIAS, ("offset",), message, "no such key here")

    def expand(self, scope: Scope, x: Value, label: str, place: Place | None) -> Value:
        op = (
            RmsNorm(scope.width, self.eps, self.offset or 0.0)
            if self.type == "rms"
            else LayerNorm(scope.width, self.eps, bool(self.bias))
        )
        return apply(op, x, name=label, place=place)


class QkNorm(Model):
    """A norm of the queries and one of the keys. Type, eps and offset are those of the layer's norm.

    `over: head` norms each head by itself, with one weight that all share; `over: projection` all heads at once.
    """

    over: Literal["head", "projection"]
    weights: OrNone[Literal["shared"]] = None
    type: Literal["rms"] | None = None
    eps: Annotated[float, Field(ge=0)] | None = None
    offset: OrNone[float] = None

    def problems(self) -> Iterator[Problem]:
        if self.over == "head" and self.weights is None:
            yield Problem(QK_NORM, (), "a norm over each head must say whose its weights are", "weights: shared")
        if self.over == "projection" and self.weights is not None:
            message = "a norm over the projection has a weight for each of its numbers"
            yield Problem(QK_NORM, ("weights",), message, "no such key beside over: projection")
        if self.type is None or self.eps is None:
            yield Problem(QK_NORM, (), "there is no norm to take type and eps from", "a norm, or type and eps here")

    def resolved(self) -> QkNorm:
        return self.model_copy(update={"offset": self.offset or None})

    def op(self, width: int) -> RmsNorm:
        return RmsNorm(width, self.eps or 0.0, self.offset or 0.0)
