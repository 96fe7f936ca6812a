from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .expert_linear import expert_linear


class PlainExperts(nn.Module):
    """y = sum of w * down_e(act(up_e x)) over the experts e of each token, w their weights."""

    def __init__(
        self, count: int, width: int, inner: int, act: Callable[[Tensor], Tensor], bias: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.act = act
        self.up = nn.Parameter(torch.empty(count, inner, width))
        self.down = nn.Parameter(torch.empty(count, width, inner))
        for name, size in (("up", inner), ("down", width)):
            made = nn.Parameter(torch.empty(count, size)) if name in bias else None
            self.register_parameter(f"{name}_bias", made)
        self.reset_parameters()

    def reset_parameters(self, std: float = 0.02, last: float = 0.02) -> None:
        """Normal matrices, `last` for those into the residual stream, and zero biases."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.normal_(parameter, std=last if name == "down" else std)

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """x (B, S, width), experts and weights (B, S, k) -> (B, S, width)."""
        chosen, order = experts.flatten().sort(stable=True)  # pairs of a token and an expert, by expert
        count = torch.arange(len(self.up), device=x.device)
        ends = torch.searchsorted(chosen, count, right=True, out_int32=True)
        token = order // experts.shape[-1]
        hidden = self.act(expert_linear(x.flatten(0, 1)[token], self.up, self.up_bias, chosen, ends))
        made = expert_linear(hidden, self.down, self.down_bias, chosen, ends)
        made = made * weights.flatten()[order].unsqueeze(-1)  # and the sum, in the type of the weights
        return made.new_zeros(x.flatten(0, 1).shape).index_add(0, token, made).view_as(x).to(x.dtype)
