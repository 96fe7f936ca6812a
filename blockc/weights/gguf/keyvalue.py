"""A key of a GGUF file, compared with the graph: a line of text for each difference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from blockc.basics.errors import escape
from blockc.ir import Fact
from blockc.weights.gguf.keys import fact_name

CLOSE = 1e-6  # a file's floats have 32 bits


@dataclass(frozen=True)
class KeyValue:
    """A key of the file and its value; a list has a value for each layer."""

    name: str
    value: Any

    def differences(self, found: list[frozenset[Fact]], fact: str) -> Iterator[str]:
        """A line for each difference of the graph; `found` has one entry, or one for each layer."""
        yield from self.differences_at(list(enumerate(found)), fact, len(found))

    def differences_at(self, found: Iterable[tuple[int, frozenset[Fact]]], fact: str, layers: int) -> Iterator[str]:
        if isinstance(self.value, list) and len(self.value) != layers:
            yield f"unlike: {self.name} has {len(self.value)} values, and the spec {layers} layers"
            return
        differing: dict[tuple[Any, frozenset[Fact]], list[int]] = {}
        for i, values in found:
            one = self.value[i] if isinstance(self.value, list) else self.value
            if not all(same_value(one, value) for value in values):
                differing.setdefault((one, values), []).append(i)
        for (one, values), at in differing.items():
            spec = " and ".join(sorted(map(value_text, values)))
            where = layers_text(at, layers)
            yield f"unlike: {self.name} is {value_text(one)}, and the spec's {fact_name(fact)} is {spec}{where}"


def layers_text(at: list[int], layers: int) -> str:
    """Which layers, unless they are all."""
    if len(at) == layers:
        return ""
    more = f" and {len(at) - 3} more" if len(at) > 3 else ""
    return f" (layer{'s' if len(at) > 1 else ''} {', '.join(map(str, at[:3]))}{more})"


def same_value(a: Any, b: Any) -> bool:
    numbers = [x for x in (a, b) if isinstance(x, int | float) and not isinstance(x, bool)]
    return math.isclose(numbers[0], numbers[1], rel_tol=CLOSE) if len(numbers) == 2 else bool(a == b)


def value_text(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case float():
            return str(int(value)) if value.is_integer() else f"{value:.7g}"
        case list():
            return escape([value_text(each) for each in value[:8]])
        case _:
            return escape(value)
