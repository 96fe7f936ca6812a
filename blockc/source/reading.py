"""YAML events to trees, with limits that hold for any text.

PyYAML supplies the events and nothing else: no constructor runs, and anything that is not understood is a SpecError
with file, line and column.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import yaml

from blockc.diagnostics import Code
from blockc.diagnostics import reading as code
from blockc.diagnostics.words import KEY_NOT_A_WORD
from blockc.source.text import (
    VALUE_REFUSED,
    ScalarFault,
    SourceText,
    character_name,
    check_characters,
    decode,
    resolve_scalar,
)
from blockc.source.tree import (
    Entry,
    Finding,
    MappingNode,
    Place,
    ScalarNode,
    SequenceNode,
    SpecError,
    Tree,
    finding,
    spec_error,
)

MAX_BYTES = 1_000_000  # of a spec file
MAX_DEPTH = 64  # of brackets and indentation, aliases expanded; keeps every recursive walk of a tree safe
MAX_NODES = 10_000  # keys, scalars and collections, aliases expanded
MAX_FINDINGS = 20  # more would not be read

_SYNTAX = (
    (code.COLON, "mapping values are not allowed", "a second ': ' where one value stands", "quote a text with ': '"),
    (code.KEY_WITHOUT_VALUE, "could not find expected ':'", "a key without ': ' and a value", "write key: value"),
    (KEY_NOT_A_WORD, "expected <block end>, but found ':'", "a key must be a word", "write the key before ':'"),
    (
        code.INDENTATION,
        "expected <block end>",
        "wrong indentation, or text after a value",
        "align the keys of a mapping",
    ),
    (code.BRACKET, "expected ',' or", "a comma or a closing bracket is missing", ""),
    (code.VALUE_MISSING, "expected the node content", "a value is missing", ""),
    (code.QUOTE, "unexpected end of stream", "a quote is not closed", ""),
    (code.ESCAPE, "unknown escape character", "an unknown escape in a quoted text", r"write \\ for a backslash"),
    (code.START, "cannot start any token", "this character cannot start a value", "quote the text"),
    (code.START, "sequence entries are not allowed", "a list entry cannot start here", "put '- ' on a line of its own"),
    (code.START, "mapping keys are not allowed", "a key cannot start here", "quote a text that starts with '?'"),
    (code.DOCUMENTS, "expected '<document start>'", "text after the end of the spec", "a spec is one document"),
    (code.TAG, "tag handle", "a tag", "remove the tag: a spec holds only words, numbers, lists and mappings"),
    (code.DIRECTIVE, "directive", "a directive", "remove the line that starts with '%'"),
)


def _syntax_finding(source: SourceText, error: yaml.YAMLError) -> Finding:
    """A PyYAML error in our words, or in its own where we have none."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return finding(code.SYNTAX, source.place(0), "this is not YAML", got=str(error))
    problem, mark = error.problem or "", error.problem_mark
    place = source.place(min(mark.index, len(source.text.rstrip())))
    indent = place.text[: len(place.text) - len(place.text.lstrip())]
    if "\t" in indent:
        tab = replace(place, column=indent.index("\t") + 1, width=1)
        return finding(code.TAB, tab, "a tab in the indentation", expected="spaces", got="a tab")
    if "'\\t'" in problem:
        return finding(code.TAB, place, "a tab between the words", expected="a space", got="a tab")
    others: list[tuple[str, Place]] = []
    if error.context_mark is not None and error.context_mark.index < mark.index:
        thing = re.sub(r"^while (parsing|scanning) (an? )?", "", error.context or "")
        others = [(f"the {thing} starts here", source.place(error.context_mark.index))]
    for kind, fragment, message, hint in _SYNTAX:
        if fragment in problem:
            return finding(kind, place, message, hint=hint, others=others)
    return finding(code.SYNTAX, place, f"this is not YAML: {problem}", others=others)


class _Loader(Protocol):
    """The methods of PyYAML's loader that are used here; PyYAML has no type annotations."""

    def check_event(self) -> bool: ...
    def get_event(self) -> yaml.Event: ...
    def get_mark(self) -> yaml.Mark: ...


