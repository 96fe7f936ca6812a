"""JSON text to the same trees as a spec's, so that each fault has its line and column."""

from __future__ import annotations

import json
import re

from blockc.diagnostics.importing import CONFIG_JSON
from blockc.source.reading import MAX_DEPTH, MAX_NODES, source_of
from blockc.source.text import MAX_DIGITS, SourceText
from blockc.source.tree import Entry, MappingNode, ScalarNode, SequenceNode, SpecError, Tree, spec_error

_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r"[^\s,:\[\]{}\"]+")  # a number or a word
_WORDS = {"true": True, "false": False}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")


def parse_json(data: bytes, file: str) -> MappingNode:
    """The object in this text, under the limits of a spec. Raises SpecError and nothing else, whatever the text."""
    reader, tree = _parse(data, file)
    if not isinstance(tree, MappingNode):
        raise reader.wrong(0, "not a JSON object")
    return tree


def parse_json_list(data: bytes, file: str) -> SequenceNode:
    """The same of a list."""
    reader, tree = _parse(data, file)
    if not isinstance(tree, SequenceNode):
        raise reader.wrong(0, "not a JSON list")
    return tree


def _parse(data: bytes, file: str) -> tuple[_JsonParser, Tree]:
    source = source_of(data, file)
    reader = _JsonParser(source)
    tree, end = reader.value(reader.skip(0), 0)
    if (end := reader.skip(end)) < len(source.text):
        raise reader.wrong(end, "text after the end of the object")
    return reader, tree


def is_null(tree: Tree) -> bool:
    """Whether this is JSON's null, which a tree holds as an unquoted word."""
    return isinstance(tree, ScalarNode) and not tree.quoted and tree.text == "null"


class _JsonParser:
    """A recursive-descent parser: value(index of its first character) -> (the tree, the index after it)."""

    def __init__(self, source: SourceText) -> None:
        self.source, self.text = source, source.text
        self.nodes = 0

    def wrong(self, index: int, message: str, hint: str = "") -> SpecError:
        return spec_error(CONFIG_JSON, self.source.place(index), message, expected="an object of JSON", hint=hint)

    def skip(self, index: int) -> int:
        found = _SPACE.match(self.text, index)
        return found.end() if found else index

    def at(self, index: int) -> str:
        return self.text[index : index + 1]

    def value(self, start: int, depth: int) -> tuple[Tree, int]:
        self.nodes += 1
        if self.nodes > MAX_NODES or depth > MAX_DEPTH:
            raise self.wrong(start, f"more than {MAX_NODES} values, or nested more than {MAX_DEPTH} deep")
        match self.at(start):
            case "{":
                return self.mapping(start, depth)
            case "[":
                return self.sequence(start, depth)
            case '"':
                text, end = self.string(start)
                return ScalarNode(text, self.source.place(start, end), self.text[start:end], quoted=True), end
            case _:
                return self.plain(start)

    def string(self, start: int) -> tuple[str, int]:
        try:
            text, end = json.JSONDecoder().raw_decode(self.text, start)
        except ValueError:
            raise self.wrong(start, "a text that does not end, or that holds what JSON escapes") from None
        return str(text), end

    def plain(self, start: int) -> tuple[ScalarNode, int]:
        found = _PLAIN.match(self.text, start)
        word, end = (found.group(), found.end()) if found else ("", start)
        place = self.source.place(start, end)
        if word == "null" or word in _WORDS:
            return ScalarNode(_WORDS.get(word, word), place, word), end
        number = _NUMBER.fullmatch(word)
        if number is None or len(word) > MAX_DIGITS:
            raise self.wrong(start, "a value is missing, or no value of JSON stands here")
        value = float(word) if number[2] or number[3] else int(word)
        if abs(value) == float("inf"):
            raise self.wrong(start, "a number too large for a float")
        return ScalarNode(value, place, word), end

    def sequence(self, start: int, depth: int) -> tuple[SequenceNode, int]:
        items: list[Tree] = []
        index = self.skip(start + 1)
        while self.at(index) != "]":
            item, index = self.value(index, depth + 1)
            items.append(item)
            index = self.more(index, "]")
        return SequenceNode(tuple(items), self.source.place(start, index + 1)), index + 1

    def mapping(self, start: int, depth: int) -> tuple[MappingNode, int]:
        entries: dict[str, Entry] = {}
        index = self.skip(start + 1)
        while self.at(index) != "}":
            if self.at(index) != '"':
                raise self.wrong(index, "a key is missing", "keys are quoted, and no comma follows the last value")
            name, end = self.string(index)
            if name in entries:
                raise self.wrong(index, f"duplicate key {name}, first on line {entries[name].key.line}")
            place, index = self.source.place(index, end), self.skip(end)
            if self.at(index) != ":":
                raise self.wrong(index, "a key without a value")
            value, index = self.value(self.skip(index + 1), depth + 1)
            entries[name] = Entry(place, value)
            index = self.more(index, "}")
        return MappingNode(entries, self.source.place(start, index + 1)), index + 1

    def more(self, index: int, closing: str) -> int:
        """The index of the next item, after a comma, or of the closing bracket."""
        index = self.skip(index)
        if self.at(index) == closing:
            return index
        if self.at(index) != ",":
            raise self.wrong(index, f"a comma or {closing} is missing")
        index = self.skip(index + 1)
        if self.at(index) == closing:
            raise self.wrong(index, "a comma before the closing bracket")
        return index
