"""Compares the metadata of a GGUF file with the graph, as llama.cpp reads it.

A wrong theta, eps, window or number of heads changes no name and no shape of a tensor, so only this check finds it. A
key that the file lacks is not compared, but a file with any key of rope scaling has all of its scaling compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from blockc.importing.telling import may_change_function
from blockc.ir import Fact, Function
from blockc.weights.gguf.figures import OF_LAYERS, OF_MODEL, Figures, figures_of
from blockc.weights.gguf.keys import GROUPED, Architecture, MetadataKeys, metadata_keys
from blockc.weights.gguf.keyvalue import KeyValue, layers_text, same_value, value_text
from blockc.weights.gguf.rope import read_scaling

OF_MLPS = ("activation", "parallel branches")  # a layer without an MLP has neither of them
# Keys that do not describe the function: the file's origin, its tokenizer, how it is stored.
ELSEWHERE = ("general.", "tokenizer.", "split.", "quantize.", "imatrix.", "GGUF.")


@dataclass(frozen=True)
class Metadata:
    """`factors` divide the frequencies of a scaled rope, where the file has a tensor of them."""

    architecture: str
    values: Mapping[str, Any]
    factors: tuple[float, ...] | None = None

    def find_misfits(self, function: Function, context: int | None = None) -> list[str]:
        """A line for each key that differs from the graph, or whose effect is not known."""
        return list(_MetadataCheck(self, figures_of(function), context).lines())

    @property
    def unknown(self) -> list[str]:
        """Unknown keys whose names do not suggest that they change the function."""
        return [name for name in self._unread if not may_change_function(name)]

    def describe_unread(self) -> Iterator[str]:
        """A line for each key that may change the function and that is not read here."""
        for name in self._unread:
            if may_change_function(name):
                yield f"unknown: {name} is {value_text(self.values[name])}; no spec is compared with it"
        for name, key in self._own.items():
            harmless, value = metadata_keys().harmless(key), self.values[name]
            each = value if isinstance(value, list) else [value]
            if harmless is not None and any(one not in harmless for one in each):
                expected = " or ".join(map(value_text, harmless))
                yield f"not read: {name} is {value_text(value)}; only {expected} is read, which changes nothing"

    @property
    def _own(self) -> dict[str, str]:
        """The keys of the file's architecture by their full name, without its prefix. Readers ignore other prefixes."""
        before = f"{self.architecture}."
        return {name: name.removeprefix(before) for name in self.values if name.startswith(before)}

    @property
    def _unread(self) -> list[str]:
        """Keys that may describe the model and are in no list of known keys."""
        return [
            name
            for name in self.values
            if not name.startswith(ELSEWHERE)
            and not (name in self._own and metadata_keys().knows(self.architecture, self._own[name]))
        ]


