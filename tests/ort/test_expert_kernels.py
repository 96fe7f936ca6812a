"""Experts in onnxruntime's own kernel: when it is used and why not, what it computes, and its weights."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from blockc import api
from blockc.emit.external import operators_of
from blockc.graph import interp
from blockc.graph.quant import Quant, parse_quant
from blockc.graph.target import Target
from blockc.ir import Array, Blocks, Param, inline, parameters_of
from blockc.ir.derive import Derivation, Interleave, PassResult, Quantise, add_derived
from blockc.language.spec import from_tree
from blockc.ops import ClampedSwiglu
from blockc.ops.experts import Experts, Route
from blockc.ort.ops import BlockExperts, RoutedExperts
from blockc.ort.quantise import find_readers
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.proof import prove
from blockc.proof.expert_probes import ExpertProbe
from blockc.proof.matrix import run_probe
from blockc.proof.probes import KERNEL
from blockc.runtime.opening import SessionError, open_model
from blockc.source import parse
from blockc.weights.checkpoint import open_checkpoint
from blockc.weights.data import write_data
from blockc.weights.plan import DATA, plan_weights
from blockc.weights.quantise import KEPT, Quantiser, take_turns
from blockc.weights.rules import random_parameters
from blockc.weights.safetensors import StoredTensor
from blockc.weights.streamed import stream_experts
from tests.checkpoints import off_by, save

LINKED, PACKED, ROWS = Target("cpu"), Target("cpu", packed=True), Target("cpu", packed=True, padding="right")
SPEC = """
blockc: 1
name: mixture
vocab: 61
width: 32
depth: 2
context: 64
attention: {{heads: 4, kv_heads: 2, head_dim: 16, rope: {{theta: 10000, pairing: half}}}}
mlp: {{{mlp}}}
norm: {{type: rms, eps: 1e-5, placement: pre}}
head: {{tied: false}}
"""
SOFTMAX = "router: {scores: softmax, normalise: true}"
MIXTURES = {
    "softmax": f"type: swiglu, width: 20, experts: {{count: 6, active: 2, {SOFTMAX}}}",
    "one": f"type: swiglu, width: 20, experts: {{count: 5, active: 1, {SOFTMAX}}}",
    "over all": "type: swiglu, width: 20, experts: {count: 6, active: 3, router: {scores: softmax, normalise: false}}",
    "clamped": "type: swiglu_clamped, limit: 0.7, alpha: 1.702, width: 20, bias: [gate, up, down], "
    "experts: {count: 6, active: 2, router: {scores: softmax, normalise: true, bias: true}}",
    "groups": "type: swiglu, width: 20, experts: {count: 8, active: 3, router: {scores: sigmoid, normalise: true, "
    "scale: 2.5, selection_bias: true, groups: {count: 4, active: 2, score: top2_sum}}, "
    "shared: {width: 12, gate: none}}",
    "sigmoid": "type: swiglu, width: 20, experts: {count: 6, active: 2, router: {scores: sigmoid, normalise: false}, "
    "shared: {width: 12, gate: sigmoid}}",
    "plain": f"type: gelu_tanh, width: 20, bias: [up, down], experts: {{count: 6, active: 2, {SOFTMAX}}}",
}
LEFT = {
    "geglu": (f"type: geglu, width: 20, experts: {{count: 6, active: 2, {SOFTMAX}}}", "silu alone, not Gelu"),
    "relu2": (f"type: relu2, width: 20, experts: {{count: 6, active: 2, {SOFTMAX}}}", "has no Relu2"),
    "gelu": (f"type: gelu, width: 20, experts: {{count: 6, active: 2, {SOFTMAX}}}", "has no Gelu"),
    "bias": (
        f"type: swiglu, width: 20, bias: [up], experts: {{count: 6, active: 2, {SOFTMAX}}}",
        "only one of gate and up has a bias",
    ),
}


def mixture(mlp: str) -> Compiled:
    return compile_spec(from_tree(parse(SPEC.format(mlp=mlp).encode(), "mixture.yaml")))


def fused(model: Compiled, target: Target) -> int:
    return sum(isinstance(n.op, RoutedExperts) for n in model.flatten(target).nodes)


def reasons(model: Compiled, target: Target) -> set[str]:
    return {each.reason for each in model.run_recipe(target).skipped if each.node.endswith("experts")}


@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_are_proved_in_the_kernel(name: str) -> None:
    model = mixture(MIXTURES[name])
    assert fused(model, PACKED) == fused(model, ROWS) == 2
    assert not reasons(model, PACKED)
    result = prove(model, targets=(PACKED, ROWS, LINKED, Target()))
    assert result.complete, result.table()
    packed = [row for row in result.rows if "packed" in row.backend]
    assert len({row.backend for row in packed}) >= 4 and all(row.agreement == 1 for row in packed)


@pytest.mark.parametrize("name", LEFT)
def test_what_the_kernel_does_not_compute_stays_a_loop(name: str) -> None:
    mlp, why = LEFT[name]
    model = mixture(mlp)
    assert fused(model, PACKED) == 0
    assert all(why in each for each in reasons(model, PACKED)) and reasons(model, PACKED)
    operators = [kind for _, kind in operators_of(model.onnx(PACKED))]
    assert operators.count("Loop") == 2 and "MoE" not in operators
    result = prove(model, targets=(PACKED,), only={"full", "decode"})
    assert result.complete, result.table()


def test_linked_weights_and_other_providers_keep_the_loop() -> None:
    model = mixture(MIXTURES["softmax"])
    assert fused(model, LINKED) == 0 and "not copied" in reasons(model, LINKED).pop()
    cuda = Target("cuda", "fp16", packed=True)
    assert fused(model, cuda) == 0 and "on the CPU in fp32 alone" in reasons(model, cuda).pop()
    assert fused(mixture(MIXTURES["plain"]), LINKED) == 2, "nothing is in turn where there is no gate"


def test_a_graph_of_one_new_token_has_the_kernel_too() -> None:
    model = mixture(MIXTURES["groups"])
    step = Target("cpu", packed=True, padding="right", step=True)
    assert fused(model, step) == 2
    result = prove(model, targets=(step,))
    assert result.complete, result.table()


def test_weights_in_turn_are_packed_and_the_folder_computes_the_model(tmp_path: Path) -> None:
    model = mixture(MIXTURES["clamped"])
    params = random_parameters(model.function, 3)
    file = save(tmp_path / "model.safetensors", {path: np.asarray(a, np.float32) for path, a in params.items()})
    for mode, count in (("pack", 2), ("link", 0)):
        out = tmp_path / mode
        api.build(model, out, weights=file, mode=mode, target=Target("cpu"), proof=False)  # type: ignore[arg-type]
        operators = [kind for _, kind in operators_of((out / "model.onnx").read_bytes())]
        assert operators.count("MoE") == count
        held = {path: np.asarray(a, np.float32).astype(np.float64) for path, a in params.items()}
        assert off_by(model, out / "model.onnx", held) < 3e-5
    stored = onnx.load(str(tmp_path / "pack" / "model.onnx")).graph.initializer
    inner = next(onnx.numpy_helper.to_array(t) for t in stored if t.name == "layers.0.mlp.experts.inner")
    np.testing.assert_array_equal(inner[:, ::2], params["layers.0.mlp.experts.gate"].astype(np.float32))
    np.testing.assert_array_equal(inner[:, 1::2], params["layers.0.mlp.experts.up"].astype(np.float32))
    assert not [t.name for t in stored if t.name.endswith(("experts.gate", "experts.up_bias"))]


# Rows in turn, piece by piece


def pieces(array: Array, *sizes: int) -> Iterator[Array]:
    start = 0
    for size in (*sizes, len(array)):
        if array[start : start + size].size:
            yield array[start : start + size]
        start += size


def test_rows_of_streams_are_taken_in_turn() -> None:
    a, b = np.arange(20.0).reshape(10, 2), -np.arange(20.0).reshape(10, 2)
    wanted = np.stack([a, b], 1).reshape(20, 2)
    for sizes in ((), (3,), (1, 1, 8), (9,)):
        got = [*take_turns([pieces(a, *sizes), pieces(b, 4, 2)])]
        np.testing.assert_array_equal(np.concatenate(got), wanted)
    with pytest.raises(AssertionError, match="as many rows"):
        list(take_turns([pieces(a), pieces(b[:9])]))


@pytest.mark.parametrize("tensor", ["codes", "scales", "lows"])
@pytest.mark.parametrize("kept", [KEPT, 1])
def test_what_is_derived_of_rows_in_turn_is_what_the_derivation_says(
    tensor: str, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blockc.weights.quantise.PIECE", 700)
    monkeypatch.setattr("blockc.weights.quantise.KEPT", kept)
    random = np.random.RandomState(0)
    held = {name: random.randn(3, 11, 64).astype(np.float32) for name in ("gate", "up")}
    held |= {name: random.randn(3, 11).astype(np.float32) for name in ("gate_bias", "up_bias")}
    blocks = Blocks(4, 32, tensor == "lows")
    made = Quantiser(
        lambda path: pieces(held[path].reshape(-1), 100, 1000), held.__getitem__, {n: a.shape for n, a in held.items()}
    )
    turned = Interleave(("gate", "up"), axis=1)
    derived: list[Derivation] = [
        turned, Interleave(("gate_bias", "up_bias"), axis=1), Quantise((turned,), tensor, blocks),  # type: ignore[arg-type]
    ]  # fmt: skip
    for each in derived:
        wanted = add_derived(held, {"y": each})["y"]
        got = np.concatenate([piece.reshape(-1) for piece in made.pieces(each)])
        np.testing.assert_allclose(got, wanted.reshape(-1), rtol=1e-6, atol=1e-6)


def test_memory_holds_no_whole_parameter_of_experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gate and up are 64 MB each: their rows in turn are written with a few pieces in memory, here of 1 MB."""
    whole = StoredTensor.chunks
    monkeypatch.setattr(StoredTensor, "chunks", lambda self: whole(self, 1 << 18))  # type: ignore[misc]
    model = mixture("type: swiglu, width: 2048, experts: {count: 256, active: 2, " + SOFTMAX + "}")
    shapes = {path: param.shape for path, param in parameters_of(model.function).items()}
    file = save(tmp_path / "m.safetensors", {path: np.full(s, 0.5, np.float32) for path, s in shapes.items()})
    made: PassResult = model.run_recipe(PACKED)
    plan = replace(plan_weights(model.function, open_checkpoint(file), None, "pack", "fp32"), result=made)
    inner: Param = parameters_of(made.function)["layers.0.mlp.experts.inner"]
    assert inner.size * 4 == 128 << 20
    tracemalloc.start()
    try:
        write_data(plan, tmp_path / DATA)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 56 << 20


