"""Attention without a cache: what becomes one kernel, which matrices it takes in, and what padding gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import onnx
import pytest

from blockc.graph import interp
from blockc.graph.quant import parse_quant
from blockc.graph.shrink import shrink
from blockc.graph.target import Target
from blockc.ir import B, Function, Input, Node, Op, S, Value, apply, tensor
from blockc.ir.derive import Join, Transpose
from blockc.language.spec import load
from blockc.ops import (
    Add,
    Attention,
    KeyPositions,
    Linear,
    MergeHeads,
    QueryPositions,
    RmsNorm,
    Scale,
    Sinks,
    SplitHeads,
    Visible,
    VisibleBothWays,
)
from blockc.ops.sinks import SinkAttention
from blockc.ort.fuse import fuse
from blockc.ort.ops import FlatAttention, HeadNorm, MaskBias, PackedAttention
from blockc.ort.pack import PackAttentions
from blockc.passes import verify_graph
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.proof import prove
from blockc.proof.cases import Case
from blockc.proof.comparison import TOLERANCE
from blockc.proof.runners import Onnx, Oracle
from blockc.weights.rules import random_parameters
from tests.paths import ROOT

CPU, PACKED, HALF = Target("cpu"), Target("cpu", packed=True), Target("cpu", "fp16")
ENCODERS = (
    "bert-base", "distilbert-base", "embeddinggemma-300m", "minilm-l6", "modernbert-base", "mpnet-base",
    "nomic-embed-1.5", "qwen3-embedding-0.6b", "roberta-base",
)  # fmt: skip
Change = Callable[[Value], Value]
UNCHANGED: Mapping[str, Change] = {}


def full(name: str) -> Compiled:
    return compile_spec(load(ROOT / "specs" / f"{name}.yaml"))


def twin(name: str) -> Compiled:
    return compile_spec(shrink(load(ROOT / "specs" / f"{name}.yaml")))


# Whole models


@pytest.mark.parametrize("target", [CPU, PACKED])
def test_minilm_is_six_attentions_twelve_skips_and_six_gelus(target: Target) -> None:
    """The thirteenth sum with its norm is the embedding's. What a linked graph joins, a session joins as it opens."""
    counted = Counter(n.op_type for n in onnx.load_from_string(full("minilm-l6").onnx(target)).graph.node)
    wanted = {"Attention": 6, "SkipLayerNormalization": 13, "BiasGelu": 6, "FusedMatMul": 18}
    assert {op: counted[op] for op in wanted} == wanted
    joined = {} if target.packed else {"Concat": 12, "Transpose": 6}
    assert {op: counted[op] for op in ("Concat", "Transpose") if counted[op]} == joined
    for gone in ("LayerNormalization", "Gelu", "Softmax", "Reshape", "Where"):
        assert counted[gone] == 0, gone
    assert counted["CumSum"] == 1  # the positions of tokens
    assert not full("minilm-l6").unfused(target)


@pytest.mark.parametrize("name", ENCODERS)
def test_every_attention_of_an_encoder_is_one_node(name: str) -> None:
    model = full(name)
    for target in (CPU, PACKED, HALF, Target("cuda", "fp16")):
        nodes = model.flatten(target).nodes
        fused = [n for n in nodes if isinstance(n.op, FlatAttention | PackedAttention)]
        assert len(fused) == model.spec.top.depth
        assert not any(isinstance(n.op, Attention | SplitHeads | MergeHeads) for n in nodes)
        made_once = [n.name for n in nodes if n.op.name in ("mask_bias", "bounded_bias", "real_keys")]
        assert len(made_once) <= 2 and not any(each.startswith("layers.") for each in made_once)


def test_which_attentions_take_their_matrices_in() -> None:
    """Those between whose product and heads nothing stands, neither rope nor a norm, and whose heads have own keys."""
    for name in ENCODERS:
        model = full(name)
        said = [layer.keys.attention for layer in model.spec.layers]
        plain = [a is not None and not (a.rope or a.qk_norm or a.kv_heads) for a in said]
        for target in (CPU, PACKED):
            packed = [n for n in model.flatten(target).nodes if isinstance(n.op, PackedAttention)]
            assert len(packed) == sum(plain), name
        assert not any(isinstance(n.op, PackedAttention) for n in model.flatten(HALF).nodes)


