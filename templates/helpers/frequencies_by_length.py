import torch
from torch import Tensor


def frequencies_by_length(
    frequencies: Tensor, length: Tensor, original: int, short: list[float], long: list[float]
) -> Tensor:
    """Each pair's frequency divided by a factor of its own, from one list up to the original length: (R,)."""
    lists = [torch.tensor(factors, device=length.device) for factors in (long, short)]
    return frequencies / torch.where(length > original, *lists)
