"""norm: RMSNorm and LayerNorm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from blockc.ir import Value, apply
from blockc.ops import LayerNorm, RmsNorm
from blockc.parts.base import OrNone, Part, Problem, Scope
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
            yield Problem((), "a layer norm must say whether it has a bias", "bias: true or bias: false")
        if self.type == "rms" and self.bias is not None:
            yield Problem(("bias",), "an rms norm has no bias", "no such key beside type: rms")
        if self.type == "layer" and self.offset is not None:
            yield Problem(("offset",), "offset is part of an rms norm: (offset + weight)", "no such key here")

    def expand(self, scope: Scope, x: Value, label: str, place: Place | None) -> Value:
        op = (
            RmsNorm(scope.width, self.eps, self.offset or 0.0)
            if self.type == "rms"
            else LayerNorm(scope.width, self.eps, bool(self.bias))
        )
        return apply(op, x, name=label, place=place)
