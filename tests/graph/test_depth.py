"""Deep models: equal layers are counted once, and the figures are those of the whole graph, node by node."""

from __future__ import annotations

import pytest

from blockc.basics.floats import BYTES
from blockc.ir import Function, Input, Node, Value, inline
from blockc.language.spec import load
from blockc.ops.matrix import Linear
from blockc.passes import with_cache
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.report import Report, make_report
from blockc.report.graph import ONE_TOKEN, Bytes, flops_of, holds_scores, mask_of
from tests.spec_text import BARE, made
from tests.structures import SPECS

CONTEXT, BATCH, DTYPE = 24, 3, "bf16"
KINDS = """\
attention: {heads: 4, kv_heads: 2}
layers:
  first: [far, near]
  pattern: [PATTERN]
  kinds:
    near: {attention: {window: 5}}
    far: {attention: {window: none}}
    late: {attention: {window: 3, kv_from: near}, mlp: {width: 48}}
    last: {attention: {window: 9, kv_from: far}}
depth: DEPTH
"""
PATTERNS = ("far, near, late, near, last", "near, late, far, last, last, near, far", "near, late, late, last")
BOTH_WAYS = "attention: {heads: 4, kv_heads: 2, causal: false}\npositions: {type: learned}\ndepth: 5\n"
TWO = f"""\
depth: 6
block: [{{residual: [attention_norm, attention]}}, {{residual: [other_norm, other]}}, {{residual: [mlp]}}]
parts: {{other: {{attention: {{heads: 1, window: 4}}}}}}
{BARE}"""


def lending(pattern: str, depth: int) -> Compiled:
    return made(KINDS.replace("PATTERN", pattern).replace("DEPTH", str(depth)))


MODELS = {
    **{f"lent {pattern}": lambda pattern=pattern: lending(pattern, 23) for pattern in PATTERNS},
    "both ways": lambda: made(BOTH_WAYS),
    "two attentions in a layer": lambda: made(TWO),
    **{name: lambda name=name: compile_spec(load(SPECS[name], ("depth=9",))) for name in ("gemma2-9b", "bloom-560m")},
}


def figures(model: Compiled) -> Report:
    return make_report(model.spec, model.decoder, model.function, context=CONTEXT, batch=BATCH, dtype=DTYPE)


def whole(model: Compiled) -> Function:
    """Every layer by itself, with its cache."""
    return inline(with_cache(model.function) if model.function.causal else model.function)


def lives(flat: Function) -> tuple[int, str, int]:
    """The most bytes alive at once, where, and that with scores: each value weighed at each node."""
    size = Bytes(BYTES[DTYPE], {"B": BATCH, "S": CONTEXT, "P": 0})
    logits = flat.outputs[0][1]
    apart = {value for _, value in flat.outputs}
    while not logits.node.params and len(logits.node.inputs) == 1:
        apart.add(logits := logits.node.inputs[0])
    made_at: dict[Value, int] = {n[0]: -1 for n in flat.inputs if not (isinstance(n.op, Input) and n.op.past)}
    read_at: dict[Value, int] = dict.fromkeys(made_at, len(flat.nodes))  # the caller's, all the while
    for i, n in enumerate(flat.nodes):
        for output in range(len(n.types)):
            made_at[n[output]], read_at[n[output]] = i, i
        for value in n.inputs:
            if value in made_at:
                read_at[value] = max(read_at[value], i) if value.node.inputs else len(flat.nodes)
    totals = [
        sum(size(v.type) for v, first in made_at.items() if first <= i <= read_at[v] and v not in apart)
        for i in range(len(flat.nodes))
    ]
    written = [_scores(n, size) for n in flat.nodes]
    peak = max(totals)
    return peak, flat.nodes[totals.index(peak)].name, max(map(sum, zip(totals, written, strict=True)))


def _scores(n: Node, size: Bytes) -> int:
    return n.op.scratch(*(value.type for value in n.inputs)).at(size.sizes) * size.number


@pytest.mark.parametrize("name", MODELS)
def test_figures_are_those_of_the_whole_graph(name: str) -> None:
    model = MODELS[name]()
    found, flat = figures(model), whole(model)
    attentions = [n for n in flat.nodes if holds_scores(n)]
    seen = [min(CONTEXT, mask_of(n)[0] or CONTEXT) for n in attentions]
    assert found.flops.matmul_per_token == sum(flops_of(n, ONE_TOKEN) for n in flat.nodes if not holds_scores(n))
    assert found.flops.attention_per_token == sum(
        flops_of(n, ONE_TOKEN) * keys for n, keys in zip(attentions, seen, strict=True)
    )
    a = found.memory.activations
    assert (a.peak, a.peak_at, a.peak_materialised) == lives(flat)
    assert found.parameters.total == model.parameters
    pasts = [n for n in flat.inputs if isinstance(n.op, Input) and n.op.past]
    full = Bytes(BYTES[DTYPE], {"B": BATCH, "P": CONTEXT})
    assert found.kv_cache.bytes.kept_by_graph == sum(full(n.types[0]) for n in pasts)
    assert found.kv_cache.bytes.ring_buffer == sum(_ring(n[0], attentions) for n in pasts)


def _ring(past: Value, attentions: list[Node]) -> int:
    """As much of a past as the widest window that reads it."""
    readers = [n for n in attentions if any(past in operand.node.inputs for operand in n.inputs)]
    widest = max(min(CONTEXT, mask_of(n)[0] or CONTEXT) for n in readers)
    return Bytes(BYTES[DTYPE], {"B": BATCH, "P": widest})(past.type)


@pytest.mark.parametrize(
    "model", [lambda depth: made(f"depth: {depth}\n"), lambda depth: lending(PATTERNS[0], depth)], ids=["one", "lent"]
)
def test_equal_layers_are_counted_once(model: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred times as many layers, and not one node more is looked at."""
    counted: list[object] = []
    original = Linear.flops

    def noted(self: Linear, *types: object) -> object:
        counted.append(self)
        return original(self, *types)  # type: ignore[arg-type]

    monkeypatch.setattr(Linear, "flops", noted)
    work = []
    for depth in (12, 2402):
        deep = model(depth)  # type: ignore[operator]
        counted.clear()
        found = figures(deep)
        work.append(len(counted))
        assert found.depth == depth
    assert work[0] == work[1] > 0
