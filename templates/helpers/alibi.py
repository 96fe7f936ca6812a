from torch import Tensor


def alibi(mask: Tensor, query_positions: Tensor, key_positions: Tensor, slopes: Tensor) -> Tensor:
    """-slope * distance of each key that a query sees, else -inf, in fp32: (B, S), (B, T) -> (B, heads, S, T)."""
    distance = query_positions[:, None, :, None] - key_positions[:, None, None, :]
    return (-slopes[:, None, None] * distance).masked_fill(~mask, float("-inf"))
