"""Findings as text: for people, for programs, and for the services that run checks. The standard library alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blockc.checks.formats import github, json, junit, sarif, text
from blockc.checks.formats.base import STDIN, Checked

FORMATS: dict[str, Callable[[Sequence[Checked]], str]] = {
    "text": text.written,
    "json": json.written,
    "github": github.written,
    "sarif": sarif.written,
    "junit": junit.written,
}

__all__ = ["FORMATS", "STDIN", "Checked", "github", "json", "junit", "sarif", "text"]
