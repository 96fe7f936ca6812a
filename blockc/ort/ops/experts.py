"""A mixture of experts in one kernel: onnxruntime's MoE, which also routes, by the softmax over the highest logits.

Any other choice fits too: the logarithms of its weights are logits whose softmax has these weights, up to their sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blockc.ir import Arrays, Blocks, Dim, OnnxBuilder, OnnxValue, Op, Param, Sample, TokenAxes, Type, dim, expect
from blockc.ir.derive import Derivation, Interleave
from blockc.ops import ClampedSwiglu, GeluTanh, Relu, Silu
from blockc.ops.base import rand
from blockc.ops.coded import Coding, Restore, code_params, cut_row, matrix_of, restore_params
from blockc.ops.experts import Experts, Route
from blockc.ops.hits import multiply_rows, sum_over_experts
from blockc.ort.ops.blocks import Level
from blockc.ort.ops.rows import MICROSOFT

UNCHOSEN = -1e4  # a logit whose softmax is 0
LEAST = 1e-30  # of weights, before their logarithm
BEHIND = 1 << 60  # an end of a slice that is behind every end
_PLAIN: Mapping[type[Op], str] = {Relu: "relu", Silu: "silu", GeluTanh: "gelu"}  # the kernel's gelu is that by tanh


@dataclass(frozen=True)
class ChoiceLogits(Op):
    """z = log(w) at the experts chosen, else -10^4: experts (B, S, k), weights (B, S, k) -> (B, S, E)

    softmax(z) is w / sum of w at the experts chosen, and 0 elsewhere.
    """

    count: int

    def infer(self, *args: Type) -> tuple[Type, ...]:
        expect(args[0].shape == args[1].shape, "a weight for each expert", args[0], args[1])
        return (args[1].with_axis(2, self.count),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        logits = np.full((*args[0].shape[:2], self.count), UNCHOSEN)
        np.put_along_axis(logits, args[0], np.log(np.maximum(args[1], LEAST)), axis=2)
        return (logits,)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        experts, weights = args
        shape = g.op("Concat", g.op("Shape", experts, start=0, end=2), g.constant([self.count]), axis=0)
        logits = g.op("Expand", g.real(UNCHOSEN), shape)
        return [g.op("ScatterElements", logits, experts, g.op("Log", g.op("Max", weights, g.real(LEAST))), axis=2)]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1, 1), (1,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        experts, weights = np.array([[[0, 3], [4, 1]]]), np.array([[[0.25, 2.0], [0.0, 1e-3]]])
        return (Sample(ChoiceLogits(5), (experts, weights)),)


@dataclass(frozen=True)
class WeightSum(Op):
    """s = sum of w: (B, S, k) -> (B, S, 1)"""

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (args[0].with_axis(2, 1),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (args[0].sum(axis=2, keepdims=True),)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("ReduceSum", args[0], g.constant([2]), keepdims=1)]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1,), (1,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(WeightSum(), (rand(2, 3, 4),)),)


@dataclass(frozen=True)
class RoutedExperts(Op):
    """y = scale * sum over the k highest logits z_e of w_e expert_e(x), w = softmax(z), over these or over all

    x (B, S, W), logits (B, S, E) -> (B, S, W), by the matrices of `experts`; gate and up are one, their rows in turn.
    With `normalise` the softmax is over the k. A third operand (B, S, 1) is another factor of y.
    """

    experts: Experts
    active: int
    normalise: bool = True
    scale: float = 1.0
    kernel = "MoE"

    def infer(self, *args: Type) -> tuple[Type, ...]:
        x, logits, *factor = args
        count, inputs = self.experts.count, self.experts.inputs
        expect(x.shape[-1] == dim(inputs), "the width read by experts", inputs, x.shape[-1])
        expect(logits == x.with_axis(2, count), "logits of experts", x.with_axis(2, count), logits)
        for each in factor:
            expect(each == x.with_axis(2, 1), "a factor of each token", x.with_axis(2, 1), each)
        return (x,)

    @property
    def first(self) -> str:
        """The name of the tensor that x is multiplied by."""
        return "inner" if self.experts.gated else "up"

    def params(self) -> tuple[Param, ...]:
        own = {param.name: param for param in self.experts.params()}
        return tuple(self._place(own, name) for name in self._names)

    @property
    def _names(self) -> tuple[str, ...]:
        """Of its own tensors, in the order of the kernel."""
        biased = {self.first: "up" in self.experts.bias, "down": "down" in self.experts.bias}
        pairs = ((name, f"{name}_bias") if bias else (name,) for name, bias in biased.items())
        return tuple(name for pair in pairs for name in pair)

    def _place(self, own: Mapping[str, Param], name: str) -> Param:
        derivation = self.derivations({key: key for key in own}).get(name)
        return derivation.param_of(name, own) if derivation else own[name]

    def derivations(self, paths: Mapping[str, str]) -> dict[str, Derivation]:
        """What its own tensors are made of, from the paths of those of the experts."""
        made = {"inner": ("gate", "up"), "inner_bias": ("gate_bias", "up_bias")}
        return {
            name: Interleave(tuple(paths[source] for source in sources), axis=1)
            for name, sources in made.items()
            if name in self._names
        }

    def flops(self, *args: Type) -> Dim:
        return self.experts.flops(args[0], args[1].with_axis(2, self.active))

    def idle(self, *args: Type) -> int:
        chosen = args[1].with_axis(2, self.active)
        return self.experts.idle(args[0], chosen, chosen)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        x, logits, *factor = args
        powers = np.exp(logits - logits.max(axis=2, keepdims=True, initial=-np.inf))
        chosen = np.argsort(-logits, axis=2, kind="stable")[..., : self.active]
        weights = np.take_along_axis(powers, chosen, axis=2)
        weights = weights / (weights if self.normalise else powers).sum(axis=2, keepdims=True)
        (y,) = self.experts.numpy((x, chosen, weights), self._split(params))
        for each in (self.scale, *factor):
            y = y * each
        return (y,)

    def _split(self, params: Arrays) -> Arrays:
        """The tensors as the experts have them."""
        held = dict(zip(self._names, params, strict=True))
        for name in [name for name in held if name.startswith("inner")]:
            both = held.pop(name)
            held |= {name.replace("inner", each): both[:, i::2] for i, each in enumerate(("gate", "up"))}
        return tuple(held[param.name] for param in self.experts.params())

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        x, logits, *factor = args
        own = dict(zip(self._names, params, strict=True))
        weights = [own.get(name) for name in (self.first, f"{self.first}_bias", "down", "down_bias")]
        y = g.op("MoE", x, self.flatten_logits(g, logits), *weights, domain=MICROSOFT, **self.attributes)
        return [self.scale_output(g, y, factor)]

    def flatten_logits(self, g: OnnxBuilder, logits: OnnxValue) -> OnnxValue:
        """(B S, E), as kernels take them."""
        return g.op("Reshape", logits, g.constant([-1, self.experts.count]))

    def scale_output(self, g: OnnxBuilder, y: OnnxValue, factors: Sequence[OnnxValue]) -> OnnxValue:
        for each in factors if self.scale == 1 else (g.real(self.scale), *factors):
            y = g.op("Mul", y, each)
        return y

    @property
    def attributes(self) -> dict[str, Any]:
        """Those of the kernel."""
        return {"k": self.active, "normalize_routing_weights": int(self.normalise), **name_activation(self.experts)}

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1,) * len(args), (1,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        x, logits, factor = rand(2, 3, 8), rand(2, 3, 6, seed=1) * 2, rand(2, 3, 1, seed=2)
        biased = Experts(6, 8, 5, ClampedSwiglu(0.9, 1.702), bias=("gate", "up", "down"))
        plain = (
            RoutedExperts(Experts(6, 8, 12, Silu()), 2),
            RoutedExperts(Experts(6, 8, 5, Silu()), 3, normalise=False, scale=2.5),
            RoutedExperts(biased, 2),
            RoutedExperts(Experts(6, 8, 12, GeluTanh(), gated=False, bias=("up", "down")), 6),
            RoutedExperts(Experts(6, 8, 12, Relu(), gated=False), 1),
        )
        summed = Sample(RoutedExperts(Experts(6, 8, 12, Silu(), bias=("down",)), 2), (x, logits, factor))
        return (*(Sample(op, (x, logits)) for op in plain), summed)


@dataclass(frozen=True)
class BlockExperts(Op):
    """y = what `routed` computes, its matrices in blocks along their rows: x (B, S, W), logits (B, S, E) -> (B, S, W)

    `into` are the blocks of gate and up, `out` those of down; None: floats. `level` is as of BlockLinear. onnxruntime's
    QMoE computes it where it can; else a Loop restores the matrices of one expert at a time.
    """

    routed: RoutedExperts
    into: Blocks | None
    out: Blocks | None
    level: Level = 4
    kernel = "QMoE"

    @property
    def coding(self) -> Coding:
        return {self.routed.first: self.into, "down": self.out}

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return self.routed.infer(*args)

    def params(self) -> tuple[Param, ...]:
        return code_params(self.routed.params(), self.coding)

    def flops(self, *args: Type) -> Dim:
        return self.routed.flops(*args)

    def idle(self, *args: Type) -> int:
        return self.routed.idle(*args)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return self.routed.numpy(args, restore_params(self._held(params), self.routed.params(), self.coding))

    def _held(self, params: Sequence[Any]) -> dict[str, Any]:
        return dict(zip((param.name for param in self.params()), params, strict=True))

    @property
    def why_no_kernel(self) -> str:
        """Why QMoE does not compute it; empty if it does. In 8 bits it rounds x at every level."""
        experts, blocks = self.routed.experts, self.into
        if blocks is None or blocks != self.out:
            return (
                f"the kernel has all matrices in the same blocks, not {blocks or 'floats'} and {self.out or 'floats'}"
            )
        if blocks.lows:
            return "the kernel has no lows"
        if experts.inputs % blocks.size or experts.width % blocks.size:
            return f"the kernel has rows of whole blocks of {blocks.size}"
        return "the kernel multiplies by 8 bits at level 4 alone" if (blocks.bits, self.level) == (8, 0) else ""

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        x, logits, *factor = args
        own = self._held(params)
        y = self._loop(g, x, logits, own) if self.why_no_kernel else self._kernel(g, x, logits, own)
        return [self.routed.scale_output(g, y, factor)]

    def _kernel(self, g: OnnxBuilder, x: OnnxValue, logits: OnnxValue, own: Mapping[str, OnnxValue]) -> OnnxValue:
        assert self.into is not None
        names = (f"{name}{part}" for name in (self.routed.first, "down") for part in ("_codes", "_scales", "_bias"))
        how = {"expert_weight_bits": self.into.bits, "block_size": self.into.size, "accuracy_level": self.level}
        flat, weights = self.routed.flatten_logits(g, logits), [own.get(name) for name in names]
        how |= {"weights_prepacked": 0, **self.routed.attributes}
        # From logits alone it makes weights whose sum is 1; its input 14 has them as they are.
        own_weights = [] if self.routed.normalise else [*[None] * 6, g.op("Softmax", flat, axis=-1)]
        return g.op("QMoE", x, flat, *weights, *own_weights, domain=MICROSOFT, **how)

    def _loop(self, g: OnnxBuilder, x: OnnxValue, logits: OnnxValue, own: Mapping[str, OnnxValue]) -> OnnxValue:
        experts, op = self.routed.experts, self.routed
        route = Route(experts.count, op.active, "softmax", op.normalise)
        matrix = matrix_of(own, self.coding, restorer_of(op.params()))

        def expert(h: OnnxBuilder, rows: OnnxValue, e: OnnxValue) -> OnnxValue:
            y, end = multiply_rows(h, own, op.first, rows, e, matrix), h.constant([BEHIND])
            ones, twos = h.constant([1]), h.constant([2])
            starts = (0, 1) if experts.gated else ()
            inner = [h.op("Slice", y, h.constant([start]), end, ones, twos) for start in starts] or [y]
            return multiply_rows(h, own, "down", experts.act_onnx(h, inner), e, matrix)

        return sum_over_experts(g, (x, *route.onnx(g, (logits,), ())), experts.count, expert)

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return self.routed.tokenwise(*args)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        x, logits, factor = rand(2, 3, 32), rand(2, 3, 6, seed=1) * 2, rand(2, 3, 1, seed=2)
        int4, int8 = Blocks(4, 16), Blocks(8, 16)
        clamped = Experts(6, 32, 16, ClampedSwiglu(0.9, 1.702), bias=("gate", "up", "down"))
        silu = RoutedExperts(Experts(6, 32, 48, Silu()), 2, scale=2.5)
        plain = RoutedExperts(Experts(6, 32, 16, Relu(), gated=False, bias=("up",)), 2, normalise=False)
        ops = (
            BlockExperts(silu, int4, int4, 0),
            BlockExperts(RoutedExperts(clamped, 3), int4, int4, 0),
            BlockExperts(plain, int4, int4, 0),
            BlockExperts(plain, None, int4, 0),
            BlockExperts(silu, int8, int8, 0),
            BlockExperts(RoutedExperts(clamped, 3), int4, Blocks(4, 16, True), 0),
            BlockExperts(RoutedExperts(Experts(6, 32, 20, Silu()), 2), int4, int8, 0),
        )
        summed = Sample(BlockExperts(RoutedExperts(Experts(6, 32, 16, Silu()), 2), int4, int4, 0), (x, logits, factor))
        return (*(Sample(op, (x, logits)) for op in ops), summed)


def restorer_of(params: Sequence[Param]) -> Restore:
    """What restores the matrix of one expert by GatherBlockQuantized. `params` are those without codes."""
    widths = {param.name: param.shape[-1] for param in params}

    def restore(g: OnnxBuilder, name: str, tensors: Sequence[OnnxValue], blocks: Blocks, e: OnnxValue) -> OnnxValue:
        codes, scales, *lows = tensors
        how = {"bits": blocks.bits, "block_size": blocks.size, "gather_axis": 0, "quantize_axis": 2}
        y = g.op("GatherBlockQuantized", codes, e, scales, domain=MICROSOFT, **how)
        if lows:
            apart = g.op("Reshape", y, g.constant([0, -1, blocks.size]))
            low = g.op("Unsqueeze", g.op("Gather", lows[0], e, axis=0), g.constant([2]))
            y = g.op("Reshape", g.op("Add", apart, low), g.constant([0, -1]))
        return cut_row(g, y, blocks, widths[name])

    return restore


def why_no_moe(experts: Experts) -> str:
    """Why the kernel does not compute these experts; empty if it does."""
    kind = type(experts.act).__name__
    if experts.gated and not isinstance(experts.act, Silu | ClampedSwiglu):
        return f"the kernel has gated experts with silu alone, not {kind}"
    if not experts.gated and type(experts.act) not in _PLAIN:
        return f"the kernel has no {kind}"
    if experts.gated and ("gate" in experts.bias) != ("up" in experts.bias):
        return "only one of gate and up has a bias, and the kernel has one of both"
    return ""


def name_activation(experts: Experts) -> dict[str, Any]:
    """The kernel's attributes for an activation. Gate and up lie in turn: g0, u0, g1, u1, ..."""
    if not experts.gated:
        return {"activation_type": _PLAIN[type(experts.act)]}
    pair: dict[str, Any] = {"activation_type": "swiglu", "swiglu_fusion": 1}
    if isinstance(experts.act, ClampedSwiglu):
        act = experts.act
        return pair | {"activation_alpha": act.alpha, "activation_beta": 1.0, "swiglu_limit": act.limit}
    return pair | {"activation_alpha": 1.0, "activation_beta": 0.0}
