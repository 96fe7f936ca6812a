"""NUMERIC: the same tensors, another function. `functions` finds the nodes; this module finds the keys behind them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from blockc.diff.changes import Change, hide_number
from blockc.diff.checkpoint import Renames
from blockc.diff.functions import Differences, View, compare_views, layer_view, root_view
from blockc.diff.side import Key, Side, part_keys, spell, top_keys
from blockc.graph.build import steps_of
from blockc.source import Place


def compare_numerics(a: Side, b: Side, renamed: Renames) -> list[Change]:
    """One change for each key and its two values, with the nodes that it affects."""
    found: dict[Change, list[str]] = {}
    for change, at in (*_layers_changes(a, b, renamed), *_root_changes(a, b)):
        found.setdefault(change, []).append(at)
    return [replace(change, times=len(sites), note=_list_sites(sites)) for change, sites in found.items()]


def _list_sites(sites: list[str]) -> str:
    """layers.{i}.mlp for several layers, layers.3.mlp for one."""
    groups: dict[str, list[str]] = {}
    for site in sites:
        groups.setdefault(hide_number(site), []).append(site)
    return ", ".join(alike if len(each) > 1 else each[0] for alike, each in groups.items())


def _layers_changes(a: Side, b: Side, renamed: Renames) -> Iterator[tuple[Change, str]]:
    back = {new: old for old, new in renamed.labels.items()}
    known: dict[object, tuple[list[tuple[Change, str]]]] = {}
    for i, (one, other) in enumerate(zip(a.calls, b.calls, strict=False)):
        left, right = layer_view(one, {}), layer_view(other, back)
        # Layers with one function may get different masks, and layers with one meaning may have different keys.
        key = (*map(_identity_of, (left, right)), a.layer(i).kind, b.layer(i).kind)
        if key not in known:
            known[key] = (list(_layer_changes(a, b, i, compare_views(left, right), renamed)),)
        yield from ((change, f"layers.{i}{at}") for change, at in known[key][0])


def _identity_of(view: View) -> object:
    return view.function, tuple(view.given.values())


def _layer_changes(a: Side, b: Side, i: int, found: Differences, renamed: Renames) -> Iterator[tuple[Change, str]]:
    for label, said in found.nodes.items():
        name = renamed.labels.get(label, label)
        keys = _relevant_keys(part_keys(a, b, i, label, name), said)
        if not keys:
            leaf = b.leaf(i, name)
            yield Change("NUMERIC", label, "", "; ".join(said), place=leaf.place if leaf else None), f".{label}"
        yield from ((_change_of(key), f".{label}") for key in keys)
    if found.wiring:
        terms = [steps_of(side.model.decoder.layers[i]) for side in (a, b)]
        yield Change("NUMERIC", "block", *terms, place=_block_place(a, b, i)), ""


def _block_place(a: Side, b: Side, i: int) -> Place | None:
    paths = (("block",), ("norm", "placement"))
    return next((place for side in (b, a) for path in paths if (place := side.place(path, i))), None)


def _relevant_keys(keys: Iterable[Key], said: list[str]) -> list[Key]:
    """The written keys that explain these differences: no bias, which is a tensor, no size that only sets a shape."""
    words = {word for each in said for word in each.replace(":", " ").split()}
    kept = [key for key in keys if key.is_written and not key.name.endswith(".bias")]
    return [key for key in kept if not key.size or key.name.rpartition(".")[2] in words]


def _change_of(key: Key) -> Change:
    return Change("NUMERIC", key.name, spell(key.before), spell(key.after), place=key.place)


def _root_changes(a: Side, b: Side) -> Iterator[tuple[Change, str]]:
    """Changes around the layers: the embedding's scale and norm, positions, the final norm, the logits' softcap."""
    found = compare_views(root_view(a.function), root_view(b.function))
    if not found:
        return
    scales = [side.model.decoder.scale for side in (a, b)]
    spots = {"embedding.scale": "embedding", "embedding.norm": "embedding_norm", "positions": "positions",
             "head.softcap": "head", "pool": "pool"}  # fmt: skip
    spots = {key: spot for key, spot in spots.items() if key != "embedding.scale" or scales[0] != scales[1]}
    if {side.model.decoder.positions and side.model.decoder.positions.type for side in (a, b)} <= {None, "learned"}:
        del spots["positions"]  # a table, which CHECKPOINT reports
    if "final_norm" in found.nodes:
        spots["norm"] = "final_norm"
    said = False
    for key in top_keys(a, b):
        spot = next((spot for name, spot in spots.items() if key.name.startswith(name)), None)
        if spot and not key.name.endswith("bias") and not key.size:
            yield _change_of(key), spot
            said = True
    if not said:
        texts = [f"{name}: {each}" for name, said_ in found.nodes.items() for each in said_]
        yield Change("NUMERIC", "the model around its layers", "", "; ".join(texts) or "wired differently"), ""
