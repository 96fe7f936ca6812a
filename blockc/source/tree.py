"""Places, findings and the tree of a spec in which every node knows where it was written."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, TypeVar

from blockc.basics.errors import BlockcError
from blockc.diagnostics import Code, Severity

A = TypeVar("A")
B = TypeVar("B")

LINE_SHOWN = 160  # characters of a source line in a message
FIELD_SHOWN = 400  # characters of a name or a value in a message
PATH_SHOWN = 4096  # and of a path: cut, it would be another file


@dataclass(frozen=True, slots=True)
class Place:
    """file:line:column, 1-based and in characters, with the caret's width and the source line to show."""

    file: str
    line: int
    column: int
    width: int = 1
    text: str = field(default="", compare=False, repr=False)

    @property
    def end(self) -> int:
        """The column behind the last one. A place ends on the line that it starts on."""
        return self.column + self.width


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: its code, where, what is wrong, what was expected, what came, what to try, other places involved."""

    code: Code
    place: Place
    message: str
    expected: str = ""
    got: str = ""
    hint: str = ""
    others: tuple[tuple[str, Place], ...] = ()

    def __repr__(self) -> str:
        at = self.place
        return (
            f"<Finding {self.code.name} at {escape_text(at.file)}:{at.line}:{at.column}: {escape_text(self.message)}>"
        )

    @property
    def severity(self) -> Severity:
        return self.code.severity


class SpecError(BlockcError):
    """The input is at fault; `findings` says where, and str() is their rendered text."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings: tuple[Finding, ...] = tuple(findings)
        super().__init__(self.findings)

    def __repr__(self) -> str:
        more = f" and {len(self.findings) - 1} more" if len(self.findings) > 1 else ""
        return f"SpecError({self.findings[0]!r}{more})" if self.findings else "SpecError()"

    def __str__(self) -> str:
        return "\n".join(render_finding(each) for each in self.findings)


