from torch import Tensor


def visible_both_ways(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """True where the key is not padding: (B, S), (B, T) -> (B, 1, S, T)."""
    return (key_positions < 2**30)[:, None, None, :].expand(-1, -1, query_positions.shape[1], -1)
