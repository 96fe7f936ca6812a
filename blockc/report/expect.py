"""`expect`: known figures against computed ones. Compared, never filled in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from blockc.report.figures import LayerSizes, Parameters
from blockc.report.summary import Report
from blockc.source import Finding, finding, key_place
from blockc.spec import Spec


def expect_misses(spec: Spec, report: Report) -> list[Finding]:
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
        for key, expected, got, parts in _compared(spec, report)
        if expected != got
    ]


def _compared(spec: Spec, report: Report) -> Iterator[tuple[str, str, str, str]]:
    """Key, expected, computed and its parts, for each key that is written."""
    expect, counted = spec.top.expect, report.parameters
    assert expect is not None
    if expect.parameters is not None:
        yield "parameters", f"{expect.parameters}", f"{counted.total}", parts(counted, report.layers)
    if expect.active_parameters is not None:
        yield "active_parameters", f"{expect.active_parameters}", f"{counted.active}", parts(counted, report.layers)
    if expect.kv_values_per_token is not None:
        cache, number = report.kv_cache, report.number
        by_kind = {kind: each // number for kind, each in cache.bytes_per_token_per_kind.items()}
        shown = " + ".join(f"{laid([kind], report.layers)} x {each:,}" for kind, each in by_kind.items())
        yield "kv_values_per_token", f"{expect.kv_values_per_token}", f"{cache.values_per_token}", shown
    if expect.layers is not None:
        yield "layers", _kinds(expect.layers), _kinds(report.layers), ""


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
