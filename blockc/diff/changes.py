"""The result of a comparison: changes in classes, by what they break."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from blockc.source import Place

Class = Literal["CHECKPOINT", "NUMERIC", "IO", "COST", "SOURCE"]
CLASSES: tuple[Class, ...] = get_args(Class)
FORMAT = 1  # of the JSON
MEANING: dict[Class, str] = {
    "CHECKPOINT": "a saved checkpoint no longer fits",
    "NUMERIC": "the same tensors, another function",
    "IO": "inputs, outputs or cache",
    "COST": "what it takes",
    "SOURCE": "text only: the same function",
}


@dataclass(frozen=True)
class Change:
    """`what` changed from `before` to `after`; if `times` is above 1, {i} in its name is the layer.

    None means absent. If `before` is empty, `after` describes the change.
    """

    kind: Class
    what: str
    before: str | None
    after: str | None
    note: str = ""
    place: Place | None = None
    times: int = 1

    def __repr__(self) -> str:
        return f"<Change {self.kind}: {self.line}>"

    @property
    def line(self) -> str:
        if self.before is None:
            said = f"added, {self.after}" if self.after else "added"
        elif self.after is None:
            said = f"removed, {self.before}" if self.before else "removed"
        else:
            said = f"{self.before} -> {self.after}" if self.before else self.after
        times = f", {self.times} times" if self.times > 1 else ""
        return f"{self.what}: {said}{times}" + (f" ({self.note})" if self.note else "")

    def data(self) -> dict[str, Any]:
        where = {"file": self.place.file, "line": self.place.line, "column": self.place.column} if self.place else None
        return {
            "class": self.kind,
            "what": self.what,
            "before": self.before,
            "after": self.after,
            "times": self.times,
            "note": self.note,
            "where": where,
        }


@dataclass(frozen=True)
class Diff:
    """All that differs between two specs, class by class."""

    a: str
    b: str
    changes: tuple[Change, ...]

    def __repr__(self) -> str:
        return f"<Diff {self._head}>"

    @property
    def _head(self) -> str:
        return f"{self.a} -> {self.b}: {', '.join(self.classes) or 'no change'}"

    def text(self) -> str:
        """The changes by class, each with the file and line of its key."""
        lines = [self._head]
        for kind in self.classes:
            lines += ["", f"{kind}  {MEANING[kind]}"]
            for change in (each for each in self.changes if each.kind == kind):
                where = f"  [{change.place.file}:{change.place.line}]" if change.place else ""
                lines.append(f"  {change.line}{where}")
        return "\n".join(lines)

    @property
    def classes(self) -> tuple[Class, ...]:
        found = {change.kind for change in self.changes}
        return tuple(kind for kind in CLASSES if kind in found)

    def data(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "a": self.a,
            "b": self.b,
            "classes": list(self.classes),
            "changes": [change.data() for change in self.changes],
        }


def fold(changes: Iterable[Change]) -> list[Change]:
    """Joins changes that differ only in a number in their name: layers.{i}.mlp.up.weight, 32 times."""
    groups: dict[Change, list[Change]] = {}
    for change in changes:
        said = (None if text is None else hide_number(text) for text in (change.before, change.after))
        alike = replace(change, what=hide_number(change.what), before=next(said), after=next(said))
        groups.setdefault(alike, []).append(change)
    return [
        each[0] if len(each) == 1 else replace(alike, times=sum(change.times for change in each))
        for alike, each in groups.items()
    ]


def hide_number(name: str) -> str:
    """The layer's number, and that of an expert."""
    name = re.sub(r"(?<=\.experts\.)\d+(?=\.)", "{e}", name)
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "{i}", name, count=1)
