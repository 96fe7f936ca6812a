"""YAML text to a tree of values that know their line and column."""

from blockc.source.comments import Ignore, find_ignores
from blockc.source.reading import MAX_BYTES, override, parse, read_bytes, read_tree
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
    escape_text,
    extend,
    find,
    finding,
    key_place,
    map_all,
    render_finding,
    suggest,
    to_plain,
    tree_at,
)

__all__ = [
    "MAX_BYTES", "PATH_SHOWN", "Entry", "Finding", "Ignore", "MappingNode", "Place", "ScalarNode", "SequenceNode",
    "SpecError", "Tree", "escape_text", "extend", "find", "find_ignores", "finding", "key_place", "map_all", "override",
    "parse", "read_bytes", "read_tree", "render_finding", "suggest", "to_plain", "tree_at",
]  # fmt: skip
