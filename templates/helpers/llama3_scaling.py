import math

from torch import Tensor


def llama3_scaling(frequencies: Tensor, factor: float, low: float, high: float, original: int) -> Tensor:
    """Wavelengths longer than original/low are stretched by factor, shorter than original/high kept, others blended."""
    turns = original * frequencies / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * frequencies / factor + smooth * frequencies
