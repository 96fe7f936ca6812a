"""A tree of values to a Spec: every key read or refused, every layer's keys merged and checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from blockc.diagnostics.meaning import MANY_LAYERS, NO_POSITIONS, PLACED_NONE, TWO_SCALES, TWO_WORDS
from blockc.diagnostics.words import MISSING_KEY, VERSION, VERSION_FIRST
from blockc.parts import PARTS, Part
from blockc.source import Finding, Mapping, Place, SpecError, finding, key_place, override, plain, read
from blockc.spec.faults import from_problem, from_pydantic, shown
from blockc.spec.keys import LAYER_KEYS, PLACEMENTS, TOP_KEYS, LayerKeys, NormKeys, TopKeys, scaled
from blockc.spec.layers import Kind, lay, with_norm

M = TypeVar("M", bound=BaseModel)
MAX_DEPTH = 10_000  # layers; each is laid and checked by itself, so that more would not be answered at once


@dataclass(frozen=True)
class Layer:
    """One layer: its kind, its keys, and the tree they were read from."""

    kind: str
    keys: LayerKeys
    tree: Mapping

    def place(self, *path: str | int) -> Place:
        return key_place(self.tree, path)

    @property
    def term(self) -> list[Any]:
        """The layer's term as plain lists and mappings, whichever word it was said by."""
        if self.keys.block is not None:
            return self.keys.block
        assert self.keys.norm is not None  # _layer_faults saw to it
        assert self.keys.norm.placement is not None
        return scaled(self.keys.norm.placement, self.keys.residual_scale)


@dataclass(frozen=True)
class Spec:
    """A spec that has been read: what is said once, and what each layer is made of."""

    top: TopKeys
    layers: tuple[Layer, ...]
    final_norm: NormKeys | None
    tree: Mapping

    @property
    def name(self) -> str:
        return self.top.name

    @cached_property
    def distinct(self) -> tuple[Layer, ...]:
        """The first layer of each kind."""
        return tuple({layer.kind: layer for layer in reversed(self.layers)}.values())[::-1]

    @cached_property
    def kinds(self) -> dict[str, int]:
        """How many layers there are of each kind."""
        counts: dict[str, int] = {}
        for layer in self.layers:
            counts[layer.kind] = counts.get(layer.kind, 0) + 1
        return counts


def load(path: Path | str, assignments: tuple[str, ...] = ()) -> Spec:
    """Reads a spec file; each assignment is a `--set` such as norm.placement=post. Raises SpecError."""
    tree = read(path)
    for assignment in assignments:
        tree = override(tree, assignment)
    return from_tree(tree)


def from_tree(tree: Mapping) -> Spec:
    _version_first(tree)
    top, faults = _validated(TopKeys, _only(tree, TOP_KEYS, keep_unknown=True))
    # The layer keys are read before the faults are raised: one run shows all that is wrong.
    layers: tuple[Layer, ...] = ()
    final: NormKeys | None = None
    if top is None:
        faults += _base_faults(tree)
    else:
        if top.depth > MAX_DEPTH:
            raise SpecError([finding(MANY_LAYERS, tree.entries["depth"].value.place,
                                     "more layers than can be laid out one by one",
                                     expected=f"at most {MAX_DEPTH}", got=str(top.depth))])  # fmt: skip
        layers, more = _layers(tree, top)
        final, last = _final_norm(tree, layers)
        faults += more + last + list(_position_faults(tree, top, layers)) + list(_embedding_faults(tree, top))
    if faults or top is None:
        raise SpecError(_in_order(faults))
    return Spec(top, layers, final, tree)


def _version_first(tree: Mapping) -> None:
    if "blockc" not in tree.entries:
        hint = "it is the first line of a spec"
        raise SpecError([finding(VERSION, tree.place, "missing key blockc", expected="blockc: 1", hint=hint)])
    entry = tree.entries["blockc"]
    version, got = plain(entry.value), shown(entry.value)
    if type(version) is not int or version != 1:
        raise SpecError([finding(VERSION, entry.value.place, "unknown version of the language", expected="1", got=got)])
    if next(iter(tree.entries)) != "blockc":
        raise SpecError(
            [finding(VERSION_FIRST, entry.key, "blockc is not the first key", hint="write it on the first line")]
        )


def _only(tree: Mapping, keys: frozenset[str], keep_unknown: bool = False) -> Mapping:
    kept = {k: e for k, e in tree.entries.items() if k in keys or (keep_unknown and k not in TOP_KEYS | LAYER_KEYS)}
    return Mapping(kept, tree.place)


def _validated(model: type[M], tree: Mapping, where: tuple[str | int, ...] = ()) -> tuple[M | None, list[Finding]]:
    try:
        return model.model_validate(plain(tree)), []
    except ValidationError as error:
        return None, from_pydantic(error, model, tree, where)


def _base_faults(tree: Mapping) -> list[Finding]:
    """What is wrong with the layer keys by themselves, where the top-level ones are wrong too."""
    if "layers" in tree.entries:
        return []
    base = with_norm(_only(tree, LAYER_KEYS))
    keys, faults = _validated(LayerKeys, base)
    if keys is None:
        return faults
    width, context = _size(tree, "width"), _size(tree, "context")
    sizes = (width, context) if width and context else None
    return list(_layer_faults(Layer("layer", keys, base), sizes, tree.place))


def _size(tree: Mapping, key: str) -> int | None:
    """A top-level size, where it is one."""
    size = plain(tree.entries[key].value) if key in tree.entries else None
    return size if type(size) is int and size > 0 else None