def test_what_a_packed_matrix_is_made_from() -> None:
    made = full("minilm-l6").derivations(PACKED)
    weights, biases = (tuple(f"layers.2.attention.{x}.{kind}" for x in "qkv") for kind in ("weight", "bias"))
    assert made["layers.2.attention.qkv.weight"] == Transpose((Join(weights),))
    assert made["layers.2.attention.qkv.bias"] == Join(biases)
    assert len(made) == 12 and not full("minilm-l6").derivations(CPU)


@pytest.mark.parametrize("recipe", ["int8", "int4"])
def test_codes_are_not_taken_in(recipe: str) -> None:
    """And the matrix of a pooled vector has codes as any other."""
    model = twin("bert-base")
    target = Target("cpu", quant=parse_quant(recipe), packed=True)
    nodes = model.flatten(target).nodes
    assert not any(isinstance(n.op, PackedAttention | Linear) for n in nodes)
    assert sum(isinstance(n.op, FlatAttention) for n in nodes) == model.spec.top.depth
    proof = prove(model, targets=(target, Target(quant=parse_quant(recipe))), only={"full", "padded left"})
    assert proof.complete, proof.table()


@pytest.mark.parametrize("target", [CPU, PACKED, HALF], ids=["linked", "packed", "fp16"])
@pytest.mark.parametrize("name", ENCODERS)
def test_a_row_of_a_batch_is_the_row_alone(name: str, target: Target) -> None:
    """Padded on the left, on the right, on both sides, not at all; and a row of padding alone is finite."""
    model, tokens = twin(name), np.arange(3, 10)
    case = Case("rows", (tokens[:4], tokens[1:4], tokens[:3], tokens, tokens[:0]), (3, 0, 2, 0, 0), (7,))
    params = random_parameters(model.function, 5)
    dtype = {"fp32": "float32", "fp16": "float16"}[target.dtype]
    runner = Onnx(model.onnx(target), model.flatten(target), dtype=dtype, derived=model.derivations(target))
    got, whole = runner.run(case, params).outputs, Oracle(model.function)
    for i, (row, start) in enumerate(zip(case.rows[:-1], case.starts, strict=False)):
        alone = whole.run(Case("alone", (row,), (0,), (len(row),)), params).outputs
        for output, wanted in alone.items():
            real = got[output][i] if wanted.ndim == 2 else got[output][i, start : start + len(row)]
            assert np.abs(real - wanted[0]).max() < TOLERANCE[runner.dtype] * max(wanted.std(), 1e-3), (output, i)
    assert all(np.isfinite(each).all() for each in got.values())


# One attention, changed a place at a time


def attending(
    at: Mapping[str, Change] = UNCHANGED, kv_heads: int = 2, softcap: float | None = None, values: str = "v"
) -> Function:
    """One attention of both ways; `values` names the matrix of the values."""

    def here(place: str, value: Value) -> Value:
        return at[place](value) if place in at else value

    ids, mask = (Node(Input(tensor("int", B, S), token_axis=1), (), name) for name in ("input_ids", "attention_mask"))
    x = Node(Input(tensor("float", B, S, 32)), (), "x")
    queries, keys = apply(QueryPositions(), mask[0], ids[0], name="q_at"), apply(KeyPositions(), mask[0], name="k_at")
    seen = here("mask", apply(VisibleBothWays(), queries, keys, name="seen"))
    heads = {"q": 2, "k": kv_heads, "v": kv_heads}
    flat = {w: here(f"{w}_flat", apply(Linear(32, n * 16, True), x[0], name=f"mix.{w}")) for w, n in heads.items()}
    split = {w: here(w, apply(SplitHeads(heads[w], 16), flat[values if w == "v" else w], name=w)) for w in "qkv"}
    op = Attention(2, kv_heads, 0.25, softcap)
    mixed = here("mixed", apply(op, split["q"], split["k"], split["v"], seen, name="mixed"))
    joined = apply(MergeHeads(), mixed, name="joined")
    return Function("F", (ids, mask, x), (("out", joined),), causal=False)


