"""A spec with a family's ratios for a budget of parameters.

It keeps the family's width / depth, head_dim, heads / kv_heads, heads x head_dim / width, mlp.width / width, and every
key that is not a size. A layer has about c x width^2 parameters, so without tables a model has c / aspect x width^3:
width and depth grow with the cube root of the budget. Of the designs with whole sizes within 3 percent of the budget,
the chosen one has the least |parameters / budget - 1| + |ln(aspect / the family's)|.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any

from blockc.basics.errors import BlockcError, UsageError
from blockc.graph.build import build_graph
from blockc.ir import parameters_of
from blockc.language.algebra import elaborate
from blockc.language.fmt import shorten_number
from blockc.language.spec import Document, Spec, from_tree
from blockc.source import MappingNode, SpecError, escape_text, parse, to_plain
from blockc.source.text import resolve_scalar

NEAR = 0.03  # of the budget
TILE = 64  # widths are multiples of it, and of twice that from 1024 on
LEAST_HEAD = 32
TRIED = 8  # designs whose parameters are counted exactly
WIDE = 118  # characters of a line
_SIZES = ("heads", "kv_heads", "head_dim")
_OWN = ("description", "checkpoint", "expect")  # keys about the family's own model


UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
BUDGET = "a number from 1e3 to 1e15, such as 350M, 7.5B or 100e9"


class NoDesignError(BlockcError):
    """The family has no single set of ratios, or no design with its ratios meets the budget."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that a budget determines."""

    width: int
    depth: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int

    @property
    def aspect(self) -> float:
        return self.width / self.depth


