import torch
from torch import Tensor


def divided_frequencies(frequencies: Tensor, factors: list[float]) -> Tensor:
    """Each pair's frequency divided by a factor of its own: (R,)."""
    return frequencies / torch.tensor(factors)