# Codes

INT4, INT8, QUALITY = (parse_quant(word) for word in ("int4:16", "int8", "int4:quality"))
MIXED = Quant("mixed", (("*.experts.down", Blocks(8, 32)), ("*", Blocks(4, 32))))
ALIGNED = {name: mlp.replace("width: 20", "width: 32") for name, mlp in MIXTURES.items()}


@pytest.mark.parametrize("name", ["clamped", "groups", "over all", "plain"])
@pytest.mark.parametrize("quant", [INT4, INT8], ids=lambda quant: quant.name)
def test_experts_of_codes_are_proved_in_the_kernel_and_without_one(name: str, quant: Quant) -> None:
    model, own, portable = mixture(ALIGNED[name]), replace(PACKED, quant=quant), Target(quant=quant)
    assert not reasons(model, own)
    result = prove(
        model,
        targets=(own, portable, replace(LINKED, quant=quant)),
        only={"full", "padded left", "decode"},
        whole=model,
    )
    assert result.complete, result.table()
    assert [row for row in result.rows if row.backend == KERNEL and "experts in" in row.variant]
    operators = [kind for _, kind in operators_of(model.onnx(own))]
    assert operators.count("QMoE") == 2 and "Loop" not in operators
    operators = [kind for _, kind in operators_of(model.onnx(portable))]
    assert operators.count("Loop") == 2 and operators.count("DequantizeLinear") >= 4


