"""The language: what a person writes, read and checked."""

from blockc.spec.keys import PLACEMENTS, Bounds, Document, Expect, NormKeys, Rsqrt
from blockc.spec.own import OwnPart, key_of, own_part
from blockc.spec.reading import Layer, Spec, SpecFaults, from_tree, load, occupants, written
from blockc.spec.readings import Attending, Reading, readings
from blockc.spec.resolve import resolved, resolved_text

__all__ = [
    "PLACEMENTS", "Attending", "Bounds", "Document", "Expect", "Layer", "NormKeys", "OwnPart", "Reading", "Rsqrt",
    "Spec", "SpecFaults", "from_tree", "key_of", "load", "occupants", "own_part", "readings", "resolved",
    "resolved_text", "written",
]  # fmt: skip
