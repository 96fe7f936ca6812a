from collections.abc import Callable

import torch
from torch import Tensor, nn

from .check_names import check_names
from .fitting import fitting


@torch.no_grad()
def copy_own(model: nn.Module, tensors: dict[str, Callable[[], Tensor]]) -> None:
    """Fills the model from tensors that bear the names of its parameters."""
    parameters = dict(model.named_parameters())
    check_names(parameters, tensors)
    for name, parameter in parameters.items():
        parameter.copy_(fitting(tensors[name](), parameter, name))
