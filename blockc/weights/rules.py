"""Rules between the tensors of a checkpoint and the parameters of a function: renamed, joined, transposed. NumPy only.

    file tensor = transpose(join of the parameters)        parameters = parts of transpose(file tensor)

`patterns` picks the items of a layout that hold for a function, and `rules` expands them to one rule for each tensor of
the file. Parameters have paths, tensors names. A file may have the slices of a parameter along axis 0 as tensors of
their own, one for each expert.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blockc.basics.errors import shorten
from blockc.basics.floats import INTEGERS
from blockc.ir import Array, Dtype, Function, Node, Param, callee_of, functions_of, layers_of, parameters_of
from blockc.layouts import HEADS, Item, Layout, LayoutError
from blockc.layouts.wrapper import Spelling, load_wrapper
from blockc.ops import Attention, Experts, LatentAttention, Rotary, RotaryInterleaved

Shape = tuple[int, ...]
DENSE = r"dense_\d+\.(weight|bias)"  # of a list `pool.dense`


@dataclass(frozen=True)
class Pattern:
    """A layout's item for one function: `groups` is a number, and {i} runs over `layers` (empty outside the layers).

    {e} in the name runs over axis 0 of the parameter.
    """

    name: str
    targets: tuple[str, ...]
    groups: int
    axis: int
    transpose: bool
    layers: tuple[int, ...]
    permuted: int = 0  # heads whose rows the file has interleaved
    plus: float = 0.0  # what the file has added to a gain

    @property
    def by_expert(self) -> bool:
        return "{e}" in self.name


@dataclass(frozen=True)
class Patterns:
    """The items of a layout that hold for a function. Together they cover each parameter once."""

    each: tuple[Pattern, ...]
    tied: Mapping[str, str]
    ignored: Mapping[str, str]
    prefixes: tuple[str, ...]
    beyond: Mapping[str, str]
    older: Mapping[str, str]
    depth: int

    def __iter__(self) -> Iterator[Pattern]:
        return iter(self.each)

    @property
    def spellings(self) -> tuple[Spelling, ...]:
        """How files may spell the names: with each prefix instead of the first, or as part of a larger model."""
        own = tuple(Spelling(self.prefixes[0], prefix) for prefix in self.prefixes) or (Spelling(),)
        older = (replace(each, ends=tuple(self.older.items())) for each in own if self.older)
        return (*own, *older, *load_wrapper().spellings)


@dataclass(frozen=True)
class Rule:
    """One tensor of the file: its targets, each seen as [groups, n / groups] along the axis, joined group by group.

    With `expert`, the tensor is that slice of its target along axis 0, of `experts`; `shapes` is then of the slice.
    """

    name: str
    targets: tuple[str, ...]
    groups: int
    axis: int
    transpose: bool
    shapes: tuple[Shape, ...]  # of the targets
    permuted: int = 0  # heads whose rows the file has interleaved, where rope turns halves
    plus: float = 0.0  # what the file has added to a gain
    dtype: Dtype = "float"
    expert: int | None = None
    experts: int = 0

    @property
    def wholes(self) -> tuple[Shape, ...]:
        """The shapes of the parameters."""
        return self.shapes if self.expert is None else tuple((self.experts, *shape) for shape in self.shapes)

    @property
    def joined(self) -> Shape:
        first, axis = self.shapes[0], self.axis
        if len(self.shapes) == 1:  # it may be a scalar, without an axis
            return first
        return (*first[:axis], sum(shape[axis] for shape in self.shapes), *first[axis + 1 :])

    @property
    def shape(self) -> Shape:
        """The shape of the file's tensor."""
        return (*self.joined[:-2], self.joined[-1], self.joined[-2]) if self.transposed else self.joined

    @property
    def transposed(self) -> bool:
        """Whether the file has the transpose; vectors have none."""
        return self.transpose and len(self.shapes[0]) >= 2

    @property
    def plain(self) -> bool:
        """Whether the file has the numbers of the parameter, or of its slice, as they are."""
        return len(self.targets) == 1 and not self.transposed and not self.permuted and not self.plus


@dataclass(frozen=True)
class Rules:
    """A rule for each tensor of the file, and the patterns behind them."""

    each: tuple[Rule, ...]
    patterns: Patterns

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.each)

    def __len__(self) -> int:
        return len(self.each)


def group_sizes(function: Function) -> dict[str, int]:
    """heads, kv_heads and head_dim, and mlp_width of experts; each only if all parts of the function agree on it.

    Heads of latent attention have several sizes, and head_dim is what divides them all.
    """
    found: dict[str, set[int | None]] = {}
    for inner in functions_of(function):
        for n in inner.nodes:
            for word, size in _sizes_of(n).items():
                found.setdefault(word, set()).add(size)
    return {word: size for word, (size, *rest) in found.items() if size is not None and not rest}


