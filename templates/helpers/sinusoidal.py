import torch
from torch import Tensor


def sinusoidal(position_ids: Tensor, like: Tensor) -> Tensor:
    """Sines at even and cosines at odd coordinates of p / 10000^(2i/width): (B, S), (B, S, width) -> (B, S, width)."""
    width = like.shape[-1]
    exponents = torch.arange(0, width, 2, dtype=torch.float32, device=like.device) / width
    angles = position_ids[..., None] * 10000.0**-exponents
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(2).to(like.dtype)
