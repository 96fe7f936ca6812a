from collections.abc import Callable

import torch
from torch import Tensor, nn

from .check_names import check_names
from .fitting import fitting


@torch.no_grad()
def copy_packed(
    model: nn.Module,
    tensors: dict[str, Callable[[], Tensor]],
    rows: list[tuple[str, list[str], int, bool]],
    tied: dict[str, str],
    layers: int,
) -> None:
    """Fills the model through rows of (name in the file, parameters packed in it, groups, transposed).

    Within each group the parameters' rows follow one another: groups 1 is stacked, groups heads is head by head.
    """
    parameters = dict(model.named_parameters())
    table = {
        name.format(i=i): ([to.format(i=i) for to in targets], groups, transposed)
        for name, targets, groups, transposed in rows
        for i in range(layers)
    }
    check_names(table, tensors.keys() - tied.keys())
    for name, (targets, groups, transposed) in table.items():
        tensor = tensors[name]()
        tensor = tensor.T if transposed and tensor.dim() == 2 else tensor
        packed = torch.cat([parameters[target] for target in targets])
        sizes = [parameters[target].shape[0] // groups for target in targets]
        parts = fitting(tensor, packed, name).unflatten(0, (groups, -1)).split(sizes, dim=1)
        for target, part in zip(targets, parts, strict=True):
            parameters[target].copy_(part.flatten(0, 1))
    for name in tied.keys() & tensors.keys():
        if not torch.equal(tensors[name]().to(parameters[tied[name]].dtype), parameters[tied[name]]):
            raise ValueError(f"checkpoint: {name} differs from {tied[name]}, which it is tied to")
