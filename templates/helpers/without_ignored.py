import re
from typing import TypeVar

T = TypeVar("T")


def without_ignored(tensors: dict[str, T], ignored: tuple[str, ...]) -> dict[str, T]:
    """The tensors less those known to be without effect; {i} stands for any layer."""
    patterns = [re.compile(re.escape(name).replace(r"\{i\}", r"\d+")) for name in ignored]
    return {name: read for name, read in tensors.items() if not any(p.fullmatch(name) for p in patterns)}
