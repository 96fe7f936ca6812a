"""The figures of a graph that are compared with a GGUF file: those that an import compares, and three more.

The three are the kind of norm that an eps belongs to, whether branches are parallel, and how rope rotates a head: its
width and its table. A figure that no part has is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from blockc.importing.figures import figures_by_layer, gather
from blockc.ir import Fact, Function, Node, ancestors_of, callee_of, inline, layers_of
from blockc.ops import Attention, LatentAttention, LayerNorm, RmsNorm, Rotary, RotaryTable
from blockc.ops.base import Activation

Facts = Mapping[str, frozenset[Fact]]
OF_MODEL = (
    "vocab", "width", "depth", "embedding.scale", "head.scale", "head.softcap", "norm.eps of rms", "norm.eps of layer",
)  # fmt: skip
OF_LAYERS = (
    "attention.heads", "attention.kv_heads", "attention.head_dim", "attention.scale", "attention.softcap",
    "attention.window", "attention.alibi.max_bias", "attention.clip", "mlp.width", "activation",
    "parallel branches", "residual_scale", "norm.eps of rms", "norm.eps of layer",
)  # fmt: skip


@dataclass(frozen=True)
class Rotation:
    """How rope rotates queries and keys: its table, and how many coordinates of a head it rotates."""

    table: RotaryTable
    width: int


@dataclass(frozen=True)
class LayerFigures:
    facts: Facts
    rotations: frozenset[Rotation]

    @property
    def windows(self) -> frozenset[Fact]:
        return self.facts["attention.window"]


@dataclass(frozen=True)
class Figures:
    model: Facts
    layers: tuple[LayerFigures, ...]


def figures_of(root: Function) -> Figures:
    found, calls = figures_by_layer(root), layers_of(root)
    flat = {layer: inline(layer) for layer in dict.fromkeys(map(callee_of, calls))}
    own = {layer: gather([*_norm_facts(inner.nodes), *_branch_facts(inner)]) for layer, inner in flat.items()}
    model = _select_facts(OF_MODEL, found[None] | gather(_norm_facts(root.nodes)))
    each = (
        LayerFigures(
            _select_facts(OF_LAYERS, found[i] | own[callee_of(call)]),
            frozenset(_rotations(call, flat[callee_of(call)])),
        )
        for i, call in enumerate(calls)
    )
    return Figures(model, tuple(each))


def _norm_facts(nodes: Iterable[Node]) -> Iterator[tuple[str, Fact]]:
    for n in nodes:
        if isinstance(n.op, RmsNorm | LayerNorm):
            yield f"norm.eps of {'rms' if isinstance(n.op, RmsNorm) else 'layer'}", n.op.eps


def _branch_facts(layer: Function) -> Iterator[tuple[str, Fact]]:
    """Whether no MLP of the layer reads the output of an attention of it; nothing for a layer without both."""
    attentions = {n for n in layer.nodes if isinstance(n.op, Attention | LatentAttention)}
    activated = [n for n in layer.nodes if isinstance(n.op, Activation)]
    if attentions and activated:
        yield "parallel branches", not attentions & ancestors_of(activated)


def _rotations(call: Node, layer: Function) -> Iterator[Rotation]:
    given = dict(zip(layer.inputs, call.inputs, strict=True))
    for n in layer.nodes:
        if isinstance(n.op, Rotary) and isinstance(table := given[n.inputs[1].node].node.op, RotaryTable):
            yield Rotation(table, n.op.width)


def _select_facts(known: tuple[str, ...], found: Mapping[str, set[Fact]]) -> Facts:
    return {key: frozenset(found.get(key, {None})) for key in known}
