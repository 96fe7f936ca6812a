from torch import Tensor


def visible_within(window: int, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """True where a query sees a key, itself and the window - 1 before it: (B, S), (B, T) -> (B, 1, S, T)."""
    distance = query_positions[:, None, :, None] - key_positions[:, None, None, :]
    return (distance >= 0) & (distance < window)
