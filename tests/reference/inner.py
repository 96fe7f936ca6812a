"""Configurations of transformers for decoders that norm within a part, or whose activation has numbers of its own.

Each is written out from the twin's resolved keys; what a family leaves no choice in is asserted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from blockc.ir import Array
from tests.reference.ropes import rope

Keys = Mapping[str, Any]
Params = Mapping[str, Array]
Logits = Callable[[Array], Array]  # tokens (B, S) -> (B, S, vocab)
IDS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # within the twin's vocabulary


def _rms(keys: Keys) -> dict[str, Any]:
    """What the configurations of all that took over Llama's names call the same things."""
    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    assert keys["positions"] == "none" and a["scale"] == a["head_dim"] ** -0.5 and "window" not in a
    assert norm == {"type": "rms", "eps": norm["eps"], "placement": "pre", "final": True}
    return {
        "vocab_size": keys["vocab"], "hidden_size": keys["width"], "num_hidden_layers": keys["depth"],
        "intermediate_size": mlp["width"], "num_attention_heads": a["heads"], "num_key_value_heads": a["kv_heads"],
        "max_position_embeddings": keys["context"], "rms_norm_eps": norm["eps"],
        "tie_word_embeddings": keys["head"]["tied"], **IDS,
    }  # fmt: skip


def hunyuan(keys: Keys) -> Any:
    """Norms of each head behind rope are no choice."""
    from transformers import HunYuanDenseV1Config

    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    behind = {"over": "head", "weights": "shared", "order": "after_rope", "type": "rms", "eps": norm["eps"]}
    assert a["qk_norm"] == behind and mlp["type"] == "swiglu" and a["bias"] in ([], ["q", "k", "v", "o"])
    return HunYuanDenseV1Config(
        **_rms(keys), head_dim=a["head_dim"], hidden_act="silu", attention_bias=bool(a["bias"]),
        rope_parameters=rope(a["rope"]),
    )  # fmt: skip


def persimmon(keys: Keys) -> Any:
    """Biases everywhere, those of the norms too, are no choice."""
    from transformers import PersimmonConfig

    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    assert keys["positions"] == "none" and a["scale"] == a["head_dim"] ** -0.5 and a["heads"] == a["kv_heads"]
    assert a["bias"] == ["q", "k", "v", "o"] and mlp["bias"] == ["up", "down"]
    inside = {"over": "head", "weights": "shared", "type": "layer", "eps": norm["eps"], "bias": True}
    assert a.get("qk_norm") in (None, inside)
    assert norm == {"type": "layer", "eps": norm["eps"], "bias": True, "placement": "pre", "final": True}
    part = a["rope"].get("dims", a["head_dim"]) / a["head_dim"]
    return PersimmonConfig(
        vocab_size=keys["vocab"], hidden_size=keys["width"], num_hidden_layers=keys["depth"],
        intermediate_size=mlp["width"], num_attention_heads=a["heads"], hidden_act=mlp["type"],
        max_position_embeddings=keys["context"], layer_norm_eps=norm["eps"], qk_layernorm="qk_norm" in a,
        tie_word_embeddings=keys["head"]["tied"], **IDS,
        rope_parameters={**rope(a["rope"]), "partial_rotary_factor": part},
    )  # fmt: skip


def apertus(keys: Keys) -> Any:
    """Its head_dim is width / heads, and its norms of queries and keys are no choice."""
    from transformers import ApertusConfig

    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    assert a["qk_norm"] == {"over": "head", "weights": "shared", "type": "rms", "eps": norm["eps"]}
    assert a["head_dim"] * a["heads"] == keys["width"] and not a["bias"] and not mlp["bias"]
    return ApertusConfig(**_rms(keys), hidden_act=mlp["type"], rope_parameters=rope(a["rope"]))


