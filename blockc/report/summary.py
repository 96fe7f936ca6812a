"""The report of one model: every figure of the budget, computed from its graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from blockc.basics.errors import UsageError
from blockc.basics.floats import BYTES
from blockc.ir import Function
from blockc.language.algebra import Decoder
from blockc.language.spec import Spec
from blockc.report.figures import Flops, Parameters, count_flops, count_parameters
from blockc.report.graph import Graph
from blockc.report.matrices import Block, blocks_of
from blockc.report.memory import CacheReport, Memory, measure_activations, measure_cache
from blockc.report.storage import Storage


@dataclass(frozen=True)
class CutTile:
    """The pattern does not fit the depth a whole number of times: of its last tile only some layers are laid."""

    tile: int
    laid: int


@dataclass(frozen=True)
class Report:
    """Figures of one model at a context, a batch and a dtype. Sizes in bytes, FLOPs at 2 a multiply-add."""

    name: str
    depth: int
    width: int
    vocab: int
    context: int
    batch: int
    dtype: str
    layers: dict[str, int]
    windows: dict[str, tuple[int, ...]]  # of the kinds of layers that have any
    cut_tile: CutTile | None
    parameters: Parameters
    kv_cache: CacheReport
    flops: Flops
    memory: Memory
    matrices: tuple[Block, ...]
    storage: Storage | None = None  # of quantised weights
    outputs: tuple[str, ...] = ("logits",)
    generates: bool = True  # whether it gives the logits of a next token, and keeps a cache

    def __repr__(self) -> str:
        held = f"{self.parameters.total:,} parameters, {self.memory.weights:,} bytes in {self.dtype}"
        return f"<Report {self.name}: {held}, at {self.batch} x {self.context:,} tokens>"

    @property
    def number(self) -> int:
        """Bytes of one number."""
        return BYTES[self.dtype]

    def json(self) -> dict[str, Any]:
        """Without `storage` unless weights are quantised, and without what only models that write no text have."""
        own = asdict(replace(self, storage=None))
        del own["storage"]
        if self.generates:
            del own["outputs"], own["generates"], own["flops"]["matmul_per_text"]
        return own if self.storage is None else {**own, "storage": self.storage.json()}


def make_report(
    spec: Spec,
    decoder: Decoder,
    function: Function,
    *,
    context: int | None = None,
    batch: int = 1,
    dtype: str = "bf16",
    device_memory: int | None = None,
    storage: Storage | None = None,
) -> Report:
    """Takes the function as `build` gives it. Raises UsageError for a size below 1 or a dtype of no known size.

    `storage` has the bytes of quantised weights, in place of `dtype` for every parameter.
    """
    context = decoder.context if context is None else context
    for name, size in (("context", context), ("batch", batch), ("device_memory", device_memory)):
        if size is not None and size < 1:
            raise UsageError(f"must be at least 1, got {size}", name)
    if dtype not in BYTES:
        raise UsageError(f"must be one of {', '.join(BYTES)}, got {dtype}", "dtype")
    graph, number = Graph(function, decoder.kinds), BYTES[dtype]
    counted, kept = count_parameters(graph), measure_cache(graph, number, context, batch)
    weights = counted.total * number if storage is None else storage.bytes
    return Report(
        name=spec.name,
        depth=len(decoder.layers),
        width=decoder.width,
        vocab=decoder.vocab,
        context=context,
        batch=batch,
        dtype=dtype,
        layers=dict(Counter(decoder.kinds)),
        windows=_windows_of(graph),
        cut_tile=_cut_tile(spec),
        parameters=counted,
        kv_cache=kept,
        flops=count_flops(graph, context),
        memory=Memory(
            weights=weights,
            kv_cache=kept.bytes.kept_by_graph,
            activations=measure_activations(graph, number, context, batch),
            device_memory=device_memory,
            devices=None if device_memory is None else -(-weights // device_memory),
        ),
        matrices=blocks_of(graph),
        storage=storage,
        outputs=function.output_names,
        generates=function.causal,
    )


def _windows_of(graph: Graph) -> dict[str, tuple[int, ...]]:
    found: dict[str, dict[int, None]] = {}
    for s in graph.scores:
        if s.window is not None:
            found.setdefault(s.kind, {})[s.window] = None
    return {kind: tuple(windows) for kind, windows in found.items()}


def _cut_tile(spec: Spec) -> CutTile | None:
    layers = spec.top.layers
    if layers is None or not layers.pattern:
        return None
    tile = _count_entries(layers.pattern)
    laid = (spec.top.depth - _count_entries(layers.first or []) - _count_entries(layers.last or [])) % tile
    return CutTile(tile, laid) if laid else None


def _count_entries(entries: Sequence[Any]) -> int:
    """Layers that a list of `kind` and {kind: n} lays."""
    return sum(next(iter(entry.values())) if isinstance(entry, dict) else 1 for entry in entries)  # type: ignore[misc]
