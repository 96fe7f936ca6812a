from collections.abc import Callable

import torch
from torch import Tensor, nn

from .check_names import check_names
from .fitting import fitting


@torch.no_grad()
def copy_renamed(
    model: nn.Module, tensors: dict[str, Callable[[], Tensor]], names: dict[str, str], tied: dict[str, str], layers: int
) -> None:
    """Fills the model through a table of names in the file to parameters; {i} counts layers.

    A tied name may be in the file, and must then equal the parameter that it is tied to.
    """
    parameters = dict(model.named_parameters())
    table = {name.format(i=i): to.format(i=i) for name, to in names.items() for i in range(layers)}
    check_names(table, tensors.keys() - tied.keys())
    for name, target in table.items():
        parameters[target].copy_(fitting(tensors[name](), parameters[target], name))
    for name in tied.keys() & tensors.keys():
        if not torch.equal(tensors[name]().to(parameters[tied[name]].dtype), parameters[tied[name]]):
            raise ValueError(f"checkpoint: {name} differs from {tied[name]}, which it is tied to")