def _events(source: SourceText, loader: _Loader) -> Iterator[yaml.Event]:
    """PyYAML's events. Its errors become SpecError."""
    try:
        while loader.check_event():
            yield loader.get_event()
    except yaml.YAMLError as error:
        raise SpecError([_syntax_finding(source, error)]) from None
    except (ValueError, OverflowError):  # PyYAML on "\U00110000", and on a %YAML version of 5,000 digits
        place = source.place(loader.get_mark().index)
        raise spec_error(code.ESCAPE, place, "a number that is no character, or no version") from None


# Trees from events


@dataclass(slots=True)
class _OpenCollection:
    """A collection whose end has not been read."""

    event: yaml.CollectionStartEvent
    start: int
    nodes: int  # read before it
    height: int = 1
    items: list[Tree] = field(default_factory=list["Tree"])
    entries: dict[str, Entry] = field(default_factory=dict[str, Entry])
    key: tuple[str, Place] | None = None  # read, its value not yet

    @property
    def wants_key(self) -> bool:
        return isinstance(self.event, yaml.MappingStartEvent) and self.key is None


@dataclass(frozen=True, slots=True)
class _Anchor:
    """An anchored node; its tree, node count and height are set once its end has been read."""

    place: Place
    tree: Tree | None = None
    nodes: int = 0
    height: int = 0


_PROPERTY = re.compile(r"(&[^\s,\[\]{}]+|!<[^>\s]*>|![^\s,\[\]{}]*)\s*")