def test_codes_that_the_kernel_does_not_take_are_restored_expert_by_expert() -> None:
    for mlp, quant, why in (
        (MIXTURES["softmax"], INT4, "rows of whole blocks of 16"),
        (ALIGNED["softmax"], MIXED, "not int4:32 and int8:32"),
        (ALIGNED["groups"], parse_quant("int4:64"), "rows of whole blocks of 64"),
    ):
        model, target = mixture(mlp), replace(PACKED, quant=quant)
        assert why in reasons(model, target).pop()
        result = prove(model, targets=(target,), only={"full", "decode"})
        assert result.complete, result.table()
        assert [kind for _, kind in operators_of(model.onnx(target))].count("Loop") == 2


def test_the_recipe_of_quality_is_one_that_the_kernel_takes() -> None:
    model, target = mixture(ALIGNED["softmax"]), replace(PACKED, quant=QUALITY)
    assert not reasons(model, target)
    assert [kind for _, kind in operators_of(model.onnx(target))].count("QMoE") == 2


def test_what_chooses_experts_stays_in_floats_and_gate_and_up_are_stored_alike() -> None:
    model = mixture(ALIGNED["groups"])
    at = "layers.0.mlp"
    for function in (model.graph, model.flatten(PACKED)):
        readers = find_readers(function)
        assert not [path for path in readers if "router" in path]
        assert readers[f"{at}.shared.down.weight"] == [f"{at}.shared.down"]
        assert readers[f"{at}.experts.down"] == [f"{at}.experts.down"]
        first = [path for path, names in readers.items() if names == [f"{at}.experts.gate", f"{at}.experts.up"]]
        assert first == ([f"{at}.experts.inner"] if function is not model.graph else
                         [f"{at}.experts.gate", f"{at}.experts.up"])  # fmt: skip
    kept = Quant("some", (("*.experts.down", None), ("*", Blocks(8, 16))))
    flat = model.flatten(replace(PACKED, quant=kept))
    ops = [n.op for n in flat.nodes if isinstance(n.op, BlockExperts)]
    assert [(op.into, op.out) for op in ops] == [(Blocks(8, 16), None)] * 2
    assert prove(model, targets=(replace(PACKED, quant=kept),), only={"full"}).complete


