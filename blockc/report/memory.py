"""Memory in three buckets: weights, cache, activations. Sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from blockc.ir import Function, Node, P, Type, Value, called, is_call
from blockc.ops import Input
from blockc.report.graph import Bytes, Graph, holds_scores, mask_of, same


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
    held = past(tuple(n[0] for n in graph.cached.inputs))
    windows = _cache_windows(graph.flat)
    kept = sum(_kept(value.type, number, batch, context) for value in held)
    ring = sum(_kept(value.type, number, batch, min(context, windows.get(value) or context)) for value in held)
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
        kept = (n.inputs[state.operand].type.with_axis(state.axis, P) for state in n.op.state())
        return sum(_kept(type_, self.number, 1, 1) - _kept(type_, self.number, 1, 0) for type_ in kept)


def past(values: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(value for value in values if isinstance(value.node.op, Input) and value.node.op.past)


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
    """Walks the schedule: a value lives from its node to its last reader. Views count as copies."""
    flat, size = graph.flat, Bytes(number, {"B": batch, "S": context, "P": 0})
    logits = flat.outputs[0][1]
    apart = {value for _, value in flat.outputs} | _towards_logits(logits)
    weight = _Weigher(size, apart)
    last = {value: n for n in flat.nodes for value in n.inputs}
    live = sum(size(n.types[0]) for n in flat.inputs if not past((n[0],)))  # the caller's, all the while
    peak, peak_at, materialised, largest = live, "", live, 0
    for n in flat.nodes:
        made = [n[i] for i in range(len(n.types))]
        live += sum(map(weight, made))
        scores = n.op.scratch(*(value.type for value in n.inputs)).at(size.sizes) * number
        if live > peak:
            peak, peak_at = live, n.name
        materialised, largest = max(materialised, live + scores), max(largest, scores)
        ended = {v for v in n.inputs if last[v] is n and v.node.inputs} | {v for v in made if v not in last}
        live -= sum(map(weight, ended))
    return Activations(peak, peak_at, materialised, largest, size(logits.type))


class _Weigher:
    """Bytes of a value; 0 for those that have a line of their own."""

    def __init__(self, size: Bytes, apart: set[Value]) -> None:
        self.size, self.apart = size, apart

    def __call__(self, value: Value) -> int:
        return 0 if value in self.apart else self.size(value.type)


def _towards_logits(logits: Value) -> set[Value]:
    """The logits before what is done to them entry by entry, such as a softcap."""
    found = {logits}
    while not logits.node.params and len(logits.node.inputs) == 1:
        logits = logits.node.inputs[0]
        found.add(logits)
    return found
