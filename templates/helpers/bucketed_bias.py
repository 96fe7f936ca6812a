import math

import torch
from torch import Tensor, nn


class RelativeBias(nn.Module):
    """A number for each head and bucket of distances, added to the scores of the keys that are seen."""

    def __init__(self, heads: int, buckets: int, max_distance: int, causal: bool = False) -> None:
        super().__init__()
        self.side, self.max_distance, self.causal = buckets if causal else buckets // 2, max_distance, causal
        self.weight = nn.Parameter(torch.empty(buckets, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, seen: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """(B, 1, S, T), (B, S), (B, T) -> (B, heads, S, T)"""
        distance = key_positions[:, None, :] - query_positions[:, :, None]
        far = (-distance).clamp(0, self.max_distance) if self.causal else distance.abs().clamp(max=self.max_distance)
        exact = self.side // 2
        grown = torch.log(far.clamp(min=1).float() / exact) / math.log(self.max_distance / exact) * (self.side - exact)
        bucket = torch.where(far < exact, far, (exact + grown.long()).clamp(max=self.side - 1))
        if not self.causal:
            bucket = bucket + self.side * (distance > 0)
        return self.weight[bucket].permute(0, 3, 1, 2).masked_fill(~seen, -math.inf)
