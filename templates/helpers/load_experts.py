import torch
from torch import Tensor


def load_experts(
    tensors: dict[str, Tensor],
    like: dict[str, Tensor],
    rows: list[tuple[str, list[str], int, bool, range | list[int]]],
    dtype: torch.dtype,
    device: str | torch.device,
) -> dict[str, Tensor]:
    """The parameters of all experts, each number copied once; their tensors leave `tensors`.

    A row is (a tensor's name, the parameters joined in it along axis 1, in how many groups, whether it is transposed,
    its layers). {i} is the layer, {e} the expert, whose tensor is a slice of the parameter.
    """

    def take(name: str, shape: tuple[int, ...], transposed: bool = False) -> Tensor:
        if name not in tensors:
            coded = ", whose codes in MXFP4 are not read here" if f"{name}_blocks" in tensors else ""
            raise KeyError(f"checkpoint: missing {name}{coded}")
        tensor = tensors.pop(name)
        tensor = tensor.mT if transposed else tensor
        if tensor.shape != shape:
            raise ValueError(f"checkpoint: {name} is {tuple(tensor.shape)}, wanted {tuple(shape)}")
        return tensor

    state = {}
    for name, targets, groups, transposed, i in [(*row[:4], i) for row in rows for i in row[4]]:
        paths = [target.format(i=i) for target in targets]
        wholes = [torch.empty(like[path].shape, dtype=dtype, device=device) for path in paths]
        state.update(zip(paths, wholes, strict=True))
        if "{e}" in name:
            for e, part in enumerate(wholes[0]):
                part.copy_(take(name.format(i=i, e=e), part.shape))
        else:
            count, _, *rest = wholes[0].shape
            tensor = take(name.format(i=i), (count, sum(whole.shape[1] for whole in wholes), *rest), transposed)
            parts = [whole.unflatten(1, (groups, -1)) for whole in wholes]
            joined = tensor.unflatten(1, (groups, -1)).split([part.shape[2] for part in parts], dim=2)
            for part, given in zip(parts, joined, strict=True):
                part.copy_(given)
    return state
