import torch
from torch import Tensor


def without_tied(tensors: dict[str, Tensor], tied: dict[str, str]) -> dict[str, Tensor]:
    """The tensors without those that are tied to another one, to which they must be equal."""
    for name, owner in tied.items():
        if name in tensors and owner in tensors and not torch.equal(tensors[name], tensors[owner]):
            raise ValueError(f"checkpoint: {name} differs from {owner}, which it is tied to")
    return {name: tensor for name, tensor in tensors.items() if name not in tied}
