import torch
from torch import Tensor

from .rotate import rotate


def rotate_first(width: int, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pairs of the first `width` coordinates and leaves the rest: (B, H, S, D) -> (B, H, S, D)."""
    return torch.cat((rotate(x[..., :width], cos, sin), x[..., width:]), dim=-1)
