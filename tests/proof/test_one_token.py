"""A graph of one new token of each row: the golden matrix on it, what it shares with the main graph, what has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from blockc import api
from blockc.basics.errors import UsageError
from blockc.graph.quant import parse_quant
from blockc.graph.shrink import shrink
from blockc.graph.target import Logits, Padding, Target
from blockc.ir import parameters_of
from blockc.language.spec import load
from blockc.ort.ops import GroupQueryAttention, RowQueryAttention, StepAttention, StepRows
from blockc.pipeline.compiled import Compiled, compile_spec, compile_tree
from blockc.proof import Proof, Row, prove
from blockc.proof.cases import Case
from blockc.proof.comparison import TOLERANCE
from blockc.proof.runners import Onnx
from blockc.source import override
from blockc.weights.rules import random_parameters
from tests.paths import ROOT, WRITERS
from tests.tiers import some

SPECS = sorted(path.stem for path in (ROOT / "specs").glob("*.yaml"))
STEP, PACKED = Target("cpu", step=True), Target("cpu", packed=True, padding="right", step=True)
BY_TOKEN = ("token by token", "padded left, token by token", "own slots, token by token")
ALIBI = {"baichuan-13b", "bloom-560m", "mpt-7b"}
# Whole rope; norms of heads; softcap and windows; two tables; no rope; rope of a part in both pairings; one key head;
# alibi; rope before the norm of heads; clipped queries; rope by the call's length.
UNLIKE = some(
    "llama3-8b", "qwen3-0.6b", "gemma2-9b", "gemma3-1b", "gpt2", "phi-2", "gpt-j-6b", "glm4-9b", "falcon-7b",
    "bloom-560m", "hy-mt2-7b", "olmo1.7-7b", "phi-4-mini",
)  # fmt: skip


def full(name: str) -> Compiled:
    return compile_spec(load(ROOT / "specs" / f"{name}.yaml"))


def twin(name: str) -> Compiled:
    return compile_spec(shrink(load(ROOT / "specs" / f"{name}.yaml")))


def rows_of(proof: Proof, backend: str) -> list[Row]:
    return [row for row in proof.rows if row.backend == backend]


@pytest.mark.parametrize("name", UNLIKE)
def test_a_graph_of_one_token_is_the_oracle(name: str) -> None:
    """Token by token from an empty cache: rows of one length, padded on the left, and each at its own slots."""
    targets = (STEP, PACKED, Target("cpu", logits=4, step=True))
    proof = prove(twin(name), targets=targets, only={"one token", *BY_TOKEN})
    beyond = [f", beyond {side.original}" for side in twin(name).sides]
    variants = {f"{case}{at}" for case in ("one token", *BY_TOKEN) for at in ("", *beyond)}
    refused = {"onnxruntime, fused, packed, one token"} if name in ALIBI else set[str]()
    assert set(proof.inapplicable) == refused
    backends = [
        f"{runner}, fused{packed}, one token"
        for packed in (("",) if refused else ("", ", packed"))
        for runner in ("oracle", "onnxruntime")
    ]
    for backend in (*backends, "oracle, fused, one token, top 4", "onnxruntime, fused, one token, top 4"):
        rows = rows_of(proof, backend)
        assert {row.variant for row in rows} == variants, backend
        for row in rows:
            assert row.holds and row.tolerance == TOLERANCE[row.dtype], row


@pytest.mark.parametrize("name", ["llama3-8b", "gpt2"])
def test_with_codes_too(name: str) -> None:
    target = Target("cpu", packed=True, quant=parse_quant("int4"), step=True)
    proof = prove(twin(name), targets=(target,), only=BY_TOKEN)
    rows = [row for row in proof.rows if "one token" in row.backend]
    assert Counter(row.dtype for row in rows) == {"float64": 3, "float32": 3}
    assert all(row.holds for row in rows), rows


def test_what_such_a_graph_does_not_take_is_said() -> None:
    proof = prove(twin("gpt2"), targets=(STEP, Target("cpu")))
    other = {name for name in proof.inapplicable if "one token" not in name}
    assert {proof.inapplicable[name] for name in other} == {
        "the kernel takes several new tokens on a past in one row only"
    }
    runners = ("oracle, fused, one token", "onnxruntime, fused, one token")
    assert set(proof.inapplicable) - other == {f"{runner}, calls of several tokens" for runner in runners}
    variants = {row.backend: {row.variant for row in rows_of(proof, row.backend)} for row in proof.rows}
    assert variants["onnxruntime, fused, one token"] == {"one token", *BY_TOKEN}
    assert not variants["onnxruntime, fused"] & set(BY_TOKEN) and "decode" in variants["onnxruntime, fused"]


@pytest.mark.parametrize("name", ["llama3-8b", "gemma2-9b", "bloom-560m"])
def test_rows_that_see_nothing_give_finite_numbers(name: str) -> None:
    """A row of nothing else, and one that begins with padding: its numbers are read where their weight is 0."""
    model, tokens = twin(name), np.arange(4)
    case = Case("padded", (tokens[:1], tokens, tokens[:0]), (3, 0, 0), (1,) * 4)
    runner = Onnx(model.onnx(STEP), model.flatten(STEP))
    calls = runner.run(case, random_parameters(model.function, 1)).values
    assert len(calls) == 4 and all(np.isfinite(array).all() for call in calls for array in call.values())


# Planted bugs


def _rows(model: onnx.ModelProto, node: str) -> onnx.TensorProto:
    """The constant that a node of StepRows reads."""
    name = next(n for n in model.graph.node if n.name == node).input[1]
    return next(each for each in model.graph.initializer if each.name == name)


def _edit(model: onnx.ModelProto, node: str, rows: slice, number: float) -> None:
    tensor = _rows(model, node)
    array = numpy_helper.to_array(tensor).copy()
    array[rows] = number
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _wrong_scale(model: onnx.ModelProto) -> None:
    _edit(model, "/step_rows_0/Mul", slice(0, 8), 0.26)  # of 16 numbers: 0.25


def _turned_values(model: onnx.ModelProto) -> None:
    _edit(model, "/step_rows_0/Mul", slice(10, 12), 1.0)
    _edit(model, "/step_rows_0/Add", slice(10, 12), 0.0)


def _strict_mask(model: onnx.ModelProto) -> None:
    next(n for n in model.graph.node if n.name == "/mask/GreaterOrEqual").op_type = "Greater"


def _other_slot(model: onnx.ModelProto) -> None:
    """Every new key and value lies a slot later than the mask says."""
    model.graph.initializer.append(numpy_helper.from_array(np.array(1), "planted"))
    later = onnx.helper.make_node("Add", ["write_indices", "planted"], ["later"], "planted_add")
    for n in model.graph.node:
        if n.op_type == "TensorScatter":
            n.input[2] = "later"
    model.graph.node.insert(0, later)


@pytest.mark.parametrize(
    ("plant", "node"),
    [
        (_wrong_scale, "step_rows_0.cos"),
        (_turned_values, "step_rows_0.cos"),
        (_strict_mask, "mask"),
        (_other_slot, "layers.0.attention.mixed"),
    ],
    ids=["scale", "values", "mask", "slot"],
)
def test_a_bug_in_the_graph_is_caught_and_named(plant: Callable[[onnx.ModelProto], None], node: str) -> None:
    made = twin("llama3-8b")
    assert {n.op for n in made.flatten(STEP).nodes if isinstance(n.op, StepRows)} == {StepRows(8, 2, 0.25)}
    model = onnx.load_from_string(made.onnx(STEP))
    plant(model)
    proof = prove(made, given=(STEP, model.SerializeToString()), targets=(STEP,), only={"one token", *BY_TOKEN})
    wrong = [row for row in proof.rows if not row.holds]
    assert {row.backend for row in wrong} == {"onnxruntime, fused, one token"}
    row = next(row for row in wrong if row.variant == "token by token")
    assert 10 * TOLERANCE["float32"] < row.error < float("inf"), row
    assert row.differs == node


# Beside the main graph


@pytest.mark.parametrize("padding", ["any", "right"])
def test_both_graphs_have_one_set_of_parameters(padding: Padding) -> None:
    """By name, shape and derivation, so that one file of weights serves both."""
    for name in SPECS:
        model = full(name)
        main = Target("cpu", packed=True, padding=padding)
        step = Target("cpu", packed=True, padding=main.padding, step=True)
        if not model.refuses(step, True):
            assert not {n.op.name for n in model.flatten(main).nodes} & {"attention", "sink_attention"}, name
            _assert_alike(model, main, step)


@pytest.mark.parametrize("logits", ["all", "last", 5])
@pytest.mark.parametrize("name", ["smollm2-135m", "qwen3-0.6b", "gpt2"])
def test_also_with_codes(name: str, logits: Logits) -> None:
    for packed in (False, True):
        main = Target("cpu", logits=logits, packed=packed, quant=parse_quant("int4"))
        step = Target("cpu", logits=logits, packed=packed, quant=parse_quant("int4"), step=True)
        assert full(name).derivations(main)
        _assert_alike(full(name), main, step)


def _assert_alike(model: Compiled, main: Target, step: Target) -> None:
    assert model.derivations(main) == model.derivations(step)
    assert parameters_of(model.flatten(main)) == parameters_of(model.flatten(step))


def test_every_attention_is_replaced_by_few_nodes() -> None:
    model = full("llama3-8b")
    assert model.count_nodes(Target("cpu", packed=True, step=True))["per_layer"] == [21]
    counted = Counter(n.op_type for n in onnx.load_from_string(model.onnx(PACKED)).graph.node)
    assert counted["GroupQueryAttention"] == counted["Attention"] == 0
    assert counted["RotaryEmbedding"] == counted["Softmax"] == 32 and counted["TensorScatter"] == 64
    made = Counter(n.op.name for n in full("gemma3-1b").flatten(STEP).nodes)
    assert made["step_attention"] == 26 and made["step_rows"] == made["mask_bias"] == made["group_bias"] == 2


def test_whose_attention_has_no_such_form() -> None:
    """What GroupQueryAttention does not take either; and sinks, and alibi beside a graph by rows."""
    latents = "its keys and values are made of latents, and the kernel keeps keys and values, of one size"
    no_cache = "a model that remembers nothing has no cache to hold in a buffer"
    said = {name: full(name).refuses(STEP) for name in SPECS}
    assert {name: why for name, why in said.items() if why} == {
        name: f"layers.0.attention.mixed has no form of one new token: {why}"
        for name, why in {
            "block-4x4": "head_dim 4 is not a multiple of 8",
            "deepseek-v2-lite": latents,
            "deepseek-v3": latents,
            "gpt-oss-20b": "its scores have sinks",
            "stablelm-3b": "it rotates 20 of 80, and the kernel takes multiples of 16",
        }.items()
    } | {name: no_cache for name in SPECS if name not in WRITERS}
    by_rows = Target("cpu", padding="right", step=True)
    assert {name for name in SPECS if full(name).refuses(by_rows) and not said[name]} == ALIBI
    sinks = compile_tree(override(load(ROOT / "specs" / "gpt2.yaml").tree, "attention.sinks=true"))
    assert not sinks.refuses(Target("cpu"))
    assert sinks.refuses(STEP).endswith("has no form of one new token: its scores have sinks")
    both = api.compile(ROOT / "specs" / "gpt2.yaml", ("attention.causal=false",))
    assert both.refuses(STEP) == no_cache
    proof = prove(twin("block-4x4"), targets=(STEP,), only={"one token"})
    assert proof.inapplicable == {
        "onnxruntime, fused, one token": "layers.0.attention.mixed has no form of one new token: "
        "head_dim 4 is not a multiple of 8"
    }


@pytest.mark.parametrize("name", ["gemma2-9b", "bloom-560m"])
def test_no_other_attention_is_left(name: str) -> None:
    ops = [n.op for n in full(name).flatten(STEP).nodes]
    assert not any(isinstance(op, GroupQueryAttention | RowQueryAttention) for op in ops)
    assert sum(isinstance(op, StepAttention) for op in ops) == full(name).spec.top.depth


def test_a_target_of_one_token_is_for_the_cpu_in_fp32() -> None:
    for make in (
        lambda: Target(step=True),
        lambda: Target("cuda", "fp16", step=True),
        lambda: Target("cpu", "fp16", step=True),
        lambda: Target("cpu", logits="last", last=2, step=True),
    ):
        with pytest.raises(UsageError, match="^step (is for the CPU|has one new token)"):
            make()
    for logits in ("all", "last", 3):
        assert Target("cpu", logits=logits, step=True).step
