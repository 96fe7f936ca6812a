"""The layer pattern: which kind each layer is, and each kind's keys merged over the top-level ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice

from blockc.diagnostics import meaning as code
from blockc.language.parts import PARTS
from blockc.language.spec.classes import norms_inside
from blockc.language.spec.faults import describe_value, unknown_key_finding
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
    finding,
    map_all,
    suggest,
    to_plain,
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
class LayerSequence:
    """The kinds of layers, the kind of each layer by name, and the faults. With faults `names` is empty."""

    kinds: dict[str, Kind]
    names: tuple[str, ...]
    faults: tuple[Finding, ...]


def lay(tree: MappingNode, layers: Layers | None, depth: int) -> LayerSequence:
    """The kind of each of the `depth` layers. Faults are gathered, and every kind that can be read is returned."""
    base = _layer_keys(tree)
    if layers is None:
        return LayerSequence({"layer": Kind("layer", base)}, ("layer",) * depth, ())
    at = _mapping_at(tree, "layers")
    overlays, faults = _read_overlays(at)
    try:
        names = _list_layers(at, depth, tree.entries["depth"].value.place, set(overlays))
    except SpecError as error:
        kinds = kinds_of(tree)
        return LayerSequence({kind.name: kind for kind in kinds}, (), (*faults, *error.findings))
    used = {part for name in set(names) for part in name.split("+")}
    defined = _mapping_at(at, "kinds").entries
    faults += [
        finding(code.KIND_UNUSED, defined[kind].key, f"layer kind {kind} is defined and never laid",
                hint="name it in first, pattern or last, or leave it out")
        for kind in overlays if kind not in used
    ]  # fmt: skip
    unused = (kind for kind in overlays if kind not in used)
    kinds, joined = _merge_all(base, [*dict.fromkeys(names), *unused], overlays)
    faults += joined
    return LayerSequence(kinds, () if faults else tuple(names), tuple(faults))


def kinds_of(tree: MappingNode) -> tuple[Kind, ...]:
    """Every kind that can be read, of a spec whose list of layers may be wrong.

    Where kinds are joined, what one of them lacks another says: by itself none is looked at that is not laid so.
    """
    layers = tree.entries["layers"].value if "layers" in tree.entries else None
    said = layers.entries["kinds"].value if isinstance(layers, MappingNode) and "kinds" in layers.entries else None
    if not isinstance(said, MappingNode) or not isinstance(layers, MappingNode):
        return ()
    kinds = {name: entry.value for name, entry in said.entries.items() if "+" not in name}
    overlays = {name: _drop_unknown(value) for name, value in kinds.items() if isinstance(value, MappingNode)}
    listed = [layers.entries[key].value for key in LISTS if key in layers.entries]
    names = [
        name for each in listed if isinstance(each, SequenceNode) for item in each.items for name in _kind_names(item)
    ]
    sound = [name for name in dict.fromkeys(names) if set(name.split("+")) <= set(overlays)]
    alone = [] if any("+" in name for name in names) else [name for name in overlays if name not in sound]
    merged, _ = _merge_all(_layer_keys(tree), [*sound, *alone], overlays)
    return tuple(merged.values())


def _kind_names(item: Tree) -> list[str]:
    try:
        return [_read_entry(item)[0]]
    except SpecError:
        return []


def _layer_keys(tree: MappingNode) -> MappingNode:
    return MappingNode({k: e for k, e in tree.entries.items() if k in LAYER_KEYS}, tree.place)


def _drop_unknown(overlay: MappingNode) -> MappingNode:
    """A kind's keys without unknown ones."""
    return MappingNode({key: entry for key, entry in overlay.entries.items() if key in LAYER_KEYS}, overlay.place)


def _merge_all(
    base: MappingNode, names: Iterable[str], overlays: dict[str, MappingNode]
) -> tuple[dict[str, Kind], list[Finding]]:
    kinds: dict[str, Kind] = {}
    faults: list[Finding] = []
    for name in names:
        try:
            kinds[name] = Kind(name, _merge_kinds(base, name, overlays))
        except SpecError as error:
            faults += error.findings
    return kinds, faults


def _mapping_at(tree: MappingNode, key: str) -> MappingNode:
    value = tree.entries[key].value
    assert isinstance(value, MappingNode)  # validated before
    return value


# The list of layers


def _list_layers(at: MappingNode, depth: int, depth_place: Place, known: set[str]) -> list[str]:
    """The kind of each layer. Counts are checked against the depth before any list is built."""
    runs = dict(zip(LISTS, map_all(lambda key: _read_runs(at, key, known), LISTS), strict=True))
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
    tiled = islice(cycle(_repeat(runs["pattern"])), middle)
    return [*_repeat(runs["first"]), *tiled, *_repeat(runs["last"])]


def _repeat(runs: tuple[Run, ...]) -> Iterator[str]:
    return (name for name, count in runs for _ in range(count))


def _read_runs(at: MappingNode, key: str, known: set[str]) -> tuple[Run, ...]:
    listed = at.entries[key].value if key in at.entries else None
    return tuple(map_all(lambda item: _read_run(item, known), listed.items if isinstance(listed, SequenceNode) else ()))


def _read_run(item: Tree, known: set[str]) -> Run:
    name, count, place = _read_entry(item)
    for part in name.split("+"):
        if part not in known:
            near = suggest(part, known)
            raise SpecError([finding(code.KIND_UNDEFINED, place, f"layer kind {part} is not defined",
                                     expected="one of " + ", ".join(sorted(known)), got=part,
                                     hint=f"did you mean {near}?" if near else "")])  # fmt: skip
    return name, count


