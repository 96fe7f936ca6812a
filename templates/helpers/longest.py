from torch import Tensor


def longest(position_ids: Tensor) -> Tensor:
    """The number of tokens, past and new, in the longest row of the batch: (B, S) -> ()."""
    return position_ids.max() + 1
