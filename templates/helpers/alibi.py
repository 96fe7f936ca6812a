from torch import Tensor

from .alibi_slopes import alibi_slopes


def alibi(mask: Tensor, query_positions: Tensor, key_positions: Tensor, heads: int, max_bias: float) -> Tensor:
    """-slope * distance of each key that a query sees, else -inf, in fp32: (B, S), (B, T) -> (B, heads, S, T)."""
    distance = query_positions[:, None, :, None] - key_positions[:, None, None, :]
    slopes = alibi_slopes(heads, max_bias).to(distance.device)
    return (-slopes[:, None, None] * distance).masked_fill(~mask, float("-inf"))
