import torch.nn.functional as F
from torch import Tensor


def relu2(x: Tensor) -> Tensor:
    """relu(x)^2."""
    return F.relu(x).square()
