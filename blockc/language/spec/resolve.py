"""spec.resolved.yaml: the spec with every derived value written out. Reading it again gives the same meaning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from blockc.language.parts import PARTS
from blockc.language.spec.keys import Document
from blockc.language.spec.layers import TAKEN
from blockc.language.spec.own import key_of, read_own_part
from blockc.language.spec.reading import Layer, Spec, dump_keys, parts_of
from blockc.source import to_plain
from blockc.source.text import resolve_scalar as scalar

_SLOTS = ("block", "placement")  # one replaces the other; neither is removed by a word

KeyValues = dict[str, Any]


class _Dumper(yaml.SafeDumper):
    """Quotes text that our reader would read as another type: PyYAML quotes for YAML 1.1."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = None if scalar(text) == text else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def resolve_to_yaml(spec: Spec) -> str:
    return yaml.dump(
        resolve_spec(spec), Dumper=_Dumper, default_flow_style=None, sort_keys=False, width=100, allow_unicode=True
    )


def resolve_spec(spec: Spec) -> KeyValues:
    """The keys of the first layer's kind at the top, the other kinds as what they change of it.

    A kind that is laid joined to another has no values of its own: then the spec stays as it was written.
    """
    if any("+" in kind for kind in spec.kinds):
        said: Any = to_plain(spec.tree)
    else:
        said = _keys_of_spec(spec)
    return {key: said[key] for key in Document.key_order() if key in said}


def _keys_of_spec(spec: Spec) -> KeyValues:
    width = spec.top.width
    base = _keys_of_layer(spec.distinct[0], width)
    if spec.final_norm is not None:
        base["norm"] = {**dump_keys(spec.final_norm.resolve(width)), "final": True}
        if "block" in base:
            base["norm"].pop("placement", None)
    elif "norm" in base:
        base["norm"]["final"] = False
    said = dump_keys(spec.top) | base
    said |= {key: "none" for key in ("positions", "head") if getattr(spec.top, key) is None}
    if spec.top.layers is not None:
        said["layers"]["kinds"] = {
            layer.kind: _difference(base, _keys_of_layer(layer, width)) for layer in spec.distinct
        }
    return said


def _keys_of_layer(layer: Layer, width: int) -> KeyValues:
    """What a layer is made of: the keys and parts that its term reads, with derived values."""
    said = dump_keys(layer.keys)
    labels = set(_labels_of(layer.term))
    own = sorted(labels & layer.keys.own_labels)
    read = {key_of(label) for label in labels.difference(own)}
    for key, part in parts_of(layer.keys):
        said[key] = dump_keys(part.resolve(width))
    if layer.keys.norm is not None and layer.keys.norm.placement is not None:
        said["norm"]["placement"] = layer.keys.norm.placement
    for key in PARTS:
        said |= {key: _fill_norms(key, said[key], said)} if key in said else {}
    unread = PARTS.keys() - read | {"parts"}
    # The norm may stand at the top all the same, for the final norm.
    inherited = {key: value for key, value in said.items() if key in read or key == "norm"}
    parts = {label: _own_part_in_full(layer, label, width, inherited) for label in own}
    return {key: value for key, value in said.items() if key not in unread} | ({"parts": parts} if parts else {})


def _own_part_in_full(layer: Layer, label: str, width: int, inherited: KeyValues) -> KeyValues:
    """A part in full, with `none` for what it would inherit from the layer's own key and has not."""
    own = read_own_part(layer, label)
    fields, below = type(own.part).model_fields, inherited.get(own.key, {})
    said = _fill_norms(own.key, dump_keys(own.part.resolve(width)), inherited)
    return {own.key: _fill_with_none({k: v for k, v in below.items() if k in fields}, said)}


def _fill_norms(key: str, part: KeyValues, layer: KeyValues) -> KeyValues:
    """A part whose norms say `none` for what they would take over from the layer's norm and have not."""
    norm = layer.get("norm", {})
    inside = {name: words for name, words in TAKEN.get(key, {}).items() if isinstance(part.get(name), dict)}
    filled = {
        name: _fill_with_none({k: norm[k] for k in words if k in norm}, part[name]) for name, words in inside.items()
    }
    return part | filled


def _fill_with_none(below: KeyValues, said: KeyValues) -> KeyValues:
    """`said`, with `none` for keys that merging it over `below` would leave from `below`, at any depth."""
    if not _same_type(below, said):
        return said
    made = {
        key: _fill_with_none(below[key], value)
        if isinstance(value, dict) and isinstance(below.get(key), dict)
        else value
        for key, value in said.items()
    }
    return made | {key: _undo_word(below[key]) for key in below if key not in said}


def _labels_of(term: Any) -> Iterator[str]:
    match term:
        case str():
            yield term
        case list():
            for inner in term:
                yield from _labels_of(inner)
        case dict():
            for inner in term.values():
                yield from _labels_of(inner)
        case _:
            pass


def _same_type(old: KeyValues, new: KeyValues) -> bool:
    return old.get("type") == new.get("type")


def _difference(below: KeyValues, above: KeyValues) -> KeyValues:
    """What merged over `below` gives `above`."""
    change: KeyValues = {}
    for key, value in above.items():
        old = below.get(key)
        if isinstance(value, dict) and isinstance(old, dict) and _same_type(old, value):
            if inner := _difference(old, value):
                change[key] = inner
        elif value != old:
            change[key] = value
    removed = [key for key in below if key not in above and key not in (*_SLOTS, "final")]
    return change | {key: _undo_word(below[key]) for key in removed}


def _undo_word(value: Any) -> Any:
    """The word that undoes a value where merging would leave it: true for false, none for all else."""
    return True if value is False else "none"
