"""The language: what a person writes, read and checked."""

from blockc.spec.keys import Document, Expect, NormKeys
from blockc.spec.reading import Layer, Spec, from_tree, load, occupants, written
from blockc.spec.resolve import resolved, resolved_text

__all__ = ["Document", "Expect", "Layer", "NormKeys", "Spec", "from_tree", "load", "occupants", "resolved",
           "resolved_text", "written"]  # fmt: skip
