"""Memory in three buckets: weights, cache, activations. Sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from blockc.graph.contract import LOGITS
from blockc.ir import Function, Grows, Node, P, Type, Value, called, is_call, is_past
from blockc.report.graph import Bytes, Graph, holds_scores, mask_of, same
from blockc.report.schedule import Schedule


@dataclass(frozen=True)
class CacheBytes:
    """What the graph keeps, and what would do where a window hides the rest."""

    kept_by_graph: int
    ring_buffer: int


@dataclass(frozen=True)
class Cache:
    values_per_token: int
    bytes_per_token: int
    bytes_per_token_per_layer: int | None  # where all layers keep the same
    bytes_per_token_per_kind: dict[str, int]
    bytes: CacheBytes


@dataclass(frozen=True)
class Activations:
    """Bytes of live tensors in a prefill of the whole context, without parameters, cache and logits."""

    peak: int  # attention is fused: scores are never written out
    peak_at: str
    peak_materialised: int  # attention writes its scores out
    scores_materialised: int  # of the largest attention
    logits: int


@dataclass(frozen=True)
class Memory:
    weights: int
    kv_cache: int
    activations: Activations
    device_memory: int | None
    devices: int | None  # that hold the weights


def cache(graph: Graph, number: int, context: int, batch: int) -> Cache:
    """The summed inputs for the past of the cached function."""
    held = {value: graph.times(n.name) for n in graph.cached.nodes for value in past(n.inputs)}
    windows = _cache_windows(graph.flat)
    kept = sum(n * _kept(value.type, number, batch, context) for value, n in held.items())
    ring = sum(
        n * _kept(value.type, number, batch, min(context, windows.get(value) or context)) for value, n in held.items()
    )
    kinds = growth_per_kind(graph, number)
    return Cache(
        values_per_token=growth(graph, 1),
        bytes_per_token=growth(graph, number),
        bytes_per_token_per_layer=same(kinds.values()),
        bytes_per_token_per_kind=kinds,
        bytes=CacheBytes(kept, ring),
    )


def growth(graph: Graph, number: int) -> int:
    """Bytes that one more token adds to the cache of one sequence, at `number` bytes a number."""
    return _Remembered(number)(graph.root) if graph.root.causal else 0


def growth_per_kind(graph: Graph, number: int) -> dict[str, int]:
    one = _Remembered(number)
    return {kind: one(layer) if graph.root.causal else 0 for kind, layer in graph.layers.items()}


class _Remembered:
    """What the ops of a function keep of one token, by their own rules; each function is summed up once."""

    def __init__(self, number: int) -> None:
        self.number, self.known = number, dict[Function, int]()

    def __call__(self, function: Function) -> int:
        if function not in self.known:
            self.known[function] = sum(map(self._node, function.nodes))
        return self.known[function]

    def _node(self, n: Node) -> int:
        if is_call(n):
            return self(called(n))
        types = [value.type for value in n.inputs]
        grows = [state for state in n.op.state(*types) if isinstance(state, Grows)]
        kept = (types[state.operand].with_axis(state.axis, P) for state in grows)
        return sum(_kept(type_, self.number, 1, 1) - _kept(type_, self.number, 1, 0) for type_ in kept)


def past(values: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(value for value in values if is_past(value.node))


def _kept(type_: Type, number: int, batch: int, tokens: int) -> int:
    return Bytes(number, {"B": batch, "P": tokens})(type_)


def _cache_windows(flat: Function) -> dict[Value, int | None]:
    """For each past that attentions read: the widest window among them, None where one has none."""
    found: dict[Value, int | None] = {}
    for n in flat.nodes:
        if not holds_scores(n):
            continue
        window, _ = mask_of(n)
        for value in past(tuple(v for operand in n.inputs for v in operand.node.inputs)):
            before = found.get(value, 0)
            found[value] = None if window is None or before is None else max(window, before)
    return found


def activations(graph: Graph, number: int, context: int, batch: int) -> Activations:
    """Of a prefill, as the schedule goes."""
    size = Bytes(number, {"B": batch, "S": context, "P": 0})
    kept: dict[str, set[int]] = {}
    for _, value in graph.cached.outputs:
        kept.setdefault(value.node.name, set()).add(value.index)
    cached = {n.name: (called(n), frozenset(kept.get(n.name, ()))) for n in graph.cached.nodes if is_call(n)}
    layers = {name: cached[first] for name, first in graph.first.items()}
    live = Schedule(graph.root, layers, size).live()
    logits = graph.root.output(LOGITS)
    return Activations(live.peak, live.peak_at, live.materialised, live.scores, size(logits.type))
