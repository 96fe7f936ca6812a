"""The block algebra: chains, residuals and sums over labelled parts. The short words of the language become these terms.

    pre-norm = residual(attention_norm, attention), residual(mlp_norm, mlp)

`elaborate` gives the same tree for a spec said by a word and for one said by its term.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from blockc.parts import Attention, Learned, Mlp, Norm, Part, Sine
from blockc.source import Finding, Mapping, Place, Scalar, Sequence, SpecError, Tree, find, finding, key_place, plain
from blockc.source import suggest as nearest
from blockc.spec import Layer, Spec, written
from blockc.spec.faults import from_problem, from_pydantic
from blockc.spec.layers import merge

# norm.placement is sugar for these terms, and for nothing else.
PLACEMENTS: dict[str, list[Any]] = {
    "pre": [{"residual": ["attention_norm", "attention"]}, {"residual": ["mlp_norm", "mlp"]}],
    "post": [{"residual": ["attention"]}, "attention_post_norm", {"residual": ["mlp"]}, "mlp_post_norm"],
    "sandwich": [
        {"residual": ["attention_norm", "attention", "attention_post_norm"]},
        {"residual": ["mlp_norm", "mlp", "mlp_post_norm"]},
    ],
    "parallel_two": [{"residual": [{"sum": [["attention_norm", "attention"], ["mlp_norm", "mlp"]]}]}],
}


@dataclass(frozen=True)
class Leaf:
    """A label: one set of parameters at layers.N.<label>, made by its part."""

    label: str
    part: Part
    place: Place | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Chain:
    """Each term reads what the one before it gave."""

    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Residual:
    """x + body(x)"""

    body: Chain


@dataclass(frozen=True)
class Sum:
    """The sum of branches that all read the same x."""

    branches: tuple[Chain, ...]


Term = Leaf | Chain | Residual | Sum


@dataclass(frozen=True)
class Decoder:
    """What a spec means, with every derived value written out and every word replaced by its term."""

    vocab: int
    width: int
    context: int
    scale: float | None
    positions: Learned | Sine | None
    kinds: tuple[str, ...] = field(compare=False)
    layers: tuple[Chain, ...] = ()
    final_norm: Norm | None = None
    tied: bool = False
    softcap: float | None = None

    @property
    def semantic_hash(self) -> str:
        """sha256 of the meaning: equal for specs that say the same function in other words."""
        return hashlib.sha256(json.dumps(canonical(self), sort_keys=True).encode()).hexdigest()


def elaborate(spec: Spec) -> Decoder:
    """Raises SpecError where a term does not stand."""
    top = spec.top
    terms: dict[str, Chain] = {}
    for layer in spec.layers:
        if layer.kind not in terms:
            terms[layer.kind] = _layer_term(layer, top.width, top.context)
    layers = tuple(terms[layer.kind] for layer in spec.layers)
    _refuse_unused(spec, layers)
    return Decoder(
        vocab=top.vocab,
        width=top.width,
        context=top.context,
        scale=_scale(spec),
        positions=top.positions,
        kinds=tuple(layer.kind for layer in spec.layers),
        layers=layers,
        final_norm=spec.final_norm.part if spec.final_norm else None,
        tied=top.head.tied,
        softcap=top.head.softcap,
    )


def _scale(spec: Spec) -> float | None:
    scale = spec.top.embedding.scale if spec.top.embedding else None
    return math.sqrt(spec.top.width) if scale == "sqrt_width" else scale


def leaves(term: Term) -> Iterator[Leaf]:
    match term:
        case Leaf():
            yield term
        case Chain(terms):
            for inner in terms:
                yield from leaves(inner)
        case Residual(body):
            yield from leaves(body)
        case Sum(branches):
            for branch in branches:
                yield from leaves(branch)


def _layer_term(layer: Layer, width: int, context: int) -> Chain:
    reader = _Reader(layer, width, context)
    keys = layer.keys
    if keys.block is not None:
        term = reader.chain(find(layer.tree, ("block",)))
    else:
        assert keys.norm is not None and keys.norm.placement is not None  # the reader of the spec saw to it
        term = reader.chain_of_words(PLACEMENTS[keys.norm.placement])
    reader.finish()
    return term


class _Reader:
    """Reads one layer's term; every label is resolved once, and twice is refused."""

    def __init__(self, layer: Layer, width: int, context: int) -> None:
        self.layer, self.width, self.context = layer, width, context
        self.seen: dict[str, Place] = {}

    def chain(self, tree: Tree) -> Chain:
        if not isinstance(tree, Sequence) or not tree.items:
            raise SpecError([finding(tree.place, "not a chain of terms", "[label, {residual: [...]}, {sum: [[...], [...]]}]",
                                     str(plain(tree)))])  # fmt: skip
        return Chain(tuple(self.term(item) for item in tree.items))

    def term(self, tree: Tree) -> Term:
        match tree:
            case Scalar(value=str() as label):
                return self.leaf(label, tree.place)
            case Sequence():
                return self.chain(tree)
            case Mapping(entries={"residual": entry, **rest}) if not rest:
                return Residual(self.chain(entry.value))
            case Mapping(entries={"sum": entry, **rest}) if not rest:
                return self.sum(entry.value)
            case _:
                got = ", ".join(tree.entries) if isinstance(tree, Mapping) else str(plain(tree))
                raise SpecError([finding(tree.place, "not a term", "a label, residual or sum", got)])

    def sum(self, tree: Tree) -> Sum:
        if not isinstance(tree, Sequence) or len(tree.items) < 2:
            raise SpecError([finding(tree.place, "a sum has two branches or more", "[[...], [...]]")])
        return Sum(tuple(self.chain(item) for item in tree.items))

    def chain_of_words(self, words: list[Any]) -> Chain:
        """A term of PLACEMENTS, whose places are those of the keys that it stands for."""
        return Chain(tuple(self._word(word) for word in words))

    def _word(self, word: Any) -> Term:
        if isinstance(word, str):
            key = "norm" if word.endswith("_norm") else word
            return self.leaf(word, self.layer.place(key))
        ((kind, body),) = word.items()
        if kind == "residual":
            return Residual(self.chain_of_words(body))
        return Sum(tuple(self.chain_of_words(branch) for branch in body))

    def leaf(self, label: str, place: Place) -> Leaf:
        if label in self.seen:
            raise SpecError([finding(place, f"label {label} stands twice in one block", "another label", label,
                                     "a label is one set of parameters; sharing or copying them would be a guess",
                                     others=[("first here", self.seen[label])])])  # fmt: skip
        self.seen[label] = place
        return Leaf(label, self._part(label, place).resolved(self.width), place)

    def _part(self, label: str, place: Place) -> Part:
        keys = self.layer.keys
        if label in (keys.parts or {}):
            return self._own_part(label)
        known: dict[str, Part | None] = {"attention": keys.attention, "mlp": keys.mlp}
        if label in known:
            part = known[label]
            if part is None:
                raise SpecError([finding(place, f"the block names {label}, and there is no key {label}", f"{label}: ...")])
            return part
        if label == "norm" or label.endswith("_norm"):
            if keys.norm is None:
                raise SpecError([finding(place, f"the block names {label}, and there is no key norm", "norm: ...")])
            return keys.norm.part
        near = nearest(label, [*known, "attention_norm", "mlp_norm", *(keys.parts or {})])
        raise SpecError([finding(place, f"no part is called {label}", "attention, mlp, a label of parts, or one that ends in _norm",
                                 label, f"did you mean {near}?" if near else "")])  # fmt: skip

    def _own_part(self, label: str) -> Part:
        """parts: {label: {mlp: {...}}}: a variation on the layer's key of that name."""
        path = ("parts", label)
        tree = find(self.layer.tree, path)
        classes: dict[str, type[Part]] = {"attention": Attention, "mlp": Mlp, "norm": Norm}
        if not isinstance(tree, Mapping) or len(tree.entries) != 1 or next(iter(tree.entries)) not in classes:
            raise SpecError([finding(key_place(self.layer.tree, path), f"part {label} is not one of attention, mlp, norm",
                                     "{mlp: {...}}: what it changes of the key of that name")])  # fmt: skip
        ((kind, entry),) = tree.entries.items()
        base = self.layer.tree.entries.get(kind)
        value = entry.value
        if base is not None and isinstance(base.value, Mapping) and isinstance(value, Mapping):
            value = merge(Mapping({k: e for k, e in base.value.entries.items() if k in classes[kind].model_fields},
                                  base.value.place), value)  # fmt: skip
        return self._validated(classes[kind], value, (*path, kind))

    def _validated(self, model: type[Part], tree: Tree, where: tuple[str, ...]) -> Part:
        from pydantic import ValidationError

        try:
            part = model.model_validate(plain(tree))
        except ValidationError as error:
            raise SpecError(from_pydantic(error, model, tree, where)) from None
        if problems := list(part.problems(self.width, self.context)):
            raise SpecError([from_problem(p, tree, ()) for p in problems])
        return part

    def finish(self) -> None:
        for label in self.layer.keys.parts or {}:
            if label not in self.seen:
                place = key_place(self.layer.tree, ("parts", label))
                raise SpecError([finding(place, f"part {label} stands in no block", hint="name it in block, or leave it out")])


