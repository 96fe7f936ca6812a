"""The language: what a person writes, read and checked."""

from blockc.language.spec.keys import PLACEMENTS, Bounds, Document, Expect, NormKeys, Rsqrt
from blockc.language.spec.own import OwnPart, key_of, read_own_part
from blockc.language.spec.reading import Layer, Spec, SpecFaults, dump_keys, from_tree, load, parts_of
from blockc.language.spec.readings import BlockAttention, KvReading, find_kv_readings
from blockc.language.spec.resolve import resolve_spec, resolve_to_yaml

__all__ = [
    "PLACEMENTS", "BlockAttention", "Bounds", "Document", "Expect", "KvReading", "Layer", "NormKeys", "OwnPart",
    "Rsqrt", "Spec", "SpecFaults", "dump_keys", "find_kv_readings", "from_tree", "key_of", "load", "parts_of",
    "read_own_part", "resolve_spec", "resolve_to_yaml",
]  # fmt: skip
