"""ONNX: a Loop over the experts that any token chose, whatever an expert computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from blockc.ir import OnnxBuilder, OnnxValue

# A nested builder, the rows (R, W) of an expert's tokens, and its number -> what it gives, (R, W)
Expert = Callable[[OnnxBuilder, OnnxValue, OnnxValue], OnnxValue]
# A nested builder, the name of a matrix, and the number of an expert -> its matrix, (outputs, inputs)
Matrix = Callable[[OnnxBuilder, str, OnnxValue], OnnxValue]


def sum_over_experts(g: OnnxBuilder, args: Sequence[OnnxValue], count: int, expert: Expert) -> OnnxValue:
    """y = sum over j of w_j expert(x, e_j): x (B, S, W), e (B, S, k) below `count`, w (B, S, k) -> (B, S, W)

    Sums are in fp32: onnxruntime's CPU provider adds up no fp16. An expert that nobody chose is not run.
    """
    x, experts, weights = args
    hit = _find_hit(g, experts, count)
    wide = g.op("Unsqueeze", weights, g.constant([3]))
    nothing = g.op("Expand", g.constant(np.array(0, np.float32)), g.op("Shape", x))

    def add_one(h: OnnxBuilder, turn: OnnxValue, carried: Sequence[OnnxValue]) -> Sequence[OnnxValue]:
        e = h.op("Gather", hit, turn, axis=0)
        slots = h.op("Transpose", h.op("NonZero", h.op("Equal", experts, e)), perm=[1, 0])
        tokens = h.op("Slice", slots, h.constant([0]), h.constant([2]), h.constant([1]))
        y = expert(h, h.op("GatherND", x, tokens), e)
        weighed = h.widen(h.op("Mul", y, h.op("GatherND", wide, slots)))
        return [h.op("ScatterND", carried[0], tokens, weighed, reduction="add")]

    return g.narrow(g.loop(g.op("Shape", hit), [nothing], add_one)[0])


def multiply_rows(
    g: OnnxBuilder, own: Mapping[str, OnnxValue], name: str, x: OnnxValue, e: OnnxValue, matrix: Matrix
) -> OnnxValue:
    """y = x matrix^T + bias, those of expert e. `own` are the parameters of all experts, by name."""
    used = [matrix(g, name, e)]
    if f"{name}_bias" in own:
        used.append(g.op("Gather", own[f"{name}_bias"], e, axis=0))
    return g.op("Gemm", x, *used, transB=1)


def _find_hit(g: OnnxBuilder, experts: OnnxValue, count: int) -> OnnxValue:
    """The experts that occur, each once and in their order."""
    flat = g.op("Reshape", experts, g.constant([-1]))
    marked = g.op("ScatterElements", g.constant(np.zeros(count, np.int64)), flat, g.op("Add", flat, g.constant([1])))
    return g.op("Squeeze", g.op("NonZero", marked), g.constant([0]))
