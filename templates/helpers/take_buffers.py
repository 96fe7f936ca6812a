from collections.abc import Callable

import torch
from torch import Tensor, nn

from .fitting import fitting


@torch.no_grad()
def take_buffers(
    model: nn.Module, tensors: dict[str, Callable[[], Tensor]], names: dict[str, str], layers: int
) -> None:
    """Fills what the model holds and does not learn, and takes it out of the tensors; {i} counts layers."""
    table = {name.format(i=i): to.format(i=i) for name, to in names.items() for i in range(layers)}
    if missing := sorted(table.keys() - tensors.keys()):
        raise KeyError(f"checkpoint: missing {missing}")
    for name, target in table.items():
        buffer = model.get_buffer(target)
        buffer.copy_(fitting(tensors.pop(name)(), buffer, name))
