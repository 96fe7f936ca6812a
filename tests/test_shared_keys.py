"""Values made of keys, and layers that read the keys and values of earlier ones, by the outside: Gemma 4's text model.

Without inputs of each layer's own, without experts, and with the scalars of its layers at 1, it says these words alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest
import torch

from blockc.compile import Compiled
from blockc.ops import Array
from blockc.proof import prove
from blockc.proof.cases import Case
from blockc.proof.runners import Oracle
from blockc.target import Target
from blockc.weights import random_parameters
from tests.spec_text import made

KEYS = """\
vocab: 40
width: 24
depth: 2
context: 32
embedding: {scale: sqrt_width}
attention:
  heads: 4
  kv_heads: 2
  head_dim: 16
  scale: 1.0
  qk_norm: {over: head, weights: shared}
  v_norm: {over: head, weight: false}
  rope: {theta: 1e4, pairing: half}
mlp: {type: geglu_tanh, width: 12}
norm: {type: rms, eps: 1e-6, placement: sandwich}
head: {tied: true, softcap: 2}
"""
GLOBAL = "kv_heads: 1, head_dim: 32, v_from: k, rope: {theta: 1e6, pairs: 4}"
KINDS = f"near: {{attention: {{window: 5}}}}, far: {{attention: {{{GLOBAL}}}}}"
OWN = f"layers: {{pattern: [near, far], kinds: {{{KINDS}}}}}\n"
NAMES = {
    **{f"attention.{m}": f"self_attn.{m}_proj" for m in "qkvo"},
    **{f"attention.{m}_norm": f"self_attn.{m}_norm" for m in "qk"},
    "attention_norm": "input_layernorm",
    "attention_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
    **{f"mlp.{m}": f"mlp.{m}_proj" for m in ("gate", "up", "down")},
}


def outside(params: Mapping[str, Array], tokens: Array, depth: int, shared: int) -> Array:
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    config = Gemma4TextConfig(
        vocab_size=40, hidden_size=24, intermediate_size=12, num_hidden_layers=depth, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, global_head_dim=32, num_global_key_value_heads=1, attention_k_eq_v=True,
        num_kv_shared_layers=shared, layer_types=["sliding_attention", "full_attention"] * (depth // 2),
        sliding_window=5, max_position_embeddings=32, rms_norm_eps=1e-6, final_logit_softcapping=2.0,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        },
        hidden_size_per_layer_input=0, vocab_size_per_layer_input=40, tie_word_embeddings=True, pad_token_id=0,
    )  # fmt: skip
    config._attn_implementation = "eager"
    model = Gemma4ForCausalLM(config).double().eval()
    state = {name: torch.ones_like(t) for name, t in model.state_dict().items() if name.endswith("layer_scalar")}
    names = {"embedding": "model.embed_tokens", "final_norm": "model.norm"}
    for path, array in params.items():
        module, _, kind = path.rpartition(".")
        if path.startswith("layers."):
            _, layer, label = module.split(".", 2)
            module = f"model.layers.{layer}.{NAMES[label]}"
        state[f"{names.get(module, module)}.{kind}"] = torch.from_numpy(array)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    with torch.no_grad():
        return model(input_ids=torch.from_numpy(tokens)).logits.numpy()


def error(model: Compiled, params: Mapping[str, Array], wanted: Array, chunks: tuple[int, ...]) -> float:
    ours = Oracle(model.served).run(Case("", tuple(TOKENS), (0, 0), chunks), params).logits
    return float(np.abs(ours - wanted).max() / wanted.std())


TOKENS = np.random.RandomState(3).randint(0, 40, (2, 12))
CHUNKS = ((12,), (5, 4, 1, 1, 1))


@cache
def whole() -> Compiled:
    return made(KEYS + OWN)


@pytest.mark.parametrize("chunks", CHUNKS)
def test_values_are_normed_keys(chunks: tuple[int, ...]) -> None:
    params = random_parameters(whole().function, 5)
    assert "layers.0.attention.v.weight" in params and "layers.1.attention.v.weight" not in params
    assert error(whole(), params, outside(params, TOKENS, 2, 0), chunks) < 5e-6


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  v_norm: {over: head, weight: false}\n", ""),
        ("weight: false}\n", "weight: false, type: layer, eps: 1e-6}\n"),
        ("weight: false}\n", "weight: false, eps: 1e-3}\n"),
    ],
)
def test_another_norm_of_values_shows(old: str, new: str) -> None:
    params = random_parameters(whole().function, 5)
    wrong = made((KEYS + OWN).replace(old, new))
    assert error(wrong, params, outside(params, TOKENS, 2, 0), (12,)) > 1e-4


CPU, CUDA = Target("cpu"), Target("cuda", "fp16")
SOFT = KEYS.replace("scale: 1.0", "scale: 0.25")  # sharper scores are beyond half precision


def test_values_of_both_kinds_are_fused() -> None:
    model = made(SOFT + OWN)
    found = prove(model, targets=(CPU, CUDA))
    assert found.complete, found.table()
    for target in (CPU, CUDA):
        assert not [left for left in model.unfused(target) if left.node.endswith("mixed")]
