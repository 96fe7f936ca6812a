"""CHECKPOINT: changes that break saved checkpoints: names, shapes, packing and ties of tensors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from blockc.diff.changes import Change, fold
from blockc.diff.side import Key, Side, Slot, part_keys, top_keys
from blockc.ir import Function, Node, callee_of
from blockc.source import Place
from blockc.weights.rules import Rule

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Renames:
    """Names in B of parameters of A: those of the same op at the same place of the graph."""

    paths: Mapping[str, str]

    @cached_property
    def labels(self) -> dict[str, str]:
        """Labels of B by those of A."""
        pairs = {(_split_path(old)[1], _split_path(new)[1]) for old, new in self.paths.items()}
        return {old: new for old, new in pairs if old != new}


def find_renames(a: Side, b: Side) -> Renames:
    """Pairs parameters that only one side has. Similar ones are paired in order, if both sides have as many."""
    found: list[dict[object, list[str]]] = []
    for side, other in ((a, b), (b, a)):
        found.append({})
        spots = _Spots(side)
        for path, slot in side.slots.items():
            if path not in other.slots:
                found[-1].setdefault(spots.of(slot), []).append(path)
    old, new = found
    alike = [spot for spot in old if len(old[spot]) == len(new.get(spot, ()))]
    return Renames({path: to for spot in alike for path, to in zip(old[spot], new[spot], strict=True)})


class _Spots:
    """The place of a parameter in the graph, apart from its label: what its part reads, and what reads the part."""

    def __init__(self, side: Side) -> None:
        self.layers = {n.name: callee_of(n) for n in side.calls}
        self.known: dict[Function, dict[str, object]] = {}

    def of(self, slot: Slot) -> object:
        i, label, rest = _split_path(slot.path)
        if i is None:
            return slot.path  # the root's parameters have names of their own
        function = self.layers[f"layers.{i}"]
        if function not in self.known:
            self.known[function] = _neighbours(function)
        return i, slot.node.op.name, rest, slot.shape, self.known[function][label]


def _neighbours(layer: Function) -> dict[str, object]:
    readers: dict[Node, Counter[str]] = {}
    for n in layer.nodes:
        for value in n.inputs:
            readers.setdefault(value.node, Counter())[n.op.name] += 1
    return {
        n.name: (n.op.name, n.inputs[0].node.op.name, tuple(sorted(readers.get(n, Counter()).items())))
        for n in layer.nodes
    }


def _split_path(path: str) -> tuple[int | None, str, str]:
    """(Layer, label, rest) of a path; the layer is None outside the layers."""
    found = re.fullmatch(r"layers\.(\d+)\.([^.]+)\.(.+)", path)
    if found:
        return int(found[1]), found[2], found[3]
    label, _, rest = path.partition(".")
    return None, label, rest


def compare_checkpoints(a: Side, b: Side, renamed: Renames) -> list[Change]:
    layouts = [side.model.spec.top.checkpoint for side in (a, b)]
    alike = layouts[0] == layouts[1]
    compared = _TensorComparison(a, b, renamed, *((s.tensors if alike else s.plain) for s in (a, b)))
    changes = fold(compared.changes())
    if not alike:
        key = ("checkpoint",)
        before, after = (name or "none" for name in layouts)
        note = "the layout: every tensor has another name in a file"
        changes.insert(0, Change("CHECKPOINT", "checkpoint", before, after, note, b.place(key) or a.place(key)))
    return changes


# The key that a tensor around the layers follows from, by how the tensor's name begins.
_WRITTEN_AT = {
    "embedding_norm": "embedding.norm", "embedding": "vocab", "segments": "embedding.segments",
    "positions": "positions", "final_norm": "norm", "transform": "head.transform", "head": "head",
    "dense": "pool.dense",
}  # fmt: skip


class _TensorComparison:
    def __init__(self, a: Side, b: Side, renamed: Renames, left: Mapping[str, Rule], right: Mapping[str, Rule]) -> None:
        self.a, self.b, self.renamed, self.left, self.right = a, b, renamed, left, right
        self.top = top_keys(a, b)
        self.parts: dict[tuple[object, ...], list[Key]] = {}
        self.called = {(rule.targets, rule.expert): name for name, rule in right.items()}

    def changes(self) -> Iterator[Change]:
        yield from self.whole_layers()
        depth = min(len(self.a.calls), len(self.b.calls))
        new = {name for name, rule in self.right.items() if name not in self.left and _is_within(rule, depth)}
        for name, rule in self.left.items():
            if name in self.right:
                yield from self.compare_named(name, rule, self.right[name])
            elif _is_within(rule, depth):
                targets = tuple(self.renamed.paths.get(target, target) for target in rule.targets)
                other = self.called.get((targets, rule.expert))
                if other in new:
                    new.discard(other)
                    yield self.change(name, rule, name, other, "renamed")
                else:
                    yield self.removed_change(name, rule)
        for name in (name for name in self.right if name in new):
            yield self.added_change(name, self.right[name])

    def whole_layers(self) -> Iterator[Change]:
        """One change for all layers that only one side has."""
        a, b = len(self.a.calls), len(self.b.calls)
        if a == b:
            return
        longer = self.left if a > b else self.right
        count = sum(not _is_within(rule, min(a, b)) for rule in longer.values())
        first, last = min(a, b), max(a, b) - 1
        what = f"layers.{first}" if first == last else f"layers {first} to {last}"
        said = f"{count} tensors"
        before, after = (said, None) if a > b else (None, said)
        place = next(key.place for key in self.top if key.name == "depth")
        yield Change("CHECKPOINT", what, before, after, place=place)

    def compare_named(self, name: str, a: Rule, b: Rule) -> Iterator[Change]:
        if a.shape != b.shape:
            yield self.change(name, b, str(a.shape), str(b.shape), sizes=True)
        elif (packed := _packing_text(a)) != (now := _packing_text(b)):
            yield self.change(name, b, packed, now, "its rows are others", sizes=True)

    def removed_change(self, name: str, rule: Rule) -> Change:
        slot = self.b.slots.get(rule.targets[0])
        if slot is not None and slot.tied is not None:
            after = f"tied to {_name_in_file(self.right, slot.tied)}"
            return self.change(name, rule, f"{rule.shape} of its own", after)
        return self.change(name, rule, str(rule.shape), None)

    def added_change(self, name: str, rule: Rule) -> Change:
        slot = self.a.slots.get(rule.targets[0])
        if slot is not None and slot.tied is not None:
            before = f"tied to {_name_in_file(self.left, slot.tied)}"
            return self.change(name, rule, before, f"{rule.shape} of its own")
        return self.change(name, rule, None, str(rule.shape))

    def change(
        self, name: str, rule: Rule, before: str | None, after: str | None, note: str = "", sizes: bool = False
    ) -> Change:
        return Change("CHECKPOINT", name, before, after, note, self.place(rule.targets[0], sizes))

    def place(self, path: str, sizes: bool) -> Place | None:
        """The place of the key that causes the change: of the part, of the model, or where the part is written."""
        i, label, _ = _split_path(path)
        keys = [*self.part(i, label), *self.top] if i is not None else self._of_root(label)
        keys = sorted((key for key in keys if key.is_written), key=lambda key: sizes and not key.size)
        slot = self.b.slots.get(self.renamed.paths.get(path, path)) or self.a.slots.get(path)
        if keys and (sizes or i is None or keys[0] not in self.top):
            return keys[0].place
        return (slot.node.place if slot else None) or (keys[0].place if keys else None)

    def _of_root(self, label: str) -> list[Key]:
        """The model's keys for a tensor outside the layers, the closest first."""
        near = next((key for start, key in _WRITTEN_AT.items() if label.startswith(start)), "")
        return sorted(self.top, key=lambda key: not key.name.startswith(near))

    def part(self, i: int, label: str) -> list[Key]:
        if i >= min(len(self.a.calls), len(self.b.calls)):
            return []
        back = {new: old for old, new in self.renamed.labels.items()}
        names = back.get(label, label), self.renamed.labels.get(label, label)
        key = (self.a.layer(i).kind, self.b.layer(i).kind, *names)
        if key not in self.parts:
            self.parts[key] = part_keys(self.a, self.b, i, *names)
        return self.parts[key]


def _is_within(rule: Rule, depth: int) -> bool:
    i = _split_path(rule.targets[0])[0]
    return i is None or i < depth


def _name_in_file(tensors: Mapping[str, Rule], path: str) -> str:
    return next((name for name, rule in tensors.items() if rule.targets == (path,)), path)


def _packing_text(rule: Rule) -> str:
    if len(rule.targets) == 1:
        return ""
    shapes = ", ".join(map(str, rule.shapes))
    return f"{shapes} in {rule.groups} groups" if rule.groups > 1 else shapes