@pytest.mark.parametrize("count", [1, 5])
def test_a_probe_of_experts_holds_and_a_wrong_kernel_does_not(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    experts = Experts(5, 64, 32, ClampedSwiglu(7.0, 1.702), bias=("gate", "up", "down"))
    probe = ExpertProbe(BlockExperts(RoutedExperts(experts, 2), Blocks(4, 16), Blocks(4, 16)), count)
    assert run_probe(probe).holds
    emitted, changes = BlockExperts.onnx, dict[str, Any]()
    monkeypatch.setattr(BlockExperts, "onnx", lambda *given: emitted(replace(given[0], **changes), *given[1:]))  # pyright: ignore
    for changes in ({"level": 0}, {"routed": replace(probe.op.routed, active=1)}):
        row = run_probe(probe)
        assert not row.holds and row.error > 1e-3, changes


def test_codes_are_packed_a_few_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockc.weights.quantise.PIECE", 500)
    model = mixture(ALIGNED["clamped"])
    params = {path: np.asarray(a, np.float32) for path, a in random_parameters(model.function, 3).items()}
    file = save(tmp_path / "model.safetensors", params)
    api.build(model, tmp_path / "out", weights=file, target=Target("cpu", quant=INT8), proof=False)
    stored = {
        t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(str(tmp_path / "out" / "model.onnx")).graph.initializer
    }
    target = replace(PACKED, quant=INT8)
    held = parameters_of(model.flatten(target))
    assert held.keys() <= stored.keys()
    coded = 0
    for path, wanted in add_derived(params, model.derivations(target)).items():
        if path in held and path not in params and ".experts." in path:
            np.testing.assert_allclose(
                stored[path].astype(np.float64), wanted, rtol=1e-6, atol=wanted.dtype == np.uint8
            )
            coded += held[path].dtype == "uint8"
    assert coded == 4


def test_a_graph_with_codes_in_the_kernel_needs_a_release_that_has_its_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.28 and 1.30 refuse the attribute; 1.31 has it. The same model in floats, or by the Loop, opens from 1.28 on."""
    params = {
        path: np.asarray(a, np.float32) for path, a in random_parameters(mixture(ALIGNED["one"]).function, 3).items()
    }
    file = save(tmp_path / "model.safetensors", params)
    monkeypatch.setattr("onnxruntime.__version__", "1.30.0")
    for name, mlp, quant, newer in (("codes", ALIGNED["one"], INT8, True), ("floats", ALIGNED["one"], None, False)):
        api.build(mixture(mlp), tmp_path / name, weights=file, target=Target("cpu", quant=quant), proof=False)
        if newer:
            with pytest.raises(SessionError, match=r"its graph needs 1\.31 or later"):
                open_model(tmp_path / name, "cpu", 1, None)
        else:
            open_model(tmp_path / name, "cpu", 1, None)


@pytest.mark.parametrize("name", ["clamped", "plain", "groups"])
def test_calibration_reads_experts_from_the_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The importance of a matrix's columns is the mean of what its experts' tokens bring, and the model is the same."""
    monkeypatch.setattr("blockc.weights.quantise.PIECE", 300)
    model = mixture(MIXTURES[name])
    params = {path: np.asarray(a, np.float32) for path, a in random_parameters(model.function, 3).items()}
    flat = inline(model.function)
    read: dict[str, list[Array]] = {}
    streamed = stream_experts(
        flat,
        lambda path: pieces(params[path].reshape(-1), 70, 400),
        lambda path, x: read.setdefault(path, []).append(x),
    )
    assert not [path for path in parameters_of(streamed) if ".experts." in path]
    ids = np.random.RandomState(0).randint(0, 61, (2, 9))
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(9)[None].repeat(2, 0)}
    wanted, got = (interp.interpret(f, given, params)["logits"] for f in (flat, streamed))
    np.testing.assert_allclose(got, wanted, atol=1e-10)
    experts = next(n.op for n in flat.nodes if isinstance(n.op, Experts))
    assert {path.rpartition(".")[2] for path in read} == {p.name for p in experts.params() if p.role == "matrix"}
    for path, rows in read.items():
        assert sum(map(len, rows)) == ids.size * next(n.op.active for n in flat.nodes if isinstance(n.op, Route))
        assert rows[0].shape[1] == params[path].shape[2]
