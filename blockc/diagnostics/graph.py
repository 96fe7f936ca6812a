"""BLC5xx: the graph that a spec stands for."""

from __future__ import annotations

from blockc.diagnostics.code import error

GRAPH = error(
    "BLC501",
    "the graph does not hold together",
    "Shapes are inferred for every value of the graph and compared where values meet: a branch is as wide as the "
    "stream that it edits, and no value depends on a later token unless the attention looks both ways. No spec is "
    "known that gives it: it guards against a fault of blockc, or of a part of your own.",
    bad="",
    good="",
)
