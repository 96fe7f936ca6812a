"""Tables, matrices and norms: the ops that own parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from blockc.basics.opsets import USUAL
from blockc.ir import (
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
)
from blockc.ops.base import Elementwise, last_axis, rand


@dataclass(frozen=True)
class Embed(Op):
    """y = weight[ids]: (B, S) -> (B, S, width). A row look-up: no FLOPs."""

    rows: int
    width: int

    def infer(self, *args: Type) -> tuple[Type, ...]:
        expect(args[0].dtype == "int", "ids", "int", args[0])
        return (Type("float", (*args[0].shape, dim(self.width))),)

    def params(self) -> tuple[Param, ...]:
        return (Param("weight", (self.rows, self.width), "table"),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (params[0][args[0]],)

    def declares(self) -> str | None:
        return f"nn.Embedding({self.rows}, {self.width})"

    def torch(self, me: str, *args: str) -> str:
        return f"{me}({args[0]})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Gather", params[0], args[0], axis=0)]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1,), (1,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(Embed(7, 4), (np.array([[0, 6, 3], [2, 2, 1]]),)),)


@dataclass(frozen=True)
class FirstRow(Elementwise):
    """y = x + weight[0], a table of one row: (..., width) -> (..., width)"""

    width: int

    def infer(self, *args: Type) -> tuple[Type, ...]:
        expect(last_axis(args[0]) == dim(self.width), "the width of a row", self.width, last_axis(args[0]))
        return args

    def params(self) -> tuple[Param, ...]:
        return (Param("weight", (1, self.width), "table"),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (args[0] + params[0][0],)

    def declares(self) -> str | None:
        return f"nn.Embedding(1, {self.width})"

    def torch(self, me: str, *args: str) -> str:
        return f"{args[0]} + {me}.weight[0]"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Add", args[0], params[0])]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(FirstRow(8), (rand(2, 3, 8),)),)


@dataclass(frozen=True)
class Linear(Op):
    """y = x weight^T + bias: (..., inputs) -> (..., outputs), weight (outputs, inputs)"""

    inputs: int
    outputs: int
    bias: bool = False

    def infer(self, *args: Type) -> tuple[Type, ...]:
        expect(last_axis(args[0]) == dim(self.inputs), "the width read by a linear", self.inputs, last_axis(args[0]))
        return (args[0].with_axis(len(args[0].shape) - 1, self.outputs),)

    def params(self) -> tuple[Param, ...]:
        weight = Param("weight", (self.outputs, self.inputs), "matrix")
        return (weight, Param("bias", (self.outputs,), "bias")) if self.bias else (weight,)

    def flops(self, *args: Type) -> Dim:
        return product(args[0].shape) * (2 * self.outputs)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        y = args[0] @ params[0].T
        return (y + params[1],) if self.bias else (y,)

    def declares(self) -> str | None:
        return f"nn.Linear({self.inputs}, {self.outputs}{'' if self.bias else ', bias=False'})"

    def torch(self, me: str, *args: str) -> str:
        return f"{me}({args[0]})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        y = g.op("MatMul", args[0], g.op("Transpose", params[0], perm=[1, 0]))
        return [g.op("Add", y, params[1])] if self.bias else [y]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1,), (1,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return Sample(Linear(8, 5), (rand(2, 3, 8),)), Sample(Linear(8, 5, bias=True), (rand(2, 3, 8),))


@dataclass(frozen=True)
class RmsNorm(Elementwise):
    """y = x / sqrt(mean(x^2) + eps) * (offset + weight), over the last axis  (Zhang and Sennrich 2019)

    `bare` has no weight: y = x / sqrt(mean(x^2) + eps).
    """

    width: int
    eps: float
    offset: float = 0.0
    bare: bool = False
    since = 23

    def infer(self, *args: Type) -> tuple[Type, ...]:
        expect(last_axis(args[0]) == dim(self.width), "the width read by a norm", self.width, last_axis(args[0]))
        return args

    def params(self) -> tuple[Param, ...]:
        return () if self.bare else (Param("weight", (self.width,), "gain", neutral=1.0 - self.offset),)

    def figures(self, *args: Type) -> Iterable[tuple[str, Fact]]:
        return ("norm.eps", self.eps), ("norm.type", "rms"), ("norm.offset", self.offset or 0.0)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        rms = np.sqrt(np.mean(args[0] ** 2, axis=-1, keepdims=True) + self.eps)
        return (args[0] / rms * (1.0 if self.bare else self.offset + params[0]),)

    def declares(self) -> str | None:
        if self.bare:
            return None
        if self.offset:
            return f"OffsetRMSNorm({self.width}, eps={self.eps!r}, offset={self.offset!r})"
        return f"nn.RMSNorm({self.width}, eps={self.eps!r})"

    @property
    def helpers(self) -> tuple[str, ...]:
        return ("offset_rms_norm",) if self.offset else ()

    def torch(self, me: str, *args: str) -> str:
        if self.bare:
            return f"F.rms_norm({args[0]}, ({self.width},), eps={self.eps!r})"
        return f"{me}({args[0]})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        gain = self.gain(g, params)
        return [g.op("RMSNormalization", args[0], gain, axis=-1, epsilon=self.eps, stash_type=1)]

    def older(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        """In fp32, in the form that onnxruntime knows as one kernel."""
        x, eps = g.widen(args[0]), g.constant(np.array(self.eps, np.float32))
        rms = g.op("Sqrt", g.op("Add", _mean(g, g.op("Pow", x, g.constant(np.array(2, np.float32)))), eps))
        return [g.narrow(g.op("Mul", g.op("Div", x, rms), g.widen(self.gain(g, params))))]

    def gain(self, g: OnnxBuilder, params: Sequence[OnnxValue]) -> OnnxValue:
        """What ONNX multiplies by."""
        if self.bare:
            return g.real(np.ones(self.width))
        return g.op("Add", params[0], g.real(self.offset)) if self.offset else params[0]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        x, heads = rand(2, 3, 8), rand(2, 5, 3, 8)
        norms = RmsNorm(8, 1e-5), RmsNorm(8, 1e-2, 1.0), RmsNorm(8, 1e-2, bare=True)
        return (*(Sample(norm, (x,)) for norm in norms), Sample(RmsNorm(8, 1e-5), (heads,)))


@dataclass(frozen=True)
class LayerNorm(Elementwise):
    """y = (x - mean(x)) / sqrt(var(x) + eps) * (offset + weight) + bias, over the last axis  (Ba et al. 2016)

    `bare` has neither: y = (x - mean(x)) / sqrt(var(x) + eps).
    """

    width: int
    eps: float
    bias: bool
    bare: bool = False
    offset: float | None = None  # added to weight; none is 0

    def infer(self, *args: Type) -> tuple[Type, ...]:
        expect(last_axis(args[0]) == dim(self.width), "the width read by a norm", self.width, last_axis(args[0]))
        return args

    def params(self) -> tuple[Param, ...]:
        if self.bare:
            return ()
        weight = Param("weight", (self.width,), "gain", neutral=1.0 - (self.offset or 0.0))
        return (weight, Param("bias", (self.width,), "bias")) if self.bias else (weight,)

    def figures(self, *args: Type) -> Iterable[tuple[str, Fact]]:
        return ("norm.eps", self.eps), ("norm.type", "layer"), ("norm.offset", self.offset or 0.0)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        centred = args[0] - args[0].mean(axis=-1, keepdims=True)
        y = centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + self.eps)
        y = y if self.bare else y * ((self.offset or 0.0) + params[0])
        return (y + params[1],) if self.bias else (y,)

    def declares(self) -> str | None:
        if self.bare:
            return None
        bias = "" if self.bias else ", bias=False"
        if self.offset:
            return f"OffsetLayerNorm({self.width}, eps={self.eps!r}, offset={self.offset!r}{bias})"
        return f"nn.LayerNorm({self.width}, eps={self.eps!r}{bias})"

    @property
    def helpers(self) -> tuple[str, ...]:
        return ("offset_layer_norm",) if self.offset else ()

    def torch(self, me: str, *args: str) -> str:
        if self.bare:
            return f"F.layer_norm({args[0]}, ({self.width},), eps={self.eps!r})"
        return f"{me}({args[0]})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        given = [self.gain(g, params), *params[1:]]
        if (
            not self.bias and g.opset < USUAL
        ):  # older runtimes break down where they join a norm without a bias to a sum
            given.append(g.real(np.zeros(self.width)))
        return [g.op("LayerNormalization", args[0], *given, axis=-1, epsilon=self.eps, stash_type=1)]

    def gain(self, g: OnnxBuilder, params: Sequence[OnnxValue]) -> OnnxValue:
        """What ONNX multiplies by."""
        if self.bare:
            return g.real(np.ones(self.width))
        return g.op("Add", params[0], g.real(self.offset)) if self.offset else params[0]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        x = rand(2, 3, 8) + 0.5
        norms = (LayerNorm(8, 1e-5, True), LayerNorm(8, 1e-2, False), LayerNorm(8, 1e-2, False, bare=True),
                 LayerNorm(8, 1e-2, True, offset=1.0), LayerNorm(8, 1e-2, False, offset=0.5))  # fmt: skip
        return tuple(Sample(norm, (x,)) for norm in norms)


@dataclass(frozen=True)
class HeadGain(Elementwise):
    """y = x * weight, a gain for each number of each head: (B, heads, S, head_dim) -> same, weight (heads, head_dim)"""

    heads: int
    head_dim: int

    def infer(self, *args: Type) -> tuple[Type, ...]:
        _, heads, _, width = args[0].shape
        expect((heads, width) == (dim(self.heads), dim(self.head_dim)), "heads", (self.heads, self.head_dim), args[0])
        return args

    def params(self) -> tuple[Param, ...]:
        return (Param("weight", (self.heads, self.head_dim), "gain", neutral=1.0),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (args[0] * params[0][:, None],)

    def declares(self) -> str | None:
        return f"HeadGain({self.heads}, {self.head_dim})"

    @property
    def helpers(self) -> tuple[str, ...]:
        return ("head_gain",)

    def torch(self, me: str, *args: str) -> str:
        return f"{me}({args[0]})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Mul", args[0], g.op("Unsqueeze", params[0], g.constant([1])))]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(HeadGain(5, 8), (rand(2, 5, 3, 8),)),)


def _mean(g: OnnxBuilder, x: OnnxValue) -> OnnxValue:
    """Over the last axis, which the operator takes as an operand from opset 18 on."""
    if g.opset < 18:
        return g.op("ReduceMean", x, axes=[-1], keepdims=1)
    return g.op("ReduceMean", x, g.constant([-1]), keepdims=1)
