import torch
from torch import Tensor


def biased_softcap_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, softcap: float) -> Tensor:
    """softmax(softcap * tanh(scale * q k^T / softcap) + bias) v, the softmax in fp32; no keys: 0."""
    scores = softcap * torch.tanh(q @ k.transpose(2, 3) * scale / softcap)
    weights = (scores.float() + bias).softmax(dim=-1).masked_fill(bias == float("-inf"), 0.0)
    return weights.to(v.dtype) @ v
