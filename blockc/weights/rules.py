"""Rules between the tensors of a checkpoint and the parameters of a function: renamed, joined, transposed. NumPy only.

    file tensor = transpose(join of the parameters)        parameters = parts of transpose(file tensor)

`patterns` picks the items of a layout that hold for a function, and `rules` expands them to one rule for each tensor of
the file. `unpack` reads a checkpoint through the rules; `pack` is its inverse. Parameters have paths, tensors names. A
file may have the slices of a parameter along axis 0 as tensors of their own, one for each expert.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from blockc.basics.errors import CheckpointError, escape, shorten
from blockc.basics.floats import INTEGERS
from blockc.ir import Array, Dtype, Function, Node, Param, callee_of, functions_of, layers_of, parameters_of
from blockc.layouts import HEADS, Item, Layout, LayoutError
from blockc.layouts.wrapper import Spelling, load_wrapper
from blockc.ops import Attention, Experts, LatentAttention, Rotary, RotaryInterleaved

Shape = tuple[int, ...]


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
    depth: int

    def __iter__(self) -> Iterator[Pattern]:
        return iter(self.each)

    @property
    def spellings(self) -> tuple[Spelling, ...]:
        """How files may spell the names: with each prefix instead of the first, or as part of a larger model."""
        own = tuple(Spelling(self.prefixes[0], prefix) for prefix in self.prefixes) or (Spelling(),)
        return (*own, *load_wrapper().spellings)


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
    names, covered = _count_names(held)
    twice = [name for counted in (names, covered) for name, n in counted.items() if n > 1]
    faults.extend(f"two lines of the layout hold for {name}" for name in twice)
    faults.extend(f"no tensor of the layout gives {path}" for path in params if path not in covered)
    tied = {name: target for name, target in layout.tied.items() if name not in names}
    faults.extend(f"{name} is tied to {to}, which is no parameter" for name, to in tied.items() if to not in params)
    if faults:
        raise LayoutError("\n  ".join([f"the layout {layout.name} does not fit:", *shorten(faults)]))
    depth = sum(map(len, alike.values()))
    return Patterns(tuple(held), tied, layout.ignored, layout.prefixes, layout.beyond, depth)


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
    if isinstance(word, str) and not sizes.keys() >= ({word, "head_dim"} if word in HEADS else {word}):
        return 1, [
            f"{item.name} is packed by {word}, which differs between {'attentions' if word in HEADS else 'MLPs'} here"
        ]
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


def pack(rules: Rules, params: Mapping[str, Array]) -> dict[str, Array]:
    """Turns parameters by path into the file's tensors by name: the inverse of `unpack`. Raises CheckpointError."""
    wanted = {to: (shape, rule.dtype) for rule in rules for to, shape in zip(rule.targets, rule.wholes, strict=True)}
    if faults := [*_find_misfits(wanted, params), *_extra_faults(name for name in params if name not in wanted)]:
        raise CheckpointError("\n  ".join(["the parameters do not fit the layout:", *shorten(faults)]))
    return {rule.name: _join(rule, [_slice(params[target], rule) for target in rule.targets]) for rule in rules}


def _slice(whole: Array, rule: Rule) -> Array:
    return whole if rule.expert is None else whole[rule.expert]


def _join(rule: Rule, parts: list[Array]) -> Array:
    whole = parts[0]
    if len(parts) > 1:
        grouped = [_group(part, rule) for part in parts]
        whole = np.concatenate(grouped, axis=rule.axis + 1).reshape(rule.joined)
    if rule.permuted:
        whole = _interleave(whole, rule.permuted, 2)
    if rule.plus:
        whole = whole + np.asarray(rule.plus, whole.dtype)
    return np.swapaxes(whole, -1, -2) if rule.transposed else whole


