import re
from typing import Any


def without_ignored(tensors: dict[str, Any], ignored: list[str]) -> dict[str, Any]:
    """The tensors less those known to be without effect; {i} stands for any layer."""
    patterns = [re.compile(re.escape(name).replace(r"\{i\}", r"\d+")) for name in ignored]
    return {name: read for name, read in tensors.items() if not any(p.fullmatch(name) for p in patterns)}