def _refuse_unused(spec: Spec, layers: tuple[Chain, ...]) -> None:
    """A key that no layer reads is a mistake: it says something that is not so."""
    used: set[type[Part]] = {type(leaf.part) for chain in set(layers) for leaf in leaves(chain)}
    faults: list[Finding] = []
    for key, kind in (("attention", Attention), ("mlp", Mlp), ("norm", Norm)):
        written_ = any(getattr(layer.keys, key) is not None for layer in {la.kind: la for la in spec.layers}.values())
        final = key == "norm" and spec.final_norm is not None
        if written_ and kind not in used and not final:
            place = key_place(spec.layers[0].tree, (key,))
            faults.append(finding(place, f"{key} is read by no layer", hint="name it in a block, or leave it out"))
    if faults:
        raise SpecError(faults)


def canonical(value: object) -> Any:
    """Terms as plain data: what `show --expanded` prints and the semantic hash covers."""
    match value:
        case Decoder():
            distinct = {chain: kind for chain, kind in reversed(list(zip(value.layers, value.kinds, strict=True)))}
            names = {chain: str(i) for i, chain in enumerate(reversed(distinct))}
            return {
                "vocab": value.vocab,
                "width": value.width,
                "context": value.context,
                "embedding": {"scale": value.scale},
                "positions": canonical(value.positions),
                "blocks": {name: canonical(chain) for chain, name in names.items()},
                "layers": [names[chain] for chain in value.layers],
                "final_norm": canonical(value.final_norm),
                "head": {"tied": value.tied, "softcap": value.softcap},
            }
        case Leaf():
            return {value.label: {type(value.part).__name__.lower(): canonical(value.part)}}
        case Chain():
            return [canonical(term) for term in value.terms]
        case Residual():
            return {"residual": canonical(value.body)}
        case Sum():
            return {"sum": [canonical(branch) for branch in value.branches]}
        case Attention() | Mlp() | Norm() | Learned() | Sine():
            return written(value)
        case _:
            return value
