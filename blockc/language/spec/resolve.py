"""spec.resolved.yaml: the spec with every derived value written out. Reading it again gives the same meaning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from blockc.language.parts import PARTS
from blockc.language.spec.keys import Document
from blockc.language.spec.layers import TAKEN
from blockc.language.spec.own import key_of, own_part
from blockc.language.spec.reading import Layer, Spec, occupants, written
from blockc.source import plain
from blockc.source.text import resolve as scalar

_SLOTS = ("block", "placement")  # one replaces the other; neither is removed by a word

Keys = dict[str, Any]


class _Dumper(yaml.SafeDumper):
    """Quotes what our reader would take for something else than text: PyYAML quotes for YAML 1.1."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = None if scalar(text) == text else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def resolved_text(spec: Spec) -> str:
    return yaml.dump(
        resolved(spec), Dumper=_Dumper, default_flow_style=None, sort_keys=False, width=100, allow_unicode=True
    )


def resolved(spec: Spec) -> Keys:
    """The keys of the first layer's kind at the top, the other kinds as what they change of it.

    A kind that is laid joined to another has no values of its own: then the spec stays as it was written.
    """
    if any("+" in kind for kind in spec.kinds):
        said: Any = plain(spec.tree)
    else:
        said = _said(spec)
    return {key: said[key] for key in Document.key_order() if key in said}


def _said(spec: Spec) -> Keys:
    width = spec.top.width
    base = _layer(spec.distinct[0], width)
    if spec.final_norm is not None:
        base["norm"] = {**written(spec.final_norm.resolved(width)), "final": True}
        if "block" in base:
            base["norm"].pop("placement", None)
    elif "norm" in base:
        base["norm"]["final"] = False
    said = written(spec.top) | base
    if spec.top.positions is None:
        said["positions"] = "none"
    if spec.top.layers is not None:
        said["layers"]["kinds"] = {layer.kind: _difference(base, _layer(layer, width)) for layer in spec.distinct}
    return said


def _layer(layer: Layer, width: int) -> Keys:
    """What a layer is made of: the keys and parts that its term reads, with derived values."""
    said = written(layer.keys)
    labels = set(_labels(layer.term))
    own = sorted(labels & layer.keys.own)
    read = {key_of(label) for label in labels.difference(own)}
    for key, part in occupants(layer.keys):
        said[key] = written(part.resolved(width))
    if layer.keys.norm is not None and layer.keys.norm.placement is not None:
        said["norm"]["placement"] = layer.keys.norm.placement
    for key in PARTS:
        said |= {key: _with_norms(key, said[key], said)} if key in said else {}
    unread = PARTS.keys() - read | {"parts"}
    # The norm may stand at the top all the same, for the final norm.
    inherited = {key: value for key, value in said.items() if key in read or key == "norm"}
    parts = {label: _own(layer, label, width, inherited) for label in own}
    return {key: value for key, value in said.items() if key not in unread} | ({"parts": parts} if parts else {})


def _own(layer: Layer, label: str, width: int, inherited: Keys) -> Keys:
    """A part in full, with `none` for what it would inherit from the layer's own key and has not."""
    own = own_part(layer, label)
    fields, below = type(own.part).model_fields, inherited.get(own.key, {})
    said = _with_norms(own.key, written(own.part.resolved(width)), inherited)
    return {own.key: _filled({k: v for k, v in below.items() if k in fields}, said)}


def _with_norms(key: str, part: Keys, layer: Keys) -> Keys:
    """A part whose norms say `none` for what they would take over from the layer's norm and have not."""
    norm = layer.get("norm", {})
    inside = {name: words for name, words in TAKEN.get(key, {}).items() if isinstance(part.get(name), dict)}
    filled = {name: _filled({k: norm[k] for k in words if k in norm}, part[name]) for name, words in inside.items()}
    return part | filled


def _filled(below: Keys, said: Keys) -> Keys:
    """What is said, with `none` for what merging it over `below` would leave of that, at any depth."""
    if not _alike(below, said):
        return said
    made = {
        key: _filled(below[key], value) if isinstance(value, dict) and isinstance(below.get(key), dict) else value
        for key, value in said.items()
    }
    return made | {key: _undone(below[key]) for key in below if key not in said}


def _labels(term: Any) -> Iterator[str]:
    match term:
        case str():
            yield term
        case list():
            for inner in term:
                yield from _labels(inner)
        case dict():
            for inner in term.values():
                yield from _labels(inner)
        case _:
            pass


def _alike(old: Keys, new: Keys) -> bool:
    return old.get("type") == new.get("type")


def _difference(below: Keys, above: Keys) -> Keys:
    """What merged over `below` gives `above`."""
    change: Keys = {}
    for key, value in above.items():
        old = below.get(key)
        if isinstance(value, dict) and isinstance(old, dict) and _alike(old, value):
            if inner := _difference(old, value):
                change[key] = inner
        elif value != old:
            change[key] = value
    removed = [key for key in below if key not in above and key not in (*_SLOTS, "final")]
    return change | {key: _undone(below[key]) for key in removed}


def _undone(value: Any) -> Any:
    """What takes back a value where merging would leave it: a thing that is said not to be there is there again."""
    return True if value is False else "none"
