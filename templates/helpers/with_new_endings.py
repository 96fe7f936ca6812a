from torch import Tensor


def with_new_endings(tensors: dict[str, Tensor], endings: dict[str, str]) -> dict[str, Tensor]:
    """The tensors; names that end as in older files end as they do today."""
    for older, now in endings.items():
        tensors = {n.removesuffix(older) + now if n.endswith(older) else n: t for n, t in tensors.items()}
    return tensors
