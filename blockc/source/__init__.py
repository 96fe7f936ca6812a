"""YAML text to a tree of values that know their line and column."""

from blockc.source.comments import Ignore, ignores
from blockc.source.reading import MAX_BYTES, override, parse, read, read_bytes
from blockc.source.tree import (
    PATH_SHOWN,
    Entry,
    Finding,
    MappingNode,
    Place,
    ScalarNode,
    SequenceNode,
    SpecError,
    Tree,
    at,
    every,
    find,
    finding,
    inert,
    key_place,
    plain,
    render,
    suggest,
)

__all__ = [
    "MAX_BYTES", "PATH_SHOWN", "Entry", "Finding", "Ignore", "MappingNode", "Place", "ScalarNode", "SequenceNode",
    "SpecError", "Tree", "at", "every", "find", "finding", "ignores", "inert", "key_place", "override", "parse",
    "plain", "read", "read_bytes", "render", "suggest",
]  # fmt: skip
