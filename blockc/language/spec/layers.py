"""The layer pattern: which kind each layer is, and each kind's keys merged over the top-level ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice

from blockc.diagnostics import meaning as code
from blockc.language.parts import PARTS
from blockc.language.spec.classes import norms_inside
from blockc.language.spec.faults import shown, unknown_key
from blockc.language.spec.keys import LAYER_KEYS, Layers
from blockc.source import (
    Entry,
    Finding,
    MappingNode,
    Place,
    ScalarNode,
    SequenceNode,
    SpecError,
    Tree,
    every,
    finding,
    plain,
    suggest,
)

Run = tuple[str, int]  # a kind, and how often it is laid
KeyPath = tuple[str, ...]

LISTS = ("first", "pattern", "last")
# By part, what the norms inside it take over from the layer's.
TAKEN: dict[str, dict[str, KeyPath]] = {key: dict(norms_inside(PARTS[key])) for key in PARTS}
SLOT = (("block",), ("norm", "placement"))  # two words for one thing: the later one replaces the other


@dataclass(frozen=True)
class Kind:
    """One way in which a layer is made: a name of layers.kinds, or several joined by +."""

    name: str
    tree: MappingNode


@dataclass(frozen=True)
class Laid:
    """The kinds of layers, the name of each layer's, and what is wrong: where anything is, no layer is named."""

    kinds: dict[str, Kind]
    names: tuple[str, ...]
    faults: tuple[Finding, ...]


def lay(tree: MappingNode, layers: Layers | None, depth: int) -> Laid:
    """The kind of each of the `depth` layers. A fault hides no other: every kind is there that can be read."""
    base = _base(tree)
    if layers is None:
        return Laid({"layer": Kind("layer", base)}, ("layer",) * depth, ())
    at = _mapping(tree, "layers")
    overlays, faults = _overlays(at)
    try:
        names = _sequence(at, depth, tree.entries["depth"].value.place, set(overlays))
    except SpecError as error:
        kinds = kinds_of(tree)
        return Laid({kind.name: kind for kind in kinds}, (), (*faults, *error.findings))
    used = {part for name in set(names) for part in name.split("+")}
    defined = _mapping(at, "kinds").entries
    faults += [
        finding(code.KIND_UNUSED, defined[kind].key, f"layer kind {kind} is defined and never laid",
                hint="name it in first, pattern or last, or leave it out")
        for kind in overlays if kind not in used
    ]  # fmt: skip
    unused = (kind for kind in overlays if kind not in used)
    kinds, joined = _all_merged(base, [*dict.fromkeys(names), *unused], overlays)
    faults += joined
    return Laid(kinds, () if faults else tuple(names), tuple(faults))


def kinds_of(tree: MappingNode) -> tuple[Kind, ...]:
    """Every kind that can be read, of a spec whose list of layers may be wrong.

    Where kinds are joined, what one of them lacks another says: by itself none is looked at that is not laid so.
    """
    layers = tree.entries["layers"].value if "layers" in tree.entries else None
    said = layers.entries["kinds"].value if isinstance(layers, MappingNode) and "kinds" in layers.entries else None
    if not isinstance(said, MappingNode) or not isinstance(layers, MappingNode):
        return ()
    kinds = {name: entry.value for name, entry in said.entries.items() if "+" not in name}
    overlays = {name: _known(value) for name, value in kinds.items() if isinstance(value, MappingNode)}
    listed = [layers.entries[key].value for key in LISTS if key in layers.entries]
    names = [name for each in listed if isinstance(each, SequenceNode) for item in each.items for name in _named(item)]
    sound = [name for name in dict.fromkeys(names) if set(name.split("+")) <= set(overlays)]
    alone = [] if any("+" in name for name in names) else [name for name in overlays if name not in sound]
    merged, _ = _all_merged(_base(tree), [*sound, *alone], overlays)
    return tuple(merged.values())


def _named(item: Tree) -> list[str]:
    try:
        return [_entry(item)[0]]
    except SpecError:
        return []


def _base(tree: MappingNode) -> MappingNode:
    return MappingNode({k: e for k, e in tree.entries.items() if k in LAYER_KEYS}, tree.place)


def _known(overlay: MappingNode) -> MappingNode:
    """What a kind says, without keys that nothing reads."""
    return MappingNode({key: entry for key, entry in overlay.entries.items() if key in LAYER_KEYS}, overlay.place)


