import torch
from torch import Tensor


def at_least_fp32(x: Tensor) -> Tensor:
    """x in fp32, or in fp64 as it is: a router that rounds chooses other experts."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
