"""The language: what a person writes, read and checked."""

from blockc.spec.keys import Document, Expect, NormKeys
from blockc.spec.reading import Layer, Spec, from_tree, load, occupants, written

__all__ = ["Document", "Expect", "Layer", "NormKeys", "Spec", "from_tree", "load", "occupants", "written"]