def _layers(tree: Mapping, top: TopKeys) -> tuple[tuple[Layer, ...], list[Finding]]:
    kinds = lay(tree, top.layers, top.depth)
    made: dict[str, Layer] = {}
    faults: list[Finding] = []
    for kind in {kind.name: kind for kind in kinds}.values():
        whole = with_norm(kind.tree)
        keys, found = _validated(LayerKeys, whole)
        faults += found
        if keys is not None:
            made[kind.name] = Layer(kind.name, keys, whole)
            faults += _layer_faults(made[kind.name], (top.width, top.context), tree.place)
    if faults:
        return (), _distinct(faults)
    return tuple(made[kind.name] for kind in kinds), []


def _layer_faults(layer: Layer, sizes: tuple[int, int] | None, root: Place) -> Iterator[Finding]:
    """What is missing everywhere is missing at the root of the file. `sizes` are width and context, where known."""
    for key, part in occupants(layer.keys) if sizes else ():
        for problem in part.problems(*sizes) if sizes else ():
            yield from_problem(problem, layer.tree, (key,))
    keys, tree = layer.keys, layer.tree
    placement = keys.norm.placement if keys.norm else None
    if placement and keys.block is not None:
        yield finding(TWO_WORDS, key_place(tree, ("norm", "placement")), "norm.placement and block say the same thing",
                      expected="one of them", others=[("block is here", key_place(tree, ("block",)))])  # fmt: skip
    if keys.residual_scale is not None and keys.block is not None:
        yield finding(TWO_SCALES, layer.place("residual_scale"), "residual_scale scales the branches of a placement",
                      expected="{scale: x} in the block", others=[("block is here", layer.place("block"))])  # fmt: skip
    if placement is None and keys.block is None:
        missing = "norm.placement" if keys.norm else "norm"
        yield finding(MISSING_KEY, layer.place("norm") if "norm" in tree.entries else root, f"missing key {missing}",
                      expected=f"norm.placement, one of {', '.join(PLACEMENTS)}; or a block")  # fmt: skip
    for key in ("attention", "mlp"):
        if placement and keys.part(key) is None and key not in keys.own:
            code, place, message = MISSING_KEY, root, f"missing key {key}"
            if key in tree.entries:
                code, place = PLACED_NONE, layer.place(key)
                message = f"norm.placement {placement} places the {key}, which is none"
            yield finding(code, place, message, hint=f"for a layer without an {key}, write a block")


def occupants(keys: LayerKeys) -> Iterator[tuple[str, Part]]:
    """The parts that a layer's own keys describe."""
    for key in PARTS:
        if (part := keys.part(key)) is not None:
            yield key, part


def _final_norm(tree: Mapping, layers: tuple[Layer, ...]) -> tuple[NormKeys | None, list[Finding]]:
    """The norm after the last layer: the top-level one, and there unless norms stand after each addition."""
    if "norm" not in tree.entries or not layers:
        return None, []
    written = tree.entries["norm"].value
    norm, faults = _validated(NormKeys, written, ("norm",)) if isinstance(written, Mapping) else (None, [])
    if norm is None:
        return None, faults
    if problems := list(norm.problems(0, 0)):
        return None, [from_problem(problem, tree, ("norm",)) for problem in problems]
    placement = layers[-1].keys.norm.placement if layers[-1].keys.norm else None
    final = norm.final if norm.final is not None else placement != "post"
    return (norm if final else None), []


def _position_faults(tree: Mapping, top: TopKeys, layers: tuple[Layer, ...]) -> Iterator[Finding]:
    """How a token's place is known is always said: positions, rope, alibi, or positions: none."""
    if layers and "positions" not in tree.entries and not any(_places(layer.keys) for layer in layers):
        yield finding(NO_POSITIONS, tree.place, "nothing says where a token stands",
                      expected="positions, attention.rope or attention.alibi",
                      hint="write positions: none for a model without")  # fmt: skip


def _embedding_faults(tree: Mapping, top: TopKeys) -> Iterator[Finding]:
    if top.embedding is None:
        return
    for problem in top.embedding.problems(top.width):
        yield from_problem(problem, tree, ("embedding",))
    for problem in top.embedding.norm.problems(top.width, top.context) if top.embedding.norm else ():
        yield from_problem(problem, tree, ("embedding", "norm"))


def _places(keys: LayerKeys) -> bool:
    """Whether an attention of the layer says where its keys stand."""
    attentions: list[Any] = [part.get("attention") for part in (keys.parts or {}).values() if part]
    inherited = keys.attention is not None and (keys.attention.rope or keys.attention.alibi) is not None
    said = ((a, word) for a in attentions if isinstance(a, dict) for word in ("rope", "alibi"))
    return inherited or any(a.get(word, "none") != "none" for a, word in said)


def _distinct(faults: list[Finding]) -> list[Finding]:
    """Kinds inherit the same keys, and so the same faults."""
    return list(dict.fromkeys(faults))


def _in_order(faults: list[Finding]) -> list[Finding]:
    return sorted(_distinct(faults), key=lambda f: (f.place.file, f.place.line, f.place.column))


def written(model: BaseModel) -> dict[str, Any]:
    """A model's keys as a spec says them: absent keys left out, tuples as lists."""
    return model.model_dump(mode="json", exclude_none=True)


__all__ = ["Kind", "Layer", "Spec", "from_tree", "load", "occupants", "written"]
