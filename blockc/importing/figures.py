"""The figures that a function computes with, by the spec's keys: for each layer, and for the ops around the layers.

A wrong theta, eps, window or number of heads changes no tensor's name and no shape, so that no other check sees it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from blockc.basics.errors import escape
from blockc.graph.contract import IDS
from blockc.ir import Fact, Function, Node, Value, ancestors_of, callee_of, inline, is_call, layers_of
from blockc.ops import Alibi, Embed, Linear, RelativeBias, RotaryTable, Scale, Visible, VisibleBothWays
from blockc.ops.base import Activation

# Ops at the root whose figures are of the layers that read them, or not of an MLP.
_OF_LAYERS = (Visible, VisibleBothWays, RotaryTable, Alibi, RelativeBias, Activation)
CLOSE = 1e-6  # a file's float is one of 32 bits


def figures_of(function: Function) -> dict[str, set[Fact]]:
    """By the spec's key, the values that the function computes with: several where its layers differ."""
    found: dict[str, set[Fact]] = {}
    for values in figures_by_layer(function).values():
        for key, each in values.items():
            found.setdefault(key, set()).update(each)
    return found


def figures_by_layer(function: Function) -> dict[int | None, dict[str, set[Fact]]]:
    """The same of each layer, masks and tables that it is handed among it; under None what stands outside of them."""
    calls = layers_of(function)
    flat = {layer: inline(layer) for layer in dict.fromkeys(map(callee_of, calls))}
    outside = [n for n in function.nodes if not isinstance(n.op, _OF_LAYERS)]
    around = (each for n in outside for each in (*_figures_of_node(n), *_scale_outside_layers(n)))
    return {
        **{i: gather(_figures_of_layer(call, flat[callee_of(call)])) for i, call in enumerate(calls)},
        None: gather([*around, ("depth", len(calls)), *_sizes_of(function)]),
    }


def gather(said: Iterable[tuple[str, Fact]]) -> dict[str, set[Fact]]:
    found: dict[str, set[Fact]] = {}
    for key, value in said:
        found.setdefault(key, set()).add(value)
    return found


def _figures_of_layer(call: Node, flat: Function) -> Iterator[tuple[str, Fact]]:
    for n in (*flat.nodes, *(value.node for value in call.inputs[1:])):
        yield from _figures_of_node(n)
        if isinstance(n.op, Scale):
            yield "residual_scale", n.op.factor


def _figures_of_node(n: Node) -> Iterator[tuple[str, Fact]]:
    """The op's figures, and which matrices have a bias."""
    yield from n.op.figures(*(value.type for value in n.inputs))
    if isinstance(n.op, Linear):
        yield from (("biases", param.name) for param in n.params if param.role == "bias")


def _scale_outside_layers(n: Node) -> Iterator[tuple[str, Fact]]:
    """A factor before the layers is the embedding's, one behind them the logits'."""
    if isinstance(n.op, Scale):
        yield "head.scale" if any(map(is_call, ancestors_of([n]))) else "embedding.scale", n.op.factor


def _sizes_of(function: Function) -> Iterator[tuple[str, Fact]]:
    """The stream is as wide as the first layer's input; the table of tokens has the vocab. A head is tied to it."""
    calls = layers_of(function)
    tables = (n for n in function.nodes if isinstance(n.op, Embed) and n.inputs[0].node.name == IDS)
    yield from (("vocab", n.op.rows) for n in tables if isinstance(n.op, Embed))
    yield from (("width", _width_of(first.inputs[0])) for first in calls[:1])
    matrices = (param for n in function.nodes if isinstance(n.op, Linear) for param in n.params)
    yield "head.tied", any(param.role == "table" for param in matrices)


def _width_of(value: Value) -> int | None:
    return value.type.shape[-1].value


def equal_figures(a: Fact, b: Fact) -> bool:
    match a, b:
        case tuple(), tuple():
            return len(a) == len(b) and all(map(equal_figures, a, b))
        case ((int() | float()), (int() | float())):
            return math.isclose(a, b, rel_tol=CLOSE)
        case _:
            return a == b


def figure_text(value: Fact) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case float():
            return str(int(value)) if value.is_integer() else f"{value:.7g}"
        case tuple():
            return "1" if set(value) == {1.0} else f"{min(value):.4g} to {max(value):.4g}"
        case _:
            return escape(value)
