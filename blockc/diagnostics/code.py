"""What a code is: a stable name for one kind of finding, what it means, and an example on either side of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, eq=False, slots=True)
class Code:
    """BLC and three digits. A code once given keeps its meaning, and is not given again.

    `why` says what it means and why it matters. `bad` gives the code, `good` no finding at all. Both are keys of a
    spec, the others being those of examples.BASE; bytes, and `bad` where `alone` is set, are the whole file; what
    starts with "$ " is a command line, with "layout:" the file of a checkpoint layout, with "import:" a map of a model
    type, with "{" a config.json, and with "policy:" a policy that BASE is held to.
    """

    name: str
    severity: Severity
    title: str
    why: str
    bad: str | bytes
    good: str
    alone: bool = False

    def __reduce__(self) -> tuple[object, ...]:
        """A code that comes from another process is the one that stands here."""
        return _named, (self.name,)


def _named(name: str) -> Code:
    from blockc.diagnostics import CODES

    return CODES[name]


def error(name: str, title: str, why: str, *, bad: str | bytes, good: str, alone: bool = False) -> Code:
    return Code(name, "error", title, why, bad, good, alone)


def warning(name: str, title: str, why: str, *, bad: str | bytes, good: str, alone: bool = False) -> Code:
    return Code(name, "warning", title, why, bad, good, alone)


def note(name: str, title: str, why: str, *, bad: str | bytes, good: str, alone: bool = False) -> Code:
    return Code(name, "note", title, why, bad, good, alone)
