"""parts: a label of its own for a variation on one of the layer's parts."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from blockc.diagnostics.meaning import OWN_PART
from blockc.language.parts import PARTS, Part
from blockc.language.spec.faults import describe_value, from_pydantic
from blockc.language.spec.layers import merge, with_norm
from blockc.language.spec.reading import Layer
from blockc.source import Entry, MappingNode, SpecError, Tree, find, finding, key_place, to_plain


def key_of(label: str) -> str | None:
    """The key that a label stands for where `parts` has none of that name."""
    if label in PARTS:
        return label
    return "norm" if label.endswith("_norm") else None


@dataclass(frozen=True)
class OwnPart:
    """What parts.<label> stands for: which key it varies, the part, and the tree that it was read from."""

    key: str
    part: Part
    tree: Tree


def read_own_part(layer: Layer, label: str) -> OwnPart:
    """parts: {label: {mlp: {...}}} merged over the layer's mlp. Raises SpecError."""
    key, change = _read_change(layer, label)
    model, tree = PARTS[key], change
    base = layer.tree.entries.get(key)
    if base is not None and isinstance(base.value, MappingNode):
        inherited = {k: e for k, e in base.value.entries.items() if k in model.model_fields}
        tree = merge(MappingNode(inherited, base.value.place), change)
    whole = with_norm(MappingNode({**layer.tree.entries, key: Entry(change.place, tree)}, change.place))
    tree = whole.entries[key].value
    try:
        return OwnPart(key, model.model_validate(to_plain(tree)), tree)
    except ValidationError as error:
        raise SpecError(from_pydantic(error, model, tree, ("parts", label, key))) from None


def _read_change(layer: Layer, label: str) -> tuple[str, MappingNode]:
    """The one key that the part varies, and what it says of it."""
    path = ("parts", label)
    tree = find(layer.tree, path)
    entries = tree.entries if isinstance(tree, MappingNode) else {}
    said = {key: entry.value for key, entry in entries.items() if to_plain(entry.value) != "none"}
    for key, value in said.items():
        if len(said) == 1 and key in PARTS and isinstance(value, MappingNode):
            return key, value
    expected = "{mlp: {...}}: what it changes of the key of that name"
    message = f"part {label} is not one of {', '.join(PARTS)}"
    raise SpecError(
        [finding(OWN_PART, key_place(layer.tree, path), message, expected=expected, got=describe_value(tree))]
    )
