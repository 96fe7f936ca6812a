import math

import torch
from torch import Tensor


def alibi_slopes(heads: int, max_bias: float) -> Tensor:
    """2^(-max_bias h/n) for h = 1, ..., n, n the next power of two; if above heads, even h come first: (heads,)."""
    n = 2 ** math.ceil(math.log2(heads))
    slopes = 2 ** (-max_bias * torch.arange(1, n + 1, dtype=torch.float32) / n)
    return slopes if n == heads else torch.cat((slopes[1::2], slopes[::2]))[:heads]
