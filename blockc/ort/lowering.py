"""Lowerings for onnxruntime: the fusion pass joins ops into one, and this table lowers single ops another way.

Each entry computes the same function in fewer nodes, or in operators for which the provider has kernels. onnxruntime
looks kernels up by the opset in which the operator last changed: CUDA has Cos, Sin and Equal of earlier opsets only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from blockc.emit.onnx import Swap
from blockc.graph.target import Target
from blockc.ir import Array, Function, GraphError, OnnxBuilder, OnnxValue, Op
from blockc.ops import (
    ALL,
    FAR,
    DynamicScaling,
    KeyPositions,
    LastIndex,
    LatentAttention,
    Linear,
    Longest,
    LongropeByLength,
    QuickGelu,
    RotaryTable,
    Silu,
    Sinusoidal,
)
from blockc.ops.buffer import BUFFER
from blockc.ops.coded import CodedExperts
from blockc.ops.elementwise import STEEP
from blockc.ort.kernels import has_kernel
from blockc.ort.ops import MICROSOFT, RotaryRows, restorer_of

BASE = 1024  # positions are split into two digits of this base
CUDA_CONTEXT = BASE**2
NO_DYNAMIC = (
    "a graph for CUDA has the angles of rope in tables, and under dynamic scaling every length has angles of its own: "
    "build for the CPU or for any runtime, or say scaling: none, which is the same within the original context"
)

Values = tuple[OnnxValue, ...]


def _linear(op: Linear, g: OnnxBuilder, args: Values, params: Values) -> Sequence[OnnxValue]:
    """y = x W^T + b; reads W as stored, (outputs, inputs), without a transposed copy."""
    y = g.op("FusedMatMul", args[0], params[0], domain=MICROSOFT, transA=0, transB=1, alpha=1.0)
    return [g.op("Add", y, params[1])] if op.bias else [y]


def _silu(op: Silu, g: OnnxBuilder, args: Values, params: Values) -> Sequence[OnnxValue]:
    """x * sigmoid(1 * x) in one node."""
    return [g.op("QuickGelu", args[0], domain=MICROSOFT, alpha=1.0)]


def _quick_gelu(op: QuickGelu, g: OnnxBuilder, args: Values, params: Values) -> Sequence[OnnxValue]:
    return [g.op("QuickGelu", args[0], domain=MICROSOFT, alpha=STEEP)]


def _coded_experts(op: CodedExperts, g: OnnxBuilder, args: Values, params: Values) -> Sequence[OnnxValue]:
    """The Loop, with one node that restores the matrix of an expert."""
    return op.run(g, args, params, restorer_of(op.experts.params()))


# CUDA


def _last_index(op: LastIndex, g: OnnxBuilder, args: Values, params: Values) -> Sequence[OnnxValue]:
    """CUDA has no ArgMax of integers; below 2^24 every position is exact in float32."""
    return [g.op("ArgMax", g.op("Cast", args[0], to=1), axis=1, keepdims=1, select_last_index=0)]


def _key_positions(op: KeyPositions, g: OnnxBuilder, args: Values, params: Values) -> Sequence[OnnxValue]:
    """CUDA has no Equal of opset 19, so the mask itself is cast to a condition."""
    one = g.constant(np.array(1))
    positions = g.op("Sub", g.op("CumSum", args[0], one), one)
    return [g.op("Where", g.op("Cast", args[0], to=9), positions, g.constant(np.array(FAR)))]


def _longest(op: Longest, g: OnnxBuilder, args: Values, params: Values) -> Sequence[OnnxValue]:
    """CUDA has no ReduceMax of opset 20, and ArgMax only of floats."""
    flat = g.op("Reshape", args[0], g.constant([-1]))
    index = g.op("ArgMax", g.op("Cast", flat, to=1), axis=0, keepdims=0, select_last_index=0)
    return [g.op("Add", g.op("Gather", flat, index, axis=0), g.constant(np.array(1)))]


def _rotary_table(op: RotaryTable, g: OnnxBuilder, args: Values, params: Values) -> Sequence[OnnxValue]:
    return _cos_and_sin(g, g.narrow(_turn_by_table(op, g, *args)))


def _rotary_rows(op: RotaryRows, g: OnnxBuilder, args: Values, params: Values) -> Sequence[OnnxValue]:
    total = g.op("Squeeze", g.op("Shape", args[0], start=1, end=2), g.constant([0]))
    positions = g.op("Range", g.constant(np.array(0)), total, g.constant(np.array(1)))
    return _cos_and_sin(g, g.narrow(_turn_by_table(op.table, g, positions, *args[1:])))


def _turn_by_table(table: RotaryTable, g: OnnxBuilder, positions: OnnxValue, *length: OnnxValue) -> OnnxValue:
    """cos and sin of a rotary table at these positions. Raises GraphError for angles that no table holds."""
    match table.by_length:
        case None:
            return _turn(g, positions, table.frequencies, table.factor)
        case LongropeByLength(original):
            beyond = original + 1
            short, long = (_turn(g, positions, table.at(np.array(n)), table.factor) for n in (original, beyond))
            return g.op("Where", g.op("GreaterOrEqual", *length, g.constant(np.array(beyond))), long, short)
        case DynamicScaling():
            raise GraphError(NO_DYNAMIC)


def _latent_attention(op: LatentAttention, g: OnnxBuilder, args: Values, params: Values) -> Sequence[OnnxValue]:
    """One order for all lengths, that of decoding: a graph with an If is not captured."""
    return op.absorb(g, args, params)


def _sinusoidal(op: Sinusoidal, g: OnnxBuilder, args: Values, params: Values) -> Sequence[OnnxValue]:
    cos, sin = _cos_and_sin(g, g.narrow(_turn(g, args[0], op.frequencies)))
    pairs = [g.op("Unsqueeze", x, g.constant([3])) for x in (sin, cos)]
    return [g.op("Reshape", g.op("Concat", *pairs, axis=3), g.constant([0, 0, op.width]))]


def _turn(g: OnnxBuilder, positions: OnnxValue, frequencies: Array, amplitude: float = 1.0) -> OnnxValue:
    """amplitude times cos and sin of p * frequency without Cos and Sin, in fp32: (...) -> (..., 2, R), for p < BASE^2

    p = BASE a + b, and a rotation by p is one by BASE a after one by b. Both are rows of tables that are computed in
    float64, so angles are exact however large they are, unlike products in fp32.
    """
    angles = np.arange(BASE)[:, None] * frequencies
    far, near = BASE * angles, angles
    turns = np.stack([np.cos(far), -np.sin(far), np.sin(far), np.cos(far)], axis=1).reshape(BASE, 2, 2, -1)
    starts = amplitude * np.stack([np.cos(near), np.sin(near)], axis=1)[:, None]
    base = g.constant(np.array(BASE))
    turn = g.op("Gather", g.constant(turns.astype(np.float32)), g.op("Div", positions, base), axis=0)
    start = g.op("Gather", g.constant(starts.astype(np.float32)), g.op("Mod", positions, base), axis=0)
    return g.op("ReduceSum", g.op("Mul", turn, start), g.constant([-2]), keepdims=0)


def _cos_and_sin(g: OnnxBuilder, turned: OnnxValue) -> Sequence[OnnxValue]:
    return [g.op("Gather", turned, g.constant(np.array(i)), axis=-2) for i in (0, 1)]


_CUDA: Mapping[type[Op], Swap] = {
    LastIndex: _last_index,
    Longest: _longest,
    KeyPositions: _key_positions,
    RotaryTable: _rotary_table,
    RotaryRows: _rotary_rows,
    Sinusoidal: _sinusoidal,
    LatentAttention: _latent_attention,
}


def why_not_in_opset(function: Function, opset: int | None) -> str:
    """Why a function cannot be written in an opset; empty if it can."""
    for n in function.nodes:
        if opset is not None and n.op.since > opset and type(n.op).older is Op.older:
            at = f"{n.place.file}:{n.place.line}: " if n.place else ""
            return f"{at}{n.name}: {n.op.name} needs opset {n.op.since} or later, not opset {opset}"
    return ""


def _older_swaps(opset: int | None) -> Mapping[type[Op], Swap]:
    """Lowerings for an opset older than some op's own lowering."""
    return {} if opset is None else {op: op.older for op in (*ALL, *BUFFER) if op.since > opset}


def swaps_for(target: Target) -> Mapping[type[Op], Swap]:
    """The lowerings that replace the ops' own for a target; none for the portable graph of the usual opset."""
    if target.provider is None:
        return _older_swaps(target.opset)
    named: dict[type[Op], tuple[str, Swap]] = {
        Linear: ("FusedMatMul", _linear),
        Silu: ("QuickGelu", _silu),
        QuickGelu: ("QuickGelu", _quick_gelu),
        CodedExperts: ("GatherBlockQuantized", _coded_experts),
    }
    own = {op: swap for op, (operator, swap) in named.items() if has_kernel(target, operator)}
    return {**own, **_CUDA} if target.provider == "cuda" else own
