"""Algebra to graph: the root function, its layers, and the values that are made once and passed into them.

`build_graph` does not know the target: caches, last-token logits and fusions are passes over its result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import chain, count

from blockc.graph.contract import HIDDEN, IDS, LOGITS, MASK, POOLED, POSITIONS, SEGMENTS
from blockc.ir import (
    B,
    Call,
    Function,
    GraphError,
    Input,
    Interner,
    Node,
    S,
    Value,
    apply,
    callee_of,
    is_call,
    node,
    tensor,
    transform,
)
from blockc.language.algebra import Chain, Decoder, Leaf, Residual, Scaled, Sum, Term, leaves_of
from blockc.language.parts import Attention, Classifier, Head, Lent, Norm, Piece, Request, Scope, Shared
from blockc.ops import Add, Embed, FirstRow, KeyPositions, Linear, Longest, QueryPositions, Scale, Softcap
from blockc.source import Place


def build_graph(decoder: Decoder) -> Function:
    """The root function of input_ids, attention_mask and position_ids, all (B, S), and token_type_ids with segments.

    It gives logits (B, S, vocab) or (B, S, classes), behind a pool (B, classes). Without a head it gives
    last_hidden_state (B, S, width), and with a pool pooled (B, D).
    """
    pieces = _Layers(decoder).pieces
    root = _Root(decoder)
    for asked in dict.fromkeys(asked for piece in pieces for asked in piece.asks):
        if isinstance(asked, Shared):
            root.share(asked)
    x = root.stream()
    for i, piece in enumerate(pieces):
        x = root.layer(piece, x, i)
    if decoder.final_norm is not None:
        x = decoder.final_norm.expand(Scope(decoder.width), x, "final_norm", None)
    return Function("Model", root.inputs, root.outputs(x), causal=_is_causal(decoder))


def _is_causal(decoder: Decoder) -> bool:
    """Whether each token's logits of the vocabulary depend on it and earlier tokens alone."""
    parts = (leaf.part for term in {id(t): t for t in decoder.layers}.values() for leaf in leaves_of(term))
    return isinstance(decoder.head, Head) and all(part.causal for part in parts if isinstance(part, Attention))


def _place_of(chain: Chain) -> Place | None:
    return next((leaf.place for leaf in leaves_of(chain)), None)


class _Root:
    """The root function while it is built: its inputs and the values that layers share."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        ids = Input(tensor("int", B, S), token_axis=1)
        segments = (SEGMENTS,) if (decoder.segments or 1) > 1 else ()
        self.inputs = tuple(
            Node(replace(ids, grows=1) if name == MASK else ids, (), name) for name in (IDS, MASK, POSITIONS, *segments)
        )
        self.named: dict[str, Value] = {n.name: n[0] for n in self.inputs}
        self.shared: dict[Shared, tuple[Value, ...]] = {}
        self.sources = {(reading.layer, reading.label): reading.source for reading in decoder.readings}
        self.lent: dict[tuple[int, Lent], tuple[Value, ...]] = {}

    def position(self, name: str) -> Value:
        """A root value by name. Positions and the call's length are made when a mask or table first needs them."""
        if name not in self.named:
            ids, mask, places = (self.named[each] for each in (IDS, MASK, POSITIONS))
            made = {
                "queries_at": (QueryPositions(), mask, ids),
                "keys_at": (KeyPositions(), mask),
                "length": (Longest(), places),
            }
            op, *operands = made[name]
            self.named[name] = apply(op, *operands, name=name)
        return self.named[name]

    def share(self, shared: Shared) -> None:
        taken = {value.node.name for values in self.shared.values() for value in values}
        base = shared.label
        name = next(n for n in chain([base], (f"{base}_{i}" for i in count(2))) if n not in taken)
        made = node(shared.op, *(self.position(read) for read in shared.reads), name=name)
        self.shared[shared] = tuple(made[i] for i in range(len(made.types)))

    def stream(self) -> Value:
        """Look up, project, scale, add segments and positions, norm."""
        decoder = self.decoder
        wide = decoder.embedding_width or decoder.width
        self.table = node(Embed(decoder.vocab, wide), self.named[IDS], name="embedding")
        x = self.table[0]
        if wide != decoder.width:
            x = apply(Linear(wide, decoder.width), x, name="project_in")
        if decoder.scale is not None:
            x = apply(Scale(decoder.scale), x, name="scaled_embedding")
        if SEGMENTS in self.named:
            rows = apply(Embed(decoder.segments or 0, decoder.width), self.named[SEGMENTS], name="segments")
            x = apply(Add(), x, rows, name="with_segments")
        elif decoder.segments:
            x = apply(FirstRow(decoder.width), x, name="segments")
        if decoder.positions is not None:
            x = decoder.positions.add(x, self.named[POSITIONS], decoder.context)
        if decoder.embedding_norm is not None:
            x = decoder.embedding_norm.expand(Scope(decoder.width), x, "embedding_norm", None)
        return x

    def layer(self, piece: Piece, x: Value, index: int) -> Value:
        given = [value for asked in piece.asks for value in self._values_for(asked, index)]
        name, place = f"layers.{index}", _place_of(self.decoder.layers[index])
        made = node(Call(piece.function), x, *given, name=name, place=place)
        self.lent |= {(index, lent): values for lent, values in piece.lent_values(made).items()}
        return made[0]

    def _values_for(self, asked: Request, index: int) -> tuple[Value, ...]:
        """Values shared by all layers, or lent by the layer whose keys and values this one reads."""
        if isinstance(asked, Shared):
            return self.shared[asked]
        return self.lent[self.sources[index, asked.label], asked]

    def outputs(self, x: Value) -> tuple[tuple[str, Value], ...]:
        """What the model gives, by name."""
        head, pool = self.decoder.head, self.decoder.pool
        pooled = pool.expand(x, self.named[MASK]) if pool else None
        match head:
            case Head():
                return ((LOGITS, self.vocabulary(head, x)),)
            case Classifier():
                read = pooled or x
                if head.transform:
                    read = head.transform.expand(read, "transform")
                width = read.type.shape[-1].value or 0
                return ((LOGITS, apply(Linear(width, head.classes, bool(head.bias)), read, name="head")),)
            case None:
                return ((HIDDEN, x), *(((POOLED, pooled),) if pooled else ()))

    def vocabulary(self, head: Head, x: Value) -> Value:
        """Logits of the vocabulary. A tied head shares the embedding's Param; a bias is its own."""
        wide = self.decoder.embedding_width or self.decoder.width
        if head.transform:
            x = head.transform.expand(x, "transform")
        elif wide != self.decoder.width:
            x = apply(Linear(self.decoder.width, wide), x, name="project_out")
        op = Linear(wide, self.decoder.vocab, bool(head.bias))
        made = node(op, x, name="head")
        if head.tied:
            made = node(op, x, name="head", params=(*self.table.params, *made.params[1:]))
        logits = made[0]
        if head.scale is not None:
            logits = apply(Scale(head.scale), logits, name="scaled_logits")
        if head.softcap is not None:
            logits = apply(Softcap(head.softcap), logits, name="capped_logits")
        return logits