def _all_merged(
    base: MappingNode, names: Iterable[str], overlays: dict[str, MappingNode]
) -> tuple[dict[str, Kind], list[Finding]]:
    kinds: dict[str, Kind] = {}
    faults: list[Finding] = []
    for name in names:
        try:
            kinds[name] = Kind(name, _merged(base, name, overlays))
        except SpecError as error:
            faults += error.findings
    return kinds, faults


def _mapping(tree: MappingNode, key: str) -> MappingNode:
    value = tree.entries[key].value
    assert isinstance(value, MappingNode)  # validated before
    return value


# The list of layers


def _sequence(at: MappingNode, depth: int, depth_place: Place, known: set[str]) -> list[str]:
    """Counts are compared before anything is laid, so that no count is too large."""
    runs = dict(zip(LISTS, every(lambda key: _runs(at, key, known), LISTS), strict=True))
    fixed = sum(count for key in ("first", "last") for _, count in runs[key])
    middle = depth - fixed
    place = next(entry.key for key, entry in at.entries.items() if key in (*LISTS, "kinds"))
    others = [("depth is here", depth_place)]
    if middle < 0 or (middle and not runs["pattern"]):
        raise SpecError([finding(code.LAYER_COUNT, place, f"first and last lay {fixed}, and depth is {depth}",
                                 expected=f"{depth} layers",
                                 got=str(fixed), hint="a pattern is tiled over what lies between first and last",
                                 others=others)])  # fmt: skip
    if runs["pattern"] and not middle:
        raise SpecError([finding(code.LAYER_COUNT, at.entries["pattern"].key,
                                 "the pattern has no room: first and last fill the depth",
                                 expected=f"a depth above {fixed}, or no pattern", others=others)])  # fmt: skip
    tiled = islice(cycle(_laid(runs["pattern"])), middle)
    return [*_laid(runs["first"]), *tiled, *_laid(runs["last"])]


def _laid(runs: tuple[Run, ...]) -> Iterator[str]:
    return (name for name, count in runs for _ in range(count))


def _runs(at: MappingNode, key: str, known: set[str]) -> tuple[Run, ...]:
    listed = at.entries[key].value if key in at.entries else None
    return tuple(every(lambda item: _run(item, known), listed.items if isinstance(listed, SequenceNode) else ()))


def _run(item: Tree, known: set[str]) -> Run:
    name, count, place = _entry(item)
    for part in name.split("+"):
        if part not in known:
            near = suggest(part, known)
            raise SpecError([finding(code.KIND_UNDEFINED, place, f"layer kind {part} is not defined",
                                     expected="one of " + ", ".join(sorted(known)), got=part,
                                     hint=f"did you mean {near}?" if near else "")])  # fmt: skip
    return name, count


def _entry(item: Tree) -> tuple[str, int, Place]:
    """kind, kindA+kindB or {kind: count}: the name, the count, and where the name stands."""
    match item:
        case ScalarNode(value=str() as name):
            return name, 1, item.place
        case MappingNode(entries=entries) if len(entries) == 1:
            ((name, entry),) = entries.items()
            count = plain(entry.value)
            if isinstance(count, int) and not isinstance(count, bool) and count > 0:
                return name, count, entry.key
            raise SpecError([finding(code.LAYER_ENTRY, entry.value.place, f"not a count of {name} layers",
                                     expected="an integer above 0",
                                     got=shown(entry.value))])  # fmt: skip
        case _:
            raise SpecError([finding(code.LAYER_ENTRY, item.place, "not a layer entry",
                                     expected="kind, kindA+kindB or {kind: count}",
                                     got=shown(item))])  # fmt: skip


# The kinds


def _overlays(at: MappingNode) -> tuple[dict[str, MappingNode], list[Finding]]:
    """What each kind says, and what of it no kind may say."""
    kinds = _mapping(at, "kinds")
    overlays = {name: _mapping(kinds, name) for name in kinds.entries}
    faults = [fault for name, overlay in overlays.items() for fault in _overlay_faults(name, overlay)]
    return {name: _known(overlay) for name, overlay in overlays.items()}, faults


def _overlay_faults(name: str, overlay: MappingNode) -> Iterator[Finding]:
    for key, entry in overlay.entries.items():
        if key not in LAYER_KEYS:
            yield unknown_key(entry.key, f"layers.kinds.{name}.{key}", key, sorted(LAYER_KEYS))
    for path, place in _leaves(overlay, ()):
        if path == ("norm", "final"):
            yield finding(code.FINAL_OF_KIND, place,
                          f"layers.kinds.{name}.norm.final: the final norm is the model's, not a layer's",
                          hint="write it under the top-level norm")  # fmt: skip


