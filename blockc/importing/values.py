"""A config.json read through a map: the values that the map's spec stands for, each with its place in config.json.

A config.json beside weights is read with `lenient`: an unknown key whose name does not suggest an effect on the
function is noted, not refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from blockc.diagnostics import Code
from blockc.diagnostics.importing import CONFIG_KEY, CONFIG_MISSING, CONFIG_NOTED, CONFIG_VALUE, READ_OTHERWISE
from blockc.importing.maps import CLASS, Map, OtherValue, op_of, placeholder_of
from blockc.importing.telling import may_change_function
from blockc.source import (
    Entry,
    Finding,
    MappingNode,
    Place,
    ScalarNode,
    SequenceNode,
    SpecError,
    Tree,
    finding,
    suggest,
    to_plain,
)
from blockc.source.jsontext import is_null

NONE = "none"
_ENDING = re.compile(r"(For[A-Z]|LMHead|Model)\w*$")  # of a class's name: what it makes of the stream
Names = dict[tuple[int, int], tuple[str, object]]
MOST_LAYERS = 10_000  # of a list for each layer


def none_at(place: Place) -> ScalarNode:
    return ScalarNode(NONE, place, NONE)


def is_none(tree: Tree) -> bool:
    return isinstance(tree, ScalarNode) and tree.value == NONE


@dataclass
class ConfigReader:
    """One config.json. Faults are gathered, each once, as a key is read once."""

    map: Map
    config: MappingNode
    depth: int = 0  # layers, where they are known
    lenient: bool = False
    faults: list[Finding] = field(default_factory=list[Finding])
    warnings: list[Finding] = field(default_factory=list[Finding])
    skipped: list[str] = field(default_factory=list[str])  # unknown keys that a lenient reading skips
    found: dict[str, Entry] = field(default_factory=dict[str, Entry])
    values: dict[str, Tree] = field(default_factory=dict[str, Tree])

    def __post_init__(self) -> None:
        self._check_duplicates()
        for name, entry in _leaves_of(self.config, "", self.map):
            self._meet(name, _map_name(name, self.map), entry)

    def wrong(self, code: Code, place: Place, message: str, expected: str = "", got: str = "", hint: str = "") -> None:
        self.faults.append(finding(code, place, message, expected=expected, got=got, hint=hint))

    def close(self) -> None:
        """Raises SpecError with all faults, by place. Keys that are read otherwise than they say become warnings."""
        for code, said in ((READ_OTHERWISE, self.map.read_otherwise), (CONFIG_NOTED, self.map.noted)):
            for key, each in said.items():
                if key in self.found:
                    self._check_other_value(code, key, each)
        if self.faults:
            raise SpecError(sorted(self.faults, key=lambda each: (each.place.line, each.place.column)))

    # Keys

    @cached_property
    def names(self) -> Names:
        """The keys of config.json, and their values, by the line and column where these stand."""
        leaves = _leaves_of(self.config, "", self.map)
        return {(e.value.place.line, e.value.place.column): (name, to_plain(e.value)) for name, e in leaves}

    def _spelling(self, key: str, value: Tree) -> str:
        """A key as the file spells it, by the place of its value; the map's own word for it where no file does."""
        place = value.place
        here = place.file == self.config.place.file
        return self.names.get((place.line, place.column), (key, None))[0] if here else key

    def _check_duplicates(self) -> None:
        """Two objects under the names of one: the code takes the one or the other, and never both."""
        objects: dict[str, Entry] = {}
        for name, entry in _objects_of(self.config, ""):
            first = objects.setdefault(_map_name(name, self.map), entry)
            if first is not entry and to_plain(first.value) != to_plain(entry.value):
                others = [("the other is here", first.key)]
                message = f"{name} and another object of the same meaning differ"
                self.faults.append(finding(CONFIG_VALUE, entry.key, message, expected="one of the two", others=others))

    def _check_other_value(self, code: Code, key: str, said: OtherValue) -> None:
        entry, faults = self.found[key], len(self.faults)
        taken = to_plain(self.tree(said.taken))
        got = entry.value.items if isinstance(entry.value, SequenceNode) else [entry.value]
        if (
            _is_empty(entry.value)
            or len(self.faults) > faults
            or all(_word_of(to_plain(each)) == _word_of(taken) for each in got)
        ):
            return
        name = self._spelling(key, entry.value)
        message = f"{name} is {_value_text(entry.value)} here, and {_word_of(taken)} is taken: {said.because}"
        self.warnings.append(finding(code, entry.value.place, message))

    def _meet(self, name: str, key: str, entry: Entry) -> None:
        if not self._knows(key, entry.value) and self.lenient and not may_change_function(name):
            self.skipped.append(name)
        elif not self._knows(key, entry.value):
            near = suggest(name, [known for known in self.map.known if not _is_below(name, known)])
            hint = f"did you mean {near}?" if near else "what it does is not known, so that it is not passed over"
            self.wrong(CONFIG_KEY, entry.key, f"unknown key {name}", hint=hint)
        elif key in self.map.only and key not in self.map.read:
            self._check_allowed(name, key, entry)
        first = self.found.get(key)
        if first is None or _is_empty(first.value):
            self.found[key] = entry
        elif not _is_empty(entry.value) and to_plain(first.value) != to_plain(entry.value):
            others = [("the other is here", first.key)]
            message, expected, got = (
                f"{name} and another key differ",
                _value_text(first.value),
                _value_text(entry.value),
            )
            self.faults.append(finding(CONFIG_VALUE, entry.key, message, expected=expected, got=got, others=others))

    def _knows(self, key: str, value: Tree) -> bool:
        known = self.map.read | self.map.only.keys() | self.map.read_otherwise.keys()
        if key in known or any(_is_below(key, name) for name in self.map.without_effect):
            return True
        return _is_empty(value) and any(_is_below(name, key) for name in known)

    def _check_allowed(self, name: str, key: str, entry: Entry) -> None:
        wanted = self.map.only[key]
        allowed = [
            _word_of(to_plain(each)) for each in (wanted.items if isinstance(wanted, SequenceNode) else [wanted])
        ]
        got = entry.value.items if isinstance(entry.value, SequenceNode) else [entry.value]
        if all(is_null(each) or _word_of(to_plain(each)) in allowed for each in got):
            return
        message = f"no word of a spec stands for this {name}"
        self.wrong(CONFIG_VALUE, entry.value.place, message, " or ".join(allowed), _value_text(entry.value))

    # The class

    def case(self) -> MappingNode:
        """What the class that the file names adds to the spec; a map's first case where it names none.

        What of the class is left out is a warning.
        """
        cases, entry = self.map.cases, self.found.get(CLASS)
        named = entry.value.items if entry is not None and isinstance(entry.value, SequenceNode) else ()
        if not cases:
            return MappingNode({}, self.config.place)
        if not named:
            return next(iter(cases.values()))
        first = named[0]
        ending = _ENDING.search(str(to_plain(first)))
        if ending is not None and ending[0] in cases:
            if (left := self.map.left_out.get(ending[0])) is not None:
                message = f"of {to_plain(first)} is left out: {left}"
                self.warnings.append(finding(READ_OTHERWISE, first.place, message))
            return cases[ending[0]]
        self.wrong(
            CONFIG_VALUE, first.place, "no spec is known for this class of the model type",
            " or ".join(f"...{each}" for each in cases), _value_text(first),
        )  # fmt: skip
        return MappingNode({}, self.config.place)

    # Values

    def key(self, key: str) -> Tree:
        if key not in self.values:
            self.values[key] = none_at(self.config.place)  # for a map that reads a key to give it its value
            self.values[key] = self._key(key)
        return self.values[key]

    def _key(self, key: str) -> Tree:
        if key in self.map.let:
            return self.tree(self.map.let[key])
        entry = self.found.get(key)
        if entry is not None and not is_null(entry.value):
            return entry.value
        if entry is not None and key in self.map.if_null:
            return self.tree(self.map.if_null[key])
        if key in self.map.absent:
            return self.tree(self.map.absent[key])
        place = entry.key if entry is not None else self.config.place
        self.wrong(CONFIG_MISSING, place, f"missing key {key}")
        return none_at(place)

    def tree(self, node: Tree) -> Tree:
        """What a value of the map stands for."""
        if (key := placeholder_of(node)) is not None:
            return self.key(key)
        match node:
            case ScalarNode():
                return node
            case SequenceNode():
                return SequenceNode(tuple(map(self.tree, node.items)), node.place)
            case MappingNode():
                word = op_of(node)
                return self._mapping(node) if word is None else self._compute(word, node)

    def _mapping(self, node: MappingNode) -> MappingNode:
        """A key stands where its value does, so that a fault of either is one of config.json."""
        values = {key: (entry.key, self.tree(entry.value)) for key, entry in node.entries.items()}
        here = self.config.place.file
        entries = {
            key: Entry(value.place if value.place.file == here else place, value)
            for key, (place, value) in values.items()
        }
        return MappingNode(entries, node.place)

    def _compute(self, word: str, node: MappingNode) -> Tree:
        parts = {key: entry.value for key, entry in node.entries.items()}
        match word:
            case "from":
                key, given = self._read_named(parts["from"])
                return self._map_values(given, lambda value: self._choose(node, value, key))
            case "if":
                key, given = self._read_named(parts["if"])
                return self._map_values(given, lambda value: self._branch(node, value, key))
            case "has":
                _, given = self._read_named(parts["has"])
                branch = self.tree(parts["else" if is_none(given) else "then"])
                return self._at(branch, given.place)
            case "times" | "ratio" | "quotient" | "power" | "plus" | "log" | "most":
                return self._number(word, self.tree(parts[word]))
            case "entries":
                return self._count(self.tree(parts[word]))
            case _:
                return self._layers(word, {key: self.tree(part) for key, part in parts.items()}, node.place)

    def _read_named(self, tree: Tree) -> tuple[str, Tree]:
        """(The key that a map names, as the file spells it; its value.)"""
        key = str(to_plain(tree))
        value = self.key(key)
        return self._spelling(key, value), value

    def _map_values(self, value: Tree, apply: Callable[[Tree], Tree]) -> Tree:
        if isinstance(value, SequenceNode):
            return SequenceNode(tuple(map(apply, value.items)), value.place)
        return apply(value)

    def _choose(self, node: MappingNode, value: Tree, key: str) -> Tree:
        table, otherwise = self._table(node)
        taken = table.get(_word_of(to_plain(value)), otherwise)
        if taken is not None:
            return self._at(self.tree(taken), value.place)
        known = " or ".join(each for each in table if each != NONE)
        hint = str(to_plain(node.entries["because"].value)) if "because" in node.entries else ""
        message = f"no word of a spec stands for this {key}"
        self.wrong(CONFIG_VALUE, value.place, message, known, _value_text(value), hint)
        return none_at(value.place)

    def _table(self, node: MappingNode) -> tuple[dict[str, Tree], Tree | None]:
        """(What each word gives, those of an else that is a table of the same key among them; what is else.)"""
        table, otherwise = node.entries["is"].value, node.entries.get("else")
        assert isinstance(table, MappingNode)
        words = {word: entry.value for word, entry in table.entries.items()}
        if otherwise is None:
            return words, None
        inner = self.map.let.get(placeholder_of(otherwise.value) or "", otherwise.value)
        if not isinstance(inner, MappingNode) or not _is_same(node.entries["from"].value, inner.entries.get("from")):
            return words, otherwise.value
        more, last = self._table(inner)
        return words | {word: each for word, each in more.items() if word not in words}, last

    def _branch(self, node: MappingNode, value: Tree, key: str) -> Tree:
        truth = to_plain(value)
        if truth not in (True, False, NONE):
            self.wrong(CONFIG_VALUE, value.place, f"{key} is yes or no", "true or false", _value_text(value))
            return none_at(value.place)
        word = "then" if truth in (True,) else "else"
        return (
            self._at(self.tree(node.entries[word].value), value.place) if word in node.entries else none_at(value.place)
        )

    def _at(self, tree: Tree, place: Place) -> Tree:
        """A word of the map, at the place in config.json that chose it."""
        if not isinstance(tree, ScalarNode) or tree.place.file == self.config.place.file:
            return tree
        return ScalarNode(tree.value, place, tree.text, tree.quoted)

    def _number(self, word: str, operands: Tree) -> Tree:
        items = operands.items if isinstance(operands, SequenceNode) else (operands,)
        numbers: list[Fraction] = []
        for each in items:
            value = to_plain(each)
            if isinstance(value, bool) or not isinstance(value, int | float):
                if not is_none(each):
                    self.wrong(CONFIG_VALUE, each.place, "not a number", "a number", _value_text(each))
                return none_at(each.place)
            numbers.append(Fraction(repr(value)))
        here = self.config.place.file
        place = next((each.place for each in items if each.place.file == here), operands.place)
        try:
            value = _arithmetic(word, numbers)
        except (ZeroDivisionError, OverflowError, ValueError):
            self.wrong(CONFIG_VALUE, place, "a number from which nothing can be computed")
            return none_at(place)
        return ScalarNode(value, place, repr(value))

    def _count(self, tree: Tree) -> Tree:
        if not isinstance(tree, MappingNode):
            self.wrong(CONFIG_VALUE, tree.place, "not an object", "{key: value}", _value_text(tree))
            return none_at(tree.place)
        return ScalarNode(len(tree.entries), tree.place, str(len(tree.entries)))

    def _layers(self, word: str, parts: dict[str, Tree], place: Place) -> Tree:
        count = to_plain(parts[word])
        n = count if isinstance(count, int) and count > 0 else 0
        layers = range(self.depth)
        items: list[Tree]
        match word, parts[word]:
            case "tile", SequenceNode(items=items_):
                items = [items_[i % len(items_)] for i in layers]
            case "every", _ if n:
                items = [_at_layer(parts["others" if (i + 1) % n else "last"], i) for i in layers]
            case "runs_of", _ if n:
                items = [_at_layer(parts["others" if i % n else "first"], i) for i in layers]
            case "until", _ if isinstance(count, int):
                items = [_at_layer(parts["before" if i < count else "after"], i) for i in layers]
            case "at", SequenceNode() as listed:
                here = {to_plain(each) for each in listed.items}
                items = [_at_layer(parts["here" if i in here else "others"], i) for i in layers]
            case "runs", SequenceNode() as listed:
                items = list(self._runs(listed))
            case "joined", SequenceNode(items=(SequenceNode() as one, SequenceNode() as other)):
                return self._join(one, other)
            case _:
                self.wrong(CONFIG_VALUE, parts[word].place, "not a number of layers", "an integer above 0")
                items = []
        return SequenceNode(tuple(items), place if word == "tile" else parts[word].place)

    def _join(self, one: SequenceNode, other: SequenceNode) -> Tree:
        """[a, b] and [c, none] as [a_c, b]"""
        if len(one.items) != len(other.items):
            self.wrong(
                CONFIG_VALUE, other.place, "not a word for each layer", str(len(one.items)), str(len(other.items))
            )
        words = [
            [str(to_plain(each)) for each in pair if not is_none(each)]
            for pair in zip(one.items, other.items, strict=False)
        ]
        return SequenceNode(tuple(ScalarNode("_".join(pair), one.place, "_".join(pair)) for pair in words), one.place)

    def _runs(self, listed: SequenceNode) -> Iterator[Tree]:
        """[[[a, b], n], ...] as a, b, a, b, ..."""
        left = MOST_LAYERS
        for run in listed.items:
            match run:
                case SequenceNode(items=(SequenceNode(items=once), ScalarNode(value=int() as n))) if (
                    0 < n * len(once) <= left
                ):
                    left -= n * len(once)
                    yield from once * n
                case _:
                    self.wrong(CONFIG_VALUE, run.place, "not a run of layers", "[[a, b], n]", _value_text(run))


