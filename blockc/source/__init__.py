"""YAML text to a tree of values that know their line and column."""

from blockc.source.reading import override, parse, read
from blockc.source.tree import (
    Entry,
    Finding,
    Mapping,
    Place,
    Scalar,
    Sequence,
    SpecError,
    Tree,
    at,
    find,
    finding,
    key_place,
    plain,
    render,
    suggest,
)

__all__ = [
    "Entry", "Finding", "Mapping", "Place", "Scalar", "Sequence", "SpecError", "Tree", "at", "find", "finding",
    "key_place", "override", "parse", "plain", "read", "render", "suggest",
]  # fmt: skip
