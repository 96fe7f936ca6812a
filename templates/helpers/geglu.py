import torch.nn.functional as F
from torch import Tensor


def geglu(gate: Tensor, up: Tensor) -> Tensor:
    """gelu(gate) * up."""
    return F.gelu(gate) * up
