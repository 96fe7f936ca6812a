"""A family of experts that blockc does not know, dots.llm1: two data files make it, and transformers agrees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from blockc import importing
from blockc.graph.interp import interpret
from blockc.importing import import_config
from blockc.importing.maps import COMMON, load_map, model_types, read_map
from blockc.language.spec import from_tree
from blockc.layouts import read_layout
from blockc.pipeline.compiled import compile_spec
from blockc.source import parse
from blockc.weights.matching import unpack
from blockc.weights.rules import group_sizes, rules
from blockc.weights.safetensors import read_safetensors
from tests.paths import ROOT

outside: Any = transformers
KIND = "dots1"
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
    self_attn.q_proj.<p>: attention.q.<p>
    self_attn.k_proj.<p>: attention.k.<p>
    self_attn.v_proj.<p>: attention.v.<p>
    self_attn.o_proj.<p>: attention.o.<p>
    self_attn.q_norm.weight: attention.q_norm.weight
    self_attn.k_norm.weight: attention.k_norm.weight
    post_attention_layernorm.weight: mlp_norm.weight
    mlp.gate.weight: mlp.router.weight
    mlp.gate.e_score_correction_bias: mlp.route.selection_bias
    mlp.experts.<e>.gate_proj.weight: mlp.experts.gate
    mlp.experts.<e>.up_proj.weight: mlp.experts.up
    mlp.experts.<e>.down_proj.weight: mlp.experts.down
    mlp.shared_experts.gate_proj.weight: mlp.shared.gate.weight
    mlp.shared_experts.up_proj.weight: mlp.shared.up.weight
    mlp.shared_experts.down_proj.weight: mlp.shared.down.weight
    mlp.gate_proj.weight: mlp.gate.weight
    mlp.up_proj.weight: mlp.up.weight
    mlp.down_proj.weight: mlp.down.weight
"""
MAP = """\
import: 1
spec:
  vocab: <vocab_size>
  width: <hidden_size>
  depth: <num_hidden_layers>
  context: <context>
  attention:
    heads: <num_attention_heads>
    kv_heads: <num_key_value_heads>
    head_dim: <head_dim>
    bias: {if: attention_bias, then: [q, k, v, o]}
    qk_norm: {over: head, weights: shared}
    rope: {theta: <rope_parameters.rope_theta>, pairing: half, scaling: <scaling>}
  mlp:
    type: <gated>
    width: <moe_intermediate_size>
    experts:
      count: <n_routed_experts>
      active: <num_experts_per_tok>
      router:
        scores: sigmoid
        normalise: <norm_topk_prob>
        scale: <routed_scaling_factor>
        selection_bias: true
        groups: {from: n_group, is: {"1": none}, else: {count: <n_group>, active: <topk_group>, score: top2_sum}}
      shared: {width: {times: [<moe_intermediate_size>, <n_shared_experts>]}}
  norm: {type: rms, eps: <rms_norm_eps>, placement: pre}
  head: {tied: <tie_word_embeddings>}
  layers:
    each: {joined: [<reach>, {until: <first_k_dense_replace>, before: dense, after: sparse}]}
    kinds:
      dense: {mlp: {width: <intermediate_size>, experts: none}}
      sparse: {}
      local_dense: {attention: {window: <sliding_window>}, mlp: {width: <intermediate_size>, experts: none}}
      local_sparse: {attention: {window: <sliding_window>}}
let:
  reach: {from: layer_types, is: {full_attention: none, sliding_attention: local}}
absent:
  vocab_size: 152064
  hidden_size: 4608
  intermediate_size: 10944
  moe_intermediate_size: 1408
  num_hidden_layers: 62
  num_attention_heads: 32
  num_key_value_heads: 32
  n_group: 1
  topk_group: 1
  first_k_dense_replace: 0
  norm_topk_prob: false
  hidden_act: silu
  max_position_embeddings: 2048
  rms_norm_eps: 1e-6
  tie_word_embeddings: false
  attention_bias: false
  routed_scaling_factor: 1
  sliding_window: 4096
  max_window_layers: 62
  layer_types: {until: <max_window_layers>, before: full_attention, after: sliding_attention}
  rope_parameters.rope_theta: 10000
if_null: {num_key_value_heads: <num_attention_heads>}
"""
SMALL: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 24, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "n_shared_experts": 1, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "max_position_embeddings": 64, "first_k_dense_replace": 1,
}  # fmt: skip
CLOSE = 5e-6  # of the logits' spread
IDS = np.random.RandomState(0).randint(0, 97, (2, 13))


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The map of the new family, as a file in the place of maps would be read."""
    assert KIND not in model_types(), "take a family that is unknown"
    common = read_map(parse((ROOT / "blockc" / "layouts" / "config" / f"{COMMON}.yaml").read_bytes(), "common.yaml"))
    made = read_map(parse(MAP, f"{KIND}.yaml"), common)
    monkeypatch.setattr(importing, "model_types", lambda: (*model_types(), KIND))
    monkeypatch.setattr(importing, "load_map", lambda name: made if name == KIND else load_map(name))  # pyright: ignore


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "n_shared_experts": 2},
        {"attention_bias": True, "sliding_window": 4, "max_window_layers": 1, "first_k_dense_replace": 2},
    ],
    ids=["plain", "groups", "windows"],
)
@pytest.mark.usefixtures("known")
def test_a_family_of_experts_is_two_data_files(more: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(2)
    config = outside.Dots1Config(**{**SMALL, **more})
    theirs = outside.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    with torch.no_grad():
        for param in theirs.parameters():
            param.copy_(0.25 * torch.randn_like(param) + (0.5 if param.ndim == 1 else 0))
        for name, buffer in theirs.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn_like(buffer))
    theirs.save_pretrained(tmp_path)
    made = import_config((tmp_path / "config.json").read_bytes(), "config.json", "new")
    function = compile_spec(from_tree(made.tree)).function
    held = rules(read_layout(KIND, parse(LAYOUT, f"{KIND}.yaml")), function, group_sizes(function))
    params = {path: array.astype(np.float64) for path, array in unpack(held, read_safetensors(tmp_path)).items()}
    feeds = {"input_ids": IDS, "attention_mask": np.ones_like(IDS), "position_ids": np.arange(13)[None].repeat(2, 0)}
    ours = interpret(function, feeds, params)["logits"]
    with torch.no_grad():
        truth = theirs.double()(torch.tensor(IDS)).logits.numpy()
    assert np.abs(ours - truth).max() < CLOSE * truth.std()


@pytest.mark.usefixtures("known")
def test_it_has_the_parameters_of_its_code() -> None:
    """Dots1ForCausalLM with the sizes of dots.llm1.base, on the meta device."""
    said = {
        "model_type": KIND, "hidden_size": 4096, "head_dim": 128, "n_shared_experts": 2, "n_routed_experts": 128,
        "num_experts_per_tok": 6, "first_k_dense_replace": 1, "intermediate_size": 10944,
    }  # fmt: skip
    model = compile_spec(from_tree(import_config(json.dumps(said).encode(), "config.json", "new").tree))
    with torch.device("meta"):
        theirs = outside.AutoModelForCausalLM.from_config(outside.Dots1Config(**said))
    assert model.parameters == sum(param.numel() for param in theirs.parameters()) == 142_774_373_888
