"""Tiny twins: a spec small enough to prove in a second, with the same structure and the same ratios.

Heads keep their ratio to key-value heads, a rotary part its fraction of the head, the MLP its multiple of the width; there
is one layer of each kind; windows, caps and scaled contexts shrink until a short run crosses them, for what a run never
crosses it never tests.
"""

from __future__ import annotations

from fractions import Fraction

from blockc.parts import Attention
from blockc.source import Entry, Mapping, Scalar, Sequence, Tree, find, plain
from blockc.spec import Spec, from_tree

HEAD_DIM = 16  # the least that fused attention takes
WIDTH = 128
VOCAB = 96
CONTEXT = 128
ORIGINAL = 64  # of a scaled rope: its wavelengths then fall into all three bands
WINDOW = 5
SOFTCAP = 2.0  # near the spread of random scores: a cap that bends nothing proves nothing


def shrink(spec: Spec) -> Spec:
    """The twin of a spec; of a twin, itself."""
    tree = _without(spec.tree, "expect", "description")
    attention = next((layer.keys.attention for layer in spec.layers if layer.keys.attention), None)
    width = min(spec.top.width, _width(attention, spec.top.width))
    tree = _set(tree, ("name",), spec.name.removesuffix("-twin") + "-twin")
    tree = _set(tree, ("width",), width)
    tree = _set(tree, ("vocab",), min(spec.top.vocab, VOCAB))
    tree = _set(tree, ("context",), min(spec.top.context, CONTEXT))
    tree = _layer_keys(tree, spec, width)
    tree = _depth(tree, spec)
    if spec.top.head.softcap:
        tree = _set(tree, ("head", "softcap"), min(spec.top.head.softcap, SOFTCAP))
    return from_tree(tree)


def _width(attention: Attention | None, width: int) -> int:
    """As wide as the twin's heads together, where the spec's are as wide as its stream."""
    if width <= WIDTH:
        return width
    if attention is None:
        return WIDTH // 2
    a = attention.resolved(width)
    heads, head_dim = _heads(a)[0], _head_dim(a)
    return min(heads * head_dim, WIDTH) if a.heads * (a.head_dim or 0) == width else WIDTH // 2


def _heads(a: Attention) -> tuple[int, int]:
    """Two key-value heads at least, so that their order shows, and the same number of queries to each."""
    kv_heads = a.kv_heads or a.heads
    group = a.heads // kv_heads
    few = min(kv_heads, 2 if group > 1 else 4)
    return few * group, few


def _head_dim(a: Attention) -> int:
    head_dim = a.head_dim or 0
    if a.rope and a.rope.dims and a.rope.dims < head_dim:
        wide = Fraction(HEAD_DIM * head_dim, a.rope.dims)
        return int(wide) if wide.denominator == 1 and wide < head_dim else head_dim
    return min(head_dim, HEAD_DIM)


def _layer_keys(tree: Mapping, spec: Spec, width: int) -> Mapping:
    """The keys that layers are made of, at the top, in every kind and in every part."""
    places: list[tuple[str, ...]] = [()]
    if isinstance(kinds := _at(tree, ("layers", "kinds")), Mapping):
        places += [("layers", "kinds", name) for name in kinds.entries]
    for place in tuple(places):
        if isinstance(parts := _at(tree, (*place, "parts")), Mapping):
            places += [(*place, "parts", name) for name in parts.entries]
    for place in places:
        tree = _attention(tree, (*place, "attention"), spec, width)
        tree = _mlp(tree, (*place, "mlp"), spec.top.width, width)
    return tree


