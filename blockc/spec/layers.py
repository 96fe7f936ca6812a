"""The layer pattern: which kind each layer is, and each kind's keys merged over the top-level ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from blockc.source import Entry, Finding, Mapping, Place, Scalar, SpecError, Tree, finding, plain
from blockc.spec.faults import unknown_key
from blockc.spec.keys import LAYER_KEYS, Layers


@dataclass(frozen=True)
class Kind:
    """One way in which a layer is made: a name of layers.kinds, or several joined by +."""

    name: str
    tree: Mapping


def lay(tree: Mapping, layers: Layers | None, depth: int) -> tuple[Kind, ...]:
    """The kind of each of the `depth` layers. Raises SpecError where counts do not fit or a name is undefined."""
    base = Mapping({k: e for k, e in tree.entries.items() if k in LAYER_KEYS}, tree.place)
    if layers is None:
        return (Kind("layer", base),) * depth
    at = tree.entries["layers"].value
    assert isinstance(at, Mapping)
    names = _sequence(at, depth, set(layers.kinds))
    overlays = _overlays(at)
    used = {part for name in names for part in name.split("+")}
    if unused := [k for k in overlays if k not in used]:
        raise SpecError([finding(_kind_key(at, unused[0]), f"layer kind {unused[0]} is defined and never laid")])
    kinds = {name: Kind(name, _merged(base, name, overlays)) for name in dict.fromkeys(names)}
    return tuple(kinds[name] for name in names)


def _sequence(at: Mapping, depth: int, known: set[str]) -> list[str]:
    lists = {key: list(_entries(at, key, known)) for key in ("first", "pattern", "last")}
    fixed = len(lists["first"]) + len(lists["last"])
    middle = depth - fixed
    place = next(entry.key for key, entry in at.entries.items() if key in (*lists, "kinds"))
    if middle < 0 or (middle and not lists["pattern"]):
        raise SpecError([finding(place, f"layers lays {fixed} layers, but depth is {depth}", str(depth), str(fixed),
                                 "a pattern is tiled over what lies between first and last")])  # fmt: skip
    if lists["pattern"] and not middle:
        raise SpecError([finding(at.entries["pattern"].key, "the pattern has no room: first and last fill the depth")])
    tiled = [lists["pattern"][i % len(lists["pattern"])] for i in range(middle)]
    return [*lists["first"], *tiled, *lists["last"]]


def _entries(at: Mapping, key: str, known: set[str]) -> Iterator[str]:
    """A list of `kind`, `kindA+kindB` or {kind: count} as single kinds."""
    if key not in at.entries:
        return
    listed = at.entries[key].value
    for item in getattr(listed, "items", ()):
        name, count, place = _entry(item)
        for part in name.split("+"):
            if part not in known:
                raise SpecError([finding(place, f"layer kind {part} is not defined", "one of " + ", ".join(sorted(known)), part)])
        for _ in range(count):
            yield name


def _entry(item: Tree) -> tuple[str, int, Place]:
    if isinstance(item, Scalar) and isinstance(item.value, str):
        return item.value, 1, item.place
    if isinstance(item, Mapping) and len(item.entries) == 1:
        (name, entry), = item.entries.items()
        count = plain(entry.value)
        if isinstance(count, int) and not isinstance(count, bool) and 0 < count <= 100_000:
            return name, count, entry.key
    raise SpecError([finding(item.place, "not a layer entry", "kind, kindA+kindB or {kind: count}", str(plain(item)))])


def _overlays(at: Mapping) -> dict[str, Mapping]:
    kinds = at.entries["kinds"].value
    assert isinstance(kinds, Mapping)
    overlays: dict[str, Mapping] = {}
    for name, entry in kinds.entries.items():
        assert isinstance(entry.value, Mapping)
        for key, inner in entry.value.entries.items():
            if key not in LAYER_KEYS:
                raise SpecError([unknown_key(inner.key, f"layers.kinds.{name}.{key}", key, sorted(LAYER_KEYS))])
        overlays[name] = entry.value
    return overlays


def _kind_key(at: Mapping, name: str) -> Place:
    kinds = at.entries["kinds"].value
    assert isinstance(kinds, Mapping)
    return kinds.entries[name].key


def _merged(base: Mapping, name: str, overlays: dict[str, Mapping]) -> Mapping:
    parts = name.split("+")
    _refuse_shared_leaves(parts, overlays)
    for part in parts:
        base = _slot(merge(base, overlays[part]), overlays[part])
    return base


def _slot(merged: Mapping, overlay: Mapping) -> Mapping:
    """block and norm.placement say the same thing: the kind's own word replaces the inherited one."""
    norm = merged.entries.get("norm")
    over = overlay.entries.get("norm")
    says_placement = over is not None and isinstance(over.value, Mapping) and "placement" in over.value.entries
    if "block" in overlay.entries and not says_placement and norm and isinstance(norm.value, Mapping):
        kept = Mapping({k: e for k, e in norm.value.entries.items() if k != "placement"}, norm.value.place)
        return Mapping({**merged.entries, "norm": Entry(norm.key, kept)}, merged.place)
    if says_placement and "block" not in overlay.entries:
        return Mapping({k: e for k, e in merged.entries.items() if k != "block"}, merged.place)
    return merged


def merge(below: Mapping, above: Mapping) -> Mapping:
    """Mappings by key; anything else replaces, and so does a mapping whose type changes."""
    entries = dict(below.entries)
    for key, entry in above.entries.items():
        old = entries.get(key)
        both = old is not None and isinstance(old.value, Mapping) and isinstance(entry.value, Mapping)
        if both and not _retyped(old.value, entry.value):  # type: ignore[union-attr, arg-type]
            entries[key] = Entry(entry.key, merge(old.value, entry.value))  # type: ignore[union-attr, arg-type]
        else:
            entries[key] = entry
    return Mapping(entries, above.place)


def _retyped(below: Mapping, above: Mapping) -> bool:
    if "type" not in above.entries or "type" not in below.entries:
        return False
    return plain(above.entries["type"].value) != plain(below.entries["type"].value)


def _refuse_shared_leaves(parts: list[str], overlays: dict[str, Mapping]) -> None:
    seen: dict[tuple[str, ...], tuple[str, Place]] = {}
    faults: list[Finding] = []
    for part in parts:
        for path, place in _leaves(overlays[part], ()):
            if path in seen:
                other, first = seen[path]
                faults.append(finding(place, f"{'.'.join(path)} is set by both {other} and {part}, which are joined by +",
                                      others=[(f"in {other}", first)]))  # fmt: skip
            seen[path] = (part, place)
    if faults:
        raise SpecError(faults)


def _leaves(tree: Mapping, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Place]]:
    for key, entry in tree.entries.items():
        if isinstance(entry.value, Mapping):
            yield from _leaves(entry.value, (*path, key))
        else:
            yield (*path, key), entry.key
