"""Experts whose matrices are in blocks of codes: the Loop over the experts hit restores those of one expert at a time.

A quantising pass inserts the op. Like fused ops it is never emitted as PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from blockc.ir import Array, Arrays, Blocks, Dim, OnnxBuilder, OnnxValue, Op, Param, Sample, TokenAxes, Type
from blockc.ir.derive import Derivation, Quantise, Reshape
from blockc.ops.elementwise import ClampedSwiglu, Gelu, Relu2, Silu
from blockc.ops.experts import Experts
from blockc.ops.hits import sum_over_experts

Coding = Mapping[str, Blocks | None]  # of matrices, by name; None: floats


def derive_codes(matrix: Param, name: str, blocks: Blocks) -> dict[str, Derivation]:
    """The tensors that stand for a matrix (E, n, m), by name: codes (E, n, bytes of a row), scales and lows."""
    experts, rows, width = matrix.shape
    codes = Quantise((matrix.name,), "codes", blocks)
    made: dict[str, Derivation] = {
        f"{name}_codes": Reshape((codes,), (experts, rows, blocks.count(width) * blocks.bytes)),
        f"{name}_scales": Quantise((matrix.name,), "scales", blocks),
    }
    return made | ({f"{name}_lows": Quantise((matrix.name,), "lows", blocks)} if blocks.lows else {})


def code_params(params: Sequence[Param], coding: Coding) -> tuple[Param, ...]:
    """The parameters of experts with codes in place of matrices."""
    made: list[Param] = []
    for param in params:
        blocks = coding.get(param.name)
        codes = derive_codes(param, param.name, blocks) if blocks else {}
        made += [each.param_of(name, {param.name: param}) for name, each in codes.items()] or [param]
    return tuple(made)


def derive_coded(params: Mapping[str, Param], coding: Coding) -> dict[str, Derivation]:
    """What the tensors of codes are made of. `params` are the experts' own, by name."""
    made: dict[str, Derivation] = {}
    for name, blocks in coding.items():
        made |= derive_codes(params[name], name, blocks) if blocks else {}
    return made


def restore_params(given: Mapping[str, Array], params: Sequence[Param], coding: Coding) -> Arrays:
    """The numbers of the experts' own parameters."""
    return tuple(_restore(given, param, coding.get(param.name)) for param in params)


def _restore(given: Mapping[str, Array], param: Param, blocks: Blocks | None) -> Array:
    if blocks is None:
        return given[param.name]
    codes, scales = given[f"{param.name}_codes"], given[f"{param.name}_scales"]
    packed = codes.reshape(*scales.shape, blocks.bytes)
    return blocks.restore(packed, scales, given.get(f"{param.name}_lows"), param.shape[-1])


def tensors_of(own: Mapping[str, OnnxValue], name: str) -> list[OnnxValue]:
    """The tensors of a matrix in codes."""
    return [own[key] for key in (f"{name}_codes", f"{name}_scales", f"{name}_lows") if key in own]


