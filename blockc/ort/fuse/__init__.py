"""fuse: several ops become one where onnxruntime has a kernel for them. What stays as it is, is listed with the reason.

Takes an inlined, cached function. The fused ops carry their own meaning, so the result is proved like any other graph.
"""

from __future__ import annotations

from blockc.graph.target import Target
from blockc.ir import Function
from blockc.ir.derive import Passed
from blockc.ort.fuse.attention import fuse_attentions
from blockc.ort.fuse.pairs import fuse_activations, fuse_norms
from blockc.ort.fuse.rewrite import Rewrite

__all__ = ["fuse"]


def fuse(function: Function, target: Target) -> Passed:
    """Attention with its rope, cache and heads; the norm after an addition; biases where a kernel adds them."""
    rewrite = Rewrite(function, target)
    fuse_attentions(rewrite)
    fuse_norms(rewrite)
    fuse_activations(rewrite)
    return rewrite.result()
