from torch import Tensor


def unpacked(
    tensors: dict[str, Tensor], like: dict[str, Tensor], rows: dict[str, tuple[list[str], int, bool]], layers: int
) -> dict[str, Tensor]:
    """The tensors under the model's names, by (the names packed in each, in how many groups, whether transposed).

    Within each group the parameters' rows follow one another: groups 1 is stacked, groups heads is head by head.
    """
    state = {}
    for name, i in [(name, i) for name in rows for i in range(layers)]:
        (targets, groups, transposed), tensor = rows[name], tensors[name.format(i=i)]
        targets = [target.format(i=i) for target in targets]
        tensor = tensor.T if transposed and tensor.dim() == 2 else tensor
        sizes = [like[target].shape[0] for target in targets]
        shape = (sum(sizes), *like[targets[0]].shape[1:])
        if tensor.shape != shape:
            raise ValueError(f"checkpoint: {name.format(i=i)} is {tuple(tensor.shape)}, wanted {shape}")
        parts = tensor.unflatten(0, (groups, -1)).split([size // groups for size in sizes], dim=1)
        state.update({target: part.flatten(0, 1).contiguous() for target, part in zip(targets, parts, strict=True)})
    return state
