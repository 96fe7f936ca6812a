"""For GitHub Actions: workflow commands, which become annotations on the lines of a pull request.

GitHub shows 10 annotations of each severity for a step and silently drops the rest. So errors come first, and those
left out are counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockc.checks.formats.base import Checked, by_severity, full_message, path_in_repository
from blockc.diagnostics import SEVERITIES
from blockc.source import Finding

SHOWN = 10
_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def render_github(checked: Sequence[Checked]) -> str:
    every = list(by_severity(checked))
    said: list[str] = []
    for severity in SEVERITIES:
        found = [finding for finding in every if finding.severity == severity]
        said += [_command(finding) for finding in found[:SHOWN]]
        if left := len(found) - SHOWN:
            said += [f"{left} more of severity {severity}: GitHub shows {SHOWN} for a step"] if left > 0 else []
    wrong = sum(each.wrong for each in checked)
    return "\n".join((*said, f"{wrong} of {len(checked)} specs are wrong")) + "\n"


def _command(finding: Finding) -> str:
    place = finding.place
    properties = {
        "file": path_in_repository(place),
        "line": place.line,
        "endLine": place.line,
        "col": place.column,
        "endColumn": place.end - 1,  # GitHub's end is inclusive
        "title": finding.code.name,
    }
    said = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items())
    return f"::{_COMMANDS[finding.severity]} {said}::{_data(full_message(finding))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
