"""A mixture of experts: the choice of each token's experts, and the MLPs that they are.

B rows, S tokens, E experts, k of them for a token, W numbers of the stream, F numbers inside an expert.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from blockc.ir import (
    Array,
    Arrays,
    Dim,
    Fact,
    OnnxBuilder,
    OnnxValue,
    Op,
    Param,
    Sample,
    TokenAxes,
    Type,
    dim,
    expect,
    product,
    tensor,
)
from blockc.ir.op import FREE
from blockc.ops.base import number_text, rand
from blockc.ops.elementwise import ClampedSwiglu, Gelu, GeluTanh, QuickGelu, Relu, Relu2, Silu
from blockc.ops.hits import Matrix, multiply_rows, sum_over_experts

Scores = Literal["softmax", "sigmoid"]
GroupScore = Literal["max", "top2_sum"]

# PyTorch: each activation as a function of gate and up, and of up alone.
GATED: dict[type[Op], str] = {
    Silu: "swiglu", Gelu: "geglu", GeluTanh: "geglu_tanh", Relu: "reglu", Relu2: "reglu2",
}  # fmt: skip
PLAIN: dict[type[Op], str] = {
    Silu: "F.silu", Gelu: "F.gelu", Relu: "F.relu", GeluTanh: 'partial(F.gelu, approximate="tanh")',
    Relu2: "relu2", QuickGelu: "quick_gelu",
}  # fmt: skip


@dataclass(frozen=True)
class Groups:
    """Experts in `count` groups of equal size: those outside of the `active` best groups are not chosen.

    The score of a group is its highest choice, or the sum of its two highest.
    """

    count: int
    active: int
    score: GroupScore

    @property
    def best(self) -> int:
        """How many of a group's highest choices are its score."""
        return 1 if self.score == "max" else 2


