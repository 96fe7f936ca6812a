import torch
import torch.nn.functional as F
from torch import Tensor, nn


class OffsetLayerNorm(nn.Module):
    """y = (x - mean) / std * (offset + weight) + bias, computed in fp32."""

    def __init__(self, width: int, eps: float, offset: float, bias: bool = True) -> None:
        super().__init__()
        self.eps, self.offset = eps, offset
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, 1.0 - self.offset)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        gain = self.offset + self.weight.float()
        bias = None if self.bias is None else self.bias.float()
        return F.layer_norm(x.float(), gain.shape, gain, bias, self.eps).to(x.dtype)