def _read_entry(item: Tree) -> tuple[str, int, Place]:
    """kind, kindA+kindB or {kind: count}: the name, the count, and where the name stands."""
    match item:
        case ScalarNode(value=str() as name):
            return name, 1, item.place
        case MappingNode(entries=entries) if len(entries) == 1:
            ((name, entry),) = entries.items()
            count = to_plain(entry.value)
            if isinstance(count, int) and not isinstance(count, bool) and count > 0:
                return name, count, entry.key
            raise SpecError([finding(code.LAYER_ENTRY, entry.value.place, f"not a count of {name} layers",
                                     expected="an integer above 0",
                                     got=describe_value(entry.value))])  # fmt: skip
        case _:
            raise SpecError([finding(code.LAYER_ENTRY, item.place, "not a layer entry",
                                     expected="kind, kindA+kindB or {kind: count}",
                                     got=describe_value(item))])  # fmt: skip


# The kinds


def _read_overlays(at: MappingNode) -> tuple[dict[str, MappingNode], list[Finding]]:
    """Each kind's keys, and findings for those that no kind may have."""
    kinds = _mapping_at(at, "kinds")
    overlays = {name: _mapping_at(kinds, name) for name in kinds.entries}
    faults = [fault for name, overlay in overlays.items() for fault in _overlay_faults(name, overlay)]
    return {name: _drop_unknown(overlay) for name, overlay in overlays.items()}, faults


def _overlay_faults(name: str, overlay: MappingNode) -> Iterator[Finding]:
    for key, entry in overlay.entries.items():
        if key not in LAYER_KEYS:
            yield unknown_key_finding(entry.key, f"layers.kinds.{name}.{key}", key, sorted(LAYER_KEYS))
    for path, place in _leaves_of(overlay, ()):
        if path == ("norm", "final"):
            yield finding(code.FINAL_OF_KIND, place,
                          f"layers.kinds.{name}.norm.final: the final norm is the model's, not a layer's",
                          hint="write it under the top-level norm")  # fmt: skip


def _merge_kinds(base: MappingNode, name: str, overlays: dict[str, MappingNode]) -> MappingNode:
    parts = name.split("+")
    if faults := list(_find_clashes(parts, overlays)):
        raise SpecError(faults)
    for part in parts:
        base = _keep_one_word(merge(base, overlays[part]), overlays[part])
    return base


def _keep_one_word(merged: MappingNode, overlay: MappingNode) -> MappingNode:
    """block and norm.placement say the same thing: the kind's own word replaces the inherited one."""
    says = {path for path, _ in _leaves_of(overlay, ())} & set(SLOT)
    norm = merged.entries.get("norm")
    if says == {("block",)} and norm and isinstance(norm.value, MappingNode):
        kept = MappingNode({k: e for k, e in norm.value.entries.items() if k != "placement"}, norm.value.place)
        return MappingNode({**merged.entries, "norm": Entry(norm.key, kept)}, merged.place)
    if says == {("norm", "placement")}:
        return MappingNode({k: e for k, e in merged.entries.items() if k != "block"}, merged.place)
    return merged


def merge(below: MappingNode, above: MappingNode) -> MappingNode:
    """Mappings by key; anything else replaces, and so does a mapping whose type changes."""
    if _changes_type(below, above):
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
        if isinstance(entry.value, MappingNode) and (said := _fill_norms(entry.value, norm, TAKEN[key]))
    }
    return merge(tree, MappingNode(made, tree.place)) if made else tree


def _fill_norms(part: MappingNode, norm: MappingNode, taken: dict[str, KeyPath]) -> dict[str, Entry]:
    said: dict[str, Entry] = {}
    for key, words in taken.items():
        own = part.entries.get(key)
        if own and isinstance(own.value, MappingNode):
            base = MappingNode({k: e for k, e in norm.entries.items() if k in words}, norm.place)
            said[key] = Entry(own.key, merge(base, own.value))
    return said


def _changes_type(below: MappingNode, above: MappingNode) -> bool:
    if "type" not in above.entries or "type" not in below.entries:
        return False
    return to_plain(above.entries["type"].value) != to_plain(below.entries["type"].value)


def _find_clashes(parts: list[str], overlays: dict[str, MappingNode]) -> Iterator[Finding]:
    """Joined kinds may not say the same thing, nor one turn off what the other fills."""
    leaves: dict[KeyPath, tuple[str, Place]] = {}
    filled: dict[KeyPath, tuple[str, Place]] = {}  # the mappings that hold a leaf
    for part in parts:
        said = tuple(_leaves_of(overlays[part], ()))
        for path, place in said:
            first = filled.get(path) or next((leaves[other] for other in _paths_above(path) if other in leaves), None)
            if first is not None:
                yield finding(code.JOINED, place,
                              f"{'.'.join(path)} is set by both {first[0]} and {part}, which are joined by +",
                              others=[(f"in {first[0]}", first[1])])  # fmt: skip
        for path, place in said:
            leaves.setdefault(path, (part, place))
            filled.update({path[:n]: (part, place) for n in range(1, len(path))})


def _paths_above(path: KeyPath) -> Iterator[KeyPath]:
    """A path, the other word of its slot, and the paths above it."""
    yield path
    if path in SLOT:
        yield SLOT[1 - SLOT.index(path)]
    yield from (path[:n] for n in range(len(path) - 1, 0, -1))


def _leaves_of(tree: MappingNode, path: KeyPath) -> Iterator[tuple[KeyPath, Place]]:
    for key, entry in tree.entries.items():
        if isinstance(entry.value, MappingNode):
            yield from _leaves_of(entry.value, (*path, key))
        else:
            yield (*path, key), entry.key