class _TreeBuilder:
    """Events -> tree, on a stack of its own. `findings` gathers faults that leave the structure readable."""

    def __init__(self, source: SourceText) -> None:
        self.source = source
        self.findings: list[Finding] = []
        self.stack: list[_OpenCollection] = []
        self.anchors: dict[str, _Anchor] = {}
        self.nodes = self.documents = 0
        self.root: Tree | None = None

    def feed(self, event: yaml.Event) -> None:
        match event:
            case yaml.DocumentStartEvent():
                self.document(event)
            case yaml.AliasEvent():
                self.alias(event)
            case yaml.ScalarEvent():
                self.scalar(event)
            case yaml.CollectionStartEvent():
                self.open(event)
            case yaml.CollectionEndEvent():
                self.close(event)
            case _:
                pass

    def report(
        self, kind: Code, place: Place, message: str, *, got: str = "", hint: str = "", first: Place | None = None
    ) -> None:
        others = () if first is None else (("first here", first),)
        self.findings.append(finding(kind, place, message, got=got, hint=hint, others=others))
        if len(self.findings) >= MAX_FINDINGS:
            raise SpecError([])  # _build adds what was gathered

    def document(self, event: yaml.DocumentStartEvent) -> None:
        self.documents += 1
        place = self.source.place(event.start_mark.index, event.end_mark.index)
        if place.text.startswith("%"):
            raise spec_error(code.DIRECTIVE, place, "a directive", hint="remove the line that starts with '%'")
        if self.documents > 1:
            raise spec_error(code.DOCUMENTS, place, "a second document", expected="one document in a spec")

    def count(self, place: Place, nodes: int, height: int) -> None:
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            raise spec_error(code.CAP, place, f"more than {MAX_NODES} values, aliases expanded")
        if len(self.stack) + height > MAX_DEPTH:
            raise spec_error(code.CAP, place, f"nested more than {MAX_DEPTH} deep")

    def begin(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent, height: int) -> int:
        """Counts the node, reports its tag and notes its anchor; returns the index where its own text begins."""
        start = index = event.start_mark.index
        while (event.anchor or event.tag) and (found := _PROPERTY.match(self.source.text, index)):
            if found[1].startswith("!"):
                hint = "remove it: a spec holds only words, numbers, lists and mappings"
                self.report(code.TAG, self.source.place(index, found.end(1)), "a tag", got=found[1], hint=hint)
            index = found.end()
        index = min(index, max(start, event.end_mark.index))
        self.count(self.source.place(index), 1, height)
        if event.anchor:
            place = self.source.place(start, index)
            if event.anchor in self.anchors:
                first = self.anchors[event.anchor].place
                self.report(code.ANCHOR, place, "an anchor defined twice", got=event.anchor, first=first)
            if self.stack and self.stack[-1].wants_key:
                self.report(code.ANCHOR, place, "an anchor on a key", got=event.anchor, hint="put it on a value")
            self.anchors[event.anchor] = _Anchor(place)
        return index

    def alias(self, event: yaml.AliasEvent) -> None:
        place = self.source.place(event.start_mark.index, event.end_mark.index)
        anchor = self.anchors.get(event.anchor)
        if anchor is None:
            raise spec_error(code.ALIAS, place, "an alias of no anchor before it", got=event.anchor)
        if anchor.tree is None:
            raise spec_error(code.ALIAS, place, "cyclic alias", others=[("it is part of this", anchor.place)])
        if self.stack and self.stack[-1].wants_key:
            raise spec_error(code.ALIAS, place, "an alias as a key", hint="write the key out")
        self.count(place, anchor.nodes, anchor.height)
        self.attach(anchor.tree, anchor.height)

    def scalar(self, event: yaml.ScalarEvent) -> None:
        start, end = self.begin(event, 0), event.end_mark.index
        place, text, quoted = self.source.place(start, end), self.source.text[start:end], bool(event.style)
        value = event.value if quoted else resolve_scalar(event.value)
        if bad := VALUE_REFUSED.search(event.value):
            message = f"{character_name(bad.group())} in a text"
            self.report(code.CHARACTER, place, message, hint="of control characters, a text may hold newline and tab")
        if self.stack and self.stack[-1].wants_key:
            self.key(event, value, place)
            return
        if isinstance(value, ScalarFault):
            if self.stack:  # a root is refused by parse
                self.report(value.code, place, value.message, got=text, hint=value.hint)
            value = event.value
        tree = ScalarNode(value, place, text, quoted)
        if event.anchor:
            self.anchors[event.anchor] = _Anchor(place, tree, 1, 0)
        self.attach(tree, 0)

    def key(self, event: yaml.ScalarEvent, value: object, place: Place) -> None:
        top, name = self.stack[-1], event.value
        top.key = name, place
        if not isinstance(value, str):
            self.report(
                KEY_NOT_A_WORD, place, "a key must be a word", got=name or "nothing", hint="quote it if it is a word"
            )
        elif name == "<<" and not event.style:
            self.report(code.MERGE_KEY, place, "a merge key", got="<<", hint="write the keys out")
        elif name in top.entries:
            first = top.entries[name].key
            self.report(code.DUPLICATE_KEY, place, f"duplicate key {name}, first on line {first.line}", first=first)

    def open(self, event: yaml.CollectionStartEvent) -> None:
        start = self.begin(event, 1)
        if self.stack and self.stack[-1].wants_key:
            raise spec_error(
                KEY_NOT_A_WORD, self.source.place(start), "a key must be a word", got="a list or a mapping"
            )
        self.stack.append(_OpenCollection(event, start, self.nodes - 1))

    def close(self, event: yaml.CollectionEndEvent) -> None:
        done = self.stack.pop()
        place = self.source.place(done.start, event.end_mark.index if done.event.flow_style else None)
        mapping = isinstance(done.event, yaml.MappingStartEvent)
        tree = MappingNode(done.entries, place) if mapping else SequenceNode(tuple(done.items), place)
        if done.event.anchor:
            self.anchors[done.event.anchor] = _Anchor(place, tree, self.nodes - done.nodes, done.height)
        self.attach(tree, done.height)

    def attach(self, tree: Tree, height: int) -> None:
        if not self.stack:
            self.root = tree
            return
        top = self.stack[-1]
        top.height = max(top.height, height + 1)
        if top.key is None:
            top.items.append(tree)
            return
        (name, place), top.key = top.key, None
        top.entries.setdefault(name, Entry(place, tree))


def _build(source: SourceText, text: str) -> Tree | None:
    """The tree of the text's one document, None where there is no document."""
    builder = _TreeBuilder(source)
    faults: tuple[Finding, ...] = ()
    try:
        for event in _events(source, yaml.BaseLoader(text)):
            builder.feed(event)
    except SpecError as error:
        faults = error.findings
    findings = [*builder.findings, *faults]
    if findings:
        raise SpecError(sorted(findings, key=lambda each: (each.place.line, each.place.column)))
    return builder.root


# The ways in


