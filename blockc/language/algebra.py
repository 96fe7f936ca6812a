"""The block algebra: chains, residuals, sums and factors over labelled parts. The short words become these terms.

    pre-norm = residual(attention_norm, attention), residual(mlp_norm, mlp)

`elaborate` gives the same tree for a spec that uses a word and for one that writes out its term.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from blockc.diagnostics.meaning import LABEL, LABEL_TWICE, NO_SUCH_PART, PART_ABSENT, TERM, UNREAD
from blockc.diagnostics.words import OUT_OF_RANGE
from blockc.language.parts import PARTS, Attention, Classifier, Head, Learned, Norm, Part, Pool, Sine
from blockc.language.parts.dense import Dense
from blockc.language.parts.numbers import fp32_fault
from blockc.language.spec import (
    BlockAttention,
    KvReading,
    Layer,
    Rsqrt,
    Spec,
    SpecFaults,
    dump_keys,
    find_kv_readings,
    key_of,
    read_own_part,
)
from blockc.language.spec.faults import describe_value, from_problem, join_path
from blockc.language.spec.labels import label_fault
from blockc.source import (
    Finding,
    MappingNode,
    Place,
    ScalarNode,
    SequenceNode,
    SpecError,
    Tree,
    find,
    finding,
    key_place,
    map_all,
    to_plain,
    tree_at,
)
from blockc.source import suggest as nearest

_TERM = "a label, {residual: [...]}, {sum: [[...], [...]]} or {scale: x}"
_CHAIN = "[term, term, ...]"
_LATER = ("product",)


@dataclass(frozen=True)
class Leaf:
    """A label: one set of parameters at layers.N.<label>, made by its part."""

    label: str
    part: Part
    place: Place | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Chain:
    """Each term reads the output of the one before it."""

    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Residual:
    """x + body(x)"""

    body: Chain


@dataclass(frozen=True)
class Sum:
    """The sum of branches that all read the same x."""

    branches: tuple[Chain, ...]


@dataclass(frozen=True)
class Scaled:
    """factor * x"""

    factor: float


Term = Leaf | Chain | Residual | Sum | Scaled


@dataclass(frozen=True)
class Decoder:
    """The meaning of a spec: every derived value is written out, every word replaced by its term."""

    vocab: int
    width: int
    context: int
    scale: float | None
    positions: Learned | Sine | None
    kinds: tuple[str, ...] = field(compare=False)
    layers: tuple[Chain, ...] = ()
    readings: tuple[KvReading, ...] = ()
    final_norm: Norm | None = None
    embedding_width: int | None = None
    embedding_norm: Norm | None = None
    segments: int | None = None
    head: Head | Classifier | None = None
    pool: Pool | None = None

    def __repr__(self) -> str:
        return f"<Decoder of {len(self.layers)} layers, {self.width} wide>"

    @property
    def semantic_hash(self) -> str:
        """sha256 of the meaning: equal for specs of the same function in other words."""
        return hashlib.sha256(json.dumps(canonical_form(self), sort_keys=True).encode()).hexdigest()


def elaborate(spec: Spec) -> Decoder:
    """The meaning of a spec. Raises SpecError where a term is wrong."""
    top, embedding = spec.top, spec.top.embedding
    terms = dict(map_all(lambda layer: (layer.kind, _layer_term(layer, top.width, top.context)), spec.distinct))
    found, unlent = find_kv_readings(
        spec, {layer.kind: _attentions_of(layer, terms[layer.kind]) for layer in spec.distinct}
    )
    if faults := [*_unread_parts(spec, terms), *_unread_keys(spec, terms), *unlent]:
        raise SpecError(faults)
    return Decoder(
        vocab=top.vocab,
        width=top.width,
        context=top.context,
        scale=_embedding_scale(spec),
        embedding_width=embedding.width if embedding else None,
        embedding_norm=embedding.norm.resolve(top.width) if embedding and embedding.norm else None,
        positions=top.positions,
        kinds=tuple(layer.kind for layer in spec.layers),
        layers=tuple(terms[layer.kind] for layer in spec.layers),
        readings=found,
        final_norm=spec.final_norm.part.resolve(top.width) if spec.final_norm else None,
        segments=embedding.segments if embedding else None,
        head=_resolve_head(spec),
        pool=top.pool.resolve(top.width) if top.pool else None,
    )


def find_term_faults(error: SpecFaults) -> list[Finding]:
    """Faults in the terms of the layers that could be read, for a spec that is wrong elsewhere."""
    if error.sizes is None:
        return []
    found: list[Finding] = []
    for layer in error.sound:
        try:
            _layer_term(layer, *error.sizes)
        except SpecError as fault:
            found += fault.findings
    return list(dict.fromkeys(found))


def _resolve_head(spec: Spec) -> Head | Classifier | None:
    """The head; its transform is as wide as what the head reads."""
    top, head = spec.top, spec.top.head
    if head is None or head.transform is None:
        return head
    wide = top.embedding.width if top.embedding and isinstance(head, Head) else None
    return head.model_copy(update={"transform": head.transform.resolve(wide or top.width)})


def _embedding_scale(spec: Spec) -> float | None:
    scale = spec.top.embedding.scale if spec.top.embedding else None
    match scale:
        case Rsqrt(rsqrt=number):
            return 1 / math.sqrt(number)
        case "sqrt_width":
            return math.sqrt(spec.top.width)
        case _:
            return scale


def leaves_of(term: Term) -> Iterator[Leaf]:
    match term:
        case Leaf():
            yield term
        case Chain(terms):
            for inner in terms:
                yield from leaves_of(inner)
        case Residual(body):
            yield from leaves_of(body)
        case Sum(branches):
            for branch in branches:
                yield from leaves_of(branch)
        case Scaled():
            pass


def _attentions_of(layer: Layer, term: Term) -> list[BlockAttention]:
    found: list[BlockAttention] = []
    for leaf in leaves_of(term):
        if isinstance(leaf.part, Attention):
            own = leaf.label in layer.keys.own_labels
            tree, where = (read_own_part(layer, leaf.label).tree, ()) if own else (layer.tree, ("attention",))
            found.append(BlockAttention(leaf.label, leaf.part, tree, where))
    return found


# Reading a term


def _layer_term(layer: Layer, width: int, context: int) -> Chain:
    reader = _TermReader(layer, width, context)
    if layer.keys.block is not None:
        return reader.chain(find(layer.tree, ("block",)))
    return reader.chain_of_words(layer.term)


class _TermReader:
    """Reads one layer's term. A label may stand in it once."""

    def __init__(self, layer: Layer, width: int, context: int) -> None:
        self.layer, self.width, self.context = layer, width, context
        self.seen: dict[str, Place] = {}

    def chain(self, tree: Tree) -> Chain:
        """A chain in a chain is the longer chain."""
        if not isinstance(tree, SequenceNode) or not tree.items:
            raise SpecError(
                [finding(TERM, tree.place, "not a chain of terms", expected=_CHAIN, got=describe_value(tree))]
            )
        terms = map_all(self.term, tree.items)
        return Chain(tuple(inner for term in terms for inner in (term.terms if isinstance(term, Chain) else (term,))))

    def term(self, tree: Tree) -> Term:
        match tree:
            case ScalarNode(value=str() as label):
                return self.leaf(label, tree.place)
            case SequenceNode():
                return self.chain(tree)
            case MappingNode(entries={"residual": entry, **rest}) if not rest:
                return Residual(self.chain(entry.value))
            case MappingNode(entries={"sum": entry, **rest}) if not rest:
                return self.sum(entry.value)
            case MappingNode(entries={"scale": entry, **rest}) if not rest:
                return self.scale(entry.value)
            case _:
                words = list(tree.entries) if isinstance(tree, MappingNode) else []
                hint = f"{words[0]} is kept for a later version" if words and words[0] in _LATER else ""
                raise SpecError(
                    [finding(TERM, tree.place, "not a term", expected=_TERM, got=describe_value(tree), hint=hint)]
                )

    def sum(self, tree: Tree) -> Sum:
        if not isinstance(tree, SequenceNode) or len(tree.items) < 2:
            expected = "[[...], [...]]"
            message = "a sum has two branches or more"
            raise SpecError([finding(TERM, tree.place, message, expected=expected, got=describe_value(tree))])
        return Sum(tuple(map_all(self.chain, tree.items)))

    def scale(self, tree: Tree) -> Scaled:
        factor = to_plain(tree)
        if isinstance(factor, bool) or not isinstance(factor, int | float) or factor <= 0:
            message = "a scale is one factor"
            raise SpecError([finding(TERM, tree.place, message, expected="a number above 0", got=describe_value(tree))])
        if expected := fp32_fault(factor):
            message = "scale: a factor that fp32 does not hold"
            raise SpecError([finding(OUT_OF_RANGE, tree.place, message, expected=expected, got=describe_value(tree))])
        return Scaled(float(factor))

    def chain_of_words(self, words: list[Any]) -> Chain:
        """A term of norm.placement; its places are those of the keys that it names."""
        return Chain(tuple(map_all(self._word, words)))

    def _word(self, word: Any) -> Term:
        if isinstance(word, str):
            key = "norm" if word.endswith("_norm") else word
            return self.leaf(word, self.layer.place(key))
        ((kind, body),) = word.items()
        if kind == "residual":
            return Residual(self.chain_of_words(body))
        if kind == "scale":
            return Scaled(float(body))
        return Sum(tuple(map_all(self.chain_of_words, body)))

    def leaf(self, label: str, place: Place) -> Leaf:
        if reason := label_fault(label):
            message = f"{label} cannot be a label"
            raise SpecError([finding(LABEL, place, message, expected="another label", hint=reason)])
        if label in self.seen:
            hint = "a label is one set of parameters; sharing or copying them would be a guess"
            raise SpecError([finding(LABEL_TWICE, place, f"label {label} stands twice in one block",
                                     expected="another label",
                                     hint=hint, others=[("first here", self.seen[label])])])  # fmt: skip
        self.seen[label] = place
        return Leaf(label, self._part(label, place).resolve(self.width), place)

    def _part(self, label: str, place: Place) -> Part:
        keys = self.layer.keys
        if label in keys.own_labels:
            return self._own_part(label)
        key = key_of(label)
        if key is None:
            known = [*PARTS, "attention_norm", "mlp_norm", *keys.own_labels]
            near = nearest(label, known)
            raise SpecError([finding(NO_SUCH_PART, place, f"no part is called {label}", got=label,
                                     expected=f"{', '.join(PARTS)}, a label of parts, or one that ends in _norm",
                                     hint=f"did you mean {near}?" if near else "")])  # fmt: skip
        part = keys.part(key)
        if part is None:
            message = f"the block names {label}, and there is no {key}"
            raise SpecError([finding(PART_ABSENT, place, message, expected=f"{key}: {{...}}")])
        return part

    def _own_part(self, label: str) -> Part:
        own = read_own_part(self.layer, label)
        name = f"parts.{label}.{own.key}"
        if problems := list(own.part.problems(self.width, self.context)):
            raise SpecError(from_problem(problem, own.tree, (), name) for problem in problems)
        return own.part


