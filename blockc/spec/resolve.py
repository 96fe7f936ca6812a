"""spec.resolved.yaml: the spec with every derived value written out. Reading it again gives the same meaning."""

from __future__ import annotations

from typing import Any

import yaml

from blockc.spec.keys import LayerKeys
from blockc.spec.reading import Layer, Spec, written

_ORDER = (
    "blockc", "name", "description", "vocab", "width", "depth", "context", "positions", "embedding", "attention", "mlp",
    "norm", "head", "block", "parts", "layers", "init", "checkpoint", "expect",
)  # fmt: skip
_SLOTS = ("block", "placement")  # one replaces the other; neither is removed by a word


def resolved_text(spec: Spec) -> str:
    return yaml.safe_dump(resolved(spec), default_flow_style=None, sort_keys=False, width=100, allow_unicode=True)


def resolved(spec: Spec) -> dict[str, Any]:
    """The keys of the first layer's kind at the top, the other kinds as what they change of it."""
    base = _layer(spec.layers[0], spec.top.width)
    if spec.final_norm is not None:
        base["norm"] = {**written(spec.final_norm), "final": True}
        if "block" in base:
            base["norm"].pop("placement", None)
    elif "norm" in base:
        base["norm"]["final"] = False
    said: dict[str, Any] = written(spec.top) | base
    if spec.top.positions is None:
        said["positions"] = "none"
    if spec.top.layers is not None:
        firsts = {layer.kind: layer for layer in reversed(spec.layers)}
        kinds = _changes(spec, base, firsts)
        said["layers"] = {**{k: v for k, v in said["layers"].items() if k != "kinds"}, "kinds": kinds}
    return {key: said[key] for key in _ORDER if key in said}


def _changes(spec: Spec, base: dict[str, Any], firsts: dict[str, Layer]) -> dict[str, Any]:
    """A kind that is only laid joined to others keeps its own words: its values are not its alone."""
    assert spec.top.layers is not None
    return {
        name: _difference(base, _layer(firsts[name], spec.top.width)) if name in firsts and not _joined(name, firsts) else keys
        for name, keys in spec.top.layers.kinds.items()
    }


def _joined(name: str, firsts: dict[str, Layer]) -> bool:
    return any(name in kind.split("+") for kind in firsts if "+" in kind)


def _layer(layer: Layer, width: int) -> dict[str, Any]:
    keys: LayerKeys = layer.keys
    said = written(keys)
    if keys.attention is not None:
        said["attention"] = written(keys.attention.resolved(width))
    if keys.mlp is not None:
        said["mlp"] = written(keys.mlp.resolved(width))
    if keys.norm is not None:
        said["norm"].pop("final", None)
    return said


def _difference(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """What merged over `below` gives `above`."""
    change: dict[str, Any] = {}
    for key, value in above.items():
        old = below.get(key)
        if isinstance(value, dict) and isinstance(old, dict) and value.get("type") == old.get("type"):  # pyright: ignore
            if inner := _difference(old, value):  # pyright: ignore[reportUnknownArgumentType]
                change[key] = inner
        elif value != old:
            change[key] = value
    removed = [key for key in below if key not in above and key not in (*_SLOTS, "final")]
    return change | {key: "none" for key in removed}
