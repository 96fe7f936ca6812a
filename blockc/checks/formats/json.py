"""For programs: JSON. `version` changes if a key changes its meaning or is removed, not if keys are added."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import blockc
from blockc.checks.formats.base import Checked, path_of, totals
from blockc.source import Finding, Place

VERSION = 1


def render_json(checked: Sequence[Checked]) -> str:
    document = {
        "version": VERSION,
        "tool": {"name": "blockc", "version": blockc.__version__},
        "findings": [_finding(finding) for each in checked for finding in each.findings],
        "summary": {**totals(checked), "wrong": sum(each.wrong for each in checked)},
    }
    return json.dumps(document, indent=1) + "\n"


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code.name,
        "severity": finding.severity,
        **_place(finding.place),
        "message": finding.message,
        "expected": finding.expected,
        "got": finding.got,
        "hint": finding.hint,
        "related": [{**_place(place), "message": label} for label, place in finding.others],
    }


def _place(place: Place) -> dict[str, Any]:
    return {
        "file": path_of(place),
        "line": place.line,
        "column": place.column,
        "end_line": place.line,
        "end_column": place.end,
    }