def _merged(base: MappingNode, name: str, overlays: dict[str, MappingNode]) -> MappingNode:
    parts = name.split("+")
    if faults := list(_clashes(parts, overlays)):
        raise SpecError(faults)
    for part in parts:
        base = _slot(merge(base, overlays[part]), overlays[part])
    return base


def _slot(merged: MappingNode, overlay: MappingNode) -> MappingNode:
    """block and norm.placement say the same thing: the kind's own word replaces the inherited one."""
    says = {path for path, _ in _leaves(overlay, ())} & set(SLOT)
    norm = merged.entries.get("norm")
    if says == {("block",)} and norm and isinstance(norm.value, MappingNode):
        kept = MappingNode({k: e for k, e in norm.value.entries.items() if k != "placement"}, norm.value.place)
        return MappingNode({**merged.entries, "norm": Entry(norm.key, kept)}, merged.place)
    if says == {("norm", "placement")}:
        return MappingNode({k: e for k, e in merged.entries.items() if k != "block"}, merged.place)
    return merged


def merge(below: MappingNode, above: MappingNode) -> MappingNode:
    """Mappings by key; anything else replaces, and so does a mapping whose type changes."""
    if _retyped(below, above):
        return above
    entries = dict(below.entries)
    for key, entry in above.entries.items():
        old = entries[key].value if key in entries else None
        if isinstance(old, MappingNode) and isinstance(entry.value, MappingNode):
            entry = Entry(entry.key, merge(old, entry.value))
        entries[key] = entry
    return MappingNode(entries, above.place)


def with_norm(tree: MappingNode) -> MappingNode:
    """A layer's tree in which the norms inside its parts say what they take over from the layer's norm."""
    norm = tree.entries["norm"].value if "norm" in tree.entries else None
    if not isinstance(norm, MappingNode):
        return tree
    parts = {key: entry for key in TAKEN if (entry := tree.entries.get(key))}
    made = {
        key: Entry(entry.key, MappingNode(said, entry.value.place))
        for key, entry in parts.items()
        if isinstance(entry.value, MappingNode) and (said := _norms_inside(entry.value, norm, TAKEN[key]))
    }
    return merge(tree, MappingNode(made, tree.place)) if made else tree


def _norms_inside(part: MappingNode, norm: MappingNode, taken: dict[str, KeyPath]) -> dict[str, Entry]:
    said: dict[str, Entry] = {}
    for key, words in taken.items():
        own = part.entries.get(key)
        if own and isinstance(own.value, MappingNode):
            base = MappingNode({k: e for k, e in norm.entries.items() if k in words}, norm.place)
            said[key] = Entry(own.key, merge(base, own.value))
    return said


def _retyped(below: MappingNode, above: MappingNode) -> bool:
    if "type" not in above.entries or "type" not in below.entries:
        return False
    return plain(above.entries["type"].value) != plain(below.entries["type"].value)


def _clashes(parts: list[str], overlays: dict[str, MappingNode]) -> Iterator[Finding]:
    """Joined kinds may not say the same thing, nor one turn off what the other fills."""
    leaves: dict[KeyPath, tuple[str, Place]] = {}
    filled: dict[KeyPath, tuple[str, Place]] = {}  # the mappings that hold a leaf
    for part in parts:
        said = tuple(_leaves(overlays[part], ()))
        for path, place in said:
            first = filled.get(path) or next((leaves[other] for other in _upwards(path) if other in leaves), None)
            if first is not None:
                yield finding(code.JOINED, place,
                              f"{'.'.join(path)} is set by both {first[0]} and {part}, which are joined by +",
                              others=[(f"in {first[0]}", first[1])])  # fmt: skip
        for path, place in said:
            leaves.setdefault(path, (part, place))
            filled.update({path[:n]: (part, place) for n in range(1, len(path))})


def _upwards(path: KeyPath) -> Iterator[KeyPath]:
    """A path, the other word of its slot, and the paths above it."""
    yield path
    if path in SLOT:
        yield SLOT[1 - SLOT.index(path)]
    yield from (path[:n] for n in range(len(path) - 1, 0, -1))


def _leaves(tree: MappingNode, path: KeyPath) -> Iterator[tuple[KeyPath, Place]]:
    for key, entry in tree.entries.items():
        if isinstance(entry.value, MappingNode):
            yield from _leaves(entry.value, (*path, key))
        else:
            yield (*path, key), entry.key
