from torch import Tensor


def fitting(tensor: Tensor, parameter: Tensor, name: str) -> Tensor:
    """The tensor, if it has the parameter's shape: copying would stretch one that has not."""
    if tensor.shape != parameter.shape:
        raise ValueError(f"checkpoint: {name} is {tuple(tensor.shape)}, wanted {tuple(parameter.shape)}")
    return tensor
