"""The codes of findings and the keys of the language, explained."""

from __future__ import annotations

from typing import Any

from blockc.basics.errors import UsageError
from blockc.diagnostics import CODES
from blockc.diagnostics.pages import entry, listed
from blockc.source import inert, suggest

LONGEST = 1000  # characters of a wrong code in a message


def explain(code: str | None = None) -> str:
    """What a finding's code means, with a wrong and a right example; without a code, the list of all codes."""
    if code is None:
        return listed()
    name = code.upper()
    if name not in CODES:
        near = _near(name)
        raise UsageError(f"{inert(code, LONGEST)} is not a code" + (f"; did you mean {near}?" if near else ""))
    return entry(CODES[name])


def _near(name: str) -> str | None:
    """The code with the same digits, as for BLC12 or 012; else the most similar code."""
    digits = name.removeprefix("BLC")
    same = f"BLC{digits:0>3}"
    return same if digits.isdecimal() and same in CODES else suggest(name, CODES)


def schema() -> dict[str, Any]:
    """The JSON schema of the spec language."""
    from blockc.language.spec.schema import schema

    return schema()
