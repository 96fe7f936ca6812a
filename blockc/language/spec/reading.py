"""A tree of values to a Spec: every key read or refused, every layer's keys merged and checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from blockc.diagnostics.meaning import MANY_LAYERS, NO_POSITIONS, PLACED_NONE, POOL, TWO_SCALES, TWO_WORDS
from blockc.diagnostics.words import MISSING_KEY, VERSION, VERSION_FIRST
from blockc.language.parts import PARTS, Head, Part
from blockc.language.spec.faults import (
    describe_value,
    faulty_keys,
    from_problem,
    from_pydantic,
    remove_key,
    unknown_keys,
)
from blockc.language.spec.keys import (
    LAYER_KEYS,
    PLACEMENTS,
    TOP_KEYS,
    LayerKeys,
    Layers,
    NormKeys,
    TopKeys,
    placement_term,
)
from blockc.language.spec.layers import Kind, kinds_of, lay, with_norm
from blockc.source import (
    Finding,
    MappingNode,
    Place,
    SpecError,
    Tree,
    finding,
    key_place,
    override,
    read_tree,
    to_plain,
)

M = TypeVar("M", bound=BaseModel)
Sizes = tuple[int, int]  # width and context
SAYS_POSITION = ("rope", "alibi", "relative_bias")  # keys of attention that say where a token stands
MAX_DEPTH = 10_000  # layers; each is laid and checked by itself, so that more would not be answered at once


@dataclass(frozen=True)
class Layer:
    """One layer: its kind, its keys, and the tree they were read from."""

    kind: str
    keys: LayerKeys
    tree: MappingNode

    def __repr__(self) -> str:
        return f"<Layer {self.kind}: {', '.join(sorted(self.keys.model_fields_set))}>"

    def place(self, *path: str | int) -> Place:
        return key_place(self.tree, path)

    @property
    def term(self) -> list[Any]:
        """The layer's term as plain lists and mappings, written out if the spec uses a word."""
        if self.keys.block is not None:
            return self.keys.block
        assert self.keys.norm is not None  # _layer_faults saw to it
        assert self.keys.norm.placement is not None
        return placement_term(self.keys.norm.placement, self.keys.residual_scale)


@dataclass(frozen=True)
class Spec:
    """A spec that has been read: what is said once, and what each layer is made of."""

    top: TopKeys
    layers: tuple[Layer, ...]
    final_norm: NormKeys | None
    tree: MappingNode

    def __repr__(self) -> str:
        at = self.tree.place
        return f"<Spec {self.name} of {at.file}: {len(self.layers)} layers, {self.top.width} wide>"

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
    tree = read_tree(path)
    for assignment in assignments:
        tree = override(tree, assignment)
    return from_tree(tree)


class SpecFaults(SpecError):
    """The faults in a spec's keys, and the layers without any: their terms can still be read."""

    def __init__(self, findings: list[Finding], sound: tuple[Layer, ...], sizes: Sizes | None) -> None:
        super().__init__(findings)
        self.sound, self.sizes = sound, sizes


def from_tree(tree: MappingNode) -> Spec:
    """Raises SpecFaults: one run shows all that is wrong with any key."""
    _check_version(tree)
    top, faults = _read_keys(TopKeys, _select_keys(tree, TOP_KEYS, keep_unknown=True))
    layers: tuple[Layer, ...] = ()
    final: NormKeys | None = None
    if top is None or top.depth > MAX_DEPTH or _has_unknown_list(tree):
        faults += _too_deep(tree, top.depth) if top else []
        sizes = _known_sizes(tree)
        sound, more = _check_kinds(tree, kinds_of(tree) or _one_kind(tree), sizes)
        faults += more
    else:
        sizes = top.width, top.context
        laid = lay(tree, top.layers, top.depth)
        sound, more = _check_kinds(tree, laid.kinds.values(), sizes)
        faults += [*laid.faults, *more]
        made = {layer.kind: layer for layer in sound}
        layers = tuple(made[name] for name in laid.names) if set(laid.names) <= set(made) else ()
        final, last = _read_final_norm(tree, layers)
        faults += last + [*_position_faults(tree, top, layers), *_embedding_faults(tree, top), *_end_faults(tree, top)]
    if faults or top is None:
        raise SpecFaults(_sort_findings(faults), sound, sizes)
    return Spec(top, layers, final, tree)


def _has_unknown_list(tree: MappingNode) -> bool:
    """Whether `layers` has an unknown key, which may be a misspelt list: then no list is reported missing."""
    layers = tree.entries["layers"].value if "layers" in tree.entries else None
    return isinstance(layers, MappingNode) and not set(layers.entries) <= set(Layers.model_fields)


