from torch import Tensor


def without_further_layers(tensors: dict[str, Tensor], marks: list[str], layers: int) -> dict[str, Tensor]:
    """The tensors without those of layers after the last one; each such layer has a tensor of a name in `marks`."""
    for mark in marks:
        i = layers
        while mark.format(i=i) in tensors:
            prefix = mark.partition("{i}")[0] + f"{i}."
            tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)}
            i += 1
    return tensors
