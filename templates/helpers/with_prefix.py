from torch import Tensor


def with_prefix(tensors: dict[str, Tensor], prefix: str, but: list[str]) -> dict[str, Tensor]:
    """The tensors under the names of a file that has the prefix, whether this one has it or not."""
    if any(name.startswith(prefix) for name in tensors):
        return tensors
    return {name if name in but else prefix + name: tensor for name, tensor in tensors.items()}
