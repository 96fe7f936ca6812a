"""Tiny twins: a spec small enough to prove in a second, with the same structure and the same ratios.

Heads keep their ratio to key-value heads, up to four to one, a rotary part its fraction of the head, the MLP its
multiple of the width; there is a layer or two of each kind; windows, caps and scaled contexts shrink until a short run
crosses them, for what a run never crosses it never tests.
"""

from __future__ import annotations

from fractions import Fraction

from blockc.language.algebra import elaborate, leaves
from blockc.language.parts import Attention
from blockc.language.spec import Spec, from_tree
from blockc.source import Entry, Mapping, Scalar, Sequence, Tree, at, find, plain

HEAD_DIM = 16  # the least that fused attention takes
GROUP = 4  # the most query heads that read one key-value head
WIDTH = 64  # of a stream that no heads read
VOCAB = 96
CONTEXT = 128
ORIGINAL = 64  # of a rope scaled by wavelength: its wavelengths then fall into all three bands
LENGTH = 16  # past which a rope scaled by length turns otherwise: runs are made of fewer tokens, and beyond it
WINDOW = 5
SHARPNESS = 0.5  # the least of scores, over their scale by head_dim alone: under a smaller one all keys weigh alike
SCALES = (0.75, 1.5)  # of branches and logits: what is scaled to nothing proves nothing
CLAMP = 1.0  # of gate and up, likewise
CLIP = 1.0  # of queries, keys and values, whose spread in a twin is about 1
SOFTCAP = 2.0  # near the spread of random scores: a cap that bends nothing proves nothing


def shrink(spec: Spec) -> Spec:
    """The twin of a spec; of a twin, itself."""
    sizes = _Sizes(spec)
    tree = _without(spec.tree, "expect", "description")
    tree = _set(tree, ("name",), spec.name.removesuffix("-twin") + "-twin")
    tree = _set(tree, ("width",), sizes.width)
    tree = _set(tree, ("vocab",), min(spec.top.vocab, VOCAB + (sizes.width == VOCAB)))  # no two sizes alike by chance
    tree = _set(tree, ("context",), max(min(spec.top.context, CONTEXT), 2 * LENGTH if sizes.by_length else 0))
    for place in _layer_places(tree):
        tree = _attention(tree, (*place, "attention"), sizes)
        tree = _mlp(tree, (*place, "mlp"), spec.top.width, sizes.width)
        tree = _within(tree, (*place, "residual_scale"), *SCALES)
    tree = _depth(tree, spec)
    if spec.top.embedding and spec.top.embedding.width:
        wide = spec.top.embedding.width * sizes.width // spec.top.width
        tree = _set(tree, ("embedding", "width"), max(1, wide) + (wide == sizes.width))
    tree = _within(tree, ("head", "scale"), *SCALES)
    if spec.top.head.softcap:
        tree = _set(tree, ("head", "softcap"), min(spec.top.head.softcap, SOFTCAP))
    return from_tree(tree)