class _MetadataCheck:
    def __init__(self, metadata: Metadata, found: Figures, context: int | None) -> None:
        self.metadata, self.found, self.context = metadata, found, context
        self.known: MetadataKeys = metadata_keys()
        self.architecture: Architecture = self.known.architectures[metadata.architecture]

    def lines(self) -> Iterator[str]:
        yield from self.metadata.describe_unread()
        done: set[str] = set()
        for key, fact in {**self.known.compared, **self.architecture.compared}.items():
            if fact not in GROUPED:
                if (one := self.read(key)) is not None:
                    yield from self.check_one(one, fact)
            elif fact not in done and not (fact.startswith("attention.rope.") and not self.architecture.rope):
                done.add(fact)
                yield from self.check_group(fact)
        yield from self.check_architecture()

    def read(self, key: str) -> KeyValue | None:
        """A key and its value, which is None where the file writes 0 for none; None where the file lacks the key."""
        name = f"{self.metadata.architecture}.{key}"
        value = self.metadata.values.get(name)
        if value is None:
            return None
        if key in self.known.zero and not isinstance(value, bool) and value == 0:
            return KeyValue(name, None) if self.known.zero[key] == "none" else None
        return KeyValue(name, value)

    def read_number(self, key: str) -> float | None:
        one = self.read(key)
        return one.value if one is not None and isinstance(one.value, int | float) else None

    # One key, one fact

    def check_one(self, one: KeyValue, fact: str) -> Iterator[str]:
        if fact in OF_MODEL and fact in OF_LAYERS:  # norms stand in both
            everywhere = self.found.model[fact].union(*(layer.facts[fact] for layer in self.found.layers))
            yield from one.differences([everywhere - {None} or everywhere], fact)
        elif fact in OF_MODEL:
            yield from one.differences([self.found.model[fact]], fact)
        else:
            yield from one.differences([layer.facts[fact] for layer in self.found.layers], fact)

    def check_architecture(self) -> Iterator[str]:
        """Compares what the architecture itself implies and no key of the file states."""
        compared = {**self.known.compared, **self.architecture.compared}
        by_key = {fact for key, fact in compared.items() if self.read(key)} | {*self.architecture.compared.values()}
        for fact, value in {**self.known.facts, **self.architecture.facts}.items():
            found = [self.found.model[fact]] if fact in OF_MODEL else [layer.facts[fact] for layer in self.found.layers]
            rows = [(i, each) for i, each in enumerate(found) if fact not in OF_MLPS or None not in each]
            wanted = math.sqrt(self.width) if value == "sqrt_width" else None if value == "none" else value
            if fact not in by_key:
                name = f"{fact} of the architecture {self.metadata.architecture}"
                yield from KeyValue(name, wanted).differences_at(rows, fact, len(found))

    @property
    def width(self) -> int:
        (width,) = self.found.model["width"]
        return width if isinstance(width, int) else 0

    # Facts of several keys

    def check_group(self, fact: str) -> Iterable[str]:
        match fact:
            case "context":
                return self.check_context()
            case "attention.window":
                return self.check_windows()
            case "attention.rope.theta":
                return self.check_thetas()
            case "attention.rope.dims":
                return self.check_dims()
            case _:
                return self.check_scaling()

    def check_context(self) -> Iterator[str]:
        """A spec's context may be shorter than the file's."""
        one = self.read("context_length")
        if one is not None and self.context is not None and isinstance(one.value, int) and self.context > one.value:
            yield f"unlike: {one.name} is {one.value}, and the spec's context is longer: {self.context}"

    @cached_property
    def local(self) -> list[bool] | None:
        """Which layers have a window; None where neither the file nor its architecture says."""
        depth, one = len(self.found.layers), self.read("attention.sliding_window_pattern")
        pattern = self.architecture.every if one is None else one.value
        if not self.read_number("attention.sliding_window"):
            return None
        if isinstance(pattern, list):
            return [bool(each) for each in pattern] if len(pattern) == depth else None
        if not isinstance(pattern, int):
            return None
        return [not pattern or i % pattern < pattern - 1 for i in range(depth)]

    def check_windows(self) -> Iterator[str]:
        """Compares windows. One of 0, or as long as the context, hides nothing, so it is equal to none."""
        one = self.read("attention.sliding_window")
        if one is None:
            return
        limit = self.context or self.read_number("context_length") or math.inf
        found = [
            frozenset(None if isinstance(w, int) and w >= limit else w for w in layer.windows)
            for layer in self.found.layers
        ]
        hides = isinstance(one.value, int) and 0 < one.value < limit
        if not isinstance(one.value, int) or not hides:
            yield from KeyValue(one.name, None if isinstance(one.value, int) else one.value).differences(
                found, "attention.window"
            )
        elif self.local is not None:
            each = [one.value if local else None for local in self.local]
            yield from KeyValue(one.name, each).differences(found, "attention.window")
        elif one.value not in (windows := frozenset[Any]().union(*found)) or windows - {one.value, None}:
            yield from one.differences([windows], "attention.window")

    def check_thetas(self) -> Iterator[str]:
        base, local = self.read("rope.freq_base"), self.read("rope.freq_base_swa")
        for one, of_local in ((base, False), (local or base, True)):
            rows = [
                (i, frozenset(turned.table.theta for turned in layer.rotations) or frozenset({None}))
                for i, layer in enumerate(self.found.layers)
                if bool(self.local and self.local[i]) is of_local
            ]
            if one is not None:
                yield from one.differences_at(rows, "attention.rope.theta", len(self.found.layers))
        if local is not None and self.local is None and (base is None or not same_value(local.value, base.value)):
            text = f"{local.name} is {value_text(local.value)}"
            yield f"not read: {text}, of layers with a window, and the file does not say which they are"

    def check_dims(self) -> Iterator[str]:
        for key in ("rope.dimension_count", "rope.dimension_count_swa"):
            if (one := self.read(key)) is not None:
                found: list[frozenset[Fact]] = [
                    frozenset(turned.width for turned in layer.rotations) or frozenset({None})
                    for layer in self.found.layers
                ]
                yield from one.differences(found, "attention.rope.dims")

    def check_scaling(self) -> Iterator[str]:
        """Compares the frequencies of rope themselves, as llama.cpp computes them."""
        said = {key: one for key in self.known.compared if key.startswith("rope.") and (one := self.read(key))}
        if not said and self.metadata.factors is None:
            return
        wanted, fault = read_scaling(said, self.metadata.factors, self.read_number("context_length") or self.context)
        if fault or wanted is None:
            yield fault
            return
        lines: dict[str, list[int]] = {}
        for i, layer in enumerate(self.found.layers):
            plain = bool(self.local and self.local[i]) and not self.architecture.local_rope_scaled
            for turned in layer.rotations:
                for line in wanted.differences(turned, plain):
                    lines.setdefault(line, []).append(i)
        for line, at in lines.items():
            yield line + layers_text(at, len(self.found.layers))