@dataclass
class _Layers:
    """Each layer's function. Equal ones are one object, others get names of their own."""

    decoder: Decoder
    intern: Interner = field(default_factory=Interner)

    @property
    def pieces(self) -> list[Piece]:
        made: dict[object, Piece] = {}  # by the term's identity, which layers of a kind share
        pieces: list[Piece] = []
        lends: dict[int, frozenset[str]] = {}
        for reading in self.decoder.readings:
            lends[reading.source] = lends.get(reading.source, frozenset()) | {reading.label}
        for i, (term, kind) in enumerate(zip(self.decoder.layers, self.decoder.kinds, strict=True)):
            labels = lends.get(i, frozenset())
            key = id(term), kind, labels
            if key not in made:
                made[key] = self._piece(term, kind, labels)
            pieces.append(made[key])
        return pieces

    def _piece(self, chain: Chain, kind: str, lends: frozenset[str]) -> Piece:
        scope = Scope(self.decoder.width, lends)
        try:
            out = _expand(chain, scope, scope.x[0])
        except GraphError as error:
            raise GraphError(
                f"layer kind {kind}: {error}", error.place, expected=error.expected, got=error.got
            ) from None
        piece = scope.close("Layer", out, steps_of(chain))
        return replace(piece, function=self._intern(piece.function, kind))

    def _intern(self, function: Function, kind: str) -> Function:
        """Interns from the inside out, so that the text of every function names each callee once."""

        def rule(n: Node, inputs: tuple[Value, ...]) -> Node | None:
            return n.remake(op=Call(self._intern(callee_of(n), kind)), inputs=inputs) if is_call(n) else None

        return self.intern(transform(function, rule), kind)


def _expand(term: Term, scope: Scope, x: Value) -> Value:
    match term:
        case Leaf(label, part, place):
            return part.expand(scope, x, label, place)
        case Chain(terms):
            for inner in terms:
                x = _expand(inner, scope, x)
            return x
        case Residual(body):
            name = "after_" + _join_labels(body)
            branch = _expand(body, scope, x)
            return _add(x, branch, scope.fresh_name(name), _place_of(body))
        case Sum(branches):
            values = [_expand(branch, scope, x) for branch in branches]
            total = values[0]
            for i, value in enumerate(values[1:], 2):
                name = "_plus_".join(_main_label(branch) for branch in branches[:i])
                total = _add(total, value, scope.fresh_name(name), _place_of(branches[i - 1]))
            return total
        case Scaled(factor):
            return apply(Scale(factor), x, name=scope.fresh_name(f"scaled_{x.node.name}"), place=x.node.place)


def _add(x: Value, branch: Value, name: str, place: Place | None) -> Value:
    """x + branch. Raises GraphError where the branch is not as wide as the stream."""
    if x.type != branch.type:
        raise GraphError(
            f"{name}: the branch is not as wide as the stream",
            place,
            expected=str(x.type.shape[-1]),
            got=str(branch.type.shape[-1]),
        )
    return apply(Add(), x, branch, name=name, place=place)


def _main_label(term: Term) -> str:
    """The label that names a branch: that of its attention or MLP, else the last one."""
    labels = list(leaves_of(term))
    mixers = [leaf.label for leaf in labels if not isinstance(leaf.part, Norm)]
    return (mixers or [leaf.label for leaf in labels[-1:]] or ["scaling"])[0]


def _join_labels(body: Chain) -> str:
    sums = [term for term in body.terms if isinstance(term, Sum)]
    branches: Iterable[Term] = sums[0].branches if sums else (body,)
    return "_and_".join(_main_label(branch) for branch in branches)


def formula_of(term: Term, x: str = "x") -> str:
    """The term as a formula: x + attention(attention_norm(x)); the steps of a whole layer stand apart."""
    match term:
        case Leaf(label, _, _):
            return f"{label}({x})"
        case Chain(terms):
            for inner in terms:
                x = formula_of(inner, x)
            return x
        case Residual(body):
            return f"{x} + {formula_of(body, x)}"
        case Sum(branches):
            return " + ".join(formula_of(branch, x) for branch in branches)
        case Scaled(factor):
            return f"{factor:g} * ({x})" if " " in x else f"{factor:g} * {x}"


def steps_of(layer: Chain) -> str:
    return "; ".join(f"x = {formula_of(term)}" for term in layer.terms)