def _at_layer(value: Tree, i: int) -> Tree:
    """A value, or that of layer i in a list of them."""
    return value.items[i] if isinstance(value, SequenceNode) and i < len(value.items) else value


def _arithmetic(word: str, numbers: list[Fraction]) -> int | float:
    """Exact where that is rational. ZeroDivisionError, OverflowError or ValueError where there is no such number."""
    match word:
        case "power":
            return math.pow(numbers[0], numbers[1])
        case "log":
            return math.log(numbers[0]) / math.log(numbers[1])
        case "times":
            exact = Fraction(math.prod(numbers))
        case "plus":
            exact = Fraction(sum(numbers))
        case "most":
            exact = max(numbers)
        case "quotient":
            exact = Fraction(numbers[0] // numbers[1])
        case _:
            exact = numbers[0] / numbers[1]
    return exact.numerator if exact.denominator == 1 else float(exact)


def _leaves_of(tree: MappingNode, under: str, map_: Map) -> Iterator[tuple[str, Entry]]:
    """The entries by their path, rope_scaling.factor; what is without effect is not entered."""
    for key, entry in tree.entries.items():
        name = f"{under}{key}"
        if isinstance(entry.value, MappingNode) and entry.value.entries and name not in map_.without_effect:
            yield from _leaves_of(entry.value, f"{name}.", map_)
        else:
            yield name, entry


def _objects_of(tree: MappingNode, under: str) -> Iterator[tuple[str, Entry]]:
    """The objects in an object that hold something, by their path."""
    for key, entry in tree.entries.items():
        if isinstance(entry.value, MappingNode) and entry.value.entries:
            yield f"{under}{key}", entry
            yield from _objects_of(entry.value, f"{under}{key}.")


def _map_name(name: str, map_: Map) -> str:
    for _ in range(len(map_.spelled) + 1):
        before = max((each for each in map_.spelled if _is_below(name, each)), key=len, default=None)
        if before is None:
            break
        name = map_.spelled[before] + name.removeprefix(before)
    return name


def _is_below(name: str, key: str) -> bool:
    return name == key or name.startswith(f"{key}.")


def _is_same(tree: Tree, entry: Entry | None) -> bool:
    return entry is not None and to_plain(entry.value) == to_plain(tree)


def _is_empty(value: Tree) -> bool:
    return is_null(value) or (isinstance(value, MappingNode) and not value.entries)


def _word_of(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _value_text(tree: Tree) -> str:
    return tree.text if isinstance(tree, ScalarNode) else "a list" if isinstance(tree, SequenceNode) else "an object"
