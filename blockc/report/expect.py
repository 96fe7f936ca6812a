"""`expect`: known figures against computed ones. Compared, never filled in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from blockc.algebra import Decoder
from blockc.ir import Function
from blockc.report.figures import LayerSizes, Parameters, count
from blockc.report.graph import Graph
from blockc.report.memory import growth, growth_per_kind
from blockc.source import Finding, finding, key_place
from blockc.spec import Spec


def expect_misses(spec: Spec, decoder: Decoder, function: Function) -> list[Finding]:
    """One finding for each key of `expect` that does not hold, with the figure part by part."""
    if spec.top.expect is None:
        return []
    return [
        finding(
            key_place(spec.tree, ("expect", key)),
            f"expect.{key} does not hold",
            expected=expected,
            got=got,
            hint=f"computed as {parts}" if parts else "",
        )
        for key, expected, got, parts in _compared(spec, Graph(function, decoder.kinds))
        if expected != got
    ]


def _compared(spec: Spec, graph: Graph) -> Iterator[tuple[str, str, str, str]]:
    """Key, expected, computed and its parts, for each key that is written."""
    expect, counted, layers = spec.top.expect, count(graph), Counter(graph.kinds)
    assert expect is not None
    if expect.parameters is not None:
        yield "parameters", f"{expect.parameters}", f"{counted.total}", parts(counted, layers)
    if expect.active_parameters is not None:
        yield "active_parameters", f"{expect.active_parameters}", f"{counted.active}", parts(counted, layers)
    if expect.kv_values_per_token is not None:
        shown = " + ".join(f"{laid([kind], layers)} x {each:,}" for kind, each in growth_per_kind(graph, 1).items())
        yield "kv_values_per_token", f"{expect.kv_values_per_token}", f"{growth(graph, 1)}", shown
    if expect.layers is not None:
        yield "layers", _kinds(expect.layers), _kinds(layers), ""


def parts(counted: Parameters, layers: Mapping[str, int]) -> str:
    """embedding + n layers x (attention + mlp + norms) + final norm + head"""
    before = (f"{name} {size:,}" for name, size in counted.before_layers.items())
    inside = (f"{laid(kinds, layers)} x ({_sizes(sizes)})" for sizes, kinds in alike(counted).items())
    after = (f"{name} {size:,}" for name, size in counted.after_layers.items())
    return " + ".join((*before, *inside, *after))


def _sizes(sizes: LayerSizes) -> str:
    named = (("attention", sizes.attention), ("mlp", sizes.mlp), ("norms", sizes.norms), ("biases", sizes.biases))
    return " + ".join(f"{name} {size:,}" for name, size in named if size)


def alike(counted: Parameters) -> dict[LayerSizes, list[str]]:
    """The kinds of layers by their sizes."""
    found: dict[LayerSizes, list[str]] = {}
    for kind, sizes in counted.per_kind.items():
        found.setdefault(sizes, []).append(kind)
    return found


def laid(kinds: list[str], layers: Mapping[str, int]) -> str:
    """32 layers, or 21 local layers where there are others."""
    n = sum(layers[kind] for kind in kinds)
    named = "" if len(kinds) == len(layers) else " and ".join(kinds) + " "
    return f"{n:,} {named}layer{'' if n == 1 else 's'}"


def _kinds(layers: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {n}" for kind, n in sorted(layers.items()))
