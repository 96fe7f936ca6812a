from torch import Tensor


def mean_of_tokens(x: Tensor, attention_mask: Tensor) -> Tensor:
    """The mean over the tokens that are no padding: (B, S, W), (B, S) -> (B, W)."""
    real = (attention_mask != 0).to(x.dtype)
    return (x * real[..., None]).sum(dim=1) / real.sum(dim=1, keepdim=True).clamp(min=1)
