import torch
from torch import Tensor


def first_token(x: Tensor, attention_mask: Tensor) -> Tensor:
    """The first token that is no padding, 0 where all are: (B, S, W), (B, S) -> (B, W)."""
    real = (attention_mask != 0).long()
    rows, at = torch.arange(x.shape[0], device=x.device), real.argmax(dim=1)
    return x[rows, at] * real[rows, at, None]
