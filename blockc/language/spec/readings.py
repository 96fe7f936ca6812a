"""attention.kv_from: which earlier layer's keys and values a layer reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from blockc.diagnostics.meaning import KV_KIND, KV_SOURCE, KV_UNLIKE
from blockc.language.parts import Attention, Loc, Rope
from blockc.language.spec.faults import value_place
from blockc.language.spec.reading import Spec, dump_keys
from blockc.source import Finding, Tree, finding, key_place, suggest


@dataclass(frozen=True)
class KvReading:
    """A layer whose attention reads the keys and values that an earlier layer's attention of the same label makes."""

    layer: int
    label: str
    source: int


@dataclass(frozen=True)
class BlockAttention:
    """An attention in the block of a kind of layers, its derived values written out, and where it is written."""

    label: str
    part: Attention
    tree: Tree
    where: Loc


def find_kv_readings(
    spec: Spec, attentions: Mapping[str, Sequence[BlockAttention]]
) -> tuple[tuple[KvReading, ...], list[Finding]]:
    """`attentions` are those of each kind. The latest earlier layer of the kind which makes its own keys is read."""
    latest: dict[tuple[str, str], tuple[int, BlockAttention]] = {}  # by kind and label
    found: list[KvReading] = []
    faults: dict[tuple[str, str], Finding] = {}  # by kind and label of the reader: one says it for all its layers
    for i, layer in enumerate(spec.layers):
        for reader in attentions[layer.kind]:
            if (wanted := reader.part.kv_from) is None:
                continue
            source = latest.get((wanted, reader.label))
            if fault := _fault_of(spec, i, reader, wanted, source):
                faults.setdefault((layer.kind, reader.label), fault)
            elif source:
                found.append(KvReading(i, reader.label, source[0]))
        own = [each for each in attentions[layer.kind] if each.part.kv_from is None]
        latest |= {(kind, each.label): (i, each) for kind in layer.kind.split("+") for each in own}
    return tuple(found), list(faults.values())


def _fault_of(
    spec: Spec, index: int, reader: BlockAttention, wanted: str, source: tuple[int, BlockAttention] | None
) -> Finding | None:
    place = value_place(reader.tree, (*reader.where, "kv_from"))
    known = sorted({part for kind in spec.kinds for part in kind.split("+")})
    if wanted not in known:
        near = suggest(wanted, known)
        return finding(KV_KIND, place, f"kv_from: layer kind {wanted} is not defined",
                       expected="one of " + ", ".join(known), got=wanted,
                       hint=f"did you mean {near}?" if near else "")  # fmt: skip
    if source is None:
        return finding(KV_SOURCE, place, f"kv_from: no layer of kind {wanted} before layer {index} makes keys and "
                       f"values in {reader.label}", expected="an earlier layer of the kind that makes its own",
                       hint="a layer that reads those of another lends none")  # fmt: skip
    for key, mine, theirs in _differences(reader.part, source[1].part):
        there = key_place(source[1].tree, (*source[1].where, key))
        return finding(KV_UNLIKE, place, f"kv_from: {key} is not that of layer {source[0]}, whose keys are read",
                       expected=_value_text(theirs), got=_value_text(mine),
                       others=[(f"{key} there", there)])  # fmt: skip
    return None


def _differences(reader: Attention, source: Attention) -> Iterator[tuple[str, int | Rope | None, int | Rope | None]]:
    """What must be equal: the heads that are read, and how they are turned."""
    for key, mine, theirs in (
        ("kv_heads", reader.kv_heads, source.kv_heads),
        ("head_dim", reader.head_dim, source.head_dim),
        ("rope", reader.rope, source.rope),
    ):
        if mine != theirs:
            yield key, mine, theirs


def _value_text(value: int | Rope | None) -> str:
    if isinstance(value, Rope):
        return "{" + ", ".join(f"{key}: {each}" for key, each in dump_keys(value).items()) + "}"
    return "none" if value is None else str(value)