# A key or part that no layer reads is refused: it would suggest an effect that it does not have.


def _unread_parts(spec: Spec, terms: dict[str, Chain]) -> Iterator[Finding]:
    """Findings for labels of `parts` that no kind's block names."""
    unread: dict[Place, str] = {}
    read: set[Place] = set()
    for layer in spec.distinct:
        named = {leaf.label for leaf in leaves_of(terms[layer.kind])}
        for label in sorted(layer.keys.own_labels):
            place = layer.place("parts", label)
            read |= {place} if label in named else set()
            unread[place] = label
    for place, label in unread.items():
        if place not in read:
            yield finding(UNREAD, place, f"part {label} stands in no block", hint="name it in a block, or leave it out")


def _unread_keys(spec: Spec, terms: dict[str, Chain]) -> Iterator[Finding]:
    """The keys of parts at the top and in each kind, where no layer has such a part."""
    parts = {kind: {type(leaf.part) for leaf in leaves_of(term)} for kind, term in terms.items()}
    for where, kinds in _key_levels(spec):
        for key, class_ in PARTS.items():
            path = (*where, key)
            final = path == ("norm",) and spec.final_norm is not None
            if (
                final
                or any(class_ in parts[kind] for kind in kinds)
                or not isinstance(tree_at(spec.tree, path), MappingNode)
            ):
                continue
            yield finding(UNREAD, key_place(spec.tree, path), f"{join_path(path)} is read by no layer",
                          hint="name it in a block, or leave it out")  # fmt: skip


