"""mlp: the position-wise network, plain or gated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from blockc.diagnostics.meaning import BIAS_TWICE, NO_GATE
from blockc.ir import Value, apply
from blockc.ops import Gelu, GeluTanh, Linear, Mul, Op, Relu, Silu
from blockc.parts.base import NOTHING, Part, Problem, Scope
from blockc.source import Place

# The word for each MLP: the activation, and whether a gate of its own is multiplied in.
TYPES: dict[str, tuple[Op, bool]] = {
    "swiglu": (Silu(), True),
    "geglu": (Gelu(), True),
    "geglu_tanh": (GeluTanh(), True),
    "gelu": (Gelu(), False),
    "gelu_tanh": (GeluTanh(), False),
    "relu": (Relu(), False),
}


class Mlp(Part):
    """y = down(act(up x)), or down(act(gate x) * up x)  (Shazeer 2020)."""

    type: Literal["swiglu", "geglu", "geglu_tanh", "gelu", "gelu_tanh", "relu"]
    width: Annotated[int, Field(gt=0)]
    bias: Annotated[tuple[Literal["gate", "up", "down"], ...], Field(strict=False), NOTHING] = ()

    def problems(self, width: int, context: int) -> Iterator[Problem]:
        if len(set(self.bias)) < len(self.bias):
            yield Problem(BIAS_TWICE, ("bias",), "a matrix is named twice", "each of gate, up, down at most once")
        if "gate" in self.bias and not TYPES[self.type][1]:
            yield Problem(
                NO_GATE,
                ("bias",),
                f"{self.type} has no gate to bias",
                "up, down",
                "gate",
                also=(("the type is set here", ("type",)),),
            )

    def resolved(self, width: int) -> Mlp:
        return self.model_copy(update={"bias": tuple(m for m in ("gate", "up", "down") if m in self.bias)})

    def expand(self, scope: Scope, x: Value, label: str, place: Place | None) -> Value:
        act, gated = TYPES[self.type]
        inner = Scope(scope.width)

        def into(matrix: str) -> Value:
            return apply(Linear(scope.width, self.width, matrix in self.bias), inner.x[0], name=matrix, place=place)

        if gated:
            gate = apply(act, into("gate"), name="activated", place=place)
            hidden = apply(Mul(), gate, into("up"), name="gated", place=place)
        else:
            hidden = apply(act, into("up"), name="activated", place=place)
        down = apply(Linear(self.width, scope.width, "down" in self.bias), hidden, name="down", place=place)
        formula = f"down({act.name}(gate x) * up x)" if gated else f"down({act.name}(up x))"
        return scope.call(inner.close("MLP", down, f"{formula}, {self.width} wide."), x, name=label, place=place)
