from torch import Tensor


def without_further_layers(tensors: dict[str, Tensor], marks: list[str], layers: int) -> dict[str, Tensor]:
    """The tensors without those of layers after the last one; each such layer has a tensor of a name in `marks`."""
    for before, after in [mark.split("{i}") for mark in marks]:
        numbers = [n.removeprefix(before).removesuffix(after) for n in tensors if n.startswith(before)]
        further = tuple(f"{before}{i}." for i in numbers if i.isdigit() and int(i) >= layers)
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(further)}
    return tensors
