"""`expect`: known figures against computed ones. Compared, never filled in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from blockc.diagnostics.figures import EXPECT
from blockc.ir import Function
from blockc.language.algebra import Decoder
from blockc.language.spec import Bounds, Spec
from blockc.report.figures import LayerSizes, Parameters, count
from blockc.report.graph import Graph
from blockc.report.memory import growth, growth_per_kind
from blockc.source import Finding, finding, key_place


def expect_misses(spec: Spec, decoder: Decoder, function: Function) -> list[Finding]:
    """One finding for each key of `expect` that does not hold, with the figure part by part."""
    if spec.top.expect is None:
        return []
    return [
        finding(
            EXPECT,
            key_place(spec.tree, ("expect", key)),
            f"expect.{key} does not hold",
            expected=expected,
            got=got,
            hint=f"computed as {parts}" if parts else "",
        )
        for key, expected, got, parts in _misses(spec, Graph(function, decoder.kinds))
    ]


def _misses(spec: Spec, graph: Graph) -> Iterator[tuple[str, str, str, str]]:
    """Key, expected, computed and its parts, for each key that does not hold."""
    expect, counted, layers = spec.top.expect, count(graph), Counter(graph.kinds)
    assert expect is not None
    figures = {
        "parameters": (expect.parameters, counted.total, lambda: parts(counted, layers)),
        "active_parameters": (expect.active_parameters, counted.active, lambda: parts(counted, layers)),
        "kv_values_per_token": (expect.kv_values_per_token, growth(graph, 1), lambda: cache_parts(graph)),
    }
    for key, (expected, got, shown) in figures.items():
        if expected is not None and not (expected.hold(got) if isinstance(expected, Bounds) else expected == got):
            yield key, f"{expected}", f"{got}", shown()
    if expect.context is not None and expect.context != spec.top.context:
        yield "context", f"{expect.context}", f"{spec.top.context}", ""
    if expect.layers is not None and expect.layers != layers:
        yield "layers", _kinds(expect.layers), _kinds(layers), ""


def cache_parts(graph: Graph) -> str:
    """32 layers x 2,048: numbers that one more token adds to the cache."""
    layers = Counter(graph.kinds)
    return " + ".join(f"{laid([kind], layers)} x {each:,}" for kind, each in growth_per_kind(graph, 1).items())


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
