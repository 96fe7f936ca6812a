"""The language: what a person writes, read and checked."""

from blockc.language.spec.keys import PLACEMENTS, Bounds, Document, Expect, NormKeys, Rsqrt
from blockc.language.spec.own import OwnPart, key_of, own_part
from blockc.language.spec.reading import Layer, Spec, SpecFaults, from_tree, load, occupants, written
from blockc.language.spec.readings import Attending, Reading, readings
from blockc.language.spec.resolve import resolved, resolved_text

__all__ = [
    "PLACEMENTS", "Attending", "Bounds", "Document", "Expect", "Layer", "NormKeys", "OwnPart", "Reading", "Rsqrt",
    "Spec", "SpecFaults", "from_tree", "key_of", "load", "occupants", "own_part", "readings", "resolved",
    "resolved_text", "written",
]  # fmt: skip
