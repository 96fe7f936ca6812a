"""Sinks and the clamped gate, by the outside: a GPT-OSS of one expert, whose router has no choice, is a dense model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
import torch

from blockc.graph.target import Target
from blockc.ir import Array
from blockc.ort.ops import GroupQueryAttention, RowQueryAttention
from blockc.proof.cases import Case, cases
from blockc.proof.comparison import Truth, compare_run
from blockc.proof.matrix import RUN_AS
from blockc.proof.runners import Onnx, Oracle
from blockc.weights.rules import random_parameters
from tests.spec_text import made

KEYS = """\
vocab: 40
width: 24
context: 32
attention: {heads: 4, kv_heads: 2, head_dim: 8, bias: [q, k, v, o], %srope: {theta: 1e4, pairing: half}}
mlp: {type: swiglu_clamped, width: 12, limit: %s, alpha: 1.702, bias: [gate, up, down]}
layers: {pattern: [near, far], kinds: {near: {attention: {window: 5}}, far: {}}}
head: {tied: false}
"""
NAMES = {
    **{f"attention.{m}": f"self_attn.{m}_proj" for m in "qkvo"},
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
}


def outside(params: Mapping[str, Array], tokens: Array) -> Array:
    from transformers import GptOssConfig, GptOssForCausalLM

    config = GptOssConfig(
        vocab_size=40, hidden_size=24, intermediate_size=12, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_local_experts=1, num_experts_per_tok=1, sliding_window=5,
        layer_types=["sliding_attention", "full_attention"], max_position_embeddings=32, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4}, tie_word_embeddings=False, pad_token_id=0,
    )  # fmt: skip
    config._attn_implementation = config._experts_implementation = "eager"
    model = GptOssForCausalLM(config).double().eval()
    state = {name: torch.zeros_like(t) for name, t in model.state_dict().items() if ".router." in name}
    names = {"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}
    for path, array in params.items():
        module, _, kind = path.rpartition(".")
        if not path.startswith("layers."):
            state[f"{names[module]}.{kind}"] = torch.from_numpy(array)
        elif (label := module.split(".", 2)[2]) in NAMES:
            state[f"model.layers.{path[7]}.{NAMES[label]}.{kind}"] = torch.from_numpy(array)
    for i in range(2):
        at, to = f"layers.{i}", f"model.layers.{i}"
        gate, up, down = ([params[f"{at}.mlp.{m}.{p}"] for p in ("weight", "bias")] for m in ("gate", "up", "down"))
        for suffix, pair in (("", (gate[0].T, up[0].T)), ("_bias", (gate[1], up[1]))):
            joined = np.stack(pair, axis=-1).reshape(*pair[0].shape[:-1], -1)
            state[f"{to}.mlp.experts.gate_up_proj{suffix}"] = torch.from_numpy(joined[None])
        state[f"{to}.mlp.experts.down_proj"] = torch.from_numpy(down[0].T[None].copy())
        state[f"{to}.mlp.experts.down_proj_bias"] = torch.from_numpy(down[1][None])
        state[f"{to}.self_attn.sinks"] = torch.from_numpy(params[f"{at}.attention.sinks.weight"])
    model.load_state_dict(state, strict=True)
    for module in model.modules():
        if hasattr(module, "limit"):
            module.limit = 0.8  # 7 is beyond what a tiny model gives
    with torch.no_grad():
        return model(input_ids=torch.from_numpy(tokens)).logits.numpy()


@pytest.mark.parametrize(("sinks", "limit", "same"), [("sinks: true, ", "0.8", True), ("sinks: true, ", "0.9", False),
                                                      ("", "0.8", False)])  # fmt: skip
def test_one_expert_of_gpt_oss_is_a_dense_model(sinks: str, limit: str, same: bool) -> None:
    model, whole = (made(KEYS % (said, limit)) for said in (sinks, "sinks: true, "))
    every = random_parameters(whole.function, 5)
    params = {path: array for path, array in every.items() if sinks or "sinks" not in path}
    tokens = np.random.RandomState(3).randint(0, 40, (2, 12))
    wanted = outside(every, tokens)
    for chunks in ((12,), (5, 4, 1, 1, 1)):
        ours = Oracle(model.served).run(Case("", tuple(tokens), (0, 0), chunks), params).logits
        assert (np.abs(ours - wanted).max() < 5e-6 * wanted.std()) == same


FUSED = {
    "by a mask": Target("cpu"),
    "by a mask, fp16": Target("cpu", "fp16"),
    "by a mask, packed": Target("cpu", packed=True),
    "by rows": Target("cpu", padding="right"),
    "by rows, packed": Target("cpu", padding="right", packed=True),
    "for cuda": Target("cuda", "fp16"),
}
WIDE = KEYS.replace("width: 24", "width: 48").replace("head_dim: 8", "head_dim: 16")


@pytest.mark.parametrize("target", FUSED.values(), ids=FUSED)
def test_sinks_are_in_the_kernel_whatever_it_is_fed(target: Target) -> None:
    """Both layers, one with a window. For CUDA the same nodes in float32 on the CPU."""
    model = made(WIDE % ("sinks: true, ", "0.8"))
    names = [n.name for n in model.flatten(target).nodes if isinstance(n.op, GroupQueryAttention | RowQueryAttention)]
    assert names == ["layers.0.attention.mixed", "layers.1.attention.mixed"]
    assert not any("attention.mixed" in left.node for left in model.unfused(target))
    dtype = "fp16" if target == Target("cpu", "fp16") else "fp32"
    graph = model.onnx(target, dtype=dtype)
    kernels = [n for n in onnx.load_from_string(graph).graph.node if n.op_type == "GroupQueryAttention"]
    assert [len(n.input) for n in kernels] == [12, 12] and all(n.input[11] for n in kernels)
    truth = Truth(model, random_parameters(model.function, 5))
    kernel = Onnx(graph, model.flatten(target), dtype=RUN_AS[dtype], derived=model.derivations(target))
    for runner in (Oracle(model.flatten(target), derived=model.derivations(target)), kernel):
        for case in cases(40, cached=True):
            if not case.labels and not case.several_on_a_past:
                row = compare_run(truth, runner, case)
                assert row.holds, row