@dataclass(frozen=True)
class CodedExperts(Op):
    """y = sum over j of w_j expert_e(x), e = experts_j, as of `experts`, their matrices in blocks along rows

    x (B, S, W), experts (B, S, k), weights (B, S, k) -> (B, S, W). `into` are the blocks of gate and up, `out` those of
    down; None: floats.
    """

    experts: Experts
    into: Blocks | None
    out: Blocks | None
    since = 21

    @property
    def coding(self) -> Coding:
        first = {"gate": self.into, "up": self.into} if self.experts.gated else {"up": self.into}
        return {**first, "down": self.out}

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return self.experts.infer(*args)

    def params(self) -> tuple[Param, ...]:
        return code_params(self.experts.params(), self.coding)

    def flops(self, *args: Type) -> Dim:
        return self.experts.flops(*args)

    def idle(self, *args: Type) -> int:
        return self.experts.idle(*args)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        given = dict(zip((param.name for param in self.params()), params, strict=True))
        return self.experts.numpy(args, restore_params(given, self.experts.params(), self.coding))

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        middles = {blocks: g.constant(np.array(blocks.middle, np.uint8)) for blocks in self.coding.values() if blocks}
        shapes = {param.name: param.shape[1:] for param in self.experts.params()}
        zeros = {
            name: g.op("Expand", middles[blocks], g.constant([shapes[name][0], blocks.count(shapes[name][1])]))
            for name, blocks in self.coding.items()
            if blocks
        }

        def restore(h: OnnxBuilder, name: str, tensors: Sequence[OnnxValue], blocks: Blocks, e: OnnxValue) -> OnnxValue:
            codes, scales = (h.op("Gather", each, e, axis=0) for each in tensors)
            codes = _unpack(h, codes, blocks, shapes[name][0])
            y = h.op("DequantizeLinear", codes, scales, zeros[name], axis=1, block_size=blocks.size)
            return cut_row(h, y, blocks, shapes[name][1])

        return self.run(g, args, params, restore)

    def run(
        self,
        g: OnnxBuilder,
        args: tuple[OnnxValue, ...],
        params: tuple[OnnxValue, ...],
        restore: Callable[[OnnxBuilder, str, Sequence[OnnxValue], Blocks, OnnxValue], OnnxValue],
    ) -> Sequence[OnnxValue]:
        """The Loop, by a rule that gives an expert's matrix."""
        own = dict(zip((param.name for param in self.params()), params, strict=True))

        def multiply(h: OnnxBuilder, name: str, x: OnnxValue, e: OnnxValue) -> OnnxValue:
            blocks = self.coding[name]
            if blocks:
                matrix = restore(h, name, tensors_of(own, name), blocks, e)
            else:
                matrix = h.op("Gather", own[name], e, axis=0)
            bias = [h.op("Gather", own[f"{name}_bias"], e, axis=0)] if f"{name}_bias" in own else []
            return h.op("Gemm", x, matrix, *bias, transB=1)

        def expert(h: OnnxBuilder, x: OnnxValue, e: OnnxValue) -> OnnxValue:
            first = ("gate", "up") if self.experts.gated else ("up",)
            return multiply(h, "down", self.experts.act_onnx(h, [multiply(h, name, x, e) for name in first]), e)

        return [sum_over_experts(g, args, self.experts.count, expert)]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return self.experts.tokenwise(*args)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        (first, *_), int4, int8 = Experts.samples(), Blocks(4, 16), Blocks(8, 16)
        _, *choice = first.args
        x = np.random.RandomState(0).standard_normal((2, 3, 32))
        biased = Experts(6, 32, 16, ClampedSwiglu(0.9, 1.702), bias=("gate", "up", "down"))
        ops = (
            CodedExperts(Experts(6, 32, 48, Silu()), int4, int8),
            CodedExperts(Experts(6, 32, 20, Gelu()), int8, int4),
            CodedExperts(biased, int4, None),
            CodedExperts(Experts(6, 32, 16, Relu2(), gated=False), None, int8),
        )
        return tuple(Sample(op, (x, *choice)) for op in ops)


def _unpack(g: OnnxBuilder, packed: OnnxValue, blocks: Blocks, rows: int) -> OnnxValue:
    """Codes (rows, bytes) as a byte each."""
    if blocks.bits == 8:
        return packed
    low = g.op("BitwiseAnd", packed, g.constant(np.array(15, np.uint8)))
    high = g.op("BitShift", packed, g.constant(np.array(4, np.uint8)), direction="RIGHT")
    halves = [g.op("Unsqueeze", half, g.constant([2])) for half in (low, high)]
    return g.op("Reshape", g.op("Concat", *halves, axis=2), g.constant([rows, -1]))


def cut_row(g: OnnxBuilder, y: OnnxValue, blocks: Blocks, width: int) -> OnnxValue:
    """Rows without what fills up their last block."""
    if not width % blocks.size:
        return y
    return g.op("Slice", y, g.constant([0]), g.constant([width]), g.constant([1]))
