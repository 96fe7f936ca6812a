"""A model as it was built and as it runs, with all that the figures need to know of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from blockc.basics.floats import format_of
from blockc.ir import (
    Function,
    Node,
    Param,
    S,
    T,
    Type,
    Value,
    callee_of,
    inline,
    is_call,
    layers_of,
    product,
    transform,
)
from blockc.ops import Alibi, LayerNorm, RelativeBias, RmsNorm, Visible, VisibleBothWays
from blockc.passes import with_cache

ONE_TOKEN = {"B": 1, "S": 1, "P": 0}


@dataclass(frozen=True)
class Scores:
    """One attention of the graph: the cost of a query at one key, and how many keys it sees."""

    kind: str  # of the layer that it stands in
    pair_flops: int  # of one query at one key
    whole_flops: int  # the same in a prefill
    window: int | None
    sees: Literal["past", "all"]

    def keys(self, tokens: int) -> int:
        """Keys that the last of `tokens` tokens sees, or with windows to each side one in the middle."""
        return tokens if self.window is None else min(tokens, self.window)

    def pairs(self, tokens: int) -> int:
        """Pairs of query and key that count: sum of min(i, window) for i = 1..tokens; as many again ahead."""
        reached = self.window if self.sees == "past" or self.window is None else self.window // 2 + 1
        near = tokens if reached is None else min(tokens, reached)
        back = near * (near + 1) // 2 + (tokens - near) * near
        return 2 * back - tokens if self.sees == "all" else back


@dataclass(frozen=True)
class Graph:
    """The root function and the kind of each layer that it calls."""

    root: Function
    kinds: tuple[str, ...]

    @cached_property
    def calls(self) -> tuple[Node, ...]:
        """Each layer's call."""
        return layers_of(self.root)

    @cached_property
    def first(self) -> dict[str, str]:
        """For each call, the name of the first equal call: the same kind and function, with equal inputs.

        Such layers cost the same. Layers that lend keys and values are equal only if their readers are equal too.
        """
        readers: dict[Node, list[object]] = {}
        for kind, call in zip(self.kinds, self.calls, strict=True):
            for operand, value in enumerate(call.inputs[1:]):
                if is_call(value.node):
                    readers.setdefault(value.node, []).append(
                        (kind, callee_of(call), _operands_from_root(call), operand, value.index)
                    )
        first: dict[object, str] = {}
        names: dict[str, str] = {}
        for kind, call in zip(self.kinds, self.calls, strict=True):
            lent = tuple((names[v.node.name], v.index) for v in call.inputs[1:] if is_call(v.node))
            key = (kind, callee_of(call), _operands_from_root(call), lent, frozenset(readers.get(call, ())))
            names[call.name] = first.setdefault(key, call.name)
        return names

    @cached_property
    def short(self) -> Function:
        """The root with one layer for all that are equal to it."""
        made: dict[str, Node] = {}

        def rule(n: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
            name = self.first[n.name] if is_call(n) else n.name
            if name not in made:
                made[name] = n.remake(inputs=inputs)
            first, *others = (made[name][i] for i in range(len(n.types)))
            return (first if n.name == name else inputs[0], *others)  # the stream goes past it

        return transform(self.root, rule)

    def times(self, name: str) -> int:
        """How often a node of the short function stands in the whole one."""
        steps = name.split(".")
        paths = (".".join(steps[:i]) for i in range(len(steps), 0, -1))
        return next((self.repeats[path] for path in paths if path in self.repeats), 1)

    @cached_property
    def repeats(self) -> Counter[str]:
        """How many layers the first of them stands for."""
        return Counter(self.first.values())

    @cached_property
    def cached(self) -> Function:
        """The short function with its cache. A model that looks both ways has none: each call computes all tokens."""
        return with_cache(self.short) if self.root.causal else self.short

    @cached_property
    def flat(self) -> Function:
        return inline(self.cached)

    @cached_property
    def layers(self) -> dict[str, Function]:
        """Each kind's function."""
        found: dict[str, Function] = {}
        for kind, call in zip(self.kinds, self.calls, strict=True):
            found.setdefault(kind, callee_of(call))
        return found

    @cached_property
    def scores(self) -> Counter[Scores]:
        """Every attention, and how often it stands in the graph."""
        kinds = {call.name: kind for kind, call in zip(self.kinds, self.calls, strict=True)}
        found: Counter[Scores] = Counter()
        for n in self.flat.nodes:
            if holds_scores(n):
                found[self._scores(n, kinds)] += self.times(n.name)
        return found

    def _scores(self, n: Node, kinds: Mapping[str, str]) -> Scores:
        steps = n.name.split(".")
        paths = (".".join(steps[:i]) for i in range(len(steps), 0, -1))
        kind = next(kinds[path] for path in paths if path in kinds)
        return scores_of(n, kind)


def _operands_from_root(call: Node) -> tuple[Value, ...]:
    """The inputs of a layer that no other layer makes."""
    return tuple(value for value in call.inputs[1:] if not is_call(value.node))


def holds_scores(n: Node) -> bool:
    """Whether this is an attention of any kind: an unfused kernel would store its scores."""
    return bool(n.op.scratch(*(value.type for value in n.inputs)).terms)


def is_norm(n: Node) -> bool:
    return isinstance(n.op, RmsNorm | LayerNorm) or any(param.role == "gain" for param in n.params)


def mask_of(n: Node) -> tuple[int | None, Literal["past", "all"]]:
    """The window of the mask that an attention reads, and whether it looks back only.

    A window to each side is of all that a token sees, itself among it.
    """
    mask = next(v.node.op for v in n.inputs if v.type.dtype == "bool" or isinstance(v.node.op, Alibi | RelativeBias))
    if isinstance(mask, RelativeBias):
        mask = mask.seen
    match mask:
        case Visible(window) | Alibi(window=window):
            return window, "past"
        case VisibleBothWays(each_side):
            return None if each_side is None else 2 * each_side + 1, "all"
        case _:
            raise NotImplementedError(f"{n.name} reads a mask made by {mask.name}, of which no reach is known")


def flops_of(n: Node, sizes: Mapping[str, int]) -> int:
    return n.op.flops(*(value.type for value in n.inputs)).at(sizes)


def scores_of(n: Node, kind: str) -> Scores:
    """What an attention costs. Its own matrices are multiplied once for each new token, whatever the keys."""
    given = [value.type for value in n.inputs]
    whole = [Type(t.dtype, tuple(S if size == T else size for size in t.shape)) for t in given]
    step, prefill = (n.op.flops(*types).at(ONE_TOKEN) - own_flops_of(n) for types in (given, whole))
    return Scores(kind, step, prefill, *mask_of(n))


def own_flops_of(n: Node) -> int:
    """FLOPs of one token in the matrices that a node owns."""
    return 2 * sum(param.size for param in n.params if param.role == "matrix")


def common_value(values: Iterable[int]) -> int | None:
    """The value that all of these are equal to, or None."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def count_learned(params: tuple[Param, ...]) -> int:
    return sum(param.learned for param in params)


@dataclass(frozen=True)
class Bytes:
    """Bytes of values at given B, S and P: `number` for each of the model's floats, 8 for an integer, 1 for a bool."""

    number: int
    sizes: Mapping[str, int]

    def __call__(self, type_: Type) -> int:
        each = self.number if type_.dtype == "float" else format_of(type_.dtype, "fp32").bytes
        return product(type_.shape).at(self.sizes) * each
