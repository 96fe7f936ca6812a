"""why_refused: why a model has no graph of a target. `Target` itself refuses what no model can have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockc.basics.floats import FLOATS
from blockc.graph.target import Target
from blockc.ir import GraphError

if TYPE_CHECKING:
    from blockc.pipeline.compiled import Compiled


NO_LINK = "quantised weights are computed, and cannot be linked from a checkpoint: pack them"

NO_LEVEL = "level 0 is for proofs: a kernel multiplies codes of 8 bits 80 times slower there"


def why_refused(model: Compiled, target: Target, copied: bool | None = None) -> str:
    """The first reason, or an empty string. `copied`: whether weights are copied beside the model; None: not known."""
    from blockc.ort.lowering import CUDA_CONTEXT, NO_DYNAMIC, why_not_in_opset

    if target.provider == "cuda" and model.spec.top.context > CUDA_CONTEXT:
        return f"context {model.spec.top.context}: positions in a graph for CUDA are below {CUDA_CONTEXT}"
    if target.provider == "cuda" and any(side.grows for side in model.sides):
        return NO_DYNAMIC
    if target.logits != "all" and not model.by_token:
        return (
            f"the model gives {' and '.join(model.function.output_names)}, and no logits of each token to choose from"
        )
    if target.quant and target.quant.level != 4:
        return NO_LEVEL
    if target.quant and copied is False:
        return NO_LINK
    if target.packed and (copied is False or target.provider is None):
        return "packed is for weights that are copied, and for a provider's attention"
    try:
        return why_not_in_opset(model.flatten(target), target.opset) or _why_lost(model, target)
    except GraphError as error:  # of a pass that does not take this model
        return str(error)


def _why_lost(model: Compiled, target: Target) -> str:
    """The first constant that the target's float type cannot hold, with its place, and the types that can."""
    from blockc.emit.onnx import find_lost
    from blockc.ort.lowering import swaps_for

    for n, number in find_lost(model.flatten(target), target.dtype, swaps_for(target)):
        at = f"{n.place.file}:{n.place.line}: " if n.place else ""
        holding = " or ".join(word for word, one in FLOATS.items() if one.holds(number))
        hint = f": build in {holding}" if holding else ""
        return f"{at}{n.name}: {target.dtype} does not hold {abs(number):g}{hint}"
    return ""
