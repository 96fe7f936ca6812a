"""How model.py reads a checkpoint: the spec's layout as tables that a template prints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from blockc.basics.floats import INTEGERS
from blockc.ir import Function, is_call, parameters_of
from blockc.layouts import load_layout
from blockc.weights.rules import DENSE, Pattern, Patterns, group_sizes, patterns

WIDTH = 120  # of a line of model.py


@dataclass(frozen=True)
class Loading:
    """`read` is the helper that renames tensors to the model's names; `table` is the template of its table."""

    read: str
    table: str
    helpers: tuple[str, ...]
    of: str
    names: tuple[Pattern, ...] = ()
    experts: tuple[Pattern, ...] = ()  # of tensors of experts, which are stacked, or joined within each expert
    beyond: tuple[str, ...] = ()  # tensors by which layers after the last one are known
    tied: dict[str, str] = field(default_factory=dict[str, str])
    ignored: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    older: dict[str, str] = field(default_factory=dict[str, str])  # the end of a name in older files: that of today
    layers: int = 1
    integers: bool = False  # whether some tensors are integers, which keep their type
    exact: str = ""  # the last part of the names of those that stay in fp32
    modules: bool = False  # whether Dense modules of sentence-transformers may hold some, in folders below
    template: str = "torch/load.j2"

    @property
    def unprefixed(self) -> tuple[str, ...]:
        """The names that never have the prefix."""
        names = (pattern.name for pattern in (*self.names, *self.experts))
        return tuple(name for name in (*names, *self.tied, *self.ignored) if not name.startswith(self.prefixes))

    @property
    def unprefixed_fits(self) -> bool:
        """Whether they fit in the line that adds the prefix, after what stands before them there."""
        before = len('        tensors = with_prefix(tensors, "", but=)') + max(map(len, self.prefixes), default=0)
        return before + len(json.dumps(self.unprefixed)) <= WIDTH


def plan_loading(checkpoint: str | None, function: Function) -> Loading:
    """The tables for the layout named `checkpoint`. Raises LayoutError where it does not fit the function."""
    params = parameters_of(function).values()
    integers = any(param.dtype in INTEGERS for param in params)
    exact = next((param.name.rpartition(".")[2] for param in params if param.dtype == "float32"), "")
    modules = any(re.fullmatch(DENSE, param.name) for param in params)
    if checkpoint is None:
        tied = dict(ties_of(function))
        optional = {"dense_modules": modules, "without_tied": tied, "moved": exact}
        helpers = ("open_tensors", *(helper for helper, wanted in optional.items() if wanted), "renamed")
        return Loading(
            "own",
            "",
            helpers,
            "under the names of its parameters",
            tied=tied,
            integers=integers,
            exact=exact,
            modules=modules,
        )
    depth = sum(is_call(n) for n in function.nodes)
    held = patterns(load_layout(checkpoint), function, group_sizes(function))
    of_experts = _find_experts(held, function)
    others = [p for p in held if p not in of_experts]
    packed = any(len(p.targets) > 1 or p.groups > 1 or p.transpose for p in others)
    prefixes = tuple(prefix for prefix in held.prefixes if prefix)
    read = "unpacked" if packed else "renamed"
    rows = tuple(_expand_rows(others, depth))
    files = {target: row.name for row in rows for target in row.targets}
    optional = {
        "dense_modules": modules,
        "with_new_endings": held.older,
        "with_prefix": prefixes,
        "without_tied": held.tied,
        "without_further_layers": held.beyond,
        "load_experts": of_experts,
        "moved": exact,
    }
    return Loading(
        read,
        f"torch/{read}.j2",
        ("open_tensors", *(helper for helper, wanted in optional.items() if wanted), *dict.fromkeys(["renamed", read])),
        f"in the layout of {checkpoint}" if len(checkpoint) < 17 else f"laid out as {checkpoint}",  # of one line
        rows,
        of_experts,
        tuple(held.beyond),
        {name: files[owner] for name, owner in held.tied.items()},
        tuple(held.ignored),
        prefixes,
        dict(held.older),
        depth,
        integers,
        exact,
        modules,
    )


def ties_of(root: Function) -> Iterator[tuple[str, str]]:
    """Pairs such as (head.weight, embedding.weight): a node's own name of a parameter, and the one it is tied to."""
    for n in root.nodes:
        for held, owned in zip(n.params, n.op.params(), strict=True):
            if held.name != f"{n.name}.{owned.name}":
                yield f"{n.name}.{owned.name}", held.name


def _find_experts(held: Patterns, function: Function) -> tuple[Pattern, ...]:
    """The patterns of tensors of one expert, and of those that are joined or transposed within each expert."""
    params = parameters_of(function)

    def by_slices(p: Pattern) -> bool:
        turned = p.transpose and len(params[p.targets[0].format(i=min(p.layers, default=0))].shape) > 2
        return p.by_expert or turned or (p.axis > 0 and len(p.targets) > 1)

    return tuple(p for p in held if by_slices(p))


def layers_text(layers: Sequence[int]) -> str:
    """Python text of some layers' numbers, which grow."""
    steps = {b - a for a, b in pairwise(layers)}
    if len(steps) > 1:
        return str(list(layers))
    step = next(iter(steps), 1)
    start, stop = layers[0], layers[-1] + 1
    return f"range({start}, {stop}, {step})" if step > 1 else f"range({start}, {stop})" if start else f"range({stop})"


def _expand_rows(held: Iterable[Pattern], depth: int) -> Iterator[Pattern]:
    """The patterns as rows of the table; a pattern for some layers only becomes a row for each of them."""
    for p in held:
        if len(p.layers) in (0, depth):
            yield p
        else:
            for i in p.layers:
                targets = tuple(target.format(i=i) for target in p.targets)
                yield Pattern(p.name.format(i=i), targets, p.groups, p.axis, p.transpose, ())
