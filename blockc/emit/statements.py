"""The statements of a forward as the templates print them, laid out as a formatter would."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from blockc.ir import T, Type

LINE = 120  # of model.py


@dataclass(frozen=True)
class Assign:
    """target = expression  # shape"""

    target: str
    expression: str
    shape: str = ""
    kind: str = field(default="assign", init=False)


@dataclass(frozen=True)
class Default:
    """What position_ids are where they are not given."""

    expression: str
    kind: str = field(default="default", init=False)


@dataclass(frozen=True)
class LayerCall:
    """One layer by itself; `present` is what it gives to the cache, if anything."""

    target: str
    expression: str
    present: str
    shape: str
    kind: str = field(default="layer", init=False)


@dataclass(frozen=True)
class LayerLoop:
    """Layers one after another. What is not the same for all is chosen by their number, i."""

    start: str  # of the stream, where it is called something else
    layers: str
    pasts: str
    names: str
    chosen: str
    target: str
    arguments: str
    present: str
    shape: str
    kind: str = field(default="loop", init=False)


Statement = Assign | Default | LayerCall | LayerLoop


def shape_text(type_: Type) -> str:
    """(B, 8, T, 128)"""
    return f"({', '.join('T' if size == T else str(size) for size in type_.shape)})"


def fit(target: str, text: str, comment: str) -> str:
    return _break_line(text, LINE - len(f"        {target} =   # {comment}"))


def _break_line(text: str, room: int) -> str:
    """A call that is too long for its line has its arguments in one of their own, or each in one."""
    head, _, rest = text.partition("(")
    if len(text) <= room or "\n" in text or not re.fullmatch(r"[\w.\[\]]+", head) or not rest.endswith(")"):
        return text
    arguments = _split_arguments(rest[:-1])
    if arguments is None:
        return text
    line = ", ".join(arguments)
    if len(line) <= LINE - 12:
        return f"{head}(\n    {line}\n)"
    return "\n".join([f"{head}(", *(f"    {each}," for each in arguments), ")"])


def _split_arguments(text: str) -> list[str] | None:
    """The arguments of one call; nothing where the text goes on behind it."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0:
            return None
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [each.strip() for each in found]


def is_laid_by_hand(text: str) -> bool:
    """Whether it has a list of several entries a line, which a formatter would tear apart."""
    return re.search(r"\[\n +\S+, \S", text) is not None
