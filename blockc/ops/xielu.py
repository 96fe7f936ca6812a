"""xIELU: an activation with parameters, which each MLP learns for itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1, log

import numpy as np

from blockc.ir import Array, Arrays, OnnxBuilder, OnnxValue, Param, Sample
from blockc.ops.base import Activation, rand

SLOPE, FLOOR = 0.5, -1e-6  # beta and eps, which are not trained
START = 0.8  # the curvature on either side in the beginning


@dataclass(frozen=True)
class Xielu(Activation):
    """y = p x^2 + beta x where x > 0, n (expm1(min(x, eps)) - x) + beta x elsewhere  (Huang and Schlag 2024)

    p = softplus(alpha_p), n = beta + softplus(alpha_n): the curvatures of a square and of an exponential.
    """

    def params(self) -> tuple[Param, ...]:
        starts = log(expm1(START)), log(expm1(START - SLOPE))
        learned = (Param(name, (1,), "bias", at) for name, at in zip(("alpha_p", "alpha_n"), starts, strict=True))
        return (*learned, Param("beta", (), "bias", SLOPE), Param("eps", (), "bias", FLOOR))

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        (x,), (alpha_p, alpha_n, beta, eps) = args, params
        below = (beta + softplus(alpha_n)) * (np.expm1(np.minimum(x, eps)) - x)
        return (np.where(x > 0, softplus(alpha_p) * x**2, below) + beta * x,)

    def declares(self) -> str | None:
        return "XIELU()"

    @property
    def helpers(self) -> tuple[str, ...]:
        return ("xielu",)

    def torch(self, me: str, *args: str) -> str:
        return f"{me}({args[0]})"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        """In fp32: in half precision much of expm1(x) - x would be lost."""
        x, alpha_p, alpha_n, beta, eps = (g.widen(value) for value in (*args, *params))
        zero, one = (g.constant(np.array(number, np.float32)) for number in (0, 1))

        def positive(alpha: OnnxValue) -> OnnxValue:
            return g.op("Log", g.op("Add", g.op("Exp", alpha), one))

        expm1 = g.op("Sub", g.op("Exp", g.op("Min", x, eps)), one)
        below = g.op("Mul", g.op("Add", positive(alpha_n), beta), g.op("Sub", expm1, x))
        above = g.op("Mul", positive(alpha_p), g.op("Mul", x, x))
        bent = g.op("Where", g.op("Less", zero, x), above, below)
        return [g.narrow(g.op("Add", bent, g.op("Mul", beta, x)))]

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        whole = np.array([[[0.0, -1e-7, 1e-7, -3.0, -0.5, 0.5, 3.0, -30.0]]])
        return Sample(Xielu(), (rand(2, 3, 8) * 2,)), Sample(Xielu(), (whole,))


def softplus(x: Array) -> Array:
    """ln(1 + e^x), which is above 0"""
    return np.logaddexp(0.0, x)