def _too_deep(tree: MappingNode, depth: int) -> list[Finding]:
    if depth <= MAX_DEPTH:
        return []
    place, message = tree.entries["depth"].value.place, "more layers than can be laid out one by one"
    return [finding(MANY_LAYERS, place, message, expected=f"at most {MAX_DEPTH}", got=str(depth))]


def _check_version(tree: MappingNode) -> None:
    if "blockc" not in tree.entries:
        hint = "it is the first line of a spec"
        raise SpecError([finding(VERSION, tree.place, "missing key blockc", expected="blockc: 1", hint=hint)])
    entry = tree.entries["blockc"]
    version, got = to_plain(entry.value), describe_value(entry.value)
    if type(version) is not int or version != 1:
        raise SpecError([finding(VERSION, entry.value.place, "unknown version of the language", expected="1", got=got)])
    if next(iter(tree.entries)) != "blockc":
        raise SpecError(
            [finding(VERSION_FIRST, entry.key, "blockc is not the first key", hint="write it on the first line")]
        )


def _select_keys(tree: MappingNode, keys: frozenset[str], keep_unknown: bool = False) -> MappingNode:
    kept = {k: e for k, e in tree.entries.items() if k in keys or (keep_unknown and k not in TOP_KEYS | LAYER_KEYS)}
    return MappingNode(kept, tree.place)


def _validate(model: type[M], tree: MappingNode, where: tuple[str | int, ...] = ()) -> tuple[M | None, list[Finding]]:
    try:
        return model.model_validate(to_plain(tree)), []
    except ValidationError as error:
        return None, from_pydantic(error, model, tree, where)


def _read_keys(model: type[M], tree: MappingNode) -> tuple[M | None, list[Finding]]:
    """The model as far as it can be read. An unknown key is a fault, and does not hide other faults."""
    try:
        return model.model_validate(to_plain(tree)), []
    except ValidationError as error:
        faults = from_pydantic(error, model, tree)
        kept = _drop_unknown(error, tree)
        return (_validate(model, kept)[0] if kept != tree else None), faults


def _drop_unknown(error: ValidationError, tree: MappingNode) -> MappingNode:
    """The tree without unknown keys."""
    kept: Tree = tree
    for path in unknown_keys(error, tree):
        kept = remove_key(kept, path)
    assert isinstance(kept, MappingNode)
    return kept


def _one_kind(tree: MappingNode) -> tuple[Kind, ...]:
    return () if "layers" in tree.entries else (Kind("layer", _select_keys(tree, LAYER_KEYS)),)


def _known_sizes(tree: MappingNode) -> Sizes | None:
    """Width and context, where they are known though other keys are wrong."""
    width, context = _known_size(tree, "width"), _known_size(tree, "context")
    return (width, context) if width and context else None


def _known_size(tree: MappingNode, key: str) -> int | None:
    """A top-level size, where it is one."""
    size = to_plain(tree.entries[key].value) if key in tree.entries else None
    return size if type(size) is int and size > 0 else None


def _check_kinds(
    tree: MappingNode, kinds: Iterable[Kind], sizes: Sizes | None
) -> tuple[tuple[Layer, ...], list[Finding]]:
    """The layers that are sound, one a kind, and what is wrong with the others."""
    sound: list[Layer] = []
    faults: list[Finding] = []
    for kind in kinds:
        whole = with_norm(kind.tree)
        keys, found = _read_keys(LayerKeys, whole)
        layer = Layer(kind.name, keys, whole) if keys is not None else None
        wrong = list(
            _layer_faults(layer, sizes, tree.place) if layer else _part_faults(_readable_rest(kind.name, whole), sizes)
        )
        faults += [*found, *wrong]
        sound += [layer] if layer and not wrong else []
    return tuple(sound), _deduplicate(faults)


def _readable_rest(kind: str, tree: MappingNode) -> Layer:
    """A layer without the keys under which something is wrong."""
    for less in (_drop_unknown, _drop_faulty):
        try:
            return Layer(kind, LayerKeys.model_validate(to_plain(tree)), tree)
        except ValidationError as error:
            tree = less(error, tree)
    keys, _ = _validate(LayerKeys, tree)
    return Layer(kind, keys or LayerKeys(), tree)


def _drop_faulty(error: ValidationError, tree: MappingNode) -> MappingNode:
    """The tree without each of its keys under which something is wrong."""
    wrong = faulty_keys(error, tree)
    return MappingNode({key: entry for key, entry in tree.entries.items() if key not in wrong}, tree.place)


