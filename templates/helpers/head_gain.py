import torch
from torch import Tensor, nn


class HeadGain(nn.Module):
    """y = x * weight, a gain for each number of each head: (B, heads, S, head_dim)."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight[:, None]
