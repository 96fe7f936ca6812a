"""SARIF 2.1.0, for code scanning: the rules that were broken, and where.

A result's fingerprint is made of its code, its file and the text of its line, so that it stays the same when lines
above it change.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import blockc
from blockc.checks.formats.base import Checked, full_message, path_in_repository
from blockc.diagnostics import Code
from blockc.source import Finding, Place, escape_text

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render_sarif(checked: Sequence[Checked]) -> str:
    every = [finding for each in checked for finding in each.findings]
    rules = sorted({finding.code for finding in every}, key=lambda code: code.name)
    seen: Counter[str] = Counter()
    results = [_result(finding, rules.index(finding.code), seen) for finding in every]
    driver = {"name": "blockc", "version": blockc.__version__, "rules": [_rule(code) for code in rules]}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _rule(code: Code) -> dict[str, Any]:
    return {
        "id": code.name,
        "shortDescription": {"text": code.title},
        "fullDescription": {"text": code.why},
        "help": {"text": f"{code.why}\n\nblockc explain {code.name} shows an example on either side of it."},
        "defaultConfiguration": {"level": code.severity},
    }


def _result(finding: Finding, rule: int, seen: Counter[str]) -> dict[str, Any]:
    said = {
        "ruleId": finding.code.name,
        "ruleIndex": rule,
        "level": finding.severity,
        "message": {"text": full_message(finding)},
        "locations": [{"physicalLocation": _location(finding.place)}],
        "partialFingerprints": {"primaryLocationLineHash": _fingerprint(finding, seen)},
    }
    related = [
        {"id": i, "message": {"text": escape_text(label)}, "physicalLocation": _location(place)}
        for i, (label, place) in enumerate(finding.others, 1)
    ]
    return said | ({"relatedLocations": related} if related else {})


def _location(place: Place) -> dict[str, Any]:
    return {
        "artifactLocation": {"uri": quote(path_in_repository(place)), "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": place.line, "startColumn": place.column, "endLine": place.line, "endColumn": place.end},
    }


def _fingerprint(finding: Finding, seen: Counter[str]) -> str:
    """A digest of code, file and line; equal ones are numbered."""
    what = "\0".join((finding.code.name, path_in_repository(finding.place), finding.place.text.strip()))
    digest = hashlib.sha256(what.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    seen[digest] += 1
    return f"{digest}:{seen[digest]}"
