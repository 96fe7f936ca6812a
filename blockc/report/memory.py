"""Memory in three buckets: weights, cache, activations. Sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from blockc.ir import Function, Grows, Node, P, Type, Value, callee_of, is_call, is_past
from blockc.report.graph import Bytes, Graph, common_value, holds_scores, mask_of
from blockc.report.schedule import Schedule


@dataclass(frozen=True)
class CacheBytes:
    """Bytes that the graph keeps, and bytes that ring buffers of each window's length would need."""

    kept_by_graph: int
    ring_buffer: int


@dataclass(frozen=True)
class CacheReport:
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


def measure_cache(graph: Graph, number: int, context: int, batch: int) -> CacheReport:
    """The cache: the sum of all inputs of the cached function that take a past."""
    held = {value: graph.times(n.name) for n in graph.cached.nodes for value in pasts_of(n.inputs)}
    windows = _cache_windows(graph.flat)
    kept = sum(n * _state_bytes(value.type, number, batch, context) for value, n in held.items())
    ring = sum(
        n * _state_bytes(value.type, number, batch, min(context, windows.get(value) or context))
        for value, n in held.items()
    )
    kinds = bytes_per_token_of_kinds(graph, number)
    return CacheReport(
        values_per_token=bytes_per_token(graph, 1),
        bytes_per_token=bytes_per_token(graph, number),
        bytes_per_token_per_layer=common_value(kinds.values()),
        bytes_per_token_per_kind=kinds,
        bytes=CacheBytes(kept, ring),
    )


def bytes_per_token(graph: Graph, number: int) -> int:
    """Bytes that one more token adds to the cache of one sequence, at `number` bytes a number."""
    return _CacheCounter(number)(graph.root) if graph.root.causal else 0


def bytes_per_token_of_kinds(graph: Graph, number: int) -> dict[str, int]:
    one = _CacheCounter(number)
    return {kind: one(layer) if graph.root.causal else 0 for kind, layer in graph.layers.items()}


class _CacheCounter:
    """Bytes that the ops of a function keep of one token, by their own rules; each function is summed once."""

    def __init__(self, number: int) -> None:
        self.number, self.known = number, dict[Function, int]()

    def __call__(self, function: Function) -> int:
        if function not in self.known:
            self.known[function] = sum(map(self._node, function.nodes))
        return self.known[function]

    def _node(self, n: Node) -> int:
        if is_call(n):
            return self(callee_of(n))
        types = [value.type for value in n.inputs]
        grows = [state for state in n.op.state(*types) if isinstance(state, Grows)]
        kept = (types[state.operand].with_axis(state.axis, P) for state in grows)
        return sum(_state_bytes(type_, self.number, 1, 1) - _state_bytes(type_, self.number, 1, 0) for type_ in kept)


def pasts_of(values: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(value for value in values if is_past(value.node))


def _state_bytes(type_: Type, number: int, batch: int, tokens: int) -> int:
    return Bytes(number, {"B": batch, "P": tokens})(type_)


def _cache_windows(flat: Function) -> dict[Value, int | None]:
    """For each past that attentions read: the widest window among them, None where one has none."""
    found: dict[Value, int | None] = {}
    for n in flat.nodes:
        if not holds_scores(n):
            continue
        window, _ = mask_of(n)
        for value in pasts_of(tuple(v for operand in n.inputs for v in operand.node.inputs)):
            before = found.get(value, 0)
            found[value] = None if window is None or before is None else max(window, before)
    return found


def measure_activations(graph: Graph, number: int, context: int, batch: int) -> Activations:
    """The activations of a prefill, in the order of the schedule."""
    size = Bytes(number, {"B": batch, "S": context, "P": 0})
    kept: dict[str, set[int]] = {}
    for _, value in graph.cached.outputs:
        kept.setdefault(value.node.name, set()).add(value.index)
    cached = {n.name: (callee_of(n), frozenset(kept.get(n.name, ()))) for n in graph.cached.nodes if is_call(n)}
    layers = {name: cached[first] for name, first in graph.first.items()}
    live = Schedule(graph.root, layers, size).live()
    given = sum(size(value.type) for _, value in graph.root.outputs)
    return Activations(live.peak, live.peak_at, live.materialised, live.scores, given)
