"""What onnxruntime supports: the oldest release for each graph, and each kernel's float types and heads.

The facts come from onnxruntime's list of kernels. Its CPU provider has all ai.onnx operators of the portable graph; its
CUDA provider lacks some, for which lowering.py uses others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from blockc.basics.floats import FloatType
from blockc.basics.opsets import BUFFERED, USUAL
from blockc.graph.target import Provider, Target

# The oldest release that opens a graph of an opset and computes it right, for every spec; tests/oldest.py measures it.
# Before 1.15 there are no packages for Python 3.11. The operators of 23 came earlier, but were wrong: see the docs.
OLDEST: Mapping[int, str] = {
    17: "1.15", 18: "1.15", 19: "1.16", 20: "1.17", 21: "1.18", 22: "1.21",
    23: "1.28", 24: "1.28", 25: "1.28", 26: "1.28", 27: "1.32", 28: "1.32",
}  # fmt: skip
OLDEST_LAST = "1.20"  # for a graph with the last token's logits: earlier ones have no ArgMax of int64
OLDEST_HALF = "1.20"  # for fp16 or bf16: in earlier ones clipped queries are wrong
OLDEST_OWN = "1.28"  # for a provider's own operators
NEWER: Mapping[str, str] = {"QMoE": "1.31"}  # of these, by name: earlier ones have no level of accuracy

_ALL: frozenset[FloatType] = frozenset(("fp32", "bf16", "fp16"))
_FP32: frozenset[FloatType] = frozenset(("fp32",))
_HALF: frozenset[FloatType] = frozenset(("fp16", "bf16"))
_IEEE: frozenset[FloatType] = frozenset(("fp32", "fp16"))

# Attention here is com.microsoft's. That of ai.onnx is in all types that a provider computes in.
KERNELS: Mapping[Provider, Mapping[str, frozenset[FloatType]]] = {
    "cpu": {
        "Attention": _FP32,
        "GroupQueryAttention": _IEEE,
        "SkipSimplifiedLayerNormalization": _IEEE,
        "SkipLayerNormalization": _IEEE,
        "FusedMatMul": _FP32,
        "QuickGelu": _FP32,
        "BiasGelu": _FP32,
        "FastGelu": _FP32,
        "MatMulNBits": _IEEE,
        "GatherBlockQuantized": _IEEE,
        "MoE": _FP32,
        "QMoE": _FP32,
    },
    "cuda": {
        "Attention": _ALL,
        "GroupQueryAttention": _HALF,
        "SkipSimplifiedLayerNormalization": _ALL,
        "SkipLayerNormalization": _ALL,
        "FusedMatMul": _ALL,
        "QuickGelu": _ALL,
        "BiasGelu": _ALL,
        "FastGelu": _ALL,
        "MatMulNBits": _ALL,
        "GatherBlockQuantized": _ALL,
    },
}

# The float types that a provider computes the portable graph in.
COMPUTES: Mapping[Provider, frozenset[FloatType]] = {"cpu": _IEEE, "cuda": _ALL}
# GroupQueryAttention takes heads whose coordinates are a multiple of HEAD; with rope, both the coordinates and those
# that rope rotates must be multiples of TURNED.
HEAD, TURNED = 8, 16  # diagnostics/advice.py says them in words
WIDEST: Mapping[Provider, int] = {"cuda": 256}


def oldest_release(target: Target, operators: Iterable[str] = ()) -> str:
    """The oldest release of onnxruntime that runs a target's graph, with these operators if they are known."""
    if target.provider is not None:
        return max((OLDEST_OWN, *(NEWER[name] for name in operators if name in NEWER)), key=parse_release)
    opset = target.opset or (BUFFERED if target.cache == "buffer" else USUAL)
    last = [] if target.logits == "all" else [OLDEST_LAST]
    half = [] if target.dtype == "fp32" else [OLDEST_HALF]
    quant = [OLDEST_OWN] if target.quant else []  # in earlier ones DequantizeLinear in blocks was not tried
    return max((OLDEST[opset], *last, *half, *quant), key=parse_release)


def opset_for(target: Target, version: str) -> int | None:
    """The newest opset in which a release runs a portable graph; None where there is none."""
    if target.provider is not None:
        return None
    fit = (n for n in OLDEST if parse_release(oldest_release(replace(target, opset=n))) <= parse_release(version))
    return max(fit, default=None)


def parse_release(version: str) -> tuple[int, ...]:
    """A version as numbers that compare; 1.27 and 1.27.0 are equal."""
    numbers = [int(number) for number in re.match(r"[\d.]*", version)[0].split(".") if number]  # type: ignore[index]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def has_kernel(target: Target, operator: str) -> bool:
    return target.provider is not None and target.dtype in KERNELS[target.provider].get(operator, frozenset())


def why_no_kernel(target: Target, operator: str) -> str:
    """Why an operator cannot be used; empty if it can."""
    return (
        "" if has_kernel(target, operator) else f"onnxruntime has no {operator} in {target.dtype} on {target.provider}"
    )


def why_no_heads(target: Target, head_dim: int) -> str:
    """Why GroupQueryAttention does not take heads of this size; empty if it does."""
    if head_dim % HEAD:
        return f"head_dim {head_dim} is not a multiple of {HEAD}"
    widest = WIDEST.get(target.provider) if target.provider is not None else None
    return "" if widest is None or head_dim <= widest else f"head_dim {head_dim} is above {widest}"


def why_no_rope(head_dim: int, turned: int) -> str:
    """Why GroupQueryAttention does not rotate this many coordinates of a head; empty if it does."""
    if head_dim % TURNED or turned % TURNED:
        return f"it rotates {turned} of {head_dim}, and the kernel takes multiples of {TURNED}"
    return ""
