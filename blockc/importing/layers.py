"""Layers: the kinds that a config.json lists, as first and pattern; and specs without redundant keys."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby

from blockc.diagnostics.importing import CONFIG_VALUE
from blockc.importing.values import ConfigReader, is_none
from blockc.language.spec.layers import merge
from blockc.source import (
    Entry,
    MappingNode,
    Place,
    ScalarNode,
    SequenceNode,
    SpecError,
    Tree,
    finding,
    to_plain,
    tree_at,
)

CLOSE = 1e-9
SEARCHED = 256  # layers before which a pattern must begin
KeyPath = tuple[str, ...]
# Keys whose value 1 changes nothing.
_ONE = (("embedding", "scale"), ("head", "scale"), ("residual_scale",))


def add_layers(base: MappingNode, layers: MappingNode | None, reading: ConfigReader) -> MappingNode:
    """The spec: the base with the kinds of its layers, or with the one kind that all are of."""
    base = drop_derived(drop_none(base))
    if layers is None:
        return base
    listed = layers.entries["each"].value
    kinds = layers.entries["kinds"].value
    assert isinstance(kinds, MappingNode)  # a map says so
    names = _kind_names(listed, reading, kinds)
    overlays = {name: _overlay_of(base, kinds.entries[name].value) for name in kinds.entries if name in names}
    alike = {name: next(n for n, o in overlays.items() if to_plain(o) == to_plain(overlays[name])) for name in overlays}
    names = [alike[name] for name in names]
    if len(set(names)) == 1:
        return drop_derived(drop_none(merge(base, overlays[names[0]])))
    place = listed.place
    used = {name: Entry(place, overlays[name]) for name in overlays if name in names}
    first, pattern = _find_tiling(names)
    said = {"first": first, "pattern": pattern}
    entries = {key: Entry(place, _run_entries(value, place)) for key, value in said.items() if value}
    entries["kinds"] = Entry(place, MappingNode(used, place))
    return MappingNode({**base.entries, "layers": Entry(place, MappingNode(entries, place))}, base.place)


def _kind_names(listed: Tree, reading: ConfigReader, kinds: MappingNode) -> list[str]:
    """The kind of each layer. Raises SpecError where they are not as many as the layers."""
    names = [str(to_plain(each)) for each in listed.items] if isinstance(listed, SequenceNode) else []
    if len(names) != reading.depth or not set(names) <= kinds.entries.keys():
        raise SpecError([finding(CONFIG_VALUE, listed.place, "not a word for each layer",
                                 expected=f"{reading.depth}, one for each layer", got=str(len(names)))])  # fmt: skip
    return names


def _find_tiling(names: list[str]) -> tuple[list[str], list[str]]:
    """(What is laid once; what is tiled over the rest), of all such the fewest runs, and of these the shortest."""
    made: list[tuple[list[str], list[str]]] = []
    for first in range(min(len(names), SEARCHED)):
        rest = names[first:]
        made.append((names[:first], rest[: _period(rest)]))
    return min(made, key=lambda each: (sum(len(list(groupby(part))) for part in each), len(each[0]) + len(each[1])))


def _period(names: list[str]) -> int:
    """The length of the shortest pattern that gives these when it is tiled, its last tile cut (Knuth et al. 1977)."""
    border = [0] * len(names)
    for i in range(1, len(names)):
        k = border[i - 1]
        while k and names[i] != names[k]:
            k = border[k - 1]
        border[i] = k + (names[i] == names[k])
    return len(names) - border[-1]


def _run_entries(names: list[str], place: Place) -> SequenceNode:
    """[a, a, b] as [{a: 2}, b]"""
    items: list[Tree] = []
    for name, run in groupby(names):
        count = len(list(run))
        number = ScalarNode(count, place, str(count))
        items.append(ScalarNode(name, place, name) if count == 1 else MappingNode({name: Entry(place, number)}, place))
    return SequenceNode(tuple(items), place)


# Redundant keys


def drop_none(tree: MappingNode) -> MappingNode:
    """The tree without keys that are none, and without mappings that hold nothing else."""
    entries: dict[str, Entry] = {}
    for key, entry in tree.entries.items():
        value = drop_none(entry.value) if isinstance(entry.value, MappingNode) else entry.value
        if not is_none(value) and not (isinstance(value, MappingNode) and not value.entries):
            entries[key] = Entry(entry.key, value)
    return MappingNode(entries, tree.place)


def drop_derived(tree: MappingNode) -> MappingNode:
    """The tree without keys whose value follows from others."""
    for path in list(_derived_paths(tree)):
        tree = _drop_path(tree, path)
    return drop_none(tree)


def _derived_paths(tree: MappingNode) -> Iterator[KeyPath]:
    width, context = _number_at(tree, "width"), _number_at(tree, "context")
    heads, kv_heads = _number_at(tree, "attention", "heads"), _number_at(tree, "attention", "kv_heads")
    whole = width / heads if width and heads else None
    said = _number_at(tree, "attention", "head_dim")
    of_latent = [_number_at(tree, "attention", "latent", part) for part in ("nope_dim", "rope_dim")]
    head_dim = sum(n or 0 for n in of_latent) or said or whole
    scale, window = _number_at(tree, "attention", "scale"), _number_at(tree, "attention", "window")
    if kv_heads is not None and kv_heads == heads:
        yield "attention", "kv_heads"
    if said is not None and said == whole:
        yield "attention", "head_dim"
    if scale and head_dim and head_dim > 0 and math.isclose(scale, head_dim**-0.5, rel_tol=CLOSE):
        yield "attention", "scale"
    if window and context and window >= context:
        yield "attention", "window"
    if head_dim and _number_at(tree, "attention", "rope", "dims") == head_dim:
        yield "attention", "rope", "dims"
    if width and _number_at(tree, "embedding", "width") == width:
        yield "embedding", "width"
    yield from (path for path in _ONE if _number_at(tree, *path) == 1)


def _overlay_of(base: MappingNode, kind: Tree) -> MappingNode:
    """What a kind says beside the base: neither a window as long as the context, nor what the base says."""
    assert isinstance(kind, MappingNode)  # a map says so
    context, window = _number_at(base, "context"), _number_at(kind, "attention", "window")
    if context and window and window >= context:
        kind = _drop_path(kind, ("attention", "window"))
    return _differences(base, kind)


def _differences(base: MappingNode, kind: MappingNode) -> MappingNode:
    entries: dict[str, Entry] = {}
    for key, entry in kind.entries.items():
        below = tree_at(base, (key,))
        value = entry.value
        if isinstance(value, MappingNode):
            value = _differences(below if isinstance(below, MappingNode) else MappingNode({}, value.place), value)
            if value.entries:
                entries[key] = Entry(entry.key, value)
        elif (below is None and not is_none(value)) or (below is not None and to_plain(below) != to_plain(value)):
            entries[key] = entry
    return MappingNode(entries, kind.place)


def _drop_path(tree: MappingNode, path: KeyPath) -> MappingNode:
    first, *rest = path
    entry = tree.entries[first]
    if not rest:
        return MappingNode({key: each for key, each in tree.entries.items() if key != first}, tree.place)
    assert isinstance(entry.value, MappingNode)
    return MappingNode({**tree.entries, first: Entry(entry.key, _drop_path(entry.value, tuple(rest)))}, tree.place)


def _number_at(tree: MappingNode, *path: str) -> float | int | None:
    found = tree_at(tree, path)
    value = to_plain(found) if found is not None else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
