"""One of the two specs of a comparison: its model, and the places of its keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from blockc.basics.floats import FloatType, format_of
from blockc.graph.target import Target
from blockc.ir import Function, Node, callee_of, is_call, layers_of, parameters_of
from blockc.language.algebra import Leaf, canonical_form, leaves_of
from blockc.language.parts import PARTS
from blockc.language.spec import Layer, dump_keys
from blockc.layouts import load_layout
from blockc.pipeline.compiled import Compiled
from blockc.report import make_report
from blockc.source import Place, key_place, tree_at
from blockc.weights.rules import Rule, group_sizes, rules

KeyPath = tuple[str, ...]
TOP = ("vocab", "width", "context", "embedding", "positions", "head", "pool")  # keys of the model as a whole


@dataclass(frozen=True, eq=False)
class Side:
    """A spec's text and its model; of a build's folder also what it is built for."""

    file: str
    text: bytes
    model: Compiled
    target: Target | None = None  # of a build's folder

    def stored(self, dtype: FloatType) -> dict[str, str]:
        """How each matrix that a recipe may quantise is stored, by path; in floats as `dtype`."""
        quant = self.target.quant if self.target else None
        chosen = {path: quant.blocks_for(names) if quant else None for path, names in self.model.readers.items()}
        return {path: str(blocks or dtype) for path, blocks in chosen.items()}

    def weights(self, dtype: FloatType) -> int:
        """Bytes of all weights, those in floats as `dtype`."""
        if self.target is not None and self.target.quant is not None:
            return self.model.storage(self.target.quant, dtype).bytes
        return sum(format_of(param.dtype, dtype).size(param.size) for param in parameters_of(self.function).values())

    @property
    def function(self) -> Function:
        return self.model.function

    @cached_property
    def calls(self) -> tuple[Node, ...]:
        """The layers, first to last."""
        return layers_of(self.function)

    @cached_property
    def slots(self) -> dict[str, Slot]:
        return {slot.path: slot for slot in _slots(self.function, "")}

    @cached_property
    def tensors(self) -> dict[str, Rule]:
        """The tensors of a checkpoint in the spec's layout, by name. Raises LayoutError if the layout does not fit."""
        name = self.model.spec.top.checkpoint
        if name is None:
            return self.plain
        return {rule.name: rule for rule in rules(load_layout(name), self.function, group_sizes(self.function))}

    @cached_property
    def plain(self) -> dict[str, Rule]:
        """The tensors under the names of the parameters."""
        held = parameters_of(self.function).items()
        return {path: Rule(path, (path,), 1, 0, False, (param.shape,), dtype=param.dtype) for path, param in held}

    @cached_property
    def ports(self) -> dict[str, str]:
        """The types of the served graph's inputs and outputs, by name."""
        served = self.model.served
        return {n.name: str(n.types[0]) for n in served.inputs} | {name: str(v.type) for name, v in served.outputs}

    @cached_property
    def figures(self) -> dict[str, int]:
        """Figures at the spec's context: FLOPs of the last token, bytes in bf16."""
        made = make_report(self.model.spec, self.model.decoder, self.function)
        return {
            "context": made.context,
            "parameters": made.parameters.total,
            "FLOPs per token": made.flops.per_token,
            "cache bytes per token": made.kv_cache.bytes_per_token,
        }

    @cached_property
    def meaning(self) -> dict[str, Any]:
        """The meaning of the keys of the model as a whole, from the algebra."""
        decoder = self.model.decoder
        said = {k: v for k, v in canonical_form(decoder).items() if k in TOP} | {"depth": len(self.calls)}
        return said | ({"norm": dump_keys(decoder.final_norm)} if decoder.final_norm else {})

    def layer(self, i: int) -> Layer:
        return self.model.spec.layers[i]

    def leaf(self, i: int, label: str) -> Leaf | None:
        """The part with this label in layer i."""
        return next((leaf for leaf in leaves_of(self.model.decoder.layers[i]) if leaf.label == label), None)

    def leaves(self, i: int) -> list[Leaf]:
        return list(leaves_of(self.model.decoder.layers[i]))

    def place(self, path: KeyPath, i: int | None = None, label: str = "") -> Place | None:
        """The place of a key, among layer i's keys if i is given; None if the key is not written."""
        tree = self.model.spec.tree if i is None else self.layer(i).tree
        own = () if i is None or label not in self.layer(i).keys.own_labels else ("parts", label, *path)
        return next((key_place(tree, p) for p in (own, path) if p and tree_at(tree, p) is not None), None)


@dataclass(frozen=True)
class Slot:
    """A parameter of a node, under its own name or tied to another."""

    path: str
    shape: tuple[int, ...]
    tied: str | None
    node: Node


def _slots(function: Function, prefix: str) -> Iterator[Slot]:
    for n in function.nodes:
        if is_call(n):
            yield from _slots(callee_of(n), f"{prefix}{n.name}.")
        for own, param in zip(n.op.params(), n.params, strict=True):
            name = f"{n.name}.{own.name}"
            yield Slot(prefix + name, param.shape, None if param.name == name else prefix + param.name, n)


# Keys that differ


@dataclass(frozen=True)
class Key:
    """A key whose meaning differs, derived values included; the place is in B, or in A if only A has the key."""

    name: str
    before: Any
    after: Any
    place: Place | None

    @property
    def is_written(self) -> bool:
        """Whether the key is written in a spec, not derived from other keys."""
        return self.place is not None

    @property
    def size(self) -> bool:
        return type(self.before) is int and type(self.after) is int


def part_keys(a: Side, b: Side, i: int, label: str, label_b: str) -> list[Key]:
    """The keys in which a part of layer i differs."""
    left, right = a.leaf(i, label), b.leaf(i, label_b)
    if left is None or right is None:
        return []
    key = _key_of(right)
    if type(left.part) is not type(right.part):
        return [Key(f"parts.{label_b}", _key_of(left), key, b.place(("parts", label_b), i))]
    return [
        Key(".".join((key, *path)), before, after,
            b.place((key, *path), i, label_b) or a.place((key, *path), i, label))
        for path, before, after in differences(dump_keys(left.part), dump_keys(right.part))
    ]  # fmt: skip


def _key_of(leaf: Leaf) -> str:
    return next(key for key, class_ in PARTS.items() if type(leaf.part) is class_)


def top_keys(a: Side, b: Side) -> list[Key]:
    """The differing keys of the model as a whole, and of the final norm if both have one."""
    return [
        Key(".".join(path), before, after, b.place(path) or a.place(path))
        for path, before, after in differences(a.meaning, b.meaning)
        if path != ("norm",)
    ]


def differences(a: Mapping[str, Any], b: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any, Any]]:
    """(Path, before, after) of each differing value; a mapping that only one side has is one value."""
    for key in dict.fromkeys((*a, *b)):
        before, after = a.get(key), b.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from differences(before, after, (*path, key))  # type: ignore[arg-type]
        elif before != after:
            yield (*path, key), before, after


def spell(value: object) -> str:
    """A value as written in a spec."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case float():
            return f"{value:.12g}"
        case dict():
            return "{" + ", ".join(f"{k}: {spell(v)}" for k, v in value.items()) + "}"  # type: ignore[misc]
        case list() | tuple():
            return "[" + ", ".join(map(spell, value)) + "]"  # type: ignore[arg-type]
        case _:
            return str(value)
