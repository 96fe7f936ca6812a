"""For people: each finding with its line, and a line for each file that is clean."""

from __future__ import annotations

from collections.abc import Sequence

from blockc.checks.formats.base import Checked
from blockc.source import escape_text, render_finding


def render_text(checked: Sequence[Checked]) -> str:
    said = [render_lines(each) for each in checked]
    return "\n".join(filter(None, (*(part for each in said for part in each), verdict_of(checked)))) + "\n"


def render_lines(checked: Checked) -> tuple[str, str]:
    """(The findings of a file; the line that it is ok); either may be empty."""
    found = "\n".join(render_finding(finding) for finding in checked.findings)
    return found, "" if checked.wrong else f"{escape_text(checked.file)}: ok"


def verdict_of(checked: Sequence[Checked]) -> str:
    wrong = sum(each.wrong for each in checked)
    return f"blockc: {wrong} of {len(checked)} specs are wrong" if wrong else ""
