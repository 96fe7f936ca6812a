import torch
from torch import Tensor


def softcap_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, softcap: float) -> Tensor:
    """softmax(softcap * tanh(scale * q k^T / softcap)) v over the visible keys, the softmax in fp32; no keys: 0."""
    scores = softcap * torch.tanh(q @ k.transpose(2, 3) * scale / softcap)
    weights = scores.float().masked_fill(~mask, float("-inf")).softmax(dim=-1).masked_fill(~mask, 0.0)
    return weights.to(v.dtype) @ v
