import torch.nn.functional as F
from torch import Tensor


def geglu_tanh(gate: Tensor, up: Tensor) -> Tensor:
    """gelu(gate) * up, with tanh in place of erf."""
    return F.gelu(gate, approximate="tanh") * up