def _interleave(array: Array, heads: int, inner: int) -> Array:
    """Transposes the rows of each head, viewed as [inner, n / inner]: 2 interleaves halves, half a head undoes that."""
    return array.reshape(heads, inner, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def _group(array: Array, rule: Rule) -> Array:
    shape = array.shape
    return array.reshape(*shape[: rule.axis], rule.groups, -1, *shape[rule.axis + 1 :])


def unpack(rules: Rules, tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Turns a checkpoint's tensors by name into parameters by path. Every tensor is consumed, tied or ignored.

    Raises CheckpointError listing tensors that are missing, extra, of another shape, or different from their tie.
    """
    match = match_tensors(rules, tensors)
    faults = list(match.faults)
    params: dict[str, Array] = {}
    for name, rule in match.rules.items():
        if name in tensors and tensors[name].shape == rule.shape:
            parts = split_tensor(rule, tensors[name])
            for target, part, whole in zip(rule.targets, parts, rule.wholes, strict=True):
                if rule.expert is None:
                    params[target] = part
                else:
                    params.setdefault(target, np.empty(whole, part.dtype))[rule.expert] = part
    for name, target in match.tied.items():
        if target in params and not np.array_equal(tensors[name], params[target]):
            faults.append(untied_fault(name, target))
    if faults:
        raise misfit_error(faults)
    return params


class Shaped(Protocol):
    """A tensor's shape and dtype, known before it is read."""

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...


@dataclass(frozen=True)
class Match:
    """The rules by a checkpoint's own names, its tensors that are tied to a parameter, and all that does not fit.

    `dropped` has the tensors that are not of the language model, each with the tower that it belongs to; `beyond` those
    of layers after the last one, each with what its layer is.
    """

    rules: Mapping[str, Rule]
    tied: Mapping[str, str]
    faults: tuple[str, ...]
    dropped: Mapping[str, str]
    beyond: Mapping[str, str]


def match_tensors(rules: Rules, tensors: Mapping[str, Shaped]) -> Match:
    """Matches a checkpoint's names, shapes and types with the rules. No tensor is read."""
    held = rules.patterns
    spelled = max(held.spellings, key=lambda spelled: sum(spelled(rule.name) in tensors for rule in rules))
    tied = {spelled(name): target for name, target in held.tied.items()}
    named = _rename_tied({spelled(rule.name): rule for rule in rules}, tied, tensors)
    wanted = {name: (rule.shape, rule.dtype) for name, rule in named.items()}
    left = list(_find_unmatched(tensors, {*named, *tied}, held, spelled))
    dropped = load_wrapper().towers_of(left) if spelled.wrapped else {}
    beyond = dict(_find_beyond(left, held, spelled))
    others = (name for name in left if name not in dropped and name not in beyond)
    faults = [*_find_misfits(wanted, tensors), *_extra_faults(others)]
    ties = {name: target for name, target in tied.items() if name in tensors and name not in named}
    return Match(named, ties, tuple(faults), dropped, beyond)


def _find_beyond(names: Sequence[str], held: Patterns, spelling: Spelling) -> Iterator[tuple[str, str]]:
    """(Tensor, what its layer is) for the layers after the last one that the layout knows by one of their tensors."""
    for mark, what in held.beyond.items():
        before, after = map(re.escape, spelling(mark).split("{i}"))
        found = (re.fullmatch(rf"({before}([0-9]+)\.){after.removeprefix(re.escape('.'))}", name) for name in names)
        layers = tuple(each[1] for each in found if each and int(each[2]) >= held.depth)
        yield from ((name, what) for name in names if name.startswith(layers))


def _rename_tied(named: Mapping[str, Rule], tied: Mapping[str, str], tensors: Mapping[str, Shaped]) -> dict[str, Rule]:
    """The rules, reading a parameter from its tied tensor where the file has only that one."""
    alone = {target: name for name, target in tied.items() if name in tensors}
    return {
        alone[rule.targets[0]] if name not in tensors and rule.plain and rule.targets[0] in alone else name: rule
        for name, rule in named.items()
    }


def untied_fault(name: str, target: str) -> str:
    return f"untied: {name} differs from {target}, which it is tied to"


def misfit_error(faults: Iterable[str]) -> CheckpointError:
    """The error for these faults: the first ones of each kind, so that its length does not grow with the checkpoint."""
    kinds: dict[str, list[str]] = {}
    for fault in faults:
        kinds.setdefault(fault.partition(":")[0], []).append(fault)
    lines = (line for kind in kinds.values() for line in shorten(kind))
    return CheckpointError("\n  ".join(["the checkpoint does not fit the spec:", *lines]))


def split_tensor(rule: Rule, array: Array) -> list[Array]:
    """The parameters that a tensor of the file holds."""
    whole = np.swapaxes(array, -1, -2) if rule.transposed else array
    if rule.permuted:
        return [_interleave(whole, rule.permuted, rule.joined[0] // rule.permuted // 2)]
    if rule.plus:
        return [whole - np.asarray(rule.plus, whole.dtype)]
    if len(rule.targets) == 1:
        return [whole]
    ends = np.cumsum([shape[rule.axis] // rule.groups for shape in rule.shapes])
    parts = np.split(_group(whole, rule), ends[:-1], axis=rule.axis + 1)
    return [part.reshape(shape) for part, shape in zip(parts, rule.shapes, strict=True)]


def _find_unmatched(tensors: Iterable[str], known: set[str], held: Patterns, spelling: Spelling) -> Iterator[str]:
    """The tensors that no rule or tie covers and that the layout does not ignore."""
    spelled = (re.escape(spelling(name)).replace(r"\{i\}", "[0-9]+") for name in held.ignored)
    ignored = re.compile("|".join(spelled) or "(?!)")
    return (name for name in tensors if name not in known and not ignored.fullmatch(name))


def _find_misfits(wanted: Mapping[str, tuple[Shape, str]], got: Mapping[str, Shaped]) -> Iterator[str]:
    """A line for each wrong tensor. Floats of any type fit, for they are cast; integers must have the type."""
    for name, (shape, dtype) in wanted.items():
        if name not in got:
            yield f"missing: {name} {shape}"
        elif got[name].shape != shape:
            yield f"misshapen: {name} is {got[name].shape}, expected {shape}"
        elif dtype in INTEGERS:
            if got[name].dtype != np.dtype(INTEGERS[dtype].numpy):
                yield f"misshapen: {name} holds {got[name].dtype}, expected {dtype}"
        elif got[name].dtype.kind != "f":
            yield f"misshapen: {name} holds {got[name].dtype}, expected floating-point numbers"


def _extra_faults(names: Iterable[str]) -> Iterator[str]:
    return (f"extra: {escape(name)}" for name in names)


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
