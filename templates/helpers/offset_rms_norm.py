import torch
import torch.nn.functional as F
from torch import Tensor, nn


class OffsetRMSNorm(nn.Module):
    """y = x / rms(x) * (offset + weight), computed in fp32."""

    def __init__(self, width: int, eps: float, offset: float) -> None:
        super().__init__()
        self.eps, self.offset = eps, offset
        self.weight = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, 1.0 - self.offset)

    def forward(self, x: Tensor) -> Tensor:
        gain = self.offset + self.weight.float()
        return F.rms_norm(x.float(), gain.shape, gain, self.eps).to(x.dtype)