def _sizes_of(n: Node) -> dict[str, int | None]:
    match n.op:
        case Attention(heads, kv_heads):
            return {"heads": heads, "kv_heads": kv_heads, "head_dim": n.inputs[0].type.shape[-1].value}
        case LatentAttention(heads, nope=nope, rope=rope, v_dim=v_dim):
            return {"heads": heads, "kv_heads": heads, "head_dim": math.gcd(nope, rope, v_dim)}
        case Experts(width=width):
            return {"mlp_width": width}
        case _:
            return {}


def patterns(layout: Layout, function: Function, sizes: Mapping[str, int]) -> Patterns:
    """The layout's items that hold for the function. Raises LayoutError naming everything uncovered or misfit.

    An item holds where its parameters exist. `sizes` come from `group_sizes`. Layers that share one function are
    checked once.
    """
    params = parameters_of(function)
    alike = _group_layers(function)
    neighbours = _rope_pairings(function)
    held: list[Pattern] = []
    faults: list[str] = []
    for item in layout.items:
        spots: list[int] = []
        for i in alike if "{i}" in item.name else [0]:
            targets = [target.format(i=i) for target in item.targets]
            absent = [target for target in targets if target not in params]
            if not absent:
                spots.append(i)
            elif len(absent) < len(targets):
                faults.append(f"{_of_layer(item.name, i)} joins {', '.join(targets)}: no parameter {', '.join(absent)}")
        if spots:
            permuted_by = item.permute_rope if neighbours != {True} else None
            unit = item if permuted_by is None else replace(item, groups=permuted_by)
            groups, misfit = _count_groups(unit, spots, params, sizes)
            if permuted_by is not None and len(neighbours) > 1:
                misfit.append(f"{item.name} is permuted for one pairing of rope, and there are two here")
            plus, unlike = _find_offset(item, spots, params)
            where = tuple(sorted(i for spot in spots for i in alike[spot])) if "{i}" in item.name else ()
            faults.extend([*misfit, *unlike])
            joined, permuted = (groups, 0) if permuted_by is None else (1, groups)
            held.append(Pattern(item.name, item.targets, joined, item.axis, item.transpose, where, permuted, plus))
    held += _dense_modules(held, params)
    names, covered = _count_names(held)
    twice = [name for counted in (names, covered) for name, n in counted.items() if n > 1]
    faults.extend(f"two lines of the layout hold for {name}" for name in twice)
    faults.extend(f"no tensor of the layout gives {path}" for path in params if path not in covered)
    tied = {name: target for name, target in layout.tied.items() if name not in names}
    faults.extend(f"{name} is tied to {to}, which is no parameter" for name, to in tied.items() if to not in params)
    if faults:
        raise LayoutError("\n  ".join([f"the layout {layout.name} does not fit:", *shorten(faults)]))
    depth = sum(map(len, alike.values()))
    return Patterns(tuple(held), tied, layout.ignored, layout.prefixes, layout.beyond, layout.older, depth)


def _dense_modules(held: Iterable[Pattern], params: Mapping[str, Param]) -> Iterator[Pattern]:
    """What the Dense modules of sentence-transformers hold, in files of their own, whatever the layout."""
    named = {target for pattern in held for target in pattern.targets}
    own = (path for path in params if re.fullmatch(DENSE, path) and path not in named)
    yield from (Pattern(path, (path,), 1, 0, False, ()) for path in own)


def _of_layer(name: str, i: int) -> str:
    """A pattern's name in layer i, still with the place of the expert's number."""
    return name.replace("{i}", str(i))


def _group_layers(function: Function) -> dict[int, list[int]]:
    """Layers by function: the numbers of the layers that share one, by the first of them."""
    found: dict[Function, list[int]] = {}
    for i, call in enumerate(layers_of(function)):
        found.setdefault(callee_of(call), []).append(i)
    return {alike[0]: alike for alike in found.values()}


def _find_offset(item: Item, spots: list[int], params: Mapping[str, Param]) -> tuple[float, list[str]]:
    """(The norm's offset, which the file has added to a gain; faults where norms have several offsets.)"""
    offsets = {1.0 - params[item.targets[0].format(i=i)].neutral for i in spots} if item.plus_offset else {0.0}
    many = [f"{item.name} has the norm's offset added, and there are several here"] if len(offsets) > 1 else []
    return max(offsets), many


