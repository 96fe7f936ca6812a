"""The codes of findings and the keys of the language, explained."""

from __future__ import annotations

from typing import Any

from blockc.basics.errors import UsageError
from blockc.diagnostics import CODES
from blockc.diagnostics.pages import code_entry, code_list
from blockc.source import escape_text, suggest

LONGEST = 1000  # characters of a wrong code in a message


def explain(code: str | None = None) -> str:
    """What a finding's code means, with a wrong and a right example; without a code, the list of all codes."""
    if code is None:
        return code_list()
    name = code.upper()
    if name not in CODES:
        near = _near(name)
        raise UsageError(f"{escape_text(code, LONGEST)} is not a code" + (f"; did you mean {near}?" if near else ""))
    return code_entry(CODES[name])


def _near(name: str) -> str | None:
    """The code with the same digits, as for BLC12 or 012; else the most similar code."""
    digits = name.removeprefix("BLC")
    same = f"BLC{digits:0>3}"
    return same if digits.isdecimal() and same in CODES else suggest(name, CODES)


def schema() -> dict[str, Any]:
    """The JSON schema of the spec language."""
    from blockc.language.spec.schema import language_schema

    return language_schema()
