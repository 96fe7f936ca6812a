from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import Tensor


def open_tensors(path: Path) -> dict[str, Callable[[], Tensor]]:
    """Every tensor of a safetensors file, or of the files of a folder, read when it is called."""
    from safetensors import safe_open

    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"no .safetensors file in {path}")
    opened = [safe_open(file, framework="pt") for file in files]
    return {name: partial(file.get_tensor, name) for file in opened for name in file.keys()}
