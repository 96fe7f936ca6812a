"""For which float types onnxruntime has a kernel of each of its own operators, by execution provider.

From onnxruntime's list of kernels. Of the operators of ai.onnx the CPU has all that the portable graph uses; CUDA lacks
some, and emit/ort.py lowers them otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping

from blockc.graph.target import Dtype, Provider, Target

_ALL: frozenset[Dtype] = frozenset(("fp32", "fp16", "bf16"))
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


def has(target: Target, operator: str) -> bool:
    return target.provider is not None and target.dtype in KERNELS[target.provider].get(operator, frozenset())


def lacks(target: Target, operator: str) -> str:
    """Why an operator cannot be used, or nothing."""
    return "" if has(target, operator) else f"onnxruntime has no {operator} in {target.dtype} on {target.provider}"
