import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class XIELU(nn.Module):
    """A square where x > 0, an exponential elsewhere, each with a learned curvature; beta and eps are fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha_p = nn.Parameter(torch.empty(1))
        self.alpha_n = nn.Parameter(torch.empty(1))
        self.beta = nn.Parameter(torch.empty(()), requires_grad=False)
        self.eps = nn.Parameter(torch.empty(()), requires_grad=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.alpha_p, math.log(math.expm1(0.8)))
        nn.init.constant_(self.alpha_n, math.log(math.expm1(0.8 - 0.5)))
        nn.init.constant_(self.beta, 0.5)
        nn.init.constant_(self.eps, -1e-6)

    def forward(self, x: Tensor) -> Tensor:
        above = F.softplus(self.alpha_p) * x * x
        below = (self.beta + F.softplus(self.alpha_n)) * (torch.expm1(torch.minimum(x, self.eps)) - x)
        return torch.where(x > 0, above, below) + self.beta * x
