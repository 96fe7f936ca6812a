"""The ops, all of them. Each holds its rules: read base.py for what those are."""

from blockc.ops.attention import Attention, Extend, LastIndex, MergeHeads, SplitHeads, TakeToken
from blockc.ops.base import Array, Arrays, Call, Input, OnnxBuilder, OnnxValue, Op, Sample, State, TokenAxes
from blockc.ops.elementwise import Add, Gelu, GeluTanh, Mul, Relu, Scale, Silu, Softcap
from blockc.ops.interleaved import RotaryInterleaved
from blockc.ops.matrix import Embed, LayerNorm, Linear, RmsNorm
from blockc.ops.position import (
    FAR,
    KeyPositions,
    Llama3Scaling,
    QueryPositions,
    Rotary,
    RotaryTable,
    Sinusoidal,
    Visible,
    VisibleBothWays,
)

# Every op with a meaning of its own: the parametrised test runs over the samples of each.
ALL: tuple[type[Op], ...] = (
    # tables, matrices, norms
    Embed, Linear, RmsNorm, LayerNorm,
    # arithmetic
    Add, Mul, Scale, Softcap, Relu, Silu, Gelu, GeluTanh,
    # position
    QueryPositions, KeyPositions, Visible, VisibleBothWays, Sinusoidal, RotaryTable, Rotary, RotaryInterleaved,
    # attention
    SplitHeads, Attention, MergeHeads, Extend, LastIndex, TakeToken,
)  # fmt: skip

__all__ = [
    "ALL", "FAR", "Add", "Array", "Arrays", "Attention", "Call", "Embed", "Extend", "Gelu", "GeluTanh", "Input",
    "KeyPositions", "LastIndex", "LayerNorm", "Linear", "Llama3Scaling", "MergeHeads", "Mul", "OnnxBuilder",
    "OnnxValue", "Op", "QueryPositions", "Relu", "RmsNorm", "Rotary", "RotaryInterleaved", "RotaryTable",
    "Sample", "Scale", "Silu", "Sinusoidal", "Softcap", "SplitHeads", "State", "TakeToken", "TokenAxes", "Visible",
    "VisibleBothWays",
]  # fmt: skip