class _Sizes:
    """What the twin's sizes follow from: all attentions of the spec, and the top-level one, which kinds vary."""

    def __init__(self, spec: Spec) -> None:
        chains = dict.fromkeys(elaborate(spec).layers)
        self.all = [leaf.part for chain in chains for leaf in leaves(chain) if isinstance(leaf.part, Attention)]
        self.by_length = any(a.rope and a.rope.original for a in self.all)
        self.was = spec.top.width
        self.base = next((layer.keys.attention for layer in spec.layers if layer.keys.attention), None)
        self.grouped = any(a.heads != a.kv_heads for a in self.all)
        self.factor = self._factor()
        self.width = self._width()

    def _factor(self) -> Fraction:
        """One for all heads, so that unlike ones stay unlike: the smallest, or its rotary part, becomes HEAD_DIM.

        Sizes that fused attention takes become such sizes, so that the twin is fused where the model is.
        """
        turned = [a.rope.dims for a in self.all if a.rope and a.rope.dims]
        whole = [a.head_dim or 1 for a in self.all]
        least = min((a.rope.dims if a.rope and a.rope.dims else a.head_dim or 1 for a in self.all), default=1)
        unit = HEAD_DIM if all(size % HEAD_DIM == 0 for size in whole + turned) else 1
        for few in range(HEAD_DIM, least, HEAD_DIM):
            factor = Fraction(few, least)
            if all((size * factor / unit).denominator == 1 for size in whole + (turned if unit > 1 else [])):
                return factor
        return Fraction(1)

    def _width(self) -> int:
        """In the same ratio to the twin's heads together: a twin in which the two are equal hides who reads which."""
        a = self.base.resolved(self.was) if self.base else None
        if a is None:
            return min(self.was, WIDTH)
        return max(1, self.was * self.heads(a)[0] * self.head_dim(a) // (a.heads * (a.head_dim or 1)))

    def head_dim(self, a: Attention) -> int:
        return int((a.head_dim or 1) * self.factor)

    def heads(self, a: Attention) -> tuple[int, int]:
        """Two key-value heads at least, so that their order shows, and as many queries to each, up to GROUP.

        As many key-value heads become as many, whatever reads them: layers may read those of others.
        """
        kv_heads = a.kv_heads or a.heads
        few = min(kv_heads, 2 if self.grouped else 4)
        return few * min(a.heads // kv_heads, GROUP), few


def _layer_places(tree: Mapping) -> list[tuple[str, ...]]:
    """Where the keys that layers are made of stand: at the top, in every kind and in every part."""
    places: list[tuple[str, ...]] = [()]
    if isinstance(kinds := at(tree, ("layers", "kinds")), Mapping):
        places += [("layers", "kinds", name) for name in kinds.entries]
    for place in tuple(places):
        if isinstance(parts := at(tree, (*place, "parts")), Mapping):
            places += [(*place, "parts", name) for name in parts.entries]
    return places


_OWN = ("heads", "kv_heads", "head_dim")


def _attention(tree: Mapping, path: tuple[str, ...], sizes: _Sizes) -> Mapping:
    here = at(tree, path)
    if not isinstance(here, Mapping) or sizes.base is None:
        return tree
    said = {key: plain(entry.value) for key, entry in here.entries.items()}
    own = {key: value if isinstance(value, int) else None for key, value in said.items() if key in _OWN}
    a = sizes.base.model_copy(update=own).resolved(sizes.was)
    (few, kv_heads), head_dim = sizes.heads(a), sizes.head_dim(a)
    new: dict[str, int] = {"heads": few, "kv_heads": kv_heads, "head_dim": head_dim}
    edits: dict[tuple[str, ...], int | float] = {(key,): new[key] for key in _OWN if isinstance(said.get(key), int)}
    if "heads" in said and "head_dim" not in said and few * head_dim != sizes.width:
        edits["head_dim",] = head_dim
    for key, most in (("window", WINDOW), ("softcap", SOFTCAP), ("clip", CLIP)):
        if isinstance(value := said.get(key), int | float):
            edits[key,] = min(value, most)
    if isinstance(scale := said.get("scale"), int | float) and scale != 1:  # 1 is no scaling, whatever the head
        edits["scale",] = max(scale * ((a.head_dim or 1) / head_dim) ** 0.5, SHARPNESS * head_dim**-0.5)
    for key, value in (edits | _rope(here, sizes.factor)).items():
        tree = _set(tree, (*path, *key), value)
    for key in ("short", "long"):
        at_key = (*path, "rope", "scaling", key)
        if isinstance(listed := at(tree, at_key), Sequence):
            few = max(1, int(len(listed.items) * sizes.factor))
            spread = (listed.items[i * len(listed.items) // few] for i in range(few))
            tree = _put(tree, at_key, Sequence(tuple(spread), listed.place))
    return tree


def _rope(here: Mapping, factor: Fraction) -> dict[tuple[str, ...], int | float]:
    edits: dict[tuple[str, ...], int | float] = {}
    for key in ("dims", "pairs"):
        count = at(here, ("rope", key))
        if isinstance(count, Scalar) and isinstance(count.value, int):
            edits["rope", key] = max(1, int(count.value * factor))
    kind, original = (at(here, ("rope", "scaling", key)) for key in ("type", "original"))
    if isinstance(original, Scalar) and isinstance(original.value, int) and isinstance(kind, Scalar):
        # Of yarn nothing: its bands are of the pairs, however far apart.
        shorter = {"llama3": ORIGINAL, "longrope": LENGTH, "dynamic": LENGTH}.get(str(kind.value), original.value)
        edits["rope", "scaling", "original"] = min(original.value, shorter)
    return edits


def _mlp(tree: Mapping, path: tuple[str, ...], was: int, width: int) -> Mapping:
    wide = at(tree, (*path, "width"))
    if not isinstance(wide, Scalar) or not isinstance(wide.value, int):
        return tree
    tree = _within(tree, (*path, "limit"), 0, CLAMP)
    return _set(tree, (*path, "width"), max(1, wide.value * width // was))


def _depth(tree: Mapping, spec: Spec) -> Mapping:
    """Each entry of the layer lists, the pattern twice where it is tiled, and two layers at least."""
    if spec.top.layers is None:
        return _set(tree, ("depth",), min(spec.top.depth, 2))
    counts: dict[str, int] = {}
    for key in ("first", "pattern", "last"):
        listed = at(tree, ("layers", key))
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


def _within(tree: Mapping, path: tuple[str, ...], least: float, most: float) -> Mapping:
    """The number at this path, if there is one, brought into these bounds."""
    held = at(tree, path)
    if not isinstance(held, Scalar) or not isinstance(held.value, int | float):
        return tree
    return _set(tree, path, min(max(held.value, least), most))


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