def map_all(function: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """function(item) of each item. Where items are refused, one SpecError holds all their findings, each once."""
    made: list[B] = []
    faults: dict[Finding, None] = {}
    for item in items:
        try:
            made.append(function(item))
        except SpecError as error:
            faults |= dict.fromkeys(error.findings)
    if faults:
        raise SpecError(faults)
    return made


@dataclass(frozen=True, slots=True)
class ScalarNode:
    """A word, number or truth value. `text` is as written; a quoted or block scalar is always a str."""

    value: str | int | float | bool
    place: Place
    text: str
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class SequenceNode:
    """A list of trees."""

    items: tuple[Tree, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class MappingNode:
    """Keys to entries, in the order written. Not to be changed in place."""

    entries: dict[str, Entry]
    place: Place


@dataclass(frozen=True, slots=True)
class Entry:
    """The value of one key of a mapping, and the place of the key itself."""

    key: Place
    value: Tree


Tree: TypeAlias = "ScalarNode | SequenceNode | MappingNode"


def finding(
    code: Code,
    place: Place,
    message: str,
    *,
    expected: str = "",
    got: str = "",
    hint: str = "",
    others: Iterable[tuple[str, Place]] = (),
) -> Finding:
    """A finding at `place`; empty parts are not rendered."""
    return Finding(code, place, message, expected, got, hint, tuple(others))


def spec_error(
    code: Code, place: Place, message: str, others: Iterable[tuple[str, Place]] = (), **parts: str
) -> SpecError:
    return SpecError([finding(code, place, message, others=others, **parts)])


# Trees


def to_plain(tree: Tree) -> object:
    """The tree as dict, list and scalars, without places."""
    match tree:
        case ScalarNode():
            return tree.value
        case SequenceNode():
            return [to_plain(item) for item in tree.items]
        case MappingNode():
            return {key: to_plain(entry.value) for key, entry in tree.entries.items()}


def _walk(tree: Tree, path: tuple[str | int, ...]) -> Iterator[tuple[Place, Tree]]:
    """(place of the key, or of the item; value) for the root and each step of the path that exists."""
    yield tree.place, tree
    for step in path:
        if isinstance(tree, MappingNode) and isinstance(step, str) and step in tree.entries:
            entry = tree.entries[step]
            place, tree = entry.key, entry.value
        elif isinstance(tree, SequenceNode) and isinstance(step, int) and 0 <= step < len(tree.items):
            tree = tree.items[step]
            place = tree.place
        else:
            return
        yield place, tree


def find(tree: Tree, path: tuple[str | int, ...]) -> Tree:
    """The tree at the path, or the last one that exists on the way there."""
    return list(_walk(tree, path))[-1][1]


def extend(below: MappingNode, above: MappingNode) -> MappingNode:
    """The entries of both. Of a key in both, two mappings become one in the same way; else that of `above` holds."""
    entries = dict(below.entries)
    for key, entry in above.entries.items():
        old = entries[key].value if key in entries else None
        if isinstance(old, MappingNode) and isinstance(entry.value, MappingNode):
            entry = Entry(entry.key, extend(old, entry.value))
        entries[key] = entry
    return MappingNode(entries, above.place)


def tree_at(tree: Tree, path: tuple[str, ...]) -> Tree | None:
    """The tree at a path of keys, or None where there is none."""
    for step in path:
        if not isinstance(tree, MappingNode) or step not in tree.entries:
            return None
        tree = tree.entries[step].value
    return tree


def key_place(tree: Tree, path: tuple[str | int, ...]) -> Place:
    """The place of the key at the path, or of the last one on the way there; of a list's item, its own place."""
    return list(_walk(tree, path))[-1][0]


def suggest(word: str, known: Iterable[str]) -> str | None:
    """The known word nearest to this one, for "did you mean", or None when none is near.

    Case does not matter. Where none is near, the shortest known word that begins with it.
    """
    if len(word) > 100:  # nobody meant this, and the comparison is quadratic
        return None
    lower = {name.lower(): name for name in sorted(known)}
    near = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.6)
    longer = sorted((name for name in lower if name.startswith(word.lower())), key=len) if len(word) > 2 else []
    return next((lower[name] for name in (*near, *longer)), None)


# Rendering


def _visible(char: str) -> str:
    """The character, or its escape where a terminal would act on it, reorder text by it, or not show it."""
    if unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return char
    return ascii(char)[1:-1]


def escape_text(text: str, limit: int = FIELD_SHOWN) -> str:
    """The text cut to a length, with escapes for what a terminal would act on."""
    cut = text if len(text) <= limit else text[: limit - 3] + "..."
    return "".join(map(_visible, cut))


def _visible_line(text: str) -> str:
    return "".join("    " if char == "\t" else _visible(char) for char in text)


def _terminal_width(text: str) -> int:
    """Terminal columns: 2 for a wide character, 0 for a combining mark, else 1."""
    marks = sum(unicodedata.category(char) in ("Mn", "Me") for char in text)
    return len(text) - marks + sum(unicodedata.east_asian_width(char) in ("W", "F") for char in text)


def _excerpt(place: Place) -> tuple[str, str]:
    """(the source line, the carets under the place), clipped around the caret."""
    start, first, last = place.column - 1, 0, len(place.text)
    if last > LINE_SHOWN:
        first = max(0, min(start - LINE_SHOWN // 2, last - LINE_SHOWN))
        last = first + LINE_SHOWN
    lead, tail = "..." if first else "", "..." if last < len(place.text) else ""
    before = lead + _visible_line(place.text[first:start])
    marked = _visible_line(place.text[start : min(start + place.width, last)])
    carets = " " * _terminal_width(before) + "^" * max(1, _terminal_width(marked))
    return lead + _visible_line(place.text[first:last]) + tail, carets


def render_finding(finding: Finding, root: Path | str | None = None) -> str:
    """The finding as text: place, message and code, the line with carets, then expected, got, hint and other places.

    No control character of the input comes through. Files under `root` are named from there.
    """

    def at(place: Place) -> str:
        file = place.file
        if root is not None and Path(file).is_relative_to(root):
            file = str(Path(file).relative_to(root))
        return f"{escape_text(file)}:{place.line}:{place.column}"

    place = finding.place
    kind = "" if finding.severity == "error" else f"{finding.severity}: "
    lines = [f"{at(place)}: {kind}{escape_text(finding.message)} [{finding.code.name}]"]
    if place.text:
        text, carets = _excerpt(place)
        gutter = " " * len(str(place.line))
        lines += [f"  {place.line} | {text}".rstrip(), f"  {gutter} | {carets}"]
    parts = (("expected", finding.expected), ("got", finding.got), ("hint", finding.hint))
    lines += [f"  {label}: {escape_text(text)}" for label, text in parts if text]
    lines += [f"  {at(other)}: {escape_text(label)}" for label, other in finding.others]
    return "\n".join(lines)
