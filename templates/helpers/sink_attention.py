import torch
import torch.nn.functional as F
from torch import Tensor


def sink_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor, scale: float) -> Tensor:
    """Attention over the visible keys and one key more of value 0, whose score is its head's sink; no keys: 0."""
    k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
    sink = sinks[None, :, None, None].expand(*q.shape[:3], 1)
    hidden = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, float("-inf"))
    bias = torch.cat((hidden.expand(-1, q.shape[1], -1, -1), sink), dim=3)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale, enable_gqa=k.shape[1] < q.shape[1])
