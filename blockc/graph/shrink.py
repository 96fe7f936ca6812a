"""Tiny twins: a spec small enough to prove in a second, with the same structure and the same ratios.

Heads keep their ratio to key-value heads, up to four to one, a rotary part its fraction of the head, the MLP its
multiple of the width; there is a layer or two of each kind; windows, caps and scaled contexts shrink until a short run
crosses them: a limit that no run crosses is not tested. The class of a key says how it shrinks.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from blockc.language.algebra import elaborate, leaves_of
from blockc.language.parts import PARTS, Attention, Model
from blockc.language.parts.latent import ROPE
from blockc.language.parts.twin import ShrinkRule, Twin
from blockc.language.spec import Spec, from_tree
from blockc.language.spec.classes import DOCUMENT, AllowedKeys
from blockc.language.spec.keys import Document
from blockc.source import Entry, MappingNode, ScalarNode, Tree, to_plain

HEAD_DIM = 16  # the least that fused attention takes
WIDTH = 64  # of a stream that no heads read

Bases = Mapping[type[Model], Model]


def shrink(spec: Spec) -> Spec:
    """The twin of a spec; of a twin, itself."""
    chains = dict.fromkeys(elaborate(spec).layers)
    laid = [leaf.part for chain in chains for leaf in leaves_of(chain)]
    keys = [part for layer in spec.layers for key in PARTS if (part := layer.keys.part(key))]
    bases: Bases = {type(part): part for part in reversed([*keys, *laid])}
    twin = _twin_sizes(spec.top.width, [part for part in laid if isinstance(part, Attention)], bases.get(Attention))
    return from_tree(_shrink_mapping(spec.tree, DOCUMENT, {**bases, Document: spec.top}, twin))


def _shrink_mapping(tree: MappingNode, keys: AllowedKeys, bases: Bases, twin: Twin) -> MappingNode:
    """The mapping of the twin: each key by its own rule, and keys that shrink together by their class.

    `bases` are the parts that this mapping varies, the first of each class, and the keys of the top.
    """
    keys = keys.select_type(to_plain(entry.value) if (entry := tree.entries.get("type")) else None)
    entries: dict[str, Entry] = {}
    for key, entry in tree.entries.items():
        if (value := _shrink_key(entry.value, key, keys, twin)) is not None:
            inner = (
                _shrink_mapping(value, keys.keys_below(key), bases, twin) if isinstance(value, MappingNode) else value
            )
            entries[key] = Entry(entry.key, inner)
    for base in (bases[each] for each in keys.classes if each in bases and not keys.named):
        for key, new in base.shrink_keys(tree, twin).items():
            old = entries.get(key)
            place = old.value.place if old else tree.place
            entries[key] = Entry(old.key if old else place, ScalarNode(new, place, str(new)))
    return MappingNode(entries, tree.place)


def _shrink_key(value: Tree, key: str, keys: AllowedKeys, twin: Twin) -> Tree | None:
    """The value by the key's rule, if all classes that have the key state the same rule."""
    rules = [
        next((each for each in field.metadata if isinstance(each, ShrinkRule)), None) for field in keys.fields(key)
    ]
    rule = rules[0] if rules and all(each == rules[0] for each in rules) else None
    return rule.shrink_value(value, twin) if rule else value


def _twin_sizes(was: int, every: list[Attention], base: Model | None) -> Twin:
    """The sizes that follow from all attentions of the spec, and from the one that its kinds and parts vary."""
    grouped = any(a.grouped for a in every)
    by_length = any(a.rope and a.rope.original for a in every)
    factor, width = _head_factor(every), min(was, WIDTH)
    if isinstance(base, Attention) and base.latent is None:
        # In the same ratio to the twin's heads together: a twin in which the two are equal hides who reads which.
        a = base.resolve(was)
        few, head_dim = a.few_heads(grouped)[0], a.head_dim or 1
        width = max(1, was * few * int(head_dim * factor) // (a.heads * head_dim))
    return Twin(was, width, factor, grouped, by_length)


def _head_factor(every: list[Attention]) -> Fraction:
    """One for all heads, so that unlike ones stay unlike: the smallest, or its rotary part, becomes HEAD_DIM.

    Sizes that fused attention takes become such sizes, so that the twin is fused where the model is. Latent attention
    is not fused: what rope turns becomes ROPE, and a list of factors for its pairs as long.
    """
    if latent := [a.latent.rope_dim for a in every if a.latent]:
        return min(Fraction(ROPE, max(latent)), Fraction(1))
    turned = [a.rope.dims for a in every if a.rope and a.rope.dims]
    whole = [a.head_dim or 1 for a in every]
    least = min((a.rope.dims if a.rope and a.rope.dims else a.head_dim or 1 for a in every), default=1)
    unit = HEAD_DIM if all(size % HEAD_DIM == 0 for size in whole + turned) else 1
    for few in range(HEAD_DIM, least, HEAD_DIM):
        factor = Fraction(few, least)
        if all((size * factor / unit).denominator == 1 for size in whole + (turned if unit > 1 else [])):
            return factor
    return Fraction(1)
