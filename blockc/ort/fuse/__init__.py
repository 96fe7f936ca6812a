"""fuse: several ops become one where onnxruntime has a kernel for them. Ops that stay are listed with the reason.

It takes an inlined function. Fused ops have oracle rules too, so the result is proved like any graph.
"""

from __future__ import annotations

from blockc.graph.target import Target
from blockc.ir import Function, is_past
from blockc.ir.derive import PassResult
from blockc.ort.fuse.attention import fuse_attentions
from blockc.ort.fuse.encoder import fuse_uncached
from blockc.ort.fuse.experts import fuse_experts
from blockc.ort.fuse.pairs import fuse_activations, fuse_norms
from blockc.ort.fuse.rewrite import Rewrite

__all__ = ["fuse"]


def fuse(function: Function, target: Target) -> PassResult:
    """Fuses attention with its rope, cache and heads; experts with their choice; norms with sums; GELU with a bias."""
    rewrite = Rewrite(function, target)
    (fuse_attentions if any(map(is_past, function.inputs)) else fuse_uncached)(rewrite)
    fuse_experts(rewrite)
    fuse_norms(rewrite)
    fuse_activations(rewrite)
    return rewrite.result()
