import torch
from torch import nn


class Sinks(nn.Module):
    """A learned logit for each head, which joins the softmax of its scores."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
