from torch import Tensor


def take_token(x: Tensor, index: Tensor) -> Tensor:
    """x[b, index[b]]: (B, S, ...), (B, 1) -> (B, 1, ...)."""
    return x.take_along_dim(index.view(index.shape + (1,) * (x.dim() - 2)), dim=1)
