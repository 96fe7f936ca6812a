"""Comments that silence warnings: # blockc: ignore BLC402, BLC403: the reason"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from blockc.source.reading import source_of
from blockc.source.text import SourceText
from blockc.source.tree import Place


@dataclass(frozen=True, slots=True)
class Ignore:
    """A comment that silences the warnings of one code on its line; `name` is empty where it names no code."""

    place: Place
    name: str = ""


_IGNORE = re.compile(r"#[ \t]*blockc:[ \t]*ignore\b[ \t]*(\w+(?:[ \t]*,[ \t]*\w+)*)?")


def find_ignores(data: bytes | str, file: str) -> list[Ignore]:
    """The comments `# blockc: ignore BLC402, BLC403` of a text that parses: one entry for each code."""
    source = source_of(data, file)
    found = list(_IGNORE.finditer(source.text))
    if not found:
        return []
    scalars = [t for t in yaml.scan(source.text, yaml.BaseLoader) if isinstance(t, yaml.ScalarToken)]
    starts = [token.start_mark.index for token in scalars]

    def in_text(index: int) -> bool:
        """Whether the index lies inside a scalar, where # does not begin a comment."""
        before = bisect_right(starts, index) - 1
        return before >= 0 and index < scalars[before].end_mark.index

    return [each for match in found if not in_text(match.start()) for each in _ignores_of(source, match)]


def _ignores_of(source: SourceText, comment: re.Match[str]) -> Iterator[Ignore]:
    if comment[1] is None:
        yield Ignore(source.place(*comment.span()))
        return
    for word in re.finditer(r"\w+", comment[1]):
        start = comment.start(1) + word.start()
        yield Ignore(source.place(start, start + len(word.group())), word.group())
