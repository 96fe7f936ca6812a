from torch import Tensor


def visible_each_side(most: int, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """True where a key is no padding and at most so many places from the query: (B, S), (B, T) -> (B, 1, S, T)."""
    return (query_positions[:, None, :, None] - key_positions[:, None, None, :]).abs() <= most
