"""onnxruntime's own dialect: the fusion pass decides what becomes one op, this table how single ops are lowered.

Each line is a one-to-one swap: the same function in fewer nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blockc.emit.onnx import Swap
from blockc.ops import Linear, OnnxBuilder, OnnxValue, Op, Silu
from blockc.ops.fused import MICROSOFT


def _linear(
    op: Linear, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]
) -> Sequence[OnnxValue]:
    """The weight is read as it is stored, (outputs, inputs): no transposed copy, and none to be folded."""
    y = g.op("FusedMatMul", args[0], params[0], domain=MICROSOFT, transA=0, transB=1, alpha=1.0)
    return [g.op("Add", y, params[1])] if op.bias else [y]


def _silu(op: Silu, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
    """x * sigmoid(1 * x) in one node."""
    return [g.op("QuickGelu", args[0], domain=MICROSOFT, alpha=1.0)]


SWAPS: Mapping[type[Op], Swap] = {Linear: _linear, Silu: _silu}
