from torch import Tensor


def rotary_table(position_ids: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of every angle, in fp32: (B, S), (R,) -> two of (B, S, R)."""
    angles = position_ids[..., None] * frequencies
    return angles.cos(), angles.sin()
