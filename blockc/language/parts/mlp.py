"""mlp: the position-wise network, plain or gated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Literal

from pydantic import Field

from blockc.diagnostics.meaning import BIAS_TWICE, CLAMPS, EXPERTS, NO_GATE
from blockc.ir import Op, Value, apply, node
from blockc.language.parts.base import NOTHING, OrNone, Part, Problem, Scope
from blockc.language.parts.experts import Experts, FewExperts
from blockc.language.parts.norm import SubNorm
from blockc.language.parts.numbers import Positive, PositiveFloat
from blockc.language.parts.twin import AtMost, OfWidth
from blockc.ops import (
    Add,
    ClampedSwiglu,
    Gelu,
    GeluTanh,
    Linear,
    Mul,
    QuickGelu,
    Relu,
    Relu2,
    SigmoidGate,
    Silu,
    Xielu,
)
from blockc.ops import Experts as ExpertsOp
from blockc.source import Place

# The word for each MLP: the activation, and whether a gate of its own is multiplied in.
TYPES: dict[str, tuple[Op, bool]] = {
    "swiglu": (Silu(), True),
    "reglu": (Relu(), True),
    "reglu2": (Relu2(), True),
    "geglu": (Gelu(), True),
    "geglu_tanh": (GeluTanh(), True),
    "gelu": (Gelu(), False),
    "gelu_tanh": (GeluTanh(), False),
    "quick_gelu": (QuickGelu(), False),
    "relu": (Relu(), False),
    "relu2": (Relu2(), False),
    "silu": (Silu(), False),
    "xielu": (Xielu(), False),
}
CLAMP = 1.0  # the most of a twin's limit: gate and up cross it
CLAMPED = "swiglu_clamped"  # its gate and its activation are one op, which has two numbers


class Mlp(Part):
    """y = down(act(up x)), or down(act(gate x) * up x)  (Shazeer 2020)."""

    type: Literal[
        "swiglu", "geglu", "geglu_tanh", "reglu", "reglu2", "swiglu_clamped",
        "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "silu", "xielu",
    ] = Field(
        description="The activation, and whether there is a gate. With one: swiglu (SiLU), geglu (exact GELU), "
        "geglu_tanh, reglu, reglu2 (ReLU squared), swiglu_clamped. Without: gelu, gelu_tanh, quick_gelu (x * "
        "sigmoid(1.702 x)), relu, relu2 (squared), silu, xielu (of four numbers in each MLP)."
    )  # fmt: skip
    width: Annotated[Positive, OfWidth()] = Field(
        description="Numbers between up and down (d_ff); of each expert, where there are experts. An integer above 0."
    )
    limit: Annotated[OrNone[PositiveFloat], AtMost(CLAMP)] = Field(
        default=None,
        description="Of swiglu_clamped, which needs it: gate is kept below it, up between it and its negative. "
        "A number above 0.",
    )
    alpha: OrNone[PositiveFloat] = Field(
        default=None,
        description="Of swiglu_clamped, which needs it: gate * sigmoid(alpha * gate) * (up + 1). A number above 0.",
    )
    bias: Annotated[tuple[Literal["gate", "up", "down"], ...], Field(strict=False), NOTHING] = Field(
        default=(), description="The matrices that have a bias, of gate, up, down. Absent, none or []: none of them."
    )
    sub_norm: OrNone[SubNorm] = Field(default=None, description="A norm of what down reads. Absent or none: none.")
    experts: Annotated[OrNone[Experts], FewExperts()] = Field(
        default=None,
        description="Many MLPs of this type and width, of which each token takes a few. Absent or none: one MLP.",
    )

    def problems(self, width: int, context: int) -> Iterator[Problem]:
        if len(set(self.bias)) < len(self.bias):
            yield Problem(BIAS_TWICE, ("bias",), "a matrix is named twice", "each of gate, up, down at most once")
        for key, number in (("limit", self.limit), ("alpha", self.alpha)):
            if self.type == CLAMPED and number is None:
                yield Problem(CLAMPS, (), f"{CLAMPED} must say its {key}", f"{key}: a number above 0")
            if self.type != CLAMPED and number is not None:
                yield Problem(CLAMPS, (key,), f"{self.type} has no {key}", "no such key here")
        if "gate" in self.bias and self.type != CLAMPED and not TYPES[self.type][1]:
            yield Problem(
                NO_GATE,
                ("bias",),
                f"{self.type} has no gate to bias",
                "up, down",
                "gate",
                also=(("the type is set here", ("type",)),),
            )
        for problem in self.sub_norm.problems() if self.sub_norm else ():
            yield problem.under("sub_norm")
        for problem in self.experts.problems() if self.experts else ():
            yield problem.under("experts")
        yield from self._expert_problems()

    def _expert_problems(self) -> Iterator[Problem]:
        """What one MLP may have and experts may not."""
        also = (("experts", ("experts",)),)
        if self.experts and self.type == "xielu":
            yield Problem(EXPERTS, ("type",), "xielu has four numbers in each MLP, and experts have none",
                          "another type", also=also)  # fmt: skip
        if self.experts and self.sub_norm:
            yield Problem(EXPERTS, ("sub_norm",), "no expert has a norm inside", "sub_norm: none", also=also)

    def resolve(self, width: int) -> Mlp:
        bias = tuple(m for m in ("gate", "up", "down") if m in self.bias)
        sub_norm = self.sub_norm.resolve() if self.sub_norm else None
        experts = self.experts.resolve() if self.experts else None
        return self.model_copy(update={"bias": bias, "sub_norm": sub_norm, "experts": experts})

    def expand(self, scope: Scope, x: Value, label: str, place: Place | None) -> Value:
        if self.experts:
            return self._expand_experts(self.experts, scope, x, label, place)
        inner = Scope(scope.width)

        def into(matrix: str) -> Value:
            return apply(Linear(scope.width, self.width, matrix in self.bias), inner.x[0], name=matrix, place=place)

        hidden, formula = self._hidden(into, place)
        if self.sub_norm:
            hidden, formula = self.sub_norm.apply_to(hidden, self.width, place), f"norm({formula})"
        down = apply(Linear(self.width, scope.width, "down" in self.bias), hidden, name="down", place=place)
        doc = f"down({formula}), {self.width} wide."
        return scope.call(inner.close("MLP", down, doc), x, name=label, place=place)

    def _expand_experts(self, experts: Experts, scope: Scope, x: Value, label: str, place: Place | None) -> Value:
        inner = Scope(scope.width)
        read = inner.x[0]
        gated = self.type == CLAMPED or TYPES[self.type][1]
        router = Linear(scope.width, experts.count, bool(experts.router.bias))
        logits = apply(router, read, name="router", place=place)
        route = node(experts.route, logits, name="route", place=place)
        op = ExpertsOp(experts.count, scope.width, self.width, self._act, gated, self.bias)
        y = apply(op, read, route[0], route[1], name="experts", place=place)
        formula = op.formula.replace("gate", "gate x").replace("up", "up x")
        doc = f"{experts.active} of {experts.count} experts, each down({formula}), {self.width} wide"
        if experts.shared:
            one = self.model_copy(update={"width": experts.shared.width, "experts": None})
            shared = one.expand(inner, read, "shared", place)
            if experts.shared.gate:
                gate = apply(Linear(scope.width, 1), read, name="shared_gate", place=place)
                shared = apply(SigmoidGate(), shared, gate, name="gated_shared", place=place)
            y = apply(Add(), y, shared, name="with_shared", place=place)
            doc += f", and {'a gated' if experts.shared.gate else 'one'} for all tokens"
        return scope.call(inner.close("MoE", y, f"{doc}."), x, name=label, place=place)

    @property
    def _act(self) -> Op:
        return ClampedSwiglu(self.limit or 0.0, self.alpha or 0.0) if self.type == CLAMPED else TYPES[self.type][0]

    def _hidden(self, into: Callable[[str], Value], place: Place | None) -> tuple[Value, str]:
        """What down reads, and its formula; `into` gives gate x or up x."""
        if self.type == CLAMPED:
            op = self._act
            return apply(op, into("gate"), into("up"), name="gated", place=place), f"{op.name}(gate x, up x)"
        act, gated = TYPES[self.type]
        if not gated:
            return apply(act, into("up"), name="activated", place=place), f"{act.name}(up x)"
        gate = apply(act, into("gate"), name="activated", place=place)
        return apply(Mul(), gate, into("up"), name="gated", place=place), f"{act.name}(gate x) * up x"
