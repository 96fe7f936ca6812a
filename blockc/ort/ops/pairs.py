"""Fused pairs: a norm with the addition before it, a norm of flat heads, an activation with its bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blockc.ir import Arrays, OnnxBuilder, OnnxValue, Op, Param, Sample, TokenAxes, Type, dim, expect
from blockc.ops.base import rand
from blockc.ops.elementwise import Gelu, GeluTanh
from blockc.ops.matrix import LayerNorm, RmsNorm
from blockc.ort.ops.rows import MICROSOFT


@dataclass(frozen=True)
class SkipNorm(Op):
    """s = a + b + bias, y = norm(s): (B, S, width) twice -> y, s"""

    norm: RmsNorm | LayerNorm
    bias: bool = False
    output_names = ("normalised", "sum")

    @property
    def kernel(self) -> str:
        return "SkipSimplifiedLayerNormalization" if isinstance(self.norm, RmsNorm) else "SkipLayerNormalization"

    def infer(self, *args: Type) -> tuple[Type, ...]:
        expect(args[0] == args[1], "what is added", args[0], args[1])
        return (*self.norm.infer(args[0]), args[0])

    def params(self) -> tuple[Param, ...]:
        added = (Param("added_bias", (self.norm.width,), "bias"),) if self.bias else ()
        return (*self.norm.params(), *added)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        total = args[0] + args[1]
        if self.bias:
            total, params = total + params[-1], params[:-1]
        return (*self.norm.numpy((total,), params), total)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        *own, bias = params if self.bias else (*params, None)
        gain = self.norm.gain(g, own)
        rest = (gain, bias) if isinstance(self.norm, RmsNorm) else (gain, own[1] if self.norm.bias else None, bias)
        outputs = g.ops(self.kernel, 4, *args, *rest, domain=MICROSOFT, epsilon=self.norm.eps)
        return outputs[0], outputs[3]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1, 1), (1, 1))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        args = (rand(2, 3, 8), rand(2, 3, 8, seed=1))
        norms = (RmsNorm(8, 1e-5), RmsNorm(8, 1e-5, 1.0), RmsNorm(8, 1e-5, bare=True), LayerNorm(8, 1e-5, True),
                 LayerNorm(8, 1e-2, False), LayerNorm(8, 1e-2, False, bare=True), LayerNorm(8, 1e-2, True, offset=1.0)
                 )  # fmt: skip
        return tuple(Sample(SkipNorm(norm, bias), args) for norm in norms for bias in (False, True))


@dataclass(frozen=True)
class HeadNorm(Op):
    """y = norm of each head: (B, S, heads * d) -> same

    With `own` each head has its own gain, a weight (heads, d), after a norm without one.
    """

    norm: RmsNorm | LayerNorm
    heads: int
    own: bool = False

    def infer(self, *args: Type) -> tuple[Type, ...]:
        width = self.heads * self.norm.width
        expect(args[0].shape[2] == dim(width), "heads * head_dim", width, args[0].shape[2])
        return args

    def params(self) -> tuple[Param, ...]:
        own = Param("weight", (self.heads, self.norm.width), "gain", neutral=1.0)
        return (own,) if self.own else self.norm.params()

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        heads = args[0].reshape(*args[0].shape[:2], self.heads, self.norm.width)
        (normed,) = self.norm.numpy((heads,), params)
        return ((normed * params[0] if self.own else normed).reshape(args[0].shape),)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        heads = g.op("Reshape", args[0], g.constant([0, 0, self.heads, self.norm.width]))
        (normed,) = self.norm.onnx(g, (heads,), () if self.own else params)
        return [g.op("Reshape", g.op("Mul", normed, *params) if self.own else normed, g.constant([0, 0, -1]))]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1,), (1,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        bare = LayerNorm(4, 1e-5, False, bare=True)
        norms = (RmsNorm(4, 1e-5), RmsNorm(4, 1e-5, 1.0), LayerNorm(4, 1e-5, True), bare)
        owned = tuple(Sample(HeadNorm(norm, 2, norm.bare), (rand(2, 3, 8),)) for norm in norms)
        bare_norms = (RmsNorm(4, 1e-5, bare=True), bare)
        return (*owned, *(Sample(HeadNorm(norm, 2), (rand(2, 3, 8),)) for norm in bare_norms))


@dataclass(frozen=True)
class BiasedGelu(Op):
    """y = gelu(x + bias): (B, S, width) -> same"""

    gelu: Gelu | GeluTanh
    width: int

    @property
    def kernel(self) -> str:
        return "BiasGelu" if isinstance(self.gelu, Gelu) else "FastGelu"

    def infer(self, *args: Type) -> tuple[Type, ...]:
        expect(args[0].shape[-1] == dim(self.width), "the width of the bias", self.width, args[0].shape[-1])
        return args

    def params(self) -> tuple[Param, ...]:
        return (Param("bias", (self.width,), "bias"),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return self.gelu.numpy((args[0] + params[0],), ())

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op(self.kernel, args[0], params[0], domain=MICROSOFT)]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1,), (1,))

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return tuple(Sample(BiasedGelu(gelu, 8), (rand(2, 3, 8) * 2,)) for gelu in (Gelu(), GeluTanh()))
