import torch
from torch import Tensor


def clamped_swiglu(gate: Tensor, up: Tensor, limit: float, alpha: float) -> Tensor:
    """gate * sigmoid(alpha * gate) * (up + 1), with gate below limit and up between -limit and limit."""
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)
