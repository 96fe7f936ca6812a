import torch
import torch.nn.functional as F
from torch import Tensor


def expert_linear(x: Tensor, weight: Tensor, bias: Tensor | None, experts: Tensor) -> Tensor:
    """y = weight[e] x + bias[e] for each row: x (N, inputs), weight (E, outputs, inputs), experts (N) in order."""
    ends = torch.searchsorted(experts, torch.arange(len(weight), device=x.device), right=True)
    if all(size * x.element_size() % 16 == 0 for size in weight.shape[1:]) and x.dtype != torch.float64:
        y = F.grouped_mm(x, weight.mT, offs=ends.int())
    else:  # what the grouped product does not take
        y = torch.cat([F.linear(rows, w) for rows, w in zip(x.tensor_split(ends[:-1].cpu()), weight, strict=True)])
    return y if bias is None else y + bias[experts]
