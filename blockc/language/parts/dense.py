"""dense: one matrix with what may follow it, an activation and a norm, as it stands before a head or behind a pool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from blockc.ir import Op, Value, apply
from blockc.language.parts.base import Model, OrNone, Problem, Scope
from blockc.language.parts.norm import Norm
from blockc.language.parts.numbers import Positive
from blockc.language.parts.twin import OfWidth
from blockc.ops import Gelu, GeluTanh, Linear, QuickGelu, Relu, Silu, Tanh

ACTS: dict[str, Op] = {
    "gelu": Gelu(), "gelu_tanh": GeluTanh(), "quick_gelu": QuickGelu(), "relu": Relu(), "silu": Silu(), "tanh": Tanh(),
}  # fmt: skip


class Dense(Model):
    """y = norm(act(x weight^T + bias))."""

    width: Annotated[OrNone[Positive], OfWidth()] = Field(
        default=None, description="Numbers that come out. An integer above 0. Absent or none: as many as are read next."
    )
    act: OrNone[Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "tanh"]] = Field(
        default=None, description="What is applied to each number behind the matrix. Absent or none: nothing."
    )
    bias: bool | None = Field(
        default=None,
        description="Whether the matrix has a bias. Absent: false.",
        json_schema_extra={"default": False},
    )
    norm: OrNone[Norm] = Field(default=None, description="A norm behind the activation. Absent or none: none.")

    def problems(self) -> Iterator[Problem]:
        for problem in self.norm.problems(0, 0) if self.norm else ():
            yield problem.under("norm")

    def resolve(self, width: int) -> Dense:
        """The same with its width written out: `width` where it says none."""
        size = self.width or width
        norm = self.norm.resolve(size) if self.norm else None
        return self.model_copy(update={"width": size, "bias": bool(self.bias), "norm": norm})

    def expand(self, x: Value, name: str) -> Value:
        """Of a resolved one: (..., inputs) -> (..., width)."""
        size = self.width or 0
        x = apply(Linear(x.type.shape[-1].value or 0, size, bool(self.bias)), x, name=name)
        if self.act:
            x = apply(ACTS[self.act], x, name=f"{name}_activated")
        return self.norm.expand(Scope(size), x, f"{name}_norm", None) if self.norm else x
