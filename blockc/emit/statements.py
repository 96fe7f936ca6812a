"""The statements of a forward for the templates, with line breaks where a formatter puts them."""

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
    """The default of position_ids."""

    expression: str
    kind: str = field(default="default", init=False)


@dataclass(frozen=True)
class LayerCall:
    """One layer outside of a loop; `present` is what it adds to the cache, if anything."""

    target: str
    expression: str
    present: str
    shape: str
    kind: str = field(default="layer", init=False)


@dataclass(frozen=True)
class LayerLoop:
    """A loop over layers. Arguments that differ between them are chosen by the layer's number, i."""

    start: str  # the stream before the loop, where it has another name
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
    """The text, on several lines where `target = text  # comment` does not fit on one."""
    behind = f"  # {comment}" if comment else ""
    return _break_line(text, LINE - len(f"        {target} = {behind}"))


def _break_line(text: str, room: int) -> str:
    """Breaks a call that is too long: its arguments go on a line of their own, or on a line each."""
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
    """The arguments of one call; None where the text does not end with it."""
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
    """Whether a list has several entries on a line, which a formatter would separate."""
    return re.search(r"\[\n +\S+, \S", text) is not None
