import json
from pathlib import Path

from torch import Tensor


def dense_modules(folder: Path) -> dict[str, Tensor]:
    """The tensors of the Dense modules of a sentence-transformers folder, dense_1.weight and so on."""
    from safetensors.torch import load_file

    listed = folder / "modules.json"
    modules = json.loads(listed.read_text(encoding="utf-8")) if listed.exists() else []
    paths = [folder / each["path"] for each in modules if each["type"].endswith(".Dense")]
    files = [load_file(path / "model.safetensors") for path in paths]
    return {name.replace("linear", f"dense_{i}"): t for i, file in enumerate(files, 1) for name, t in file.items()}
