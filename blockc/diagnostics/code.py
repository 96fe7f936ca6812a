"""What a code is: a stable name for one kind of finding, what it means, a wrong and a right example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, eq=False, slots=True)
class Code:
    """BLC and three digits. A code keeps its meaning for good, and is never used again for another.

    `why` says what the code means and why it matters. The example `bad` gives the code, `good` gives no finding. Both
    are keys of a spec that replace those of examples.BASE. Bytes, and `bad` where `alone` is set, are the whole file.
    An example that starts with "$ " is a command line, with "layout:" a checkpoint layout, with "import:" a map of a
    model type, with "{" a config.json, and with "policy:" or "blockc_quant:" a policy that BASE is held to.
    """

    name: str
    severity: Severity
    title: str
    why: str
    bad: str | bytes
    good: str
    alone: bool = False

    def __reduce__(self) -> tuple[object, ...]:
        """A code that another process sends is the same object here."""
        return _code_of, (self.name,)


def _code_of(name: str) -> Code:
    from blockc.diagnostics import CODES

    return CODES[name]


def error(name: str, title: str, why: str, *, bad: str | bytes, good: str, alone: bool = False) -> Code:
    return Code(name, "error", title, why, bad, good, alone)


def warning(name: str, title: str, why: str, *, bad: str | bytes, good: str, alone: bool = False) -> Code:
    return Code(name, "warning", title, why, bad, good, alone)


def note(name: str, title: str, why: str, *, bad: str | bytes, good: str, alone: bool = False) -> Code:
    return Code(name, "note", title, why, bad, good, alone)