@dataclass(frozen=True)
class Family:
    """A spec whose ratios are kept."""

    name: str
    data: dict[str, Any]
    sizes: Sizes
    tile: int  # layers after which the pattern repeats

    def scale(self, heads: int, depth: int, head_dim: int) -> Sizes | None:
        """The design with this many heads, or None if its width is not whole or not a multiple of tiles."""
        own = self.sizes
        width = Fraction(heads * head_dim * own.width, own.heads * own.head_dim)
        tile = TILE if width < 1024 else 2 * TILE
        if width.denominator > 1 or width % tile:
            return None
        wide = Fraction(own.mlp, own.width) * width
        tile = TILE if wide < 1024 else 2 * TILE
        mlp = max(tile, round(wide / tile) * tile)
        return Sizes(int(width), depth, heads, heads * own.kv_heads // own.heads, head_dim, mlp)

    def with_sizes(self, sizes: Sizes) -> dict[str, Any]:
        """The family's keys with other sizes."""
        attention = {**self.data["attention"], "heads": sizes.heads}
        if sizes.kv_heads != sizes.heads:
            attention["kv_heads"] = sizes.kv_heads
        if "head_dim" in attention or sizes.heads * sizes.head_dim != sizes.width:
            attention["head_dim"] = sizes.head_dim
        mlp = {**self.data["mlp"], "width": sizes.mlp}
        return {**self.data, "width": sizes.width, "depth": sizes.depth, "attention": attention, "mlp": mlp}

    def count(self, sizes: Sizes) -> int:
        """The number of parameters. It is linear in the depth, so two shallow models are enough to compute it."""
        one, two = (self._count(replace(sizes, depth=n * self.tile)) for n in (1, 2))
        return one + (two - one) * (sizes.depth // self.tile - 1)

    def _count(self, sizes: Sizes) -> int:
        try:
            function = build_graph(elaborate(_read_spec(self.with_sizes(sizes))))
        except SpecError as error:  # its places are in a generated text
            why = error.findings[0].message
            raise NoDesignError(
                f"a design of {self.name}'s ratios and width {sizes.width} would be wrong: {why}"
            ) from None
        return sum(param.learned for param in parameters_of(function).values())


def read_family(tree: MappingNode, name: str) -> Family:
    """Reads a family's spec. Raises SpecError if it is wrong, NoDesignError if its layers differ in size."""
    spec = from_tree(tree)
    data: Any = {
        key: value for key, value in _plain_keys(tree).items() if key not in ("description", "checkpoint", "expect")
    }
    layer = spec.distinct[0].keys
    varied = [said.get(key, {}) for said in _overlays(data) for key in ("attention", "mlp")]
    if any(isinstance(said, dict) and said.keys() & {*_SIZES, "width"} for said in varied):
        raise NoDesignError(f"{name} has layers of several sizes, so there is no single ratio to keep")
    if not isinstance(data.get("attention"), dict) or not isinstance(data.get("mlp"), dict) or not layer.mlp:
        raise NoDesignError(f"{name} has no attention and mlp at the top level, whose ratios could be kept")
    if spec.top.layers and (spec.top.layers.first or spec.top.layers.last):
        raise NoDesignError(f"{name} has first or last layers, so its depth is not a multiple of a pattern")
    assert layer.attention is not None
    if layer.attention.latent:
        raise NoDesignError(f"{name} has latent attention, whose ranks and sizes follow from no ratio")
    attention = layer.attention.resolve(spec.top.width)
    heads, kv_heads, head_dim = attention.heads, attention.kv_heads or attention.heads, attention.head_dim or 0
    sizes = Sizes(spec.top.width, spec.top.depth, heads, kv_heads, head_dim, layer.mlp.width)
    return Family(name, _limit_context(data), sizes, _tile(data))


def _plain_keys(tree: MappingNode) -> dict[str, Any]:
    data: Any = to_plain(tree)
    return data


def _overlays(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The keys of kinds of layers and of `parts`, which override the top level."""
    layers: Any = data.get("layers")
    kinds = list(layers["kinds"].values()) if isinstance(layers, dict) else []
    yield from kinds
    for said in (data, *kinds):
        parts = said.get("parts")
        yield from (part for part in (parts.values() if isinstance(parts, dict) else ()) if isinstance(part, dict))


def _tile(data: dict[str, Any]) -> int:
    layers: Any = data.get("layers")
    pattern = layers.get("pattern", ()) if isinstance(layers, dict) else ()
    return sum(next(iter(each.values())) if isinstance(each, dict) else 1 for each in pattern) or 1


def _limit_context(data: dict[str, Any]) -> dict[str, Any]:
    """The keys with the context limited to what rope scaling covers, if that is stated."""
    rope: Any = data["attention"].get("rope")
    scaling = rope.get("scaling") if isinstance(rope, dict) else None
    if not isinstance(scaling, dict) or not scaling.keys() >= {"factor", "original"}:
        return data
    return {**data, "context": min(data["context"], int(scaling["factor"] * scaling["original"]))}


# The search


def find_nearest(family: Family, budget: float) -> tuple[Sizes, int]:
    """(The best design; its parameters). Raises NoDesignError if no design is within 3 percent of the budget."""
    best: tuple[Sizes, int] | None = None
    for head_dim in _head_dims(family):
        counted = [(sizes, family.count(sizes)) for sizes in _find_likely(family, budget, head_dim)]
        near = [each for each in counted if abs(each[1] / budget - 1) <= NEAR]
        if near:
            return min(near, key=lambda each: _distance(family, budget, *each))
        counted += [best] if best else []
        best = min(counted, key=lambda each: abs(each[1] / budget - 1)) if counted else None
    message = (
        f"no design of {family.name}'s ratios has {shorten_number(repr(float(budget)))} parameters within {NEAR:.0%}"
    )
    raise NoDesignError(message + (f"; the nearest has {best[1]:,}" if best else ""))


def _head_dims(family: Family) -> Iterator[int]:
    """The family's head_dim; then half of it and so on, for small models, unless other keys depend on it."""
    head_dim, attention = family.sizes.head_dim, family.data["attention"]
    yield head_dim
    rope = attention.get("rope")
    if "scale" in attention or (isinstance(rope, dict) and ("dims" in rope or "pairs" in rope)):
        return
    while head_dim % 32 == 0 and head_dim // 2 >= LEAST_HEAD:
        head_dim //= 2
        yield head_dim


def _distance(family: Family, budget: float, sizes: Sizes, count: float) -> float:
    return abs(count / budget - 1) + abs(math.log(sizes.aspect / family.sizes.aspect))


def _find_likely(family: Family, budget: float, head_dim: int) -> list[Sizes]:
    """The most promising designs by an estimate of their parameters."""
    shapes = _find_shapes(family, budget, head_dim)
    if not shapes:
        return []
    before, layers = _estimate(family, shapes)
    found: list[tuple[bool, float, int, Sizes]] = []
    for shape in shapes:
        tables, layer = before(shape.width), layers(shape.width)
        deep = max(0, round((budget - tables) / layer / family.tile))
        for tiles in {max(n, 1) for n in (deep - 1, deep, deep + 1)}:
            sizes = replace(shape, depth=tiles * family.tile)
            count = tables + layer * sizes.depth
            far = abs(count / budget - 1) > NEAR
            promise = abs(count / budget - 1) if far else _distance(family, budget, sizes, count)
            found.append((far, promise, sizes.width, sizes))
    return [sizes for *_, sizes in sorted(found, key=lambda each: each[:3])[:TRIED]]


def _find_shapes(family: Family, budget: float, head_dim: int) -> list[Sizes]:
    """Every width that keeps the ratios, up to four times that of a model without tables."""
    own = family.sizes
    layer = (
        family.count(replace(own, depth=2 * family.tile)) - family.count(replace(own, depth=family.tile))
    ) / family.tile
    width = (budget * own.aspect * own.width**2 / layer) ** (1 / 3)
    group = own.heads // own.kv_heads
    most = int(4 * width * own.heads * own.head_dim / own.width / head_dim)
    made = (family.scale(heads, family.tile, head_dim) for heads in range(group, most + 1, group))
    return [sizes for sizes in made if sizes]


def _estimate(family: Family, shapes: list[Sizes]) -> tuple[Any, Any]:
    """(Parameters outside the layers; parameters of a layer), as polynomials in the width through three designs."""
    through = {sizes.width: sizes for sizes in (shapes[0], shapes[len(shapes) // 2], shapes[-1])}
    one = {w: family.count(replace(sizes, depth=family.tile)) for w, sizes in through.items()}
    two = {w: family.count(replace(sizes, depth=2 * family.tile)) for w, sizes in through.items()}
    layer = {w: (two[w] - one[w]) / family.tile for w in through}
    return _interpolate({w: 2 * one[w] - two[w] for w in through}), _interpolate(layer)


def _interpolate(points: dict[int, float]) -> Any:
    """Lagrange's polynomial through the points."""

    def at(x: int) -> float:
        return sum(y * math.prod((x - v) / (w - v) for v in points if v != w) for w, y in points.items())

    return cache(at)


# The text


def new_spec_text(name: str, family: Family, sizes: Sizes, budget: float | None) -> str:
    """The spec with comments; `expect` has its number of parameters."""
    data = {**family.with_sizes(sizes), "name": name}
    counted = family.count(sizes)
    data["expect"] = {"parameters": counted}
    written: list[str] = []
    for key in Document.key_order():
        if key in data:
            written += _comments(family, sizes, budget, counted) if key == "width" else ()
            written += ["# parameters: as computed from these sizes"] if key == "expect" else ()
            written += format_key(key, data[key], "")
    return "\n".join(written) + "\n"


def _comments(family: Family, sizes: Sizes, budget: float | None, counted: int) -> list[str]:
    if budget is None:
        return [f"# The sizes of {family.name}"]
    own = family.sizes
    said = f"heads of {sizes.head_dim}"
    said += "" if sizes.head_dim == own.head_dim else f" (there {own.head_dim})"
    return [
        f"# The ratios of {family.name}: {said}, {own.heads // own.kv_heads} to a key-value head,",
        f"# mlp.width {sizes.mlp / sizes.width:.4g} x width (there {own.mlp / own.width:.4g}), "
        f"width {sizes.aspect:.4g} x depth (there {own.aspect:.4g})",
        f"# The budget: {shorten_number(repr(float(budget)))} parameters; this has {counted / budget - 1:+.1%}",
    ]


def format_key(key: str, value: Any, indent: str) -> list[str]:
    """The lines of a key: one if it fits, else a line for each inner key."""
    one = f"{indent}{key}: {_flow_text(value)}"
    if len(one) <= WIDE or not isinstance(value, dict):
        return [one]
    return [f"{indent}{key}:", *(line for k, v in value.items() for line in format_key(k, v, indent + "  "))]


def _flow_text(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{_flow_text(key)}: {_flow_text(inner)}" for key, inner in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_flow_text, value)) + "]"
        case str():
            bare = re.fullmatch(r"[A-Za-z0-9][\w.+-]*", value, re.ASCII) and resolve_scalar(value) == value
            return value if bare else json.dumps(value, ensure_ascii=False)
        case bool():
            return "true" if value else "false"
        case _:
            return shorten_number(repr(value))


def _read_spec(data: dict[str, Any]) -> Spec:
    return from_tree(parse("\n".join(f"{key}: {_flow_text(value)}" for key, value in data.items()), "spec"))


def budget_of(said: str | float) -> float:
    """The number of parameters in a text such as 100e9, 7500000000, 7.5B or 350M. Raises UsageError."""
    text = said.replace(",", "") if isinstance(said, str) else repr(float(said))
    found = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,20})?(?:e\+?[0-9]{1,2})?)([KMGBT]?)", text, re.IGNORECASE)
    number = float(found[1]) * UNITS[found[2].upper()] if found else 0.0
    if not 1e3 <= number <= 1e15:
        raise UsageError(f"{escape_text(str(said))}: expected {BUDGET}", "parameters")
    return number


def new_spec(name: str, tree: MappingNode, like: str, budget: float | None) -> tuple[str, Sizes, int]:
    """(The text of a new spec without findings; its sizes; its parameters)."""
    from blockc.checks.checking import check_text

    kept = read_family(tree, like)
    sizes, counted = (kept.sizes, kept.count(kept.sizes)) if budget is None else find_nearest(kept, budget)
    text = new_spec_text(name, kept, sizes, budget)
    if found := check_text(text.encode(), f"{name}.yaml"):
        raise NoDesignError(f"a spec of {like}'s ratios would have findings: {found[0].message}")
    return text, sizes, counted