def parse(data: bytes | str, file: str) -> MappingNode:
    """The spec in this text. Raises SpecError, and nothing else, whatever the text."""
    source = source_of(data, file)
    check_characters(source)
    tree = _build(source, source.text)
    if tree is None or (isinstance(tree, ScalarNode) and not tree.text):
        raise spec_error(code.EMPTY, source.place(0), "empty spec", expected="a mapping of keys to values")
    if not isinstance(tree, MappingNode):
        got = "a list" if isinstance(tree, SequenceNode) else "a single value"
        raise spec_error(code.NOT_A_MAPPING, tree.place, "a spec is a mapping", expected="key: value lines", got=got)
    return tree


def source_of(data: bytes | str, file: str) -> SourceText:
    """The text with its places. Raises SpecError for a text that is too long or not UTF-8."""
    if len(data) > MAX_BYTES:
        raise spec_error(code.UNREADABLE, Place(file, 1, 1), f"larger than {MAX_BYTES} bytes", got=f"{len(data)} bytes")
    text = decode(data, file) if isinstance(data, bytes) else data.removeprefix("\ufeff")
    return SourceText(file, text.replace("\r\n", "\n"))


def read_tree(path: Path | str) -> MappingNode:
    """The spec in this file."""
    return parse(read_bytes(path), str(path))


def read_bytes(path: Path | str) -> bytes:
    """The bytes of this file. Its size is checked before anything is read."""

    def refuse(message: str, got: str = "") -> SpecError:
        return spec_error(code.UNREADABLE, Place(str(path), 1, 1), message, got=got)

    try:
        info = Path(path).stat()
        if stat.S_ISDIR(info.st_mode):
            raise refuse("is a directory")
        if not stat.S_ISREG(info.st_mode):  # a pipe or a device may never end
            raise refuse("is not a regular file")
        if info.st_size > MAX_BYTES:
            raise refuse(f"larger than {MAX_BYTES} bytes", f"{info.st_size} bytes")
        with open(path, "rb") as stream:
            return stream.read(MAX_BYTES + 1)  # it may have grown since
    except FileNotFoundError:
        raise refuse("no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise refuse(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def override(tree: MappingNode, assignment: str) -> MappingNode:
    """A new tree with the value of "path=value" at its dotted path: YAML in flow style, under the same rules."""
    at = SourceText("--set", assignment)
    newline = assignment.find("\n")
    if newline >= 0:
        raise spec_error(code.ASSIGNMENT, at.place(newline), "a newline in an assignment", expected="one line")
    check_characters(at)
    names, equals, value = assignment.partition("=")
    place = at.place(0, len(names))
    if not equals:
        raise spec_error(code.ASSIGNMENT, place, "no '=' in the assignment", expected="path.to.key=value")
    if not re.fullmatch(r"[\w-]+(\.[\w-]+)*", names) or names.count(".") >= MAX_DEPTH:
        raise spec_error(code.ASSIGNMENT, place, "not a path of keys", expected="words joined by dots", got=names)
    source = SourceText(f"--set '{assignment}'", assignment)
    steps = [(found.group(), source.place(*found.span())) for found in re.finditer(r"[^.]+", names)]
    # Inside brackets only flow style is read. The spaces keep all indices those of the assignment.
    listed = _build(source, " " * len(names) + "[" + value + "\n]")
    if not isinstance(listed, SequenceNode) or len(listed.items) != 1:
        place = source.place(len(names) + 1, len(assignment))
        raise spec_error(
            code.ASSIGNMENT, place, "not one value", expected="one value, a list in brackets", got=value.strip()
        )
    return _set_at(tree, steps, listed.items[0])


def _set_at(tree: Tree | None, path: list[tuple[str, Place]], value: Tree) -> MappingNode:
    """The mapping with the value at the path; `none` and what is absent on the way become mappings."""
    (name, place), rest = path[0], path[1:]
    if tree is None or (isinstance(tree, ScalarNode) and tree.value == "none"):
        tree = MappingNode({}, place)
    if not isinstance(tree, MappingNode):
        message, hint = f"{name} cannot be set in a value that has no keys", "set the whole value"
        raise spec_error(code.NO_KEYS_BELOW, place, message, hint=hint, others=[("it is written here", tree.place)])
    old = tree.entries.get(name)
    new = _set_at(old.value if old else None, rest, value) if rest else value
    return MappingNode({**tree.entries, name: Entry(place, new)}, tree.place)
