"""What a graph computes with, by the spec's keys: of the model, and of each layer.

vocab, width, depth, embedding.scale, head.scale, head.softcap          of the model
attention.heads, kv_heads, head_dim, scale, softcap, window,
attention.alibi.max_bias, mlp.width, activation, parallel branches,
residual_scale                                                          of a layer
norm.eps of rms, norm.eps of layer                                      of both
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from blockc.ir import Function, Node, Op, Value, before, called, functions, is_call, layers, parameters
from blockc.language.parts.mlp import ACTIVATIONS
from blockc.ops import (
    Alibi,
    Attention,
    LayerNorm,
    RmsNorm,
    Rotary,
    RotaryTable,
    Scale,
    Softcap,
    Visible,
)

Fact = int | float | str | bool | None
Facts = Mapping[str, frozenset[Fact]]
OF_MODEL = (
    "vocab", "width", "depth", "embedding.scale", "head.scale", "head.softcap", "norm.eps of rms", "norm.eps of layer",
)  # fmt: skip
OF_LAYERS = (
    "attention.heads", "attention.kv_heads", "attention.head_dim", "attention.scale", "attention.softcap",
    "attention.window", "attention.alibi.max_bias", "mlp.width", "activation", "parallel branches", "residual_scale",
    "norm.eps of rms", "norm.eps of layer",
)  # fmt: skip


@dataclass(frozen=True)
class Turned:
    """How queries and keys are turned: by which table, over how many of a head's coordinates."""

    table: RotaryTable
    width: int


@dataclass(frozen=True)
class Layer:
    facts: Facts
    turned: frozenset[Turned]

    @property
    def windows(self) -> frozenset[Fact]:
        return self.facts["attention.window"]


@dataclass(frozen=True)
class Figures:
    model: Facts
    layers: tuple[Layer, ...]


def figures(root: Function) -> Figures:
    calls = layers(root)
    facts = (*_sizes(root, len(calls)), *_scales(root), *_facts((n, n.inputs) for n in root.nodes))
    return Figures(_gathered(OF_MODEL, facts), tuple(map(_layer, calls)))


def _sizes(root: Function, depth: int) -> Iterator[tuple[str, Fact]]:
    params = parameters(root)
    table, inwards = params["embedding.weight"], params.get("project_in.weight")
    yield from (("depth", depth), ("vocab", table.shape[0]))
    yield "width", inwards.shape[0] if inwards else table.shape[1]


def _scales(root: Function) -> Iterator[tuple[str, Fact]]:
    """A factor before the layers is the embedding's, one behind them the logits'."""
    for n in root.nodes:
        if isinstance(n.op, Scale):
            yield "head.scale" if any(map(is_call, before([n]))) else "embedding.scale", n.op.factor


def _layer(call: Node) -> Layer:
    steps = list(_steps(called(call), call.inputs))
    facts = list(_facts(steps))
    if (parallel := _parallel(called(call))) is not None:
        facts.append(("parallel branches", parallel))
    facts += [("residual_scale", n.op.factor) for n, _ in steps if isinstance(n.op, Scale)]
    turned = {
        Turned(table, n.op.width)
        for n, inputs in steps
        if isinstance(n.op, Rotary) and isinstance(table := inputs[1].node.op, RotaryTable)
    }
    return Layer(_gathered(OF_LAYERS, facts), frozenset(turned))


def _steps(function: Function, given: tuple[Value, ...]) -> Iterator[tuple[Node, tuple[Value, ...]]]:
    """Every node below, with its inputs as far as they come from outside."""
    outside = dict(zip(function.inputs, given, strict=True))
    for n in function.nodes:
        inputs = tuple(outside.get(value.node, value) for value in n.inputs)
        if is_call(n):
            yield from _steps(called(n), inputs)
        else:
            yield n, inputs


def _facts(steps: Iterable[tuple[Node, tuple[Value, ...]]]) -> Iterator[tuple[str, Fact]]:
    for n, inputs in steps:
        match n.op:
            case Attention(heads, kv_heads, scale, softcap):
                yield from (("attention.heads", heads), ("attention.kv_heads", kv_heads))
                yield from (("attention.head_dim", n.inputs[0].type.shape[-1].value), ("attention.scale", scale))
                yield "attention.softcap", softcap
                yield from _seen(inputs[3].node.op)
            case RmsNorm() as norm:
                yield "norm.eps of rms", norm.eps
            case LayerNorm() as norm:
                yield "norm.eps of layer", norm.eps
            case Softcap(cap):
                yield "head.softcap", cap
            case op if isinstance(op, ACTIVATIONS):
                yield from (("activation", op.name), ("mlp.width", n.inputs[0].type.shape[-1].value))
            case _:
                pass


def _seen(mask: Op) -> Iterator[tuple[str, Fact]]:
    """What an attention's mask hides, and what it adds to the scores."""
    match mask:
        case Visible(window):
            yield from (("attention.window", window), ("attention.alibi.max_bias", None))
        case Alibi(max_bias=bias, window=window):
            yield from (("attention.window", window), ("attention.alibi.max_bias", bias))
        case _:
            pass


def _parallel(layer: Function) -> bool | None:
    """Whether no MLP of the layer reads what an attention of it gave; None where it does not have both."""
    attentions = {n for n in layer.nodes if _holds(n, (Attention,))}
    mlps = [n for n in layer.nodes if _holds(n, ACTIVATIONS)]
    if not attentions or not mlps:
        return None
    return not attentions & before(mlps)


def _holds(n: Node, kinds: tuple[type[Op], ...]) -> bool:
    inner = (each.op for function in functions(called(n)) for each in function.nodes) if is_call(n) else (n.op,)
    return any(isinstance(op, kinds) for op in inner)


def _gathered(known: tuple[str, ...], facts: Iterable[tuple[str, Fact]]) -> Facts:
    """A fact that nothing has is none."""
    found: dict[str, set[Fact]] = {}
    for key, value in facts:
        found.setdefault(key, set()).add(value)
    return {key: frozenset(found.get(key, {None})) for key in known}
