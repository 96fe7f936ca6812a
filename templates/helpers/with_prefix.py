from typing import Any


def with_prefix(tensors: dict[str, Any], prefix: str, but: list[str]) -> dict[str, Any]:
    """The tensors under the names of a file that has the prefix, whether this one has it or not."""
    if any(name.startswith(prefix) for name in tensors):
        return tensors
    return {name if name in but else prefix + name: read for name, read in tensors.items()}
