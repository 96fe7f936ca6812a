"""One form for a spec's text: keys in the language's order, numbers in their shortest form. Values and comments stay.

The text is cut and put together again, not printed from its values, so that everything else stays as it was written.
A comment moves with its key: the one below it, beside it, or above it with less indentation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import accumulate, pairwise, takewhile

import yaml

from blockc.language.spec.classes import DOCUMENT, AllowedKeys
from blockc.source import MappingNode, ScalarNode, SequenceNode, Tree, parse
from blockc.source.text import decode, resolve_scalar


def format_spec(data: bytes, file: str) -> bytes:
    """The same values in canonical form, as UTF-8 without a mark. Raises SpecError where this is not YAML."""
    tree = parse(data, file)
    text = decode(data, file)
    breaks = "\r\n" if text.count("\r\n") == text.count("\n") > 0 else "\n"
    text = _format_values(text.replace("\r\n", "\n"))
    text = _trim_space(_order_keys(_trim_space(text)))
    if _comparable(parse(text, file)) != _comparable(tree):
        raise RuntimeError("a value would have changed")
    return text.replace("\n", breaks).encode()


def _comparable(tree: Tree) -> object:
    """The values in a form that ignores the order of keys and tells 1, 1.0 and true apart."""
    match tree:
        case ScalarNode():
            return type(tree.value), tree.value
        case SequenceNode():
            return [_comparable(item) for item in tree.items]
        case MappingNode():
            return {key: _comparable(entry.value) for key, entry in tree.entries.items()}


# Numbers


def shorten_number(word: str) -> str:
    """A plain scalar, where it is a number in its shortest form: 1.0e-05 is 1e-5, 5.0e5 is 5e5, 0.020 is 0.02.

    An integer stays one, and a float stays one. A float is written with an exponent where that saves two characters.
    """
    value = resolve_scalar(word)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return word
    if isinstance(value, int):
        return str(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    figures, point = "".join(map(str, digits)), len(digits) + exponent
    scientific = f"{figures[0]}{'.' * (len(figures) > 1)}{figures[1:]}e{point - 1}"
    whole = figures[: max(point, 0)].ljust(point, "0") or "0"
    positional = f"{whole}.{('0' * -point + figures[max(point, 0) :]) or '0'}"
    return "-" * sign + (scientific if len(scientific) + 2 <= len(positional) else positional)


# The text as nodes


@dataclass
class _TextNode:
    """A value of the text: where it begins and ends. Of a mapping, items are key, value, key, value, ..."""

    event: yaml.Event
    start: int
    end: int
    items: list[_TextNode] = field(default_factory=list["_TextNode"])

    @property
    def mapping(self) -> bool:
        return isinstance(self.event, yaml.MappingStartEvent)

    @property
    def flow(self) -> bool:
        return isinstance(self.event, yaml.CollectionStartEvent) and bool(self.event.flow_style)

    @property
    def plain(self) -> bool:
        """A word or a number that is not quoted, and that no other place refers to."""
        return isinstance(self.event, yaml.ScalarEvent) and not self.event.style and not self.event.anchor

    @property
    def block_scalar(self) -> bool:
        return isinstance(self.event, yaml.ScalarEvent) and self.event.style in ("|", ">")

    @property
    def last(self) -> _TextNode:
        """The last scalar inside."""
        node = self
        while node.items:
            node = node.items[-1]
        return node

    @property
    def entries(self) -> list[tuple[_TextNode, _TextNode]]:
        return list(zip(self.items[::2], self.items[1::2], strict=True))


def _parse_nodes(text: str) -> tuple[_TextNode, list[_TextNode], bool]:
    """The root, all scalars in the order of the text, and whether a value is written once and read twice."""
    open_: list[_TextNode] = [_TextNode(yaml.StreamStartEvent(), 0, len(text))]
    scalars: list[_TextNode] = []
    shared = False
    for event in yaml.parse(text, yaml.BaseLoader):
        start, end = event.start_mark.index, event.end_mark.index
        shared |= isinstance(event, yaml.NodeEvent) and bool(event.anchor)
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append(_TextNode(event, start, end))
        elif isinstance(event, yaml.CollectionEndEvent):
            done = open_.pop()
            done.end = end if done.flow else max(item.end for item in done.items)
            open_[-1].items.append(done)
        elif isinstance(event, yaml.NodeEvent):
            open_[-1].items.append(_TextNode(event, start, end))
            scalars.append(open_[-1].items[-1])
    return open_[0].items[0], scalars, shared


def _key_name(key: _TextNode) -> str:
    return key.event.value if isinstance(key.event, yaml.ScalarEvent) else ""


def _root_keys(node: _TextNode) -> AllowedKeys:
    return DOCUMENT if any(_key_name(key) == "blockc" for key, _ in node.entries) else AllowedKeys()


def _sort_order(entries: list[tuple[_TextNode, _TextNode]], keys: AllowedKeys) -> list[int]:
    """The indices of the entries in the order of the language; unknown keys come last, in their own order."""
    order = {key: rank for rank, key in enumerate(keys.order)}
    ranks = [order.get(_key_name(key), len(order)) for key, _ in entries]
    return sorted(range(len(entries)), key=lambda i: ranks[i])


# Numbers, and collections in brackets


def _format_values(text: str) -> str:
    """The text with each value formatted. With anchors the order of keys stays: an anchor must precede its aliases."""
    root, _, shared = _parse_nodes(text)
    pieces, done = list[str](), 0
    for node, new in _edits(text, root, AllowedKeys() if shared else _root_keys(root)):
        pieces += text[done : node.start], new
        done = node.end
    return "".join(pieces) + text[done:]


def _edits(text: str, node: _TextNode, keys: AllowedKeys) -> Iterator[tuple[_TextNode, str]]:
    """Values and their new text, in the order of the text."""
    if not node.items or node.flow:
        yield node, _flow_text(text, node, keys)
    elif node.mapping:
        for key, value in node.entries:
            yield from _edits(text, value, keys.keys_below(_key_name(key)))
    else:
        for item in node.items:
            yield from _edits(text, item, AllowedKeys())


def _flow_text(text: str, node: _TextNode, keys: AllowedKeys) -> str:
    """The text of a scalar or a flow collection, with one space after each colon and comma."""
    old = text[node.start : node.end]
    if node.plain:
        return shorten_number(old)
    if not node.flow or (gaps := _find_gaps(text, node)) is None:
        return old
    if node.mapping:
        parts = [(key, value, keys.keys_below(_key_name(key))) for key, value in node.entries]
        each = [
            text[key.start : key.end] + _colon_text(text, key, value) + _flow_text(text, value, below)
            for key, value, below in parts
        ]
        if not any("#" in gap for gap in gaps):
            each = [each[i] for i in _sort_order(node.entries, keys)]
    else:
        each = [_flow_text(text, item, AllowedKeys()) for item in node.items]
    if "\n" not in "".join(gaps):
        return old[0] + ", ".join(each) + old[-1]
    return "".join(gap + part for gap, part in zip(gaps, [*each, ""], strict=True))


def _colon_text(text: str, key: _TextNode, value: _TextNode) -> str:
    """The text between a key and its value."""
    gap = text[key.end : value.start]
    return ": " if gap.strip() == ":" and "\n" not in gap else gap


def _find_gaps(text: str, node: _TextNode) -> list[str] | None:
    """The texts before, between and after the entries; None unless they are brackets, commas and comments."""
    pieces = node.entries if node.mapping else [(item, item) for item in node.items]
    bounds = [node.start, *(index for first, last in pieces for index in (first.start, last.end)), node.end]
    gaps = [text[bounds[i] : bounds[i + 1]] for i in range(0, len(bounds), 2)]
    bare = [_strip_comments(gap) for gap in gaps]
    brackets = "{}" if node.mapping else "[]"
    if not pieces:
        return gaps if bare == [brackets] else None
    ends = bare[0] == brackets[0] and bare[-1].removeprefix(",") == brackets[1]
    return gaps if ends and all(gap == "," for gap in bare[1:-1]) else None


def _strip_comments(gap: str) -> str:
    """The text without comments and white space."""
    return "".join(line.partition("#")[0].strip() for line in gap.split("\n"))


# White space


def _trim_space(text: str) -> str:
    """Removes spaces at line ends and blank lines at the end of the file, unless they belong to a value."""
    lines, (_, scalars, _) = text.split("\n"), _parse_nodes(text)
    line = _Lines(text)
    kept = {n for each in scalars for n in range(line.of(each.start), line.behind(each))}
    lines = [each if n in kept else each.rstrip(" \t") for n, each in enumerate(lines)]
    if scalars[-1].block_scalar:
        return "\n".join(lines)
    return "\n".join(lines).rstrip("\n") + "\n"


# Blocks of lines


class _Lines:
    """The line of an index, from 0, and the column."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.starts = list(accumulate((len(line) + 1 for line in self.lines), initial=0))[:-1]

    def of(self, index: int) -> int:
        return bisect_right(self.starts, index) - 1

    def column(self, index: int) -> int:
        return index - self.starts[self.of(index)]

    def keeps(self, node: _TextNode) -> bool:
        """Whether blank lines behind a block of text are its own: |+ and >+."""
        header = self.lines[self.of(node.start)][self.column(node.start) :]
        return node.block_scalar and "+" in header.partition("#")[0]

    def behind(self, node: _TextNode) -> int:
        """The line of a value's end, or the one behind it where all of that is in a block of text."""
        return self.of(node.end) + (1 if node.block_scalar and self.column(node.end) else 0)

    def last(self, node: _TextNode) -> int:
        """The last line that is the node's. A block of text ends where the line behind it begins."""
        inner = node if node.flow else node.last
        return self.behind(inner) - 1 if inner.block_scalar else self.of(inner.end)


