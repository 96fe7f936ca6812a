import torch.nn.functional as F
from torch import Tensor


def reglu(gate: Tensor, up: Tensor) -> Tensor:
    """relu(gate) * up."""
    return F.relu(gate) * up
