import torch
from torch import Tensor


def moved(tensors: dict[str, Tensor], exact: str, dtype: torch.dtype, device: str | torch.device) -> dict[str, Tensor]:
    """Copies on the device in a float type, but for those of the name `exact`, which stay in fp32."""
    types = {name: torch.float32 if name.endswith(exact) else dtype for name in tensors}
    return {name: tensor.to(device, types[name], copy=True) for name, tensor in tensors.items()}
