import torch
from torch import Tensor

from .rotate_interleaved import rotate_interleaved


def rotate_first_interleaved(width: int, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pairs of the first `width` coordinates and leaves the rest: (B, H, S, D) -> (B, H, S, D)."""
    return torch.cat((rotate_interleaved(x[..., :width], cos, sin), x[..., width:]), dim=-1)