def _part_faults(layer: Layer, sizes: Sizes | None) -> Iterator[Finding]:
    """What is wrong with each part by itself, where the sizes are known."""
    for key, part in parts_of(layer.keys) if sizes else ():
        for problem in part.problems(*sizes) if sizes else ():
            yield from_problem(problem, layer.tree, (key,))


def _layer_faults(layer: Layer, sizes: Sizes | None, root: Place) -> Iterator[Finding]:
    """Faults of a layer. A key that is missing everywhere is reported at the root of the file."""
    yield from _part_faults(layer, sizes)
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
        if placement and keys.part(key) is None and key not in keys.own_labels:
            code, place, message = MISSING_KEY, root, f"missing key {key}"
            if key in tree.entries:
                code, place = PLACED_NONE, layer.place(key)
                message = f"norm.placement {placement} places the {key}, which is none"
            yield finding(code, place, message, hint=f"for a layer without an {key}, write a block")


def parts_of(keys: LayerKeys) -> Iterator[tuple[str, Part]]:
    """The parts that a layer's own keys describe."""
    for key in PARTS:
        if (part := keys.part(key)) is not None:
            yield key, part


def _read_final_norm(tree: MappingNode, layers: tuple[Layer, ...]) -> tuple[NormKeys | None, list[Finding]]:
    """The norm after the last layer: the top-level one, and there unless norms stand after each addition."""
    if "norm" not in tree.entries or not layers:
        return None, []
    written = tree.entries["norm"].value
    norm, faults = _validate(NormKeys, written, ("norm",)) if isinstance(written, MappingNode) else (None, [])
    if norm is None:
        return None, faults
    if problems := list(norm.problems(0, 0)):
        return None, [from_problem(problem, tree, ("norm",)) for problem in problems]
    placement = layers[-1].keys.norm.placement if layers[-1].keys.norm else None
    final = norm.final if norm.final is not None else placement != "post"
    return (norm if final else None), []


def _position_faults(tree: MappingNode, top: TopKeys, layers: tuple[Layer, ...]) -> Iterator[Finding]:
    """A spec always says how positions enter: positions, rope, alibi, or positions: none."""
    if layers and "positions" not in tree.entries and not any(_says_position(layer.keys) for layer in layers):
        yield finding(NO_POSITIONS, tree.place, "nothing says where a token stands",
                      expected="positions, attention.rope or attention.alibi",
                      hint="write positions: none for a model without")  # fmt: skip


def _embedding_faults(tree: MappingNode, top: TopKeys) -> Iterator[Finding]:
    if top.embedding is None:
        return
    for problem in top.embedding.problems(top.width):
        yield from_problem(problem, tree, ("embedding",))
    for problem in top.embedding.norm.problems(top.width, top.context) if top.embedding.norm else ():
        yield from_problem(problem, tree, ("embedding", "norm"))


def _end_faults(tree: MappingNode, top: TopKeys) -> Iterator[Finding]:
    """What is wrong with the head and the pool."""
    for key, part in (("head", top.head), ("pool", top.pool)):
        for problem in part.problems() if part else ():
            yield from_problem(problem, tree, (key,))
    if top.pool and isinstance(top.head, Head):
        yield finding(POOL, key_place(tree, ("pool",)), "a head of the vocabulary reads each token, and no pool",
                      expected="head: none, or a head of classes",
                      others=[("the head is here", key_place(tree, ("head",)))])  # fmt: skip


def _says_position(keys: LayerKeys) -> bool:
    """Whether an attention of the layer has rope, alibi or a relative bias."""
    attentions: list[Any] = [part.get("attention") for part in (keys.parts or {}).values() if part]
    inherited = keys.attention is not None and any(getattr(keys.attention, word) for word in SAYS_POSITION)
    said = ((a, word) for a in attentions if isinstance(a, dict) for word in SAYS_POSITION)
    return inherited or any(a.get(word, "none") != "none" for a, word in said)


def _deduplicate(faults: list[Finding]) -> list[Finding]:
    """Each fault once: kinds inherit the same keys, and so the same faults."""
    return list(dict.fromkeys(faults))


def _sort_findings(faults: list[Finding]) -> list[Finding]:
    return sorted(_deduplicate(faults), key=lambda f: (f.place.file, f.place.line, f.place.column))


def dump_keys(model: BaseModel) -> dict[str, Any]:
    """A model's keys as a spec says them: absent keys left out, tuples as lists."""
    return model.model_dump(mode="json", exclude_none=True)


__all__ = ["Kind", "Layer", "Spec", "SpecFaults", "dump_keys", "from_tree", "load", "parts_of"]