def bitnet(keys: Keys) -> Any:
    """Its weights in floats. head_dim is width / heads; norms before o and before down are no choice."""
    from transformers import BitNetConfig

    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    inside = {"weight": True, "type": "rms", "eps": norm["eps"]}
    assert a["sub_norm"] == mlp["sub_norm"] == inside and a["head_dim"] * a["heads"] == keys["width"]
    assert not a["bias"] and not mlp["bias"]
    activation = {"reglu2": "relu2", "reglu": "relu", "swiglu": "silu"}[mlp["type"]]
    return BitNetConfig(**_rms(keys), hidden_act=activation, rope_parameters=rope(a["rope"]))


def ernie(keys: Keys) -> Any:
    """Neighbours as pairs are no choice."""
    from transformers import Ernie4_5Config

    a, mlp = keys["attention"], keys["mlp"]
    assert mlp["type"] == "swiglu" and a["rope"]["pairing"] == "interleaved"
    biased = bool(a["bias"])
    assert (a["bias"], mlp["bias"]) == ((["q", "k", "v", "o"], ["gate", "up", "down"]) if biased else ([], []))
    return Ernie4_5Config(
        **_rms(keys), head_dim=a["head_dim"], hidden_act="silu", use_bias=biased,
        rope_parameters=rope({**a["rope"], "pairing": "half"}),
    )  # fmt: skip


# A family that has no layout: norms without weights everywhere, those of queries and keys behind rope

NANOCHAT = """\
vocab: 40
width: 24
positions: none
embedding: {norm: {type: rms, eps: 1e-6, weight: false}}
attention:
  heads: 4
  kv_heads: 2
  head_dim: 6
  qk_norm: {over: head, weight: false, order: after_rope}
  rope: {theta: 10000, pairing: half}
mlp: {type: relu2, width: 56}
norm: {type: rms, eps: 1e-6, weight: false, placement: pre}
head: {tied: false, softcap: 2}
"""


def nanochat(params: Params) -> Logits:
    """It turns the other way round, which is the same with the halves of each head exchanged."""
    from transformers import NanoChatConfig, NanoChatForCausalLM

    config = NanoChatConfig(
        vocab_size=40, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=56, max_position_embeddings=32, final_logit_softcapping=2.0, rms_norm_eps=1e-6,
        tie_word_embeddings=False, **IDS,
    )  # fmt: skip
    model = NanoChatForCausalLM(config).double().eval()
    names = {"embedding": "model.embed_tokens", "head": "lm_head"}
    inside = {"mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2", **{f"attention.{m}": f"self_attn.{m}_proj" for m in "qkvo"}}
    state: dict[str, torch.Tensor] = {}
    for path, array in params.items():
        module, _, kind = path.rpartition(".")
        if module in ("layers.0.attention.q", "layers.0.attention.k", "layers.1.attention.q", "layers.1.attention.k"):
            array = array.reshape(-1, 2, 3, 24)[:, ::-1].reshape(array.shape)
        layer, label = module.split(".", 2)[1:] if module.startswith("layers.") else ("", module)
        name = f"model.layers.{layer}.{inside[label]}" if layer else names[label]
        state[f"{name}.{kind}"] = torch.from_numpy(array.copy())
    model.load_state_dict(state, strict=True)

    def logits(tokens: Array) -> Array:
        with torch.no_grad():
            return model(input_ids=torch.from_numpy(tokens)).logits.numpy()

    return logits


def xielu_mlp(params: Params, x: Array) -> Array:
    """GPT-2's MLP with this activation."""
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

    mlp = GPT2MLP(56, GPT2Config(n_embd=24, activation_function="xielu")).double().eval()
    own = {name: torch.from_numpy(params[f"mlp.{name}.weight"]) for name in ("up", "down")}
    numbers = ("alpha_p", "alpha_n", "beta", "eps")
    state = {
        "c_fc.weight": own["up"].T, "c_fc.bias": torch.zeros(56), "c_proj.weight": own["down"].T,
        "c_proj.bias": torch.zeros(24), **{f"act.{n}": torch.from_numpy(params[f"mlp.activated.{n}"]) for n in numbers},
    }  # fmt: skip
    mlp.load_state_dict(state, strict=True)
    with torch.no_grad():
        return mlp(torch.from_numpy(x)).numpy()
