import torch
from torch import Tensor


def yarn_scaling(frequencies: Tensor, factor: float, first: float, last: float) -> Tensor:
    """Pairs up to `first` are kept, those from `last` on stretched by factor, others blended."""
    ramp = (torch.arange(len(frequencies), dtype=torch.float32) - first) / max(last - first, 1e-3)
    ramp = ramp.clamp(0, 1)
    return frequencies * (1 - ramp) + frequencies / factor * ramp
