"""`expect`: known figures against computed ones. Compared, never filled in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from blockc.diagnostics.figures import EXPECT
from blockc.ir import Function
from blockc.language.algebra import Decoder
from blockc.language.spec import Bounds, Spec
from blockc.report.figures import LayerSizes, Parameters, count_parameters
from blockc.report.graph import Graph
from blockc.report.memory import bytes_per_token, bytes_per_token_of_kinds
from blockc.source import Finding, finding, key_place


def check_expect(spec: Spec, decoder: Decoder, function: Function) -> list[Finding]:
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
        for key, expected, got, parts in _find_misses(spec, Graph(function, decoder.kinds))
    ]


def known_figures(graph: Graph) -> dict[str, int]:
    """The figures that `expect` of a model would say: active parameters where some are idle."""
    counted = count_parameters(graph)
    active = {} if counted.active == counted.total else {"active_parameters": counted.active}
    return {"parameters": counted.total, **active, "kv_values_per_token": bytes_per_token(graph, 1)}


def _find_misses(spec: Spec, graph: Graph) -> Iterator[tuple[str, str, str, str]]:
    """Key, expected, computed and its parts, for each key that does not hold."""
    expect, counted, layers = spec.top.expect, count_parameters(graph), Counter(graph.kinds)
    assert expect is not None
    figures = {
        "parameters": (expect.parameters, counted.total, lambda: sum_of_parameters(counted, layers)),
        "active_parameters": (expect.active_parameters, counted.active, lambda: _sum_of_active(counted, layers)),
        "kv_values_per_token": (expect.kv_values_per_token, bytes_per_token(graph, 1), lambda: sum_of_cache(graph)),
    }
    for key, (expected, got, shown) in figures.items():
        if expected is not None and not (expected.hold(got) if isinstance(expected, Bounds) else expected == got):
            yield key, f"{expected}", f"{got}", shown()
    if expect.context is not None and expect.context != spec.top.context:
        yield "context", f"{expect.context}", f"{spec.top.context}", ""
    if expect.layers is not None and expect.layers != layers:
        yield "layers", _kinds_text(expect.layers), _kinds_text(layers), ""


def sum_of_cache(graph: Graph) -> str:
    """32 layers x 2,048: numbers that one more token adds to the cache."""
    layers = Counter(graph.kinds)
    return " + ".join(
        f"{count_layers([kind], layers)} x {each:,}" for kind, each in bytes_per_token_of_kinds(graph, 1).items()
    )


def sum_of_parameters(counted: Parameters, layers: Mapping[str, int]) -> str:
    """embedding + n layers x (attention + mlp + norms) + final norm + head"""
    before = (f"{name} {size:,}" for name, size in counted.before_layers.items())
    inside = (
        f"{count_layers(kinds, layers)} x ({_sizes_text(sizes)})" for sizes, kinds in group_by_size(counted).items()
    )
    after = (f"{name} {size:,}" for name, size in counted.after_layers.items())
    return " + ".join((*before, *inside, *after))


def _sum_of_active(counted: Parameters, layers: Mapping[str, int]) -> str:
    """All parameters, less the experts that a token does not take."""
    idle = (
        f"{count_layers(kinds, layers)} x {sizes.idle:,} idle"
        for sizes, kinds in group_by_size(counted).items()
        if sizes.idle
    )
    return " - ".join((sum_of_parameters(counted, layers), *idle))


def _sizes_text(sizes: LayerSizes) -> str:
    named = (("attention", sizes.attention), ("mlp", sizes.mlp), ("norms", sizes.norms), ("biases", sizes.biases))
    return " + ".join(f"{name} {size:,}" for name, size in named if size)


def group_by_size(counted: Parameters) -> dict[LayerSizes, list[str]]:
    """The kinds of layers by their sizes."""
    found: dict[LayerSizes, list[str]] = {}
    for kind, sizes in counted.per_kind.items():
        found.setdefault(sizes, []).append(kind)
    return found


def count_layers(kinds: list[str], layers: Mapping[str, int]) -> str:
    """32 layers, or 21 local layers where there are others."""
    n = sum(layers[kind] for kind in kinds)
    named = "" if len(kinds) == len(layers) else " and ".join(kinds) + " "
    return f"{n:,} {named}layer{'' if n == 1 else 's'}"


def _kinds_text(layers: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {n}" for kind, n in sorted(layers.items()))
