from torch import Tensor


def longest(position_ids: Tensor) -> Tensor:
    """How many tokens, past and new, the longest row of the batch has: (B, S) -> ()."""
    return position_ids.max() + 1
