"""Parameters and FLOPs: sums over the graph, by the ops' own rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from blockc.ir import Function, Node, Param, inline, is_call, parameters_of
from blockc.report.graph import (
    ONE_TOKEN,
    Graph,
    Scores,
    common_value,
    count_learned,
    flops_of,
    holds_scores,
    is_norm,
    own_flops_of,
)


@dataclass(frozen=True)
class LayerSizes:
    """Parameters of one layer. Matrices by what they serve: the parts that hold scores, and those that do not."""

    attention: int
    mlp: int
    matrices: int  # the two together
    norms: int
    biases: int
    total: int
    idle: int = 0  # those of experts that a token does not take


@dataclass(frozen=True)
class Parameters:
    """Parameters, each tensor counted once, tied ones too. Figures per layer are None where layers differ in size."""

    total: int
    active: int  # used by one token
    embedding: int  # tables and head, and what stands between them and the layers
    final_norm: int
    matrices: int  # of all layers
    attention_per_layer: int | None
    mlp_per_layer: int | None
    norms_per_layer: int | None
    biases_per_layer: int | None
    matrices_per_layer: int | None
    before_layers: dict[str, int]
    after_layers: dict[str, int]
    per_kind: dict[str, LayerSizes]
    buffers: int = 0  # numbers that are held and not learned


@dataclass(frozen=True)
class Flops:
    """2 FLOPs for each multiply-add. The attention of a token is that of the last token of the context."""

    matmul_per_token: int
    attention_per_token: int
    per_token: int
    prefill: int  # of one sequence as long as the context
    train_per_token: int
    attention_share: float  # of the matmuls
    crossover: int | None  # the shortest context at which attention costs as much as the matmuls
    matmul_per_text: int = 0  # of one vector of all tokens: behind a pool


def count_parameters(graph: Graph) -> Parameters:
    kinds = {kind: sizes_of_layer(layer) for kind, layer in graph.layers.items()}
    before, after = _count_around_layers(graph.root)
    own = sum(param.learned for param in graph.root.own_params)
    everything = own + sum(kinds[kind].total for kind in graph.kinds)
    norms = {n.name for n in graph.root.nodes if is_norm(n)}
    final_norm = sum(size for name, size in after.items() if name in norms)
    return Parameters(
        total=everything,
        active=everything - sum(kinds[kind].idle for kind in graph.kinds),
        embedding=sum((*before.values(), *after.values())) - final_norm,
        final_norm=final_norm,
        matrices=sum(kinds[kind].matrices for kind in graph.kinds),
        attention_per_layer=common_value(sizes.attention for sizes in kinds.values()),
        mlp_per_layer=common_value(sizes.mlp for sizes in kinds.values()),
        norms_per_layer=common_value(sizes.norms for sizes in kinds.values()),
        biases_per_layer=common_value(sizes.biases for sizes in kinds.values()),
        matrices_per_layer=common_value(sizes.matrices for sizes in kinds.values()),
        before_layers=before,
        after_layers=after,
        per_kind=kinds,
        buffers=sum(param.size - param.learned for param in parameters_of(graph.root).values()),
    )


def sizes_of_layer(layer: Function) -> LayerSizes:
    nodes = inline(layer).nodes
    mixers = {_part_of(n) for n in nodes if holds_scores(n)}
    sizes: Counter[str] = Counter()
    for param, owner in {param: n for n in nodes for param in n.params}.items():
        sizes[_bucket_of(owner, param, mixers)] += param.learned
    matrices = sizes["attention"] + sizes["mlp"]
    idle = sum(n.op.idle(*(value.type for value in n.inputs)) for n in nodes)
    return LayerSizes(sizes["attention"], sizes["mlp"], matrices, sizes["norms"], sizes["biases"], sizes.total(), idle)


def _part_of(n: Node) -> str:
    """The label that a node of an inlined layer stands under."""
    return n.name.partition(".")[0]


def _bucket_of(n: Node, param: Param, mixers: set[str]) -> str:
    if is_norm(n):
        return "norms"
    if param.role == "bias":
        return "biases"
    return "attention" if _part_of(n) in mixers else "mlp"


def _count_around_layers(root: Function) -> tuple[dict[str, int], dict[str, int]]:
    """What the root itself owns, by name, before its first layer and after it. A tied head owns nothing."""
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    counted: set[Param] = set()
    side = before
    for n in root.nodes:
        side = after if is_call(n) else side
        own = tuple(param for param in n.params if param not in counted)
        counted.update(own)
        if own:
            side[n.name] = count_learned(own)
    return before, after


def count_flops(graph: Graph, context: int) -> Flops:
    """A token's matmuls do not grow with the context; its attention costs so much a key, maybe less in a prefill.

    A model is trained on whole sequences, and the figure is that of the last token there. What reads a pooled vector
    is counted once for a text, not for a token.
    """
    of_tokens = [n for n in graph.flat.nodes if not _is_of_text(n)]
    matmul = sum(graph.times(n.name) * _matmul_flops(n) for n in of_tokens)
    once = sum(_matmul_flops(n) for n in graph.flat.nodes if _is_of_text(n))
    attention = sum(times * s.pair_flops * s.keys(context) for s, times in graph.scores.items())
    whole = sum(times * s.whole_flops * s.keys(context) for s, times in graph.scores.items())
    return Flops(
        matmul_per_token=matmul,
        attention_per_token=attention,
        per_token=matmul + attention,
        prefill=context * matmul
        + sum(times * s.whole_flops * s.pairs(context) for s, times in graph.scores.items())
        + once,
        train_per_token=3 * (matmul + whole),  # the backward pass costs twice the forward pass
        attention_share=attention / matmul,
        crossover=crossover_context(graph.scores, matmul),
        matmul_per_text=once,
    )


def _is_of_text(n: Node) -> bool:
    """Whether a node reads one vector of a text: (B, width), without tokens."""
    return bool(n.inputs) and n.inputs[0].type.dtype == "float" and len(n.inputs[0].type.shape) == 2


def _matmul_flops(n: Node) -> int:
    return own_flops_of(n) if holds_scores(n) else flops_of(n, ONE_TOKEN)


def crossover_context(scores: Mapping[Scores, int], matmul: int) -> int | None:
    """The smallest T with sum of pair_flops * min(T, window) >= matmul, or None where windows stop it below."""
    full, slope = 0, sum(times * s.pair_flops for s, times in scores.items())
    for s in sorted(scores, key=lambda s: (s.window is None, s.window or 0)):
        reached = -((full - matmul) // slope)
        if s.window is None or reached <= s.window:
            return reached
        ended = scores[s] * s.pair_flops
        full, slope = full + ended * s.window, slope - ended
    return None