@dataclass(frozen=True)
class Route(Op):
    """s = softmax(x) or sigmoid(x); e = the k experts with the highest s + b; w = s[e] (/ sum of s[e]) * scale

    logits x (B, S, E) -> chosen experts (B, S, k) and their weights (B, S, k), the highest choice first. b is the
    selection bias, a buffer (E) that chooses and does not weigh. With `groups`, only experts of the best are chosen.
    Source: Shazeer et al. 2017; groups and bias: DeepSeek-AI 2024.
    """

    count: int
    active: int = field(metadata=FREE)
    scores: Scores
    normalise: bool
    scale: float = 1.0
    selection_bias: bool = False
    groups: Groups | None = None
    output_names = ("chosen", "weights")

    def infer(self, *args: Type) -> tuple[Type, ...]:
        *before, last = args[0].shape
        expect(last == dim(self.count), "the router's logits", self.count, last)
        return tensor("int", *before, self.active), tensor("float", *before, self.active)

    def params(self) -> tuple[Param, ...]:
        bias = Param("selection_bias", (self.count,), "bias", dtype="float32", buffer=True)
        return (bias,) if self.selection_bias else ()

    def figures(self, *args: Type) -> Iterable[tuple[str, Fact]]:
        yield "mlp.experts.count", self.count
        yield "mlp.experts.active", self.active
        at, groups = "mlp.experts.router.", self.groups
        yield from ((at + key, getattr(self, key)) for key in ("scores", "normalise", "scale", "selection_bias"))
        yield from ((f"{at}groups.{key}", getattr(groups, key, None)) for key in ("count", "active", "score"))

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        scores = self.score(args[0])
        choice = self._mask(self._bias(scores, params))
        experts = np.argsort(-choice, axis=-1, kind="stable")[..., : self.active]
        weights = np.take_along_axis(scores, experts, axis=-1)
        if self.normalise:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        return experts, weights * self.scale

    def score(self, logits: Array) -> Array:
        if self.scores == "sigmoid":
            return 1 / (1 + np.exp(-logits))
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True, initial=-np.inf))
        return powers / powers.sum(axis=-1, keepdims=True)

    def _bias(self, scores: Array, params: Arrays) -> Array:
        """What experts are chosen by, and the score of a group follows from: (B, S, E)"""
        return scores + params[0] if self.selection_bias else scores

    def _mask(self, choice: Array) -> Array:
        """-inf outside of the best groups."""
        if self.groups is None:
            return choice
        best = self._kept(self._group_scores(choice))
        return np.where(np.repeat(best, self.count // self.groups.count, axis=-1), choice, -np.inf)

    def _group_scores(self, choice: Array) -> Array:
        """(B, S, groups)"""
        assert self.groups is not None
        apart = choice.reshape(*choice.shape[:-1], self.groups.count, self.count // self.groups.count)
        return np.sort(apart, axis=-1)[..., -self.groups.best :].sum(-1)

    def _kept(self, scores: Array) -> Array:
        assert self.groups is not None
        order = np.argsort(-scores, axis=-1, kind="stable")[..., : self.groups.active]
        kept = np.zeros(scores.shape, bool)
        np.put_along_axis(kept, order, True, axis=-1)
        return kept

    def margins(self, logits: Array, params: Arrays) -> Array:
        """How far each token is from another choice of experts, (B, S): the gap behind the last one that is chosen.

        It is measured in choices; with groups also in scores of groups. inf where all are chosen.
        """
        choice = self._bias(self.score(logits), params)
        gap = _gap_behind(self._mask(choice), self.active)
        if self.groups is None:
            return gap
        return np.minimum(gap, _gap_behind(self._group_scores(choice), self.groups.active))

    def declares(self) -> str | None:
        return f"SelectionBias({self.count})" if self.selection_bias else None

    @property
    def helpers(self) -> tuple[str, ...]:
        bias = ("selection_bias",) if self.selection_bias else ()
        return ("at_least_fp32", *bias, "route_in_groups" if self.groups else "route")

    def torch(self, me: str, *args: str) -> str:
        made = "softmax(dim=-1)" if self.scores == "softmax" else "sigmoid()"
        said = [f"at_least_fp32({args[0]}).{made}", f"active={self.active}", f"normalise={self.normalise}"]
        said += [f"scale={number_text(self.scale)}"] if self.scale != 1 else []
        said += [f"bias={me}.selection_bias"] if self.selection_bias else []
        if self.groups is None:
            return f"route({', '.join(said)})"
        groups = f"groups={self.groups.count}, active_groups={self.groups.active}, best={self.groups.best}"
        return f"route_in_groups({', '.join(said)}, {groups})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        """In fp32, whatever the model's type: a choice is as exact as it can be."""
        logits, k = g.widen(args[0]), g.constant([self.active])
        if self.by_logits and self.normalise:  # the softmax over the chosen alone is the same
            weights, experts = g.ops("TopK", 2, logits, k, axis=-1, largest=1, sorted=1)
            return experts, g.narrow(self._scale(g, g.op("Softmax", weights, axis=-1)))
        scores = g.op("Sigmoid", logits) if self.scores == "sigmoid" else g.op("Softmax", logits, axis=-1)
        choice = g.op("Add", scores, params[0]) if self.selection_bias else scores
        weights, experts = g.ops("TopK", 2, self._mask_groups(g, choice), k, axis=-1, largest=1, sorted=1)
        if self.selection_bias:
            weights = g.op("GatherElements", scores, experts, axis=-1)
        if self.normalise:
            weights = g.op("Div", weights, g.op("ReduceSum", weights, g.constant([-1]), keepdims=1))
        return experts, g.narrow(self._scale(g, weights))

    @property
    def by_logits(self) -> bool:
        """Whether the experts with the highest logits are chosen, and weighed by a softmax."""
        return self.scores == "softmax" and not self.selection_bias and self.groups is None

    def _scale(self, g: OnnxBuilder, weights: OnnxValue) -> OnnxValue:
        return weights if self.scale == 1 else g.op("Mul", weights, g.constant(np.array(self.scale, np.float32)))

    def _mask_groups(self, g: OnnxBuilder, choice: OnnxValue) -> OnnxValue:
        """-inf for what is not in the best groups."""
        if self.groups is None:
            return choice
        count, best = self.groups.count, self.groups.best
        apart = g.op("Reshape", choice, g.constant([0, 0, count, self.count // count]))
        highest, _ = g.ops("TopK", 2, apart, g.constant([best]), axis=-1, largest=1, sorted=1)
        score = g.op("ReduceSum", highest, g.constant([-1]), keepdims=0)
        _, kept = g.ops("TopK", 2, score, g.constant([self.groups.active]), axis=-1, largest=1, sorted=1)
        marks = g.op("OneHot", kept, g.constant(np.array(count)), g.constant(np.array([0, 1], np.float32)), axis=2)
        inside = g.op("Cast", g.op("ReduceSum", marks, g.constant([-1]), keepdims=1), to=9)
        masked = g.op("Where", inside, apart, g.constant(np.array(-np.inf, np.float32)))
        return g.op("Reshape", masked, g.constant([0, 0, self.count]))

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1,), (1, 1))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        logits = rand(2, 3, 8) * 2
        two, best = Groups(4, 2, "top2_sum"), Groups(4, 2, "max")
        ops = (
            Route(8, 2, "softmax", normalise=True),
            Route(8, 3, "softmax", normalise=False),
            Route(8, 8, "softmax", normalise=True, scale=0.5),
            Route(8, 1, "sigmoid", normalise=False, selection_bias=True),
            Route(8, 2, "sigmoid", normalise=True, scale=2.5, selection_bias=True, groups=two),
            Route(8, 2, "softmax", normalise=False, scale=16.0, groups=best),
        )
        return tuple(Sample(op, (logits,)) for op in ops)


def _gap_behind(scores: Array, chosen: int) -> Array:
    if chosen == scores.shape[-1]:
        return np.full(scores.shape[:-1], np.inf)
    ordered = -np.sort(-scores, axis=-1)
    return ordered[..., chosen - 1] - ordered[..., chosen]


@dataclass(frozen=True)
class Experts(Op):
    """y = sum over j of w_j down_e(act(gate_e x) * up_e x), e = experts_j; without a gate down_e(act(up_e x))

    x (B, S, W), experts (B, S, k) and their weights (B, S, k) -> (B, S, W). gate, up (E, F, W), down (E, W, F). `act`
    is the activation, of the gate, or of gate and up where it has two operands.
    """

    count: int
    inputs: int
    width: int
    act: Op
    gated: bool = True
    bias: tuple[str, ...] = field(default=())

    def infer(self, *args: Type) -> tuple[Type, ...]:
        x, experts, weights = args
        expect(x.shape[-1] == dim(self.inputs), "the width read by experts", self.inputs, x.shape[-1])
        expect(experts.shape == weights.shape, "a weight for each expert", experts, weights)
        expect(experts.shape[:-1] == x.shape[:-1], "the experts of each token", x, experts)
        return (x,)

    def params(self) -> tuple[Param, ...]:
        into, out = (self.count, self.width, self.inputs), (self.count, self.inputs, self.width)
        shapes = {"gate": into, "up": into, "down": out} if self.gated else {"up": into, "down": out}
        matrices = (Param(name, shape, "matrix") for name, shape in shapes.items())
        biases = (Param(f"{name}_bias", shapes[name][:2], "bias") for name in shapes if name in self.bias)
        return (*matrices, *biases)

    def idle(self, *args: Type) -> int:
        """Those of the experts that a token does not choose."""
        chosen = args[1].shape[-1].value or 0
        return sum(param.size // self.count * (self.count - chosen) for param in self.params())

    def figures(self, *args: Type) -> Iterable[tuple[str, Fact]]:
        return (*self.act.figures(args[0]), ("mlp.width", self.width))

    def flops(self, *args: Type) -> Dim:
        return product(args[1].shape) * (2 * (3 if self.gated else 2) * self.inputs * self.width)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        own = dict(zip((param.name for param in self.params()), params, strict=True))

        def multiply(name: str, x: Array, e: int) -> Array:
            y = x @ own[name][e].T
            return y + own[f"{name}_bias"][e] if f"{name}_bias" in own else y

        return (self.add_up(args, np.unique(args[1]), multiply),)

    def add_up(self, args: Arrays, numbers: Iterable[int], multiply: Callable[[str, Array, int], Array]) -> Array:
        """y, from the experts of these numbers, one after another.

        `multiply` gives x matrix^T + bias, by the name of a matrix, x, and the number of an expert.
        """
        x, experts, weights = args
        y = np.zeros_like(x)
        for e in numbers:
            *at, slot = np.nonzero(experts == e)
            here = tuple(at)
            inside = self.activate(*(multiply(name, x[here], e) for name in self.into))
            np.add.at(y, here, multiply("down", inside, e) * weights[(*here, slot)][:, None])
        return y

    def activate(self, *inner: Array) -> Array:
        """What down reads, of gate and up, or of up alone."""
        if self.paired or not self.gated:
            return self.act.numpy(inner, ())[0]
        return self.act.numpy(inner[:1], ())[0] * inner[1]

    @property
    def into(self) -> tuple[str, ...]:
        """The names of the matrices that x is multiplied by."""
        return ("gate", "up") if self.gated else ("up",)

    @property
    def formula(self) -> str:
        """What down reads."""
        if not self.gated:
            return f"{self.act.name}(up)"
        return f"{self.act.name}(gate, up)" if self.paired else f"{self.act.name}(gate) * up"

    @property
    def paired(self) -> bool:
        """Whether the activation takes gate and up at once."""
        return isinstance(self.act, ClampedSwiglu)

    def declares(self) -> str | None:
        sizes = f"{self.count}, {self.inputs}, {self.width}"
        bias = f", bias=[{', '.join(map(json.dumps, self.bias))}]" if self.bias else ""
        return f"{self.module}({sizes}, {self._act_text()}{bias})"

    @property
    def module(self) -> str:
        """PyTorch: its class."""
        return "Experts" if self.gated else "PlainExperts"

    def _act_text(self) -> str:
        """The activation as a function of gate and up, or of up alone."""
        if isinstance(self.act, ClampedSwiglu):
            return f"partial(clamped_swiglu, limit={self.act.limit!r}, alpha={self.act.alpha!r})"
        return (GATED if self.gated else PLAIN)[type(self.act)]

    @property
    def helpers(self) -> tuple[str, ...]:
        name = self._act_text()
        act = self.act.helpers if self.paired else () if "F." in name else (name,)
        return (*act, "expert_linear", "expert_mlps" if self.gated else "plain_expert_mlps")

    def torch(self, me: str, *args: str) -> str:
        return f"{me}({', '.join(args)})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        own = dict(zip((param.name for param in self.params()), params, strict=True))
        return self.run(g, args, own, lambda h, name, e: h.op("Gather", own[name], e, axis=0))

    def run(
        self, g: OnnxBuilder, args: Sequence[OnnxValue], own: Mapping[str, OnnxValue], matrix: Matrix
    ) -> Sequence[OnnxValue]:
        """The Loop, whose matrices are those that `matrix` gives; biases are in `own`, by name."""

        def expert(h: OnnxBuilder, x: OnnxValue, e: OnnxValue) -> OnnxValue:
            inner = self.act_onnx(h, [multiply_rows(h, own, name, x, e, matrix) for name in self.into])
            return multiply_rows(h, own, "down", inner, e, matrix)

        return [sum_over_experts(g, args, self.count, expert)]

    def act_onnx(self, g: OnnxBuilder, inner: Sequence[OnnxValue]) -> OnnxValue:
        """The activation of gate and up, or of up alone."""
        rule = self.act.older if g.opset < self.act.since else self.act.onnx
        if self.paired or not self.gated:
            return rule(g, tuple(inner), ())[0]
        return g.op("Mul", rule(g, (inner[0],), ())[0], inner[1])

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1, 1, 1), (1,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        x, weights = rand(2, 3, 8), np.abs(rand(2, 3, 2, seed=1))
        experts = np.array([[[0, 3], [3, 1], [5, 0]], [[1, 3], [0, 5], [3, 0]]])
        biased = ("gate", "up", "down")
        ops = (
            Experts(7, 8, 12, Silu()),
            Experts(7, 8, 5, GeluTanh()),
            Experts(7, 8, 12, ClampedSwiglu(0.9, 1.702), bias=biased),
            Experts(7, 8, 12, Relu2(), gated=False),
        )
        return tuple(Sample(op, (x, experts, weights)) for op in ops)


@dataclass(frozen=True)
class SigmoidGate(Op):
    """y = sigmoid(g) * x: x (B, S, n), g (B, S, n), or (B, S, 1) for all numbers of a token"""

    def infer(self, *args: Type) -> tuple[Type, ...]:
        x, gate = args
        wanted = x.with_axis(len(x.shape) - 1, 1)
        expect(gate in (x, wanted), "a gate", f"{x} or {wanted}", gate)
        return (x,)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (args[0] / (1 + np.exp(-args[1])),)

    def torch(self, me: str, *args: str) -> str:
        return f"torch.sigmoid({args[1]}) * {args[0]}"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Mul", g.op("Sigmoid", args[1]), args[0])]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1, 1), (1,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        x = rand(2, 3, 8)
        return Sample(SigmoidGate(), (x, rand(2, 3, 8, seed=1))), Sample(SigmoidGate(), (x, rand(2, 3, 1, seed=1)))
