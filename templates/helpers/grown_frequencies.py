import torch
from torch import Tensor


def grown_frequencies(frequencies: Tensor, length: Tensor, factor: float, original: int, over: int) -> Tensor:
    """The frequencies of a theta that grows with the length beyond the original one: (R,)."""
    growth = 1 + factor / original * (length - original).clamp(min=0)
    powers = -2 * torch.arange(len(frequencies), dtype=torch.float32, device=length.device) / (over - 2)
    return frequencies * growth**powers
