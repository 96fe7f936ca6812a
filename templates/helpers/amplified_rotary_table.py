from torch import Tensor

from .rotary_table import rotary_table


def amplified_rotary_table(position_ids: Tensor, frequencies: Tensor, amplitude: float) -> tuple[Tensor, Tensor]:
    """The cosines and sines times a number, in fp32: (B, S), (R,) -> two of (B, S, R)."""
    cos, sin = rotary_table(position_ids, frequencies)
    return amplitude * cos, amplitude * sin
