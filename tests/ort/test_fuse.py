"""onnxruntime's dialect: each fused op is its kernel, what is fused, and what is not and why."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from blockc import api
from blockc.emit.onnx import emit_onnx, serialise
from blockc.graph import interp
from blockc.graph.shrink import shrink
from blockc.graph.target import Target
from blockc.ir import Function, Input, Node, Op, Sample, node, parameters_of
from blockc.language.spec import from_tree, load
from blockc.ops import Attention, Rotary
from blockc.ops.buffer import BUFFER
from blockc.ort.ops import FUSED, GroupQueryAttention, SkipNorm
from blockc.passes import verify_graph
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.proof import prove
from blockc.proof.cases import Case
from blockc.proof.comparison import TOLERANCE
from blockc.proof.feeding import empty_states
from blockc.proof.runners import Onnx, Oracle
from blockc.source import parse
from blockc.weights.rules import random_parameters
from tests.paths import ROOT

CPU, CUDA = Target("cpu"), Target("cuda", "fp16")
SPECS = sorted(path.stem for path in (ROOT / "specs").glob("*.yaml"))


def full(name: str) -> Compiled:
    return compile_spec(load(ROOT / "specs" / f"{name}.yaml"))


def twin(name: str) -> Compiled:
    return compile_spec(shrink(load(ROOT / "specs" / f"{name}.yaml")))


# Each fused op by itself


SAMPLES = [(op, i) for op in (*FUSED, *BUFFER) for i in range(len(op.samples()))]


def one_node(sample: Sample) -> Function:
    from blockc.ir import Dtype, Type, dim

    kinds: dict[str, Dtype] = {"f": "float", "b": "bool"}

    def type_of(array: NDArray[np.generic]) -> Type:
        kind: Dtype = "int32" if array.dtype == np.int32 else kinds.get(array.dtype.kind, "int")
        return Type(kind, tuple(dim(size) for size in array.shape))

    inputs = tuple(Node(Input(type_of(array)), (), f"a{i}") for i, array in enumerate(sample.args))
    made = node(sample.op, *(n[0] for n in inputs), name="made")
    outputs = tuple((f"out{i}", made[i]) for i in range(len(made.types)))
    return Function("F", inputs, outputs, causal=False)


@pytest.mark.parametrize(("op", "i"), SAMPLES, ids=lambda x: x.__name__ if isinstance(x, type) else str(x))
def test_a_fused_op_is_its_kernel(op: type[Op], i: int) -> None:
    sample = op.samples()[i]
    function = one_node(sample)
    params = random_parameters(function, 3)
    inputs = {f"a{k}": array for k, array in enumerate(sample.args)}
    wanted = interp.interpret(function, inputs, params)
    session = onnxruntime.InferenceSession(serialise(emit_onnx(function, {})), providers=["CPUExecutionProvider"])
    known = {value.name for value in session.get_inputs()}
    cast = {k: a.astype(np.float32) if a.dtype.kind == "f" else a for k, a in {**inputs, **params}.items()}
    given = {k: a for k, a in cast.items() if k in known}
    names = [value.name for value in session.get_outputs()]
    for name, got in zip(names, session.run(names, given), strict=True):
        hidden = ~np.isfinite(wanted[name])
        assert np.array_equal(got[hidden], wanted[name][hidden])
        spread = max(1.0, float(np.std(wanted[name][~hidden])))
        np.testing.assert_allclose(got[~hidden], wanted[name][~hidden], rtol=1e-5, atol=1e-5 * spread)


# Whole models


@pytest.mark.parametrize("name", SPECS)
def test_the_full_size_fused_graph_opens_in_a_session(name: str) -> None:
    model = full(name)
    for logits in ("all", "last") if model.by_token else ("all",):
        data = model.onnx(Target("cpu", logits=logits))
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_inputs()]
        assert set(parameters_of(model.function)) <= set(names)
        states = [held.present for held in model.contract(Target("cpu", logits=logits)).held]
        assert [value.name for value in session.get_outputs()] == [*model.function.output_names, *states]
        held = (["present.0.key", "present.0.value"], ["present.0.latent", "present.0.key"])
        assert states[:2] in held if model.function.causal else not states


def ops(data: bytes) -> Counter[str]:
    return Counter(n.op_type for n in onnx.load_from_string(data).graph.node)


def test_llama3_8b_has_32_attentions_and_no_softmax() -> None:
    counted = ops(full("llama3-8b").onnx(CPU))
    assert counted["GroupQueryAttention"] == 32
    assert counted["SkipSimplifiedLayerNormalization"] == 64
    assert counted["FusedMatMul"] == 32 * 7 + 1
    assert counted["QuickGelu"] == 32
    for gone in ("Softmax", "Attention", "Transpose", "MatMul", "RotaryEmbedding", "Sigmoid", "Concat"):
        assert counted[gone] == 0, gone
    assert counted["Cast"] <= 3  # positions to angles, lengths to int32: none in a layer
    in_layers = [n for n in full("llama3-8b").flatten(CPU).nodes if n.name.startswith("layers.5.")]
    assert len(in_layers) == 12


def test_what_every_layer_shares_is_made_once() -> None:
    nodes = full("gemma2-9b").flatten(CPU).nodes
    names = Counter(n.op.name for n in nodes if not n.name.startswith("layers."))
    assert names["mask_bias"] == 2  # one a window
    assert names["slots"] == names["lengths"] == names["rotary_rows"] == 1


def test_every_unfused_op_has_its_reason() -> None:
    for name in SPECS:
        model = full(name)
        unfused = model.unfused(CPU)
        listed = {left.node for left in unfused}
        for n in model.flatten(CPU).nodes:
            if isinstance(n.op, Attention) or n.op.name in ("rms_norm", "layer_norm"):
                assert n.name in listed, f"{name}: {n.name}"
        assert all(left.reason for left in unfused)
        stood = {n.name: n.op.name for n in model.flatten(CPU).nodes}
        left = {"attention", "latent_attention", "rms_norm", "layer_norm", "experts"}
        assert {stood[node] for node in listed} <= left, name
    reasons = {left.node: left.reason for left in full("pythia-410m").unfused(CPU)}
    assert reasons["layers.3.mlp_norm"] == "another norm of the same sum has the kernel"
    reasons = {left.node: left.reason for left in full("block-4x4").unfused(CPU)}
    assert reasons["layers.0.attention.mixed"] == "head_dim 4 is not a multiple of 8"
    unfused = full("gpt2").unfused(Target("cpu", "fp16"))
    assert {left.node for left in unfused} == {f"layers.{i}.mlp.activated" for i in range(12)}
    assert {left.reason for left in unfused} == {"onnxruntime has no FastGelu in fp16 on cpu"}


# What is not legal stays as it is, and right


BASE = """
blockc: 1
name: small
vocab: 50
width: 64
depth: 2
context: 64
attention: {heads: 4, kv_heads: 2, head_dim: HEAD, rope: {theta: 100, pairing: half, dims: DIMS}}
mlp: {type: swiglu, width: 40}
norm: {type: rms, eps: 1e-5, placement: pre}
head: {tied: true}
"""


@pytest.mark.parametrize(
    ("head_dim", "dims", "reason"),
    [
        (16, 16, ""),
        (64, 16, ""),
        (64, 32, ""),
        (24, 24, "it rotates 24 of 24, and the kernel takes multiples of 16"),
        (16, 4, "it rotates 4 of 16, and the kernel takes multiples of 16"),
        (20, 16, "head_dim 20 is not a multiple of 8"),
    ],
)
def test_attention_is_fused_where_it_is_legal(head_dim: int, dims: int, reason: str) -> None:
    text = BASE.replace("HEAD", str(head_dim)).replace("DIMS", str(dims))
    model = compile_spec(from_tree(parse(text, "small.yaml")))
    assert [left.reason for left in model.unfused(CPU) if left.node.endswith("mixed")] == (
        [reason] * 2 if reason else []
    )
    assert any(isinstance(n.op, GroupQueryAttention) for n in model.flatten(CPU).nodes) == (not reason)
    verify_graph(model.flatten(CPU))
    result = prove(model)
    assert result.complete, result.table()


def test_alibi_is_the_bias_of_the_kernel() -> None:
    """On the CPU the mask of floats is the bias itself; where rows are told apart by length there is none."""
    model = twin("bloom-560m")
    fused = [n for n in model.flatten(CPU).nodes if isinstance(n.op, GroupQueryAttention)]
    assert len(fused) == len(model.decoder.layers)
    assert {n.inputs[3 if n.op.packed else 5].node.op.name for n in fused} == {"alibi"}
    left = {left.reason for left in model.unfused(CUDA) if left.node.endswith("mixed")}
    assert "its scores have a bias, and rows are attended by their lengths alone" in left


def left(head_dim: int, dims: int, target: Target) -> set[str]:
    text = BASE.replace("HEAD", str(head_dim)).replace("DIMS", str(dims)).replace("depth: 2", "depth: 1")
    unfused = compile_spec(from_tree(parse(text, "small.yaml"))).unfused(target)
    return {each.reason for each in unfused if each.node.endswith("mixed")}


def test_a_head_is_as_wide_as_the_kernel_takes() -> None:
    assert left(256, 16, CUDA) == set()
    assert left(264, 16, CUDA) == {"head_dim 264 is above 256"}
    assert left(24, 16, CPU) == {"it rotates 16 of 24, and the kernel takes multiples of 16"}


def test_two_norms_of_one_sum_and_sums_that_go_on() -> None:
    """The sum comes out of the kernel beside the norm, for whoever else reads it."""
    model = twin("pythia-410m")
    skips = [n for n in model.flatten(CPU).nodes if isinstance(n.op, SkipNorm)]
    assert [n.name for n in skips] == ["layers.1.attention_norm", "final_norm"]


# Padding between the tokens of a row: a short prompt padded on the right, then decoding


@pytest.mark.parametrize("name", SPECS)
def test_rows_that_are_padding_give_finite_numbers(name: str) -> None:
    """A row of nothing else, and a first row that begins with padding."""
    model = twin(name)
    params = random_parameters(model.function, 1)
    tokens = np.arange(4)
    case = Case("padded", (tokens[:1], tokens, tokens[:0]), (3, 0, 0), (4,))
    runner = Onnx(model.onnx(CPU), model.flatten(CPU))
    assert all(np.isfinite(output).all() for output in runner.run(case, params).outputs.values())


@pytest.mark.parametrize("name", ["llama3-8b", "pythia-410m", "gpt2", "gemma2-9b"])
def test_decoding_after_a_prompt_padded_on_the_right(name: str) -> None:
    model = twin(name)
    params = random_parameters(model.function, 4)
    random = np.random.RandomState(0)
    rows = [random.randint(0, 96, 9), random.randint(0, 96, 6)]
    ids = np.zeros((2, 9), np.int64)
    mask = np.ones((2, 9), np.int64)
    ids[0], ids[1, :3], ids[1, 6:] = rows[0], rows[1][:3], rows[1][3:]
    mask[1, 3:6] = 0
    positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    runner = Onnx(model.onnx(CPU), model.flatten(CPU))
    names = [value.name for value in runner.session.get_outputs()]
    known = {value.name for value in runner.session.get_inputs()}
    weights = {path: a.astype(np.float32) for path, a in params.items()}
    state = empty_states(model.contract(CPU), Case("", tuple(rows), (0, 0), (9,)))
    parts: list[NDArray[np.generic]] = []
    for start, end in ((0, 6), (6, 7), (7, 8), (8, 9)):
        given = {
            "input_ids": ids[:, start:end],
            "attention_mask": mask[:, :end],
            "position_ids": positions[:, start:end],
        }
        given = {k: a for k, a in {**given, **state, **weights}.items() if k in known}
        outputs = dict(zip(names, runner.session.run(names, given), strict=True))
        parts.append(outputs["logits"])
        state = {past: outputs[past.replace("past_key_values", "present")] for past in state}
    got = np.concatenate(parts, axis=1)
    for i, row in enumerate(rows):
        alone = Oracle(model.function).run(Case("alone", (row,), (0,), (len(row),)), params).logits[0]
        assert np.abs(got[i][mask[i] == 1] - alone).max() < 3e-5 * alone.std()


# What the installed runtime does: these must be looked at again when one fails


def kernel(turned: bool) -> tuple[onnxruntime.InferenceSession, dict[str, NDArray[np.generic]]]:
    sample = GroupQueryAttention.samples()[2 if turned else 0]
    data = serialise(emit_onnx(one_node(sample), {}))
    arrays = {f"a{i}": a.astype(np.float32) if a.dtype.kind == "f" else a for i, a in enumerate(sample.args)}
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]), arrays


def test_probe_a_prompt_is_turned_by_its_place_whatever_the_positions() -> None:
    session, arrays = kernel(turned=True)
    moved = {**arrays, "a8": arrays["a8"] * np.array([1, 0, 1])}
    assert np.array_equal(session.run(["out0"], arrays)[0], session.run(["out0"], moved)[0])


def test_probe_positions_are_a_first_one_and_those_that_follow() -> None:
    session, arrays = kernel(turned=True)
    with pytest.raises(Exception, match="exceeds cos/sin cache range"):
        session.run(["out0"], {**arrays, "a8": arrays["a8"] + 1})


def test_probe_several_new_tokens_on_a_past_take_one_row() -> None:
    model = twin("llama3-8b")
    runner = Onnx(model.onnx(CPU), model.flatten(CPU))
    tokens = np.arange(5)
    with pytest.raises(Exception, match=r"(?i)batch"):
        runner.run(Case("two rows", (tokens, tokens), (0, 0), (2, 3)), random_parameters(model.function, 1))


def test_rotary_fields_say_what_is_turned() -> None:
    turned = [n.op.rotary for n in twin("pythia-410m").flatten(CPU).nodes if isinstance(n.op, GroupQueryAttention)]
    assert turned == [Rotary(16, 64)] * 2


# From the command line to a folder that is checked as it lies there


def test_a_build_for_a_provider_is_proved_as_it_lies_there(tmp_path: Path) -> None:
    model = twin("llama3-8b")
    built = api.build(model, tmp_path, proof=False, target=CPU)
    assert built.notes == ("left unfused: layers.0.attention_norm: no addition comes before it",)
    checked = api.verify(tmp_path)
    assert checked.proof is not None
    assert checked.proof.complete, checked.proof.table()
    data = (tmp_path / "model.onnx").read_bytes()
    assert ops(data)["GroupQueryAttention"] == 2
    proto = onnx.load_from_string(data)
    norm = next(n for n in proto.graph.node if n.name.startswith("/layers/1/mlp_norm/Skip"))
    norm.attribute[0].f = 1e-2
    planted = prove(model, given=(CPU, proto.SerializeToString()))
    wrong = [row for row in planted.rows if not row.holds]
    assert {row.backend for row in wrong} == {"onnxruntime, fused"}
    full_run = next(row for row in wrong if row.variant == "full")
    assert full_run.error > 10 * TOLERANCE["float32"]
    assert full_run.differs == "layers.1.mlp_norm.normalised"
