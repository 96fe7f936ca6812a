"""What onnxruntime's kernels take: float types, by execution provider and operator, and heads of an attention.

From onnxruntime's list of kernels. Of the operators of ai.onnx the CPU has all that the portable graph uses; CUDA lacks
some, and lowering.py lowers them otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping

from blockc.basics.floats import Dtype
from blockc.graph.target import Provider, Target

_ALL: frozenset[Dtype] = frozenset(("fp32", "bf16", "fp16"))
_FP32: frozenset[Dtype] = frozenset(("fp32",))
_HALF: frozenset[Dtype] = frozenset(("fp16", "bf16"))
_IEEE: frozenset[Dtype] = frozenset(("fp32", "fp16"))

KERNELS: Mapping[Provider, Mapping[str, frozenset[Dtype]]] = {
    "cpu": {
        "GroupQueryAttention": _IEEE,
        "SkipSimplifiedLayerNormalization": _IEEE,
        "SkipLayerNormalization": _IEEE,
        "FusedMatMul": _FP32,
        "QuickGelu": _FP32,
        "BiasGelu": _FP32,
        "FastGelu": _FP32,
    },
    "cuda": {
        "GroupQueryAttention": _HALF,
        "SkipSimplifiedLayerNormalization": _ALL,
        "SkipLayerNormalization": _ALL,
        "FusedMatMul": _ALL,
        "QuickGelu": _ALL,
        "BiasGelu": _ALL,
        "FastGelu": _ALL,
    },
}

# The float types that a provider computes the portable graph in.
COMPUTES: Mapping[Provider, frozenset[Dtype]] = {"cpu": _IEEE, "cuda": _ALL}
# GroupQueryAttention takes heads of a multiple of HEAD coordinates; where rope turns, a multiple of TURNED and of these
# a multiple of TURNED.
HEAD, TURNED = 8, 16  # diagnostics/advice.py says them in words
WIDEST: Mapping[Provider, int] = {"cuda": 256}


def has(target: Target, operator: str) -> bool:
    return target.provider is not None and target.dtype in KERNELS[target.provider].get(operator, frozenset())


def lacks(target: Target, operator: str) -> str:
    """Why an operator cannot be used, or nothing."""
    return "" if has(target, operator) else f"onnxruntime has no {operator} in {target.dtype} on {target.provider}"


def lacks_heads(target: Target, head_dim: int) -> str:
    """Why GroupQueryAttention takes no heads of so many coordinates, or nothing."""
    if head_dim % HEAD:
        return f"head_dim {head_dim} is no multiple of {HEAD}"
    widest = WIDEST.get(target.provider) if target.provider is not None else None
    return "" if widest is None or head_dim <= widest else f"head_dim {head_dim} is above {widest}"


def lacks_rope(head_dim: int, turned: int) -> str:
    """Why GroupQueryAttention does not turn so many coordinates of a head, or nothing."""
    if head_dim % TURNED or turned % TURNED:
        return f"it turns {turned} of {head_dim}, and the kernel takes multiples of {TURNED}"
    return ""