def passed(function: Function, target: Target = CPU) -> tuple[Function, str]:
    """(What both passes make of it; the reason that its attention is left with, if it is.) Real tokens are alike."""
    fused = fuse(function, target)
    packed = PackAttentions(target)(fused.function)
    verify_graph(packed.function)
    mask = np.array([[0, 1, 1, 1], [1, 1, 0, 0]])
    x = np.random.RandomState(1).standard_normal((2, 4, 32))
    params, given = random_parameters(function, 2), {"input_ids": mask, "attention_mask": mask, "x": x}
    made = {path: each.evaluate(params.__getitem__) for path, each in packed.derived.items()}
    runs = ((function, params), (packed.function, params | made))
    wanted, got = (interp.interpret(each, given, held)["out"][mask == 1] for each, held in runs)
    np.testing.assert_allclose(got, wanted, atol=1e-12)
    return packed.function, next((left.reason for left in fused.skipped), "")


def kernels(function: Function) -> list[type]:
    return [type(n.op) for n in function.nodes if isinstance(n.op, Attention | FlatAttention | PackedAttention)]


def scaled(value: Value) -> Value:
    return apply(Scale(0.5), value, name=f"{value.node.name}_scaled")


def read_twice(value: Value) -> Value:
    return apply(Add(), value, apply(Scale(0.5), value, name="again"), name="twice")


def sinking(value: Value) -> Value:
    sinks = apply(Sinks(2), name="sinks")
    return apply(SinkAttention(2, 2, 0.25), *value.node.inputs, sinks, name="sinking")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"q": scaled}, "scale is between its heads and the kernel"),
        ({"mixed": scaled}, "its heads are not joined at once"),
        ({"mixed": read_twice}, "its heads are not joined at once"),
        ({"mixed": sinking}, "its scores have sinks"),
    ],
)
def test_what_stays_as_it_is(change: dict[str, Change], reason: str) -> None:
    function, left = passed(attending(change))
    assert left == reason
    assert kernels(function) == [SinkAttention if "sinks" in reason else Attention]


def packed_in(function: Function) -> tuple[PackedAttention, str]:
    """The one attention that has its matrices, and what its last operand is made by."""
    ((op, seen),) = ((n.op, n.inputs[1]) for n in function.nodes if isinstance(n.op, PackedAttention))
    return op, seen.node.op.name


@pytest.mark.parametrize("target", [CPU, PACKED])
def test_the_mask_is_taken_where_all_queries_see_the_same_keys(target: Target) -> None:
    function, left = passed(attending(), target)
    op, made_by = packed_in(function)
    assert not left and op.by_keys and made_by == "real_keys"
    assert op.apart == (not target.packed) and len(function.nodes) == 2
    for near in (VisibleBothWays(1), Visible()):

        def other(seen: Value, near: Op = near) -> Value:
            return apply(near, *seen.node.inputs, name="near")

        op, made_by = packed_in(passed(attending({"mask": other}), target)[0])
        assert not op.by_keys and made_by == "mask_bias"


@pytest.mark.parametrize(
    "function",
    [
        attending(kv_heads=1),
        attending(softcap=0.8),
        attending(values="k"),
        attending({"q_flat": scaled}),
        attending({"k": lambda value: apply(RmsNorm(16, 1e-5), value, name="normed")}),
    ],
    ids=["shared keys", "softcap", "values of the keys' matrix", "scaled product", "norm of heads"],
)
def test_what_keeps_its_products(function: Function) -> None:
    made, left = passed(function)
    assert not left and kernels(made) == [FlatAttention]
    assert any(isinstance(n.op, HeadNorm) for n in made.nodes) == any(isinstance(n.op, RmsNorm) for n in function.nodes)


def test_attention_in_half_precision_has_a_bias_that_it_holds() -> None:
    function, _ = passed(attending(), HALF)
    (low,) = (n.op.low for n in function.nodes if isinstance(n.op, MaskBias))
    assert np.isfinite(np.float16(low)) and kernels(function) == [FlatAttention]