def _attention(tree: Mapping, path: tuple[str, ...], spec: Spec, width: int) -> Mapping:
    here = _at(tree, path)
    base = next((layer.keys.attention for layer in spec.layers if layer.keys.attention), None)
    if not isinstance(here, Mapping) or base is None:
        return tree
    top = path == ("attention",)
    said = {key: plain(entry.value) for key, entry in here.entries.items()}
    own = base if top else base.model_copy(update={k: v for k, v in said.items() if k in ("heads", "kv_heads", "head_dim")})
    a = own.resolved(spec.top.width)
    (heads, kv_heads), head_dim = _heads(a), _head_dim(base.resolved(spec.top.width))
    head_dim = head_dim * (a.head_dim or 1) // (base.resolved(spec.top.width).head_dim or 1)
    new: dict[tuple[str, ...], int | float] = {("heads",): heads, ("kv_heads",): kv_heads, ("head_dim",): head_dim}
    wanted = {key for key in new if key[0] in said}
    if top and heads * head_dim != width:
        wanted.add(("head_dim",))
    edits = {key: new[key] for key in wanted} | _ropes(here, a, head_dim)
    for key, most in (("window", WINDOW), ("softcap", SOFTCAP)):
        if isinstance(value := said.get(key), int | float):
            edits[key,] = min(value, most)
    if isinstance(scale := said.get("scale"), int | float):
        edits["scale",] = scale * ((a.head_dim or 1) / head_dim) ** 0.5
    for key, value in edits.items():
        tree = _set(tree, (*path, *key), value)
    return tree


def _ropes(here: Mapping, a: Attention, head_dim: int) -> dict[tuple[str, ...], int | float]:
    rope = _at(here, ("rope",))
    edits: dict[tuple[str, ...], int | float] = {}
    if not isinstance(rope, Mapping):
        return edits
    for key in ("dims", "pairs"):
        if isinstance(value := plain(rope.entries[key].value) if key in rope.entries else None, int):
            edits["rope", key] = max(1, value * head_dim // (a.head_dim or 1))
    original = _at(here, ("rope", "scaling", "original"))
    if isinstance(original, Scalar) and isinstance(original.value, int):
        edits["rope", "scaling", "original"] = min(original.value, ORIGINAL)
    return edits


def _mlp(tree: Mapping, path: tuple[str, ...], was: int, width: int) -> Mapping:
    wide = _at(tree, (*path, "width"))
    if not isinstance(wide, Scalar) or not isinstance(wide.value, int):
        return tree
    return _set(tree, (*path, "width"), max(1, wide.value * width // was))


def _depth(tree: Mapping, spec: Spec) -> Mapping:
    """Each entry of the layer lists, the pattern twice where it is tiled, and two layers at least."""
    if spec.top.layers is None:
        return _set(tree, ("depth",), min(spec.top.depth, 2))
    counts: dict[str, int] = {}
    for key in ("first", "pattern", "last"):
        listed = _at(tree, ("layers", key))
        if isinstance(listed, Sequence):
            few = tuple(layer for item in listed.items for layer in _few(item))
            tree = _put(tree, ("layers", key), Sequence(few, listed.place))
            counts[key] = len(few)
    fixed, tile = counts.get("first", 0) + counts.get("last", 0), counts.get("pattern", 0)
    tiles = 2 if spec.top.depth > fixed + tile else 1
    return _set(tree, ("depth",), fixed + tiles * tile)


def _few(item: Tree) -> tuple[Tree, ...]:
    """Two layers stand for many in a row: enough for what treats a run as a loop."""
    if not isinstance(item, Mapping):
        return (item,)
    ((name, entry),) = item.entries.items()
    one = Scalar(name, entry.key, name)
    return (one, one) if plain(entry.value) != 1 else (one,)


def _at(tree: Tree, path: tuple[str, ...]) -> Tree | None:
    """The tree at a path, or None where there is none."""
    for step in path:
        if not isinstance(tree, Mapping) or step not in tree.entries:
            return None
        tree = tree.entries[step].value
    return tree


def _set(tree: Mapping, path: tuple[str, ...], value: str | int | float) -> Mapping:
    old = find(tree, path)
    return _put(tree, path, Scalar(value, old.place, str(value)))


def _put(tree: Mapping, path: tuple[str, ...], value: Tree) -> Mapping:
    name, *rest = path
    entry = tree.entries.get(name)
    inner = value
    if rest:
        assert entry is not None and isinstance(entry.value, Mapping)
        inner = _put(entry.value, tuple(rest), value)
    return Mapping({**tree.entries, name: Entry(entry.key if entry else value.place, inner)}, tree.place)


def _without(tree: Mapping, *keys: str) -> Mapping:
    return Mapping({k: e for k, e in tree.entries.items() if k not in keys}, tree.place)
