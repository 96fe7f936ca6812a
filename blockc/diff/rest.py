"""IO, COST and SOURCE: the graph's inputs and outputs, the figures, and changes of the text alone."""

from __future__ import annotations

from collections.abc import Iterator

from blockc.diff.changes import Change, fold
from blockc.diff.side import Key, Side, differences, part_keys, spell, top_keys
from blockc.source import Place, to_plain


def compare_io(a: Side, b: Side) -> list[Change]:
    """Changes of the served graph's inputs and outputs, the cache's included."""
    left, right = a.ports, b.ports
    found = Ports(a, b)
    return fold(
        Change("IO", name, left.get(name), right.get(name), place=found.place(name))
        for name in dict.fromkeys((*left, *right))
        if left.get(name) != right.get(name)
    )


# The keys that an input or an output follows from.
_WRITTEN_AT = {
    "logits": ("head.classes", "head", "vocab"), "last_hidden_state": ("head",),
    "pooled": ("pool.type", "pool", "head"), "token_type_ids": ("embedding.segments", "embedding"),
}  # fmt: skip


class Ports:
    """The keys that set the shapes of inputs and outputs."""

    def __init__(self, a: Side, b: Side) -> None:
        self.top = {key.name: key for key in top_keys(a, b)}
        self.parts: dict[str, Key] = {}
        for i in range(min(len(a.calls), len(b.calls))):
            if (a.layer(i).kind, b.layer(i).kind) != (a.layer(i - 1).kind, b.layer(i - 1).kind) or i == 0:
                for leaf in b.leaves(i):
                    for key in part_keys(a, b, i, leaf.label, leaf.label):
                        self.parts.setdefault(key.name.rpartition(".")[2], key)

    def place(self, port: str) -> Place | None:
        of_states = ("causal", "kv_rank", "rope_dim", "latent", "kv_heads", "head_dim", "heads", "depth", "width")
        wishes = _WRITTEN_AT.get(port, of_states)
        keys = (self.parts.get(wish) or self.top.get(wish) for wish in wishes)
        return next((key.place for key in keys if key and key.is_written), None)


# Figures


def compare_cost(a: Side, b: Side) -> list[Change]:
    left, right = a.figures, b.figures
    key = ("context",)
    return [
        Change("COST", name, f"{left[name]:,}", f"{right[name]:,}", note=_ratio(left[name], right[name]),
               place=b.place(key) if name == "context" else None)
        for name in left
        if left[name] != right[name]
    ]  # fmt: skip


def _ratio(before: int, after: int) -> str:
    return f"x {after / before:.4g}" if before else ""


def compare_storage(a: Side, b: Side) -> list[Change]:
    """How matrices are stored, and the bytes of all weights, where a side is a build.

    A side that is a spec alone is compared in the other's float type.
    """
    left, right = (side.target or other.target for side, other in ((a, b), (b, a)))
    if left is None or right is None:
        return []
    before, after = a.stored(left.dtype), b.stored(right.dtype)
    changes: list[Change] = []
    if left.quant != right.quant or (a.target is None) != (b.target is None):
        both = [path for path in before if path in after and before[path] != after[path]]
        note = "how it is stored"
        changes = fold(Change("CHECKPOINT", path, before[path], after[path], note) for path in both)
    sizes = a.weights(left.dtype), b.weights(right.dtype)
    if sizes[0] != sizes[1]:
        changes.append(Change("COST", "bytes of weights", f"{sizes[0]:,}", f"{sizes[1]:,}", f"{_ratio(*sizes)}"))
    return changes


# Text


def compare_source(a: Side, b: Side) -> list[Change]:
    """Changes between two texts that mean the same function with the same tensors at the same cost."""
    if a.text == b.text:
        return []
    return list(_key_changes(a, b)) or [Change("SOURCE", "text", "", "comments, order or spelling")]


def _key_changes(a: Side, b: Side) -> Iterator[Change]:
    left, right = (to_plain(side.model.spec.tree) for side in (a, b))
    assert isinstance(left, dict)
    assert isinstance(right, dict)
    for path, before, after in differences(left, right):  # type: ignore[arg-type]
        said = [None if value is None else spell(value) for value in (before, after)]
        yield Change("SOURCE", ".".join(path), said[0], said[1], place=b.place(path) or a.place(path))
