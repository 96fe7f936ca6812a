"""Products and look-ups whose matrix is in blocks of codes: onnxruntime's MatMulNBits and GatherBlockQuantized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

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
from blockc.ir.derive import Derivation, Quantise, Reshape
from blockc.ops.base import last_axis, rand
from blockc.ort.ops.rows import MICROSOFT

Level = Literal[0, 4]


def _tensors_of(weight: Param, blocks: Blocks) -> dict[str, Derivation]:
    """What a matrix becomes, by name: its codes, its scales, and its lows where the blocks have any."""
    codes: dict[str, Derivation] = {"codes": Quantise((weight.name,), "codes", blocks)}
    scales = codes | {"scales": Quantise((weight.name,), "scales", blocks)}
    return scales | ({"lows": Quantise((weight.name,), "lows", blocks)} if blocks.lows else {})


def _params_of(weight: Param, derivations: Mapping[str, Derivation]) -> tuple[Param, ...]:
    return tuple(each.param_of(name, {weight.name: weight}) for name, each in derivations.items())


@dataclass(frozen=True)
class BlockSums(Op):
    """The sum of each block of x: (B, S, width) -> (B, S, blocks). What a low is multiplied by.

    With `pooled` x is one vector of a text: (B, width) -> (B, blocks).
    """

    width: int
    size: int
    pooled: bool = False

    def infer(self, *args: Type) -> tuple[Type, ...]:
        expect(last_axis(args[0]) == dim(self.width), "the width summed by blocks", self.width, last_axis(args[0]))
        axes = 2 if self.pooled else 3
        expect(len(args[0].shape) == axes, "axes of what is summed by blocks", axes, len(args[0].shape))
        return (args[0].with_axis(axes - 1, -(-self.width // self.size)),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (Blocks(size=self.size).split(args[0]).sum(-1),)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        if self.width % self.size:  # CUDA has no Pad of bfloat16
            return [g.op("MatMul", args[0], g.real(Blocks(size=self.size).split(np.eye(self.width)).sum(-1)))]
        blocks = g.op("Reshape", args[0], g.constant([*([0] if self.pooled else [0, 0]), -1, self.size]))
        return [g.op("ReduceSum", blocks, g.constant([-1]), keepdims=0)]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return None if self.pooled else TokenAxes((1,), (1,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        tokens = tuple(Sample(BlockSums(width, 16), (rand(2, 3, width),)) for width in (32, 40))
        return (*tokens, *(Sample(BlockSums(width, 16, pooled=True), (rand(2, width),)) for width in (32, 40)))


@dataclass(frozen=True)
class BlockLinear(Op):
    """y = x weight^T + bias: (..., inputs) -> (..., outputs), weight in blocks along its rows

    With lows a second operand has the sums of x by blocks. `level` is how the kernel multiplies: 0 in the float type of
    x; 4 with x rounded to 8 bits, block by block.
    """

    inputs: int
    outputs: int
    blocks: Blocks
    bias: bool = False
    level: Level = 4

    def infer(self, *args: Type) -> tuple[Type, ...]:
        expect(last_axis(args[0]) == dim(self.inputs), "the width read by a linear", self.inputs, last_axis(args[0]))
        expect(len(args) == 1 + self.blocks.lows, "operands of a linear in blocks", 1 + self.blocks.lows, len(args))
        return (args[0].with_axis(len(args[0].shape) - 1, self.outputs),)

    def params(self) -> tuple[Param, ...]:
        weight = Param("weight", (self.outputs, self.inputs), "matrix")
        own = _params_of(weight, self.derivations(weight))
        return (*own, Param("bias", (self.outputs,), "bias")) if self.bias else own

    def derivations(self, weight: Param) -> dict[str, Derivation]:
        return _tensors_of(weight, self.blocks)

    def flops(self, *args: Type) -> Dim:
        return product(args[0].shape) * (2 * self.outputs)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        codes, scales, *others = params
        weight = self.blocks.restore(codes, scales, others[0] if self.blocks.lows else None, self.inputs)
        y = args[0] @ weight.T
        return (y + params[-1],) if self.bias else (y,)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        sizes = {"K": self.inputs, "N": self.outputs, "bits": self.blocks.bits, "block_size": self.blocks.size}
        bias = (None, None, params[-1]) if self.bias else ()
        y = g.op("MatMulNBits", args[0], *params[:2], *bias, domain=MICROSOFT, accuracy_level=self.level, **sizes)
        if self.blocks.lows:
            lows = g.op("FusedMatMul", args[1], params[2], domain=MICROSOFT, transA=0, transB=1, alpha=1.0)
            y = g.op("Add", y, lows)
        return [y]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1,) * len(args), (1,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        whole, cut = rand(2, 3, 64), rand(2, 3, 40)
        plain = [
            Sample(BlockLinear(64, 5, Blocks(bits, 32), bias, 0), (whole,)) for bits in (4, 8) for bias in (False, True)
        ]
        lows = Sample(BlockLinear(64, 5, Blocks(4, 32, True), True, 0), (whole, whole.reshape(2, 3, 2, 32).sum(-1)))
        return (*plain, lows, *(Sample(BlockLinear(40, 5, Blocks(bits, 16), level=0), (cut,)) for bits in (4, 8)))


@dataclass(frozen=True)
class BlockEmbed(Op):
    """y = weight[ids]: (B, S) -> (B, S, width), weight in blocks along its rows, whose codes lie row by row."""

    rows: int
    width: int
    blocks: Blocks

    def infer(self, *args: Type) -> tuple[Type, ...]:
        expect(args[0].dtype == "int", "ids", "int", args[0])
        return (Type("float", (*args[0].shape, dim(self.width))),)

    def params(self) -> tuple[Param, ...]:
        weight = Param("weight", (self.rows, self.width), "table")
        return _params_of(weight, self.derivations(weight))

    def derivations(self, weight: Param) -> dict[str, Derivation]:
        """The tensors of the table; its codes, `rows`, have one axis for a row."""
        made = _tensors_of(weight, self.blocks)
        rows = Reshape((made.pop("codes"),), (self.rows, self.blocks.count(self.width) * self.blocks.bytes))
        return {"rows": rows, **made}

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        codes, *others = (param[args[0]] for param in params)
        blocks = codes.reshape(*args[0].shape, -1, self.blocks.bytes)
        return (self.blocks.restore(blocks, others[0], others[1] if self.blocks.lows else None, self.width),)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        how = {"bits": self.blocks.bits, "block_size": self.blocks.size, "gather_axis": 0, "quantize_axis": 1}
        y = g.op("GatherBlockQuantized", params[0], args[0], params[1], domain=MICROSOFT, **how)
        if self.blocks.lows:
            y = g.op("Reshape", y, g.constant([0, 0, -1, self.blocks.size]))
            low = g.op("Unsqueeze", g.op("Gather", params[2], args[0], axis=0), g.constant([3]))
            y = g.op("Reshape", g.op("Add", y, low), g.constant([0, 0, -1]))
        if self.width % self.blocks.size:
            y = g.op("Slice", y, g.constant([0]), g.constant([self.width]), g.constant([2]))
        return [y]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1,), (1,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        ids = np.array([[0, 6, 3], [2, 2, 1]])
        forms = (
            (64, Blocks(4, 32)),
            (64, Blocks(8, 32)),
            (64, Blocks(4, 32, True)),
            (40, Blocks(8, 16)),
            (40, Blocks(4, 16)),
        )
        return tuple(Sample(BlockEmbed(7, width, blocks), (ids,)) for width, blocks in forms)
