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
from blockc.ops.hits import Matrix

Coding = Mapping[str, Blocks | None]  # of matrices, by name; None: floats
# A builder, the name of a matrix, its codes, scales and lows, its blocks, and an expert's number -> that one's matrix
Restore = Callable[[OnnxBuilder, str, Sequence[OnnxValue], Blocks, OnnxValue], OnnxValue]


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


def restore_params(given: Mapping[str, Array], params: Sequence[Param], coding: Coding) -> Arrays:
    """The numbers of the experts' own parameters."""
    return tuple(_restore(given, param, coding.get(param.name)) for param in params)


def _restore(given: Mapping[str, Array], param: Param, blocks: Blocks | None) -> Array:
    if blocks is None:
        return given[param.name]
    codes, scales = given[f"{param.name}_codes"], given[f"{param.name}_scales"]
    packed = codes.reshape(*scales.shape, blocks.bytes)
    return blocks.restore(packed, scales, given.get(f"{param.name}_lows"), param.shape[-1])


def matrix_of(own: Mapping[str, OnnxValue], coding: Coding, restore: Restore) -> Matrix:
    """What gives the matrix of an expert: by `restore`, where it is in codes."""

    def matrix(h: OnnxBuilder, name: str, e: OnnxValue) -> OnnxValue:
        blocks = coding[name]
        if blocks is None:
            return h.op("Gather", own[name], e, axis=0)
        tensors = [own[key] for key in (f"{name}_codes", f"{name}_scales", f"{name}_lows") if key in own]
        return restore(h, name, tensors, blocks, e)

    return matrix


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
        return {**dict.fromkeys(self.experts.into, self.into), "down": self.out}

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
        self, g: OnnxBuilder, args: Sequence[OnnxValue], params: Sequence[OnnxValue], restore: Restore
    ) -> Sequence[OnnxValue]:
        """The Loop, by a rule that restores an expert's matrix."""
        own = dict(zip((param.name for param in self.params()), params, strict=True))
        return self.experts.run(g, args, own, matrix_of(own, self.coding, restore))

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
