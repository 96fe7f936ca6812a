"""The ops, all of them. Each holds its rules: ir/op.py says what those are."""

from blockc.ir import Op
from blockc.ops.alibi import Alibi
from blockc.ops.attention import Attention, Extend, LastIndex, MergeHeads, SplitHeads, TakeToken
from blockc.ops.elementwise import (
    Add,
    ClampedSwiglu,
    Clip,
    Gelu,
    GeluTanh,
    Mul,
    QuickGelu,
    Relu,
    Relu2,
    Scale,
    Silu,
    Softcap,
    Tanh,
)
from blockc.ops.experts import Experts, Groups, Route, SigmoidGate
from blockc.ops.interleaved import RotaryInterleaved
from blockc.ops.latent import LatentAttention, Span
from blockc.ops.matrix import Embed, FirstRow, HeadGain, LayerNorm, Linear, RmsNorm
from blockc.ops.pool import Pool, Unit
from blockc.ops.position import (
    FAR,
    KeyPositions,
    Longest,
    QueryPositions,
    Shift,
    Sinusoidal,
    Visible,
    VisibleBothWays,
)
from blockc.ops.relative import RelativeBias
from blockc.ops.rotary import Rotary, RotaryTable
from blockc.ops.scaling import (
    ByLength,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongropeByLength,
    LongropeScaling,
    Scaling,
    YarnScaling,
)
from blockc.ops.sinks import SinkAttention, Sinks
from blockc.ops.top import LastIndices, Top
from blockc.ops.xielu import Xielu

# Every op with a meaning of its own: the parametrised test runs over the samples of each.
ALL: tuple[type[Op], ...] = (
    # tables, matrices, norms
    Embed, FirstRow, Linear, RmsNorm, LayerNorm, HeadGain,
    # arithmetic
    Add, Mul, Scale, Clip, Softcap, Tanh, Relu, Relu2, Silu, Gelu, GeluTanh, QuickGelu, ClampedSwiglu,
    Xielu,
    # position
    QueryPositions, KeyPositions, Longest, Visible, VisibleBothWays, Alibi, RelativeBias, Shift, Sinusoidal,
    RotaryTable, Rotary, RotaryInterleaved,
    # attention
    SplitHeads, Attention, Sinks, SinkAttention, Span, LatentAttention, MergeHeads, Extend,
    # experts
    Route, Experts, SigmoidGate,
    # the last tokens
    LastIndex, LastIndices, TakeToken, Top,
    # one vector of a text
    Pool, Unit,
)  # fmt: skip

__all__ = [
    "ALL",
    "FAR",
    "Add",
    "Alibi",
    "Attention",
    "ByLength",
    "ClampedSwiglu",
    "Clip",
    "DynamicScaling",
    "Embed",
    "Experts",
    "Extend",
    "FirstRow",
    "Gelu",
    "GeluTanh",
    "Groups",
    "HeadGain",
    "KeyPositions",
    "LastIndex",
    "LastIndices",
    "LatentAttention",
    "LayerNorm",
    "Linear",
    "LinearScaling",
    "Llama3Scaling",
    "Longest",
    "LongropeByLength",
    "LongropeScaling",
    "MergeHeads",
    "Mul",
    "Pool",
    "QueryPositions",
    "QuickGelu",
    "RelativeBias",
    "Relu",
    "Relu2",
    "RmsNorm",
    "Rotary",
    "RotaryInterleaved",
    "RotaryTable",
    "Route",
    "Scale",
    "Scaling",
    "Shift",
    "SigmoidGate",
    "Silu",
    "SinkAttention",
    "Sinks",
    "Sinusoidal",
    "Softcap",
    "Span",
    "SplitHeads",
    "TakeToken",
    "Tanh",
    "Top",
    "Unit",
    "Visible",
    "VisibleBothWays",
    "Xielu",
    "YarnScaling",
]  # fmt: skip
