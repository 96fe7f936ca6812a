"""A model with latent attention as a whole: its report, its checkpoint's names, its builds and its sessions."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

from blockc import api
from blockc.authoring.newspec import NoDesignError
from blockc.basics.floats import FloatType
from blockc.graph import interp
from blockc.graph.target import Target
from blockc.ir import Array, parameters_of
from blockc.layouts import read_layout
from blockc.ort.ops import SkipNorm
from blockc.products.genai import GenaiError, make_config
from blockc.proof.comparison import TOLERANCE
from blockc.report import make_report
from blockc.runtime import Session
from blockc.source import parse
from blockc.weights.matching import pack, unpack
from blockc.weights.rules import group_sizes, rules
from tests.checkpoints import save
from tests.cuda_kernels import placed
from tests.reference.latents import FAMILIES, checkpoint, compiled, params, twin

V3 = FAMILIES["v3"].text
TARGETS = {
    "joined": Target(),
    "buffer": Target(cache="buffer"),
    "cpu": Target("cpu"),
    "by rows": Target("cpu", padding="right"),
    "last": Target(logits="last"),
}
ROWS = [[3, 14, 15, 9, 26, 5, 35], [2, 7], [8, 9, 79, 32]]
NEW = 6
# What a layout says of these names: one matrix of keys and values, packed by heads.
LAYOUT = """\
layout: 1
tensors:
  model.embed_tokens.weight: embedding.weight
  model.norm.weight: final_norm.weight
  lm_head.weight: head.weight
layers:
  at: model.layers.<i>
  tensors:
    input_layernorm.weight: attention_norm.weight
    self_attn.q_proj.weight: attention.q.weight
    self_attn.q_a_proj.weight: attention.q_a.weight
    self_attn.q_a_layernorm.weight: attention.q_a_norm.weight
    self_attn.q_b_proj.weight: attention.q_b.weight
    self_attn.kv_a_proj_with_mqa.weight: attention.kv_a.weight
    self_attn.kv_a_layernorm.weight: attention.kv_a_norm.weight
    self_attn.kv_b_proj.weight: {of: [attention.mixed.k_up, attention.mixed.v_up], groups: heads}
    self_attn.o_proj.weight: attention.o.weight
    post_attention_layernorm.weight: mlp_norm.weight
    mlp.gate_proj.weight: mlp.gate.weight
    mlp.up_proj.weight: mlp.up.weight
    mlp.down_proj.weight: mlp.down.weight
