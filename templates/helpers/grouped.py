from torch import Tensor


def grouped(x: Tensor, times: int) -> Tensor:
    """Each key-value head once for every query head that reads it: (B, K, T, D) -> (B, K * times, T, D)."""
    return x.repeat_interleave(times, dim=1)