def _rope_pairings(function: Function) -> set[bool]:
    """For each rotation, whether rope pairs neighbours; if so, rows that a file has interleaved stay in place."""
    ops = (n.op for inner in functions_of(function) for n in inner.nodes)
    return {isinstance(op, RotaryInterleaved) for op in ops if isinstance(op, Rotary)}


def _count_names(held: Iterable[Pattern]) -> tuple[Counter[str], Counter[str]]:
    """How many patterns cover each name of the file, and each parameter."""
    spots = [(pattern, i) for pattern in held for i in pattern.layers or (0,)]
    names = Counter(_of_layer(pattern.name, i) for pattern, i in spots)
    return names, Counter(target.format(i=i) for pattern, i in spots for target in pattern.targets)


def _count_groups(
    item: Item, spots: list[int], params: Mapping[str, Param], sizes: Mapping[str, int]
) -> tuple[int, list[str]]:
    """(The number of groups; faults where the parameters do not divide into them.)"""
    word = item.groups
    if word == 1 and len(item.targets) == 1:
        return 1, []
    wanted, whose = ({word, "head_dim"}, "attentions") if word in HEADS else ({word}, "MLPs")
    if isinstance(word, str) and not sizes.keys() >= wanted:
        return 1, [f"{item.name} is packed by {word}, which differs between {whose} here"]
    groups = sizes[word] if isinstance(word, str) else word
    unit = groups * (sizes["head_dim"] if word in HEADS else 1)  # a group of heads holds whole heads
    faults: list[str] = []
    for i in spots:
        shapes = {target: params[target].shape for target in (target.format(i=i) for target in item.targets)}
        across = {(*shape[: item.axis], *shape[item.axis + 1 :]) for shape in shapes.values()}
        if len(across) > 1 or any(len(shape) <= item.axis or shape[item.axis] % unit for shape in shapes.values()):
            parts = ", ".join(f"{target} {shape}" for target, shape in shapes.items())
            faults.append(f"{_of_layer(item.name, i)}: no {groups} groups along axis {item.axis} of {parts}")
    return groups, faults


def rules(layout: Layout, function: Function, sizes: Mapping[str, int]) -> Rules:
    """Expands the layout: every parameter is in exactly one rule. Raises LayoutError as `patterns` does."""
    params, held = parameters_of(function), patterns(layout, function, sizes)
    made: list[Rule] = []
    for p in held:
        for i in p.layers or (0,):
            targets = tuple(target.format(i=i) for target in p.targets)
            shapes = tuple(params[target].shape for target in targets)
            dtype = params[targets[0]].dtype
            name = _of_layer(p.name, i)
            if p.by_expert:
                made.extend(_expert_rules(name, targets, shapes, dtype))
            else:
                made.append(Rule(name, targets, p.groups, p.axis, p.transpose, shapes, p.permuted, p.plus, dtype))
    return Rules(tuple(made), held)


def _expert_rules(name: str, targets: tuple[str, ...], shapes: tuple[Shape, ...], dtype: Dtype) -> Iterator[Rule]:
    """A rule for each slice along axis 0 of a parameter, whose number stands at {e} in the name."""
    before, after = name.split("{e}")
    count, slices = shapes[0][0], (shapes[0][1:],)
    for e in range(count):
        yield Rule(f"{before}{e}{after}", targets, 1, 0, False, slices, dtype=dtype, expert=e, experts=count)


def random_parameters(function: Function, seed: int) -> dict[str, Array]:
    """Random parameters, none exactly 0 or 1, so that a wrong block gives wrong numbers.

    They are float32 numbers in float64 arrays, so that every backend reads the same. They depend only on the path and
    the seed; NumPy promises that RandomState's stream does not change.
    """
    return {path: draw_parameter(path, param, seed) for path, param in parameters_of(function).items()}


def draw_parameter(path: str, param: Param, seed: int) -> Array:
    """A random parameter; integers are drawn from all values of their type."""
    generator = np.random.RandomState((zlib.crc32(path.encode()) ^ seed) & 0xFFFFFFFF)
    if param.dtype == "bool":
        return generator.randint(2, size=param.shape).astype(bool)
    if param.dtype in INTEGERS:
        kind: Any = np.iinfo(INTEGERS[param.dtype].numpy)
        return generator.randint(kind.min, int(kind.max) + 1, param.shape, kind.dtype)
    normal = generator.standard_normal(param.shape)
    if param.role in ("matrix", "table"):
        drawn = normal / math.sqrt(param.shape[-1])
    else:
        drawn = param.neutral + 0.3 * normal
    rounded = drawn.astype(np.float32).astype(np.float64)
    return np.where((rounded == 0) | (rounded == 1), 0.25, rounded)
