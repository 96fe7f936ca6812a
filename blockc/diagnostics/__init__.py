"""The codes of findings, one file for each hundred. Nothing here imports what reads a spec.

BLC0xx reading, 1xx words, 2xx meaning, 3xx figures, 4xx advice, 5xx graph, 6xx layouts, 7xx importing
"""

from __future__ import annotations

from blockc.diagnostics import advice, figures, graph, importing, layouts, meaning, reading, words
from blockc.diagnostics.code import SEVERITIES, Code, Severity

GROUPS = (reading, words, meaning, figures, advice, graph, layouts, importing)
CODES = {code.name: code for group in GROUPS for code in vars(group).values() if isinstance(code, Code)}

__all__ = ["CODES", "GROUPS", "SEVERITIES", "Code", "Severity"]