def _key_levels(spec: Spec) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """(The path at which keys of layers are written, the kinds that they affect.)"""
    yield (), list(spec.kinds)
    for name in spec.top.layers.kinds if spec.top.layers else ():
        yield ("layers", "kinds", name), [kind for kind in spec.kinds if name in kind.split("+")]


# Terms as data


def canonical_form(value: object) -> Any:
    """Terms as plain data: what `show --expanded` prints and the semantic hash covers."""
    match value:
        case Decoder():
            blocks: list[Any] = []  # kinds that differ only in name are one
            known: dict[int, int] = {}
            for chain in {id(chain): chain for chain in value.layers}.values():
                form = canonical_form(chain)
                blocks += [form] if form not in blocks else []
                known[id(chain)] = blocks.index(form)
            return {
                "vocab": value.vocab,
                "width": value.width,
                "context": value.context,
                "embedding": {"scale": value.scale,
                              **_drop_absent(width=value.embedding_width, segments=value.segments,
                                             norm=value.embedding_norm)},
                "positions": canonical_form(value.positions),
                "blocks": {str(i): form for i, form in enumerate(blocks)},
                "layers": [str(known[id(chain)]) for chain in value.layers],
                **_drop_absent(kv_from={f"{r.layer}.{r.label}": r.source for r in value.readings} or None),
                "final_norm": canonical_form(value.final_norm),
                "head": canonical_form(value.head),
                **_drop_absent(pool=value.pool),
            }  # fmt: skip
        case Head():
            optional = _drop_absent(bias=value.bias or None, scale=value.scale, transform=value.transform)
            return {"tied": value.tied, **optional, "softcap": value.softcap}
        case Classifier():
            return {"classes": value.classes, **_drop_absent(bias=value.bias or None, transform=value.transform)}
        case Leaf():
            key = next(key for key, class_ in PARTS.items() if type(value.part) is class_)
            said = canonical_form(value.part)
            if said.get("kv_from"):  # which layer that is, is said of each layer; what its kind is called means nothing
                said["kv_from"] = True
            return {value.label: {key: said}}
        case Chain():
            return [canonical_form(term) for term in value.terms]
        case Residual():
            return {"residual": canonical_form(value.body)}
        case Sum():
            return {"sum": [canonical_form(branch) for branch in value.branches]}
        case Scaled():
            return {"scale": value.factor}
        case Part() | Learned() | Sine() | Dense() | Pool():
            return dump_keys(value)
        case _:
            return value


def _drop_absent(**keys: object) -> dict[str, Any]:
    """The keys whose value is not None, in canonical form."""
    return {key: canonical_form(value) for key, value in keys.items() if value is not None}
