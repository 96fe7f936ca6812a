"""Findings as text: for people, for programs, and for services that run checks. Uses only the standard library."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blockc.checks.formats import github, json, junit, sarif, text
from blockc.checks.formats.base import STDIN, Checked

FORMATS: dict[str, Callable[[Sequence[Checked]], str]] = {
    "text": text.render_text,
    "json": json.render_json,
    "github": github.render_github,
    "sarif": sarif.render_sarif,
    "junit": junit.render_junit,
}

__all__ = ["FORMATS", "STDIN", "Checked", "github", "json", "junit", "sarif", "text"]
