"""Products and look-ups whose matrix is in blocks of codes, in standard ONNX: DequantizeLinear and MatMul.

Runtimes fuse the two: onnxruntime to its own product in 4 or 8 bits, OpenVINO to one with compressed weights. A
quantising pass inserts the ops. Like fused ops they are never emitted as PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blockc.ir import (
    Arrays,
    Blocks,
    Dim,
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
)
from blockc.ir.columns import Columns, Turn, restore_columns
from blockc.ir.derive import Derivation, Quantise
from blockc.ops.base import last_axis, rand
from blockc.ops.coded import CodedExperts


def _tensors_of(weight: Param, blocks: Blocks) -> dict[str, Derivation]:
    """What a matrix becomes: its codes and its scales."""
    codes, scales = (Quantise((weight.name,), tensor, blocks) for tensor in ("codes", "scales"))
    return {"codes": Columns((codes,), blocks), "scales": Turn((scales,))}


def _params(weight: Param, blocks: Blocks) -> tuple[Param, ...]:
    made = _tensors_of(weight, blocks)
    return tuple(each.param_of(name, {weight.name: weight}) for name, each in made.items())


@dataclass(frozen=True)
class ColumnLinear(Op):
    """y = x weight + bias: (..., inputs) -> (..., outputs), weight (inputs, outputs) in blocks along its columns"""

    inputs: int
    outputs: int
    blocks: Blocks
    bias: bool = False
    since = 21

    def infer(self, *args: Type) -> tuple[Type, ...]:
        expect(last_axis(args[0]) == dim(self.inputs), "the width read by a linear", self.inputs, last_axis(args[0]))
        return (args[0].with_axis(len(args[0].shape) - 1, self.outputs),)

    def params(self) -> tuple[Param, ...]:
        own = _params(Param("weight", (self.outputs, self.inputs), "matrix"), self.blocks)
        return (*own, Param("bias", (self.outputs,), "bias")) if self.bias else own

    def derivations(self, weight: Param) -> dict[str, Derivation]:
        return _tensors_of(weight, self.blocks)

    def flops(self, *args: Type) -> Dim:
        return product(args[0].shape) * (2 * self.outputs)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        y = args[0] @ restore_columns(params[0], params[1], self.blocks.size)[: self.inputs]
        return (y + params[2],) if self.bias else (y,)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        (x,), fill = args, -self.inputs % self.blocks.size
        x = g.op("Pad", x, g.constant([0, fill]), None, g.constant([-1])) if fill else x
        y = g.op("MatMul", x, g.op("DequantizeLinear", *params[:2], axis=0, block_size=self.blocks.size))
        return [g.op("Add", y, params[2]) if self.bias else y]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1,), (1,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        whole, cut = rand(2, 3, 64), rand(2, 3, 40)
        return (
            *(
                Sample(ColumnLinear(64, 5, Blocks(bits, 32), bias), (whole,))
                for bits in (4, 8)
                for bias in (False, True)
            ),
            *(Sample(ColumnLinear(40, 5, Blocks(bits, 16)), (cut,)) for bits in (4, 8)),
        )


@dataclass(frozen=True)
class ColumnEmbed(Op):
    """y = weight[:, ids]: (B, S) -> (B, S, width), weight (width, rows) in blocks along its columns, of 8 bits

    Standard ONNX looks up no numbers of 4 bits.
    """

    rows: int
    width: int
    blocks: Blocks

    def infer(self, *args: Type) -> tuple[Type, ...]:
        expect(args[0].dtype == "int", "ids", "int", args[0])
        expect(self.blocks.bits == 8, "a look-up without a provider in a table of 4 bits", "8 bits, or no codes", "4")
        return (Type("float", (*args[0].shape, dim(self.width))),)

    def params(self) -> tuple[Param, ...]:
        return _params(Param("weight", (self.rows, self.width), "table"), self.blocks)

    def derivations(self, weight: Param) -> dict[str, Derivation]:
        return _tensors_of(weight, self.blocks)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        table = restore_columns(params[0][:, args[0].reshape(-1)], params[1][:, args[0].reshape(-1)], self.blocks.size)
        return (table[: self.width].T.reshape(*args[0].shape, self.width),)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        codes, scales = (g.op("Transpose", g.op("Gather", x, args[0], axis=1), perm=[1, 2, 0]) for x in params)
        blocks = g.op("Reshape", g.op("CastLike", codes, scales), g.constant([0, 0, -1, self.blocks.size]))
        y = g.op("Mul", blocks, g.op("Unsqueeze", scales, g.constant([3])))
        y = g.op("Reshape", y, g.constant([0, 0, -1]))
        if self.width % self.blocks.size:
            y = g.op("Slice", y, g.constant([0]), g.constant([self.width]), g.constant([2]))
        return [y]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1,), (1,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        ids = np.array([[0, 6, 3], [2, 2, 1]])
        return tuple(Sample(ColumnEmbed(7, width, Blocks(8, size)), (ids,)) for width, size in ((64, 32), (40, 16)))


COLUMNS: tuple[type[Op], ...] = (ColumnLinear, ColumnEmbed, CodedExperts)
