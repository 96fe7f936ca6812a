from torch import Tensor


def with_prefix(tensors: dict[str, Tensor], prefix: str, but: list[str]) -> dict[str, Tensor]:
    """The tensors with the prefix in their names, whether the file has it or not."""
    if any(name.startswith(prefix) for name in tensors):
        return tensors
    return {name if name in but else prefix + name: tensor for name, tensor in tensors.items()}
