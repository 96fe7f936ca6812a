"""Sums, products and activations: the arithmetic between the matrices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import pi, sqrt

import numpy as np

from blockc.ir import Array, Arrays, Fact, OnnxBuilder, OnnxValue, Sample, Type
from blockc.ops.base import Activation, Elementwise, number_text, rand

STEEP = 1.702  # the slope with which a sigmoid is closest to the normal distribution function


@dataclass(frozen=True)
class Add(Elementwise):
    """y = a + b"""

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (args[0] + args[1],)

    def torch(self, me: str, *args: str) -> str:
        return f"{args[0]} + {args[1]}"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Add", *args)]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(Add(), (rand(2, 3, 8), rand(2, 3, 8, seed=1))),)


@dataclass(frozen=True)
class Mul(Elementwise):
    """y = a * b, entry by entry: the gate of a gated MLP"""

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (args[0] * args[1],)

    def torch(self, me: str, *args: str) -> str:
        return f"{args[0]} * {args[1]}"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Mul", *args)]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(Mul(), (rand(2, 3, 8), rand(2, 3, 8, seed=1))),)


@dataclass(frozen=True)
class Scale(Elementwise):
    """y = factor * x"""

    factor: float

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (args[0] * self.factor,)

    def torch(self, me: str, *args: str) -> str:
        return f"{args[0]} * {number_text(self.factor)}"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Mul", args[0], g.real(self.factor))]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(Scale(sqrt(3584)), (rand(2, 3, 8),)),)


@dataclass(frozen=True)
class Softcap(Elementwise):
    """y = cap * tanh(x / cap), of logits: keeps every entry inside (-cap, cap)"""

    cap: float

    def figures(self, *args: Type) -> Iterable[tuple[str, Fact]]:
        return (("head.softcap", self.cap),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (self.cap * np.tanh(args[0] / self.cap),)

    def torch(self, me: str, *args: str) -> str:
        return f"{self.cap!r} * torch.tanh({args[0]} / {self.cap!r})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        cap = g.real(self.cap)
        return [g.op("Mul", g.op("Tanh", g.op("Div", args[0], cap)), cap)]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(Softcap(0.7), (rand(2, 3, 8),)),)


@dataclass(frozen=True)
class Clip(Elementwise):
    """y = min(max(x, -limit), limit), of queries, keys and values"""

    limit: float

    def figures(self, *args: Type) -> Iterable[tuple[str, Fact]]:
        return (("attention.clip", self.limit),)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (np.clip(args[0], -self.limit, self.limit),)

    def torch(self, me: str, *args: str) -> str:
        return f"{args[0]}.clamp({-self.limit!r}, {self.limit!r})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Min", g.op("Max", args[0], g.real(-self.limit)), g.real(self.limit))]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(Clip(0.7), (rand(2, 3, 8),)),)


@dataclass(frozen=True)
class Tanh(Elementwise):
    """y = tanh(x)"""

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (np.tanh(args[0]),)

    def torch(self, me: str, *args: str) -> str:
        return f"F.tanh({args[0]})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Tanh", args[0])]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(Tanh(), (rand(2, 3, 8),)),)


@dataclass(frozen=True)
class Relu(Activation):
    """y = max(x, 0)"""

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (np.maximum(args[0], 0),)

    def torch(self, me: str, *args: str) -> str:
        return f"F.relu({args[0]})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Relu", args[0])]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(Relu(), (rand(2, 3, 8),)),)


@dataclass(frozen=True)
class Relu2(Activation):
    """y = max(x, 0)^2  (So et al. 2021)"""

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (np.maximum(args[0], 0) ** 2,)

    def torch(self, me: str, *args: str) -> str:
        return f"F.relu({args[0]}).square()"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        positive = g.op("Relu", args[0])
        return [g.op("Mul", positive, positive)]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(Relu2(), (rand(2, 3, 8),)),)


@dataclass(frozen=True)
class ClampedSwiglu(Activation):
    """y = g * sigmoid(alpha * g) * (u + 1), g = min(gate, limit), u = min(max(up, -limit), limit)"""

    limit: float
    alpha: float

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        gate, up = np.minimum(args[0], self.limit), np.clip(args[1], -self.limit, self.limit)
        return (gate / (1 + np.exp(-self.alpha * gate)) * (up + 1),)

    def figures(self, *args: Type) -> Iterable[tuple[str, Fact]]:
        return (*super().figures(*args), ("mlp.limit", self.limit), ("mlp.alpha", self.alpha))

    @property
    def helpers(self) -> tuple[str, ...]:
        return ("clamped_swiglu",)

    def torch(self, me: str, *args: str) -> str:
        return f"clamped_swiglu({args[0]}, {args[1]}, limit={self.limit!r}, alpha={self.alpha!r})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        gate, high = g.op("Min", args[0], g.real(self.limit)), g.real(self.limit)
        up = g.op("Min", g.op("Max", args[1], g.real(-self.limit)), high)
        silu = g.op("Mul", gate, g.op("Sigmoid", g.op("Mul", gate, g.real(self.alpha))))
        return [g.op("Mul", silu, g.op("Add", up, g.real(1.0)))]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(ClampedSwiglu(0.9, 1.702), (rand(2, 3, 8), rand(2, 3, 8, seed=1))),)


@dataclass(frozen=True)
class Silu(Activation):
    """y = x * sigmoid(x)  (Elfwing et al. 2017)"""

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (args[0] / (1 + np.exp(-args[0])),)

    def torch(self, me: str, *args: str) -> str:
        return f"F.silu({args[0]})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Mul", args[0], g.op("Sigmoid", args[0]))]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(Silu(), (rand(2, 3, 8),)),)


@dataclass(frozen=True)
class Gelu(Activation):
    """y = x * Phi(x), with the normal distribution function by erf  (Hendrycks and Gimpel 2016)"""

    since = 20

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (args[0] * 0.5 * (1 + erf(args[0] / sqrt(2))),)

    def torch(self, me: str, *args: str) -> str:
        return f"F.gelu({args[0]})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Gelu", args[0], approximate="none")]

    def older(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        x, half, one, root = g.widen(args[0]), *(_fp32_constant(g, n) for n in (0.5, 1.0, sqrt(2)))
        share = g.op("Add", g.op("Erf", g.op("Div", x, root)), one)
        return [g.narrow(g.op("Mul", g.op("Mul", x, share), half))]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(Gelu(), (rand(2, 3, 8) * 2,)),)


@dataclass(frozen=True)
class QuickGelu(Activation):
    """y = x * sigmoid(1.702 x): differs from Gelu by up to 0.0203  (Hendrycks and Gimpel 2016)"""

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (args[0] / (1 + np.exp(-STEEP * args[0])),)

    def torch(self, me: str, *args: str) -> str:
        return f"{args[0]} * torch.sigmoid({STEEP!r} * {args[0]})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Mul", args[0], g.op("Sigmoid", g.op("Mul", args[0], g.real(STEEP))))]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(QuickGelu(), (rand(2, 3, 8) * 2,)),)


@dataclass(frozen=True)
class GeluTanh(Activation):
    """y = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))): differs from Gelu by up to 5e-4"""

    since = 20

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        x = args[0]
        return (0.5 * x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))),)

    def torch(self, me: str, *args: str) -> str:
        return f'F.gelu({args[0]}, approximate="tanh")'

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        return [g.op("Gelu", args[0], approximate="tanh")]

    def older(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        x, half, one, steep, bent = (
            g.widen(args[0]),
            *(_fp32_constant(g, n) for n in (0.5, 1.0, sqrt(2 / pi), 0.044715)),
        )
        cubed = g.op("Mul", g.op("Mul", g.op("Mul", x, x), x), bent)
        share = g.op("Add", g.op("Tanh", g.op("Mul", g.op("Add", x, cubed), steep)), one)
        return [g.narrow(g.op("Mul", g.op("Mul", x, half), share))]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return (Sample(GeluTanh(), (rand(2, 3, 8) * 2,)),)


def _fp32_constant(g: OnnxBuilder, value: float) -> OnnxValue:
    """In fp32, whatever the model's type."""
    return g.constant(np.array(value, np.float32))


def erf(x: Array) -> Array:
    """The error function in float64. NumPy has none, and the standard library's works on one number."""
    from math import erf as scalar

    return np.vectorize(scalar, otypes=[np.float64])(x)
