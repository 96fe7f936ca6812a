from collections.abc import Iterable

import torch
from torch import Tensor


def load_experts(
    tensors: dict[str, Tensor],
    like: dict[str, Tensor],
    rows: list[tuple[str, list[str], int, bool, Iterable[int]]],
    dtype: torch.dtype,
    device: str | torch.device,
) -> dict[str, Tensor]:
    """The parameters of all experts, each number copied once; their tensors leave `tensors`.

    A row is (a tensor's name, the parameters joined in it along axis 1, in how many groups, whether it is transposed,
    its layers). {i} is the layer, {e} the expert, whose tensor is a slice of the parameter.
    """

    def take(name: str, shape: torch.Size, transposed: bool = False) -> Tensor:
        if name not in tensors:
            coded = ", whose codes in MXFP4 are not read here" if f"{name}_blocks" in tensors else ""
            raise KeyError(f"checkpoint: missing {name}{coded}")
        tensor = tensors.pop(name)
        tensor = tensor.mT if transposed else tensor
        if tensor.shape != shape:
            raise ValueError(f"checkpoint: {name} is {tuple(tensor.shape)}, wanted {tuple(shape)}")
        return tensor

    state = {}
    for name, targets, groups, transposed, layers in rows:
        for i in layers:
            made = {
                to.format(i=i): torch.empty_like(like[to.format(i=i)], dtype=dtype, device=device) for to in targets
            }
            state.update(made)
            first = next(iter(made.values()))
            if "{e}" in name:
                for e, part in enumerate(first):
                    part.copy_(take(name.format(i=i, e=e), part.shape))
                continue
            shape = torch.Size((len(first), sum(whole.shape[1] for whole in made.values()), *first.shape[2:]))
            tensor = take(name.format(i=i), shape, transposed)
            parts = [whole.unflatten(1, (groups, -1)) for whole in made.values()]
            joined = tensor.unflatten(1, (groups, -1)).split([part.shape[2] for part in parts], dim=2)
            for part, given in zip(parts, joined, strict=True):
                part.copy_(given)
    return state
