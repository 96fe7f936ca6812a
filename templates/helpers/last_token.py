import torch
from torch import Tensor


def last_token(x: Tensor, attention_mask: Tensor) -> Tensor:
    """The last token that is no padding, 0 where all are: (B, S, W), (B, S) -> (B, W)."""
    real = (attention_mask != 0).long()
    rows, at = torch.arange(x.shape[0], device=x.device), real.shape[1] - 1 - real.flip(1).argmax(dim=1)
    return x[rows, at] * real[rows, at, None]
