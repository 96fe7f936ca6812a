"""Families that have no spec here, and say what one alone of those says: each a spec and its model outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from blockc.ir import Array

Params = Mapping[str, Array]
Logits = Callable[[Array], Array]

XLM = """\
vocab: 40
width: 24
depth: 2
context: 32
positions: {type: sinusoidal}
embedding: {norm: {type: layer, eps: 1e-6, bias: true}}
attention: {heads: 4, bias: [q, k, v, o]}
mlp: {type: gelu, width: 96, bias: [up, down]}
norm: {type: layer, eps: 1e-6, bias: true, placement: post}
head: {tied: true, bias: true}
"""
BIOGPT = """\
vocab: 40
width: 24
depth: 2
context: 32
positions: {type: learned, offset: 2}
embedding: {scale: sqrt_width}
attention: {heads: 4, bias: [q, k, v, o]}
mlp: {type: gelu, width: 56, bias: [up, down]}
norm: {type: layer, eps: 1e-5, bias: true, placement: pre}
head: {tied: true}
"""
MINIMAX = """\
vocab: 40
width: 24
depth: 1
context: 32
attention: {heads: 4, rope: {theta: 1e4, pairing: half}}
mlp: {type: swiglu_clamped, width: 56, limit: 0.8, alpha: 1.702}
norm: {type: rms, eps: 1e-5, placement: pre}
head: {tied: false}
"""


def xlm(params: Params) -> Logits:
    """XLM as a language model: waves added, a norm of the sum, norms after the branches, a head with a bias.

    Its shares of attention are rounded to float32, whatever the model's type.
    """
    from transformers import XLMConfig, XLMWithLMHeadModel

    config = XLMConfig(
        vocab_size=40, emb_dim=24, n_layers=2, n_heads=4, gelu_activation=True, sinusoidal_embeddings=True, causal=True,
        max_position_embeddings=32, layer_norm_eps=1e-6, pad_token_id=39, tie_word_embeddings=True,
    )  # fmt: skip
    model = XLMWithLMHeadModel(config).double().eval()
    own = model.transformer.position_embeddings.weight
    waves = torch.zeros_like(own)  # the library's are rounded to float32
    turns = torch.arange(32.0).double()[:, None] / 10000 ** (torch.arange(0, 24, 2).double() / 24)
    waves[:, 0::2], waves[:, 1::2] = turns.sin(), turns.cos()
    torch.testing.assert_close(own, waves, atol=1e-6, rtol=0)
    names = {
        "embedding": "transformer.embeddings", "embedding_norm": "transformer.layer_norm_emb",
        "head": "pred_layer.proj", "attention_post_norm": "transformer.layer_norm1.%s",
        "mlp_post_norm": "transformer.layer_norm2.%s", "mlp.up": "transformer.ffns.%s.lin1",
        "mlp.down": "transformer.ffns.%s.lin2", "attention.o": "transformer.attentions.%s.out_lin",
        **{f"attention.{m}": f"transformer.attentions.%s.{m}_lin" for m in "qkv"},
    }  # fmt: skip
    return _filled(model, names, params, {"transformer.position_embeddings.weight": waves}, "pred_layer.proj.weight")


def biogpt(params: Params) -> Logits:
    """BioGPT: a learned table with two rows before the first position, and a scaled embedding."""
    from transformers import BioGptConfig, BioGptForCausalLM

    config = BioGptConfig(
        vocab_size=40, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=56,
        hidden_act="gelu", max_position_embeddings=32, scale_embedding=True, pad_token_id=39,
    )  # fmt: skip
    names = {
        "embedding": "biogpt.embed_tokens", "positions": "biogpt.embed_positions", "final_norm": "biogpt.layer_norm",
        "attention_norm": "biogpt.layers.%s.self_attn_layer_norm", "mlp_norm": "biogpt.layers.%s.final_layer_norm",
        "mlp.up": "biogpt.layers.%s.fc1", "mlp.down": "biogpt.layers.%s.fc2",
        "attention.o": "biogpt.layers.%s.self_attn.out_proj",
        **{f"attention.{m}": f"biogpt.layers.%s.self_attn.{m}_proj" for m in "qkv"},
    }  # fmt: skip
    return _filled(BioGptForCausalLM(config).double().eval(), names, params, {}, "output_projection.weight")


def _filled(model: nn.Module, names: Mapping[str, str], params: Params, more: Mapping[str, Any], tied: str) -> Logits:
    """Under the family's names, %s the layer; nothing missing, nothing left over but the tied head's second name."""
    state = dict(more)
    for path, array in params.items():
        module, _, kind = path.rpartition(".")
        layer, label = module.split(".", 2)[1:] if module.startswith("layers.") else ("", module)
        name = names[label] % layer if layer else names[label]
        state[f"{name}.{kind}"] = torch.from_numpy(array)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {tied}, (missing, unexpected)

    def logits(tokens: Array) -> Array:
        with torch.no_grad():
            return model(input_ids=torch.from_numpy(tokens)).logits.numpy()

    return logits


def minimax_mlp(params: Params, x: Array) -> Array:
    """The dense MLP of MiniMax-M3, whose decoder is of another kind: gate and up clamped, in one matrix."""
    from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as library
    from transformers.models.minimax_m3_vl.configuration_minimax_m3_vl import MiniMaxM3VLTextConfig

    config = MiniMaxM3VLTextConfig(hidden_size=24, dense_intermediate_size=56, swiglu_limit=0.8, swiglu_alpha=1.702)
    mlp = library.MiniMaxM3VLDenseMLP(config).double()
    gate, up, down = (torch.from_numpy(params[f"mlp.{name}.weight"]) for name in ("gate", "up", "down"))
    mlp.load_state_dict({"gate_up_proj.weight": torch.cat([gate, up]), "down_proj.weight": down}, strict=True)
    with torch.no_grad():
        return mlp(torch.from_numpy(x)).numpy()