def _order_keys(text: str) -> str:
    """The entries of block mappings in their order, each with the comments that are its own."""
    root, scalars, shared = _parse_nodes(text)
    if shared or root.flow or not text.endswith("\n"):  # without a newline it ends in a block of text
        return text
    at = _Lines(text)
    lines = list(at.lines)
    _order_mapping(lines, at, root, _root_keys(root), _end_of_header(lines, at.of(scalars[0].start)))
    return "\n".join(lines)


def _end_of_header(lines: list[str], first: int) -> int:
    """The line behind what stands above the first key and is the file's: to the last blank line or ---."""
    above = [n for n, line in enumerate(lines[:first]) if not line.strip() or line.startswith("---")]
    return above[-1] + 1 if above else 0


def _order_mapping(lines: list[str], at: _Lines, node: _TextNode, keys: AllowedKeys, begin: int) -> None:
    """Inner mappings first: they move lines inside the lines of one outer entry, whose bounds are those of the text.

    `begin` is the line behind the node's key.
    """
    for key, value in node.entries:
        if value.mapping and not value.flow:
            _order_mapping(lines, at, value, keys.keys_below(_key_name(key)), at.of(key.end) + 1)
    wanted = _sort_order(node.entries, keys)
    texts = [value.last.block_scalar for _, value in node.entries]
    if wanted == sorted(wanted) or not _stand_alone(at, node) or any(at.keeps(value.last) for _, value in node.entries):
        return
    column = at.column(node.items[0].start)
    starts = [begin]
    for (_, before), (key, _) in pairwise([*node.entries, (node.items[0], node.items[0])]):
        last = at.last(before)
        stop = at.of(key.start) if key is not node.items[0] else len(at.lines)
        starts.append(last + 1 + _count_deeper(at.lines[last + 1 : stop], column))
    pieces = [lines[start:stop] for start, stop in pairwise(starts)]
    for before, i in pairwise(wanted):
        if texts[before]:  # what is indented further than a block of text's key would be text
            pieces[i] = _align_comments(pieces[i], column)
    lines[starts[0] : starts[-1]] = [line for i in wanted for line in pieces[i]]


def _align_comments(piece: list[str], column: int) -> list[str]:
    """An entry's lines, with the comments above its key indented as the key is."""
    above = sum(1 for _ in takewhile(lambda line: not line.strip() or line.lstrip().startswith("#"), piece))
    return [" " * column + line.lstrip() if line.strip() else line for line in piece[:above]] + piece[above:]


def _stand_alone(at: _Lines, node: _TextNode) -> bool:
    """Whether each key starts its line, so that lines can be moved."""
    keys = node.items[::2]
    return all(not at.lines[at.of(key.start)][: at.column(key.start)].strip() for key in keys)


def _count_deeper(lines: list[str], column: int) -> int:
    """How many of the lines below an entry are its own: to the last comment that is indented further."""
    own = 0
    for n, line in enumerate(lines):
        comment = line.lstrip()
        if comment and not (comment.startswith("#") and len(line) - len(comment) > column):
            break
        own = n + 1 if comment else own
    return own
