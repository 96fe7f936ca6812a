"""Fused ops: each replaces several ops for which onnxruntime has one kernel.

Like any op they have an oracle rule, so fused = unfused is proved in float64 before a kernel runs. They are never
emitted as PyTorch.
"""

from blockc.ir import Op
from blockc.ort.ops.attention import GroupQueryAttention, RowQueryAttention
from blockc.ort.ops.blocks import BlockEmbed, BlockLinear, BlockSums
from blockc.ort.ops.encoder import FlatAttention, FlatRotary, PackedAttention, RealKeys
from blockc.ort.ops.experts import BlockExperts, ChoiceLogits, RoutedExperts, WeightSum, restorer_of, why_no_moe
from blockc.ort.ops.pairs import BiasedGelu, HeadNorm, SkipNorm
from blockc.ort.ops.rows import HIDDEN, MICROSOFT, BoundedBias, Lengths, MaskBias, RotaryRows, RowLengths, Slots
from blockc.ort.ops.step import GroupBias, StepAttention, StepRows

FUSED: tuple[type[Op], ...] = (
    SkipNorm, HeadNorm, BiasedGelu,
    MaskBias, BoundedBias, Slots, Lengths, RowLengths, RotaryRows,
    GroupQueryAttention, RowQueryAttention,
    FlatRotary, FlatAttention, RealKeys, PackedAttention,
    StepRows, GroupBias, StepAttention,
    ChoiceLogits, WeightSum, RoutedExperts,
    BlockSums, BlockLinear, BlockEmbed, BlockExperts,
)  # fmt: skip

__all__ = [
    "FUSED", "HIDDEN", "MICROSOFT", "BiasedGelu", "BlockEmbed", "BlockExperts", "BlockLinear", "BlockSums",
    "BoundedBias", "ChoiceLogits", "FlatAttention", "FlatRotary", "GroupBias", "GroupQueryAttention", "HeadNorm",
    "Lengths", "MaskBias", "PackedAttention", "RealKeys", "RotaryRows", "RoutedExperts", "RowLengths",
    "RowQueryAttention", "SkipNorm", "Slots", "StepAttention", "StepRows", "WeightSum", "restorer_of", "why_no_moe",
]  # fmt: skip