"""


@pytest.mark.parametrize("name", FAMILIES)
def test_a_layout_says_how_keys_and_values_are_packed(name: str) -> None:
    made = twin(FAMILIES[name].text)
    layout = read_layout("latent", parse(LAYOUT, "latent.yaml"))
    every, packed = rules(layout, made.function, group_sizes(made.function)), checkpoint(made)
    got = pack(every, params(made))
    assert got.keys() == packed.keys()
    for path, array in packed.items():
        np.testing.assert_array_equal(got[path], array, path)
    for path, array in unpack(every, packed).items():
        np.testing.assert_array_equal(array, params(made)[path], path)


def test_the_report_says_what_each_matrix_is_for() -> None:
    made = compiled(V3)
    report = make_report(made.spec, made.decoder, made.function)
    (block,) = report.matrices
    said = {m.label.partition(".")[2]: (m.receives, m.produces) for m in block.matrices}
    assert {label: said[label] for label in ("q_a", "q_b", "kv_a", "mixed.k_up", "mixed.v_up", "o")} == {
        "q_a": ("norm(x)", "hidden units"),
        "q_b": ("norm(q_a)", "128 query heads of 192"),
        "kv_a": ("norm(x)", "latents and keys"),
        "mixed.k_up": ("norm(kv_a)", "128 key heads of 128"),
        "mixed.v_up": ("norm(kv_a)", "128 value heads of 128"),
        "o": ("concatenated heads", "stream edit"),
    }
    assert block.parts["attention"] == "128 heads of 128 + 64 turned, keys and values made of 512"
    assert report.parameters.per_kind["layer"].attention == 187_105_280  # of DeepSeek V3 too


def test_flops_are_two_for_each_entry_of_a_matrix_and_the_scores() -> None:
    """A step reads latents as they are; a prefill makes keys and values of them, which costs less there."""
    made, context = compiled(V3), 1000
    report = make_report(made.spec, made.decoder, made.function, context=context)
    table = parameters_of(made.function)["embedding.weight"].size
    gains = sum(param.size for param in parameters_of(made.function).values() if len(param.shape) == 1)
    flops, heads = report.flops, 61 * 128
    assert flops.matmul_per_token == 2 * (report.parameters.total - table - gains)
    assert flops.attention_per_token == context * heads * 2 * (2 * 512 + 64)
    pairs = context * (context + 1) // 2
    assert flops.prefill == context * flops.matmul_per_token + pairs * heads * 2 * (128 + 64 + 128)


@pytest.mark.parametrize("target", [Target("cpu"), Target("cpu", padding="right"), Target("cuda", "fp16")], ids=str)
def test_no_fused_attention_takes_it_and_the_rest_is_fused(target: Target) -> None:
    made = twin(V3)
    left = {each.node: each.reason for each in made.unfused(target)}
    named = [f"layers.{i}.attention.mixed" for i in range(made.spec.top.depth)]
    assert [left[name].partition(",")[0] for name in named] == ["its keys and values are made of latents"] * len(named)
    assert sum(isinstance(n.op, SkipNorm) for n in made.flatten(target).nodes) == 2 * len(named)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_each_node_has_a_kernel_of_cuda_and_a_step_can_be_captured(dtype: FloatType) -> None:
    """No If and no shape that the host reads: one order of the products for all lengths."""
    model = onnx.load_from_string(twin(V3).onnx(Target("cuda", dtype, 50)))
    found = placed(model)
    assert (found.missing, found.copies) == (set(), set())
    layers = [n for n in model.graph.node if n.name.startswith("/layers/")]
    assert not [n.name for n in layers if n in found.host or n.op_type == "Shape" or n.op_type == "If"]


def test_there_is_no_graph_of_one_token_and_no_genai() -> None:
    made = twin(V3)
    with pytest.raises(api.BlockcError, match="made of latents"):
        made.flatten(Target("cpu", step=True))
    says = {"generation_config.json": b'{"eos_token_id": 1}'}
    with pytest.raises(GenaiError, match="one key and one value"):
        make_config(made.contract(Target("cpu", logits="last")), says, 100)


def test_no_design_keeps_its_ratios(tmp_path: Path) -> None:
    (tmp_path / "v3.yaml").write_text(V3)
    with pytest.raises(NoDesignError, match="latent attention"):
        api.new("small", tmp_path / "v3.yaml", "1B")


@cache
def _greedy(row: tuple[int, ...]) -> list[int]:
    tokens = list(row)
    for _ in range(NEW):
        ids = np.array([tokens])
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(len(tokens))[None]}
        logits = interp.interpret(twin(V3).function, feeds, _held())["logits"]
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(row) :]


@cache
def _held() -> dict[str, Array]:
    return {path: array.astype(np.float32).astype(np.float64) for path, array in params(twin(V3)).items()}


@pytest.mark.parametrize("name", TARGETS)
def test_sessions_generate_what_the_oracle_does(name: str, tmp_path: Path) -> None:
    save(tmp_path / "in" / "model.safetensors", {path: a.astype(np.float32) for path, a in _held().items()})
    api.build(twin(V3), tmp_path / "out", target=TARGETS[name], proof=False, weights=tmp_path / "in")
    session = Session(tmp_path / "out")
    got = [list(row) for row in zip(*session.generate(ROWS, NEW), strict=True)]
    assert got == [_greedy(tuple(row)) for row in ROWS]


def test_a_session_forgets_its_last_tokens_and_reads_on(tmp_path: Path) -> None:
    """In a buffer that grows on the way: latents and keys grow along axes of their own."""
    save(tmp_path / "in" / "model.safetensors", {path: a.astype(np.float32) for path, a in _held().items()})
    api.build(twin(V3), tmp_path / "out", target=Target(cache="buffer"), proof=False, weights=tmp_path / "in")
    session, row = Session(tmp_path / "out"), ROWS[0]
    session.prefill([row])
    session.extend([1, 2, 3])
    session.rewind(len(row) + 1)
    logits = session.extend([4, 5])
    tokens = np.array([[*row, 1, 4, 5]])
    feeds = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "position_ids": np.arange(len(row) + 3)[None]}
    wanted = interp.interpret(twin(V3).function, feeds, _held())["logits"][0, -2:]
    assert np.abs(logits.reshape(wanted.shape) - wanted).max() < TOLERANCE["float32"] * wanted.std()
