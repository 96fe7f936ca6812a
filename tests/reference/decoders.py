"""Configurations of transformers for decoders whose words others have proved: what is new is how they are put together.

Each is written out from the twin's resolved keys; what a family leaves no choice in is asserted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Keys = Mapping[str, Any]
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # within the twin's vocabulary


def _sizes(keys: Keys) -> dict[str, Any]:
    a = keys["attention"]
    assert keys["positions"] == "none" and a["scale"] == a["head_dim"] ** -0.5
    return {
        "vocab_size": keys["vocab"], "hidden_size": keys["width"], "num_hidden_layers": keys["depth"],
        "num_attention_heads": a["heads"], "max_position_embeddings": keys["context"],
        "tie_word_embeddings": keys["head"]["tied"], "rope_parameters": _rope(a), **IDS,
    }  # fmt: skip


def _rope(a: Keys) -> dict[str, Any]:
    """Of the first part of each head, with frequencies over that part."""
    rope = a["rope"]
    assert "scaling" not in rope and "pairs" not in rope
    factor = rope.get("dims", a["head_dim"]) / a["head_dim"]
    return {"rope_type": "default", "rope_theta": rope["theta"], "partial_rotary_factor": factor}


def _layer_norm(keys: Keys, placement: str) -> float:
    norm = keys["norm"]
    assert (norm["type"], norm["bias"], norm["placement"]) == ("layer", True, placement)
    return norm["eps"]


def _rms(keys: Keys, placement: str, offset: int = 0) -> float:
    norm = keys["norm"]
    assert (norm["type"], norm.get("offset", 0), norm["placement"]) == ("rms", offset, placement)
    return norm["eps"]


def gemma(keys: Keys) -> Any:
    from transformers import GemmaConfig

    a, mlp = keys["attention"], keys["mlp"]
    assert keys["embedding"] == {"scale": "sqrt_width"} and keys["head"] == {"tied": True} and not a["bias"]
    activation = {"geglu_tanh": "gelu_pytorch_tanh", "geglu": "gelu"}[mlp["type"]]
    return GemmaConfig(
        **_sizes(keys), num_key_value_heads=a["kv_heads"], head_dim=a["head_dim"], intermediate_size=mlp["width"],
        hidden_act=activation, rms_norm_eps=_rms(keys, "pre", offset=1),
    )  # fmt: skip


def falcon(keys: Keys) -> Any:
    """One key-value head behind one norm, or several behind two."""
    from transformers import FalconConfig

    a, mlp = keys["attention"], keys["mlp"]
    assert mlp["type"] == "gelu" and not mlp["bias"] and not a["bias"] and a["rope"]["pairing"] == "half"
    new = keys["norm"]["placement"] == "parallel_two"
    assert new or a["kv_heads"] == 1
    return FalconConfig(
        **_sizes(keys), num_kv_heads=a["kv_heads"], new_decoder_architecture=new, multi_query=True, parallel_attn=True,
        bias=False, alibi=False, activation="gelu", ffn_hidden_size=mlp["width"],
        layer_norm_epsilon=_layer_norm(keys, "parallel_two" if new else "parallel_one"),
    )  # fmt: skip


def phi3(keys: Keys) -> Any:
    from transformers import Phi3Config

    a, mlp = keys["attention"], keys["mlp"]
    assert mlp["type"] == "swiglu" and not mlp["bias"] and not a["bias"] and a["rope"]["pairing"] == "half"
    return Phi3Config(
        **_sizes(keys), num_key_value_heads=a["kv_heads"], intermediate_size=mlp["width"], hidden_act="silu",
        original_max_position_embeddings=keys["context"], sliding_window=a.get("window"),
        rms_norm_eps=_rms(keys, "pre"),
    )  # fmt: skip


def stablelm(keys: Keys) -> Any:
    """Norms with biases around a gated MLP."""
    from transformers import StableLmConfig

    a, mlp = keys["attention"], keys["mlp"]
    assert mlp["type"] == "swiglu" and not mlp["bias"] and a["rope"]["pairing"] == "half"
    assert a["bias"] in ([], ["q", "k", "v"])
    return StableLmConfig(
        **_sizes(keys), num_key_value_heads=a["kv_heads"], intermediate_size=mlp["width"], hidden_act="silu",
        layer_norm_eps=_layer_norm(keys, "pre"), use_qkv_bias=bool(a["bias"]), qk_layernorm=False,
        use_parallel_residual=False,
    )  # fmt: skip


def starcoder2(keys: Keys) -> Any:
    from transformers import Starcoder2Config

    a, mlp = keys["attention"], keys["mlp"]
    assert (mlp["type"], mlp["bias"]) == ("gelu_tanh", ["up", "down"]) and a["bias"] == ["q", "k", "v", "o"]
    assert a["rope"]["pairing"] == "half"
    return Starcoder2Config(
        **_sizes(keys), num_key_value_heads=a["kv_heads"], intermediate_size=mlp["width"],
        hidden_act="gelu_pytorch_tanh", norm_epsilon=_layer_norm(keys, "pre"), sliding_window=a.get("window"),
        use_bias=True,
    )  # fmt: skip


def gpt_neo(keys: Keys) -> Any:
    """Scores as they are, a bias on the output alone, and the windows of half of the layers are no choice."""
    from transformers import GPTNeoConfig

    a, mlp = keys["attention"], keys["mlp"]
    assert keys["positions"] == {"type": "learned"} and keys["head"] == {"tied": True}
    assert (a["scale"], a["bias"], a["kv_heads"]) == (1, ["o"], a["heads"]) and mlp["bias"] == ["up", "down"]
    kinds = keys["layers"]["kinds"]
    assert mlp["type"] == "gelu_tanh" and keys["layers"]["pattern"] == ["global", "local"]
    assert "window" not in a and kinds["global"] == {}
    return GPTNeoConfig(
        vocab_size=keys["vocab"], max_position_embeddings=keys["context"], hidden_size=keys["width"],
        num_layers=keys["depth"], num_heads=a["heads"], intermediate_size=mlp["width"],
        attention_types=[[["global", "local"], keys["depth"] // 2]],
        window_size=kinds["local"]["attention"]["window"], activation_function="gelu_new",
        layer_norm_epsilon=_layer_norm(keys, "pre"), tie_word_embeddings=True, **IDS,
    )  # fmt: skip


def _glm(keys: Keys, placement: str) -> dict[str, Any]:
    a, mlp = keys["attention"], keys["mlp"]
    assert a["bias"] == ["q", "k", "v"] and mlp["type"] == "swiglu" and not mlp["bias"]
    assert a["rope"]["pairing"] == "interleaved"
    return {
        **_sizes(keys), "num_key_value_heads": a["kv_heads"], "head_dim": a["head_dim"], "attention_bias": True,
        "intermediate_size": mlp["width"], "hidden_act": "silu", "rms_norm_eps": _rms(keys, placement),
    }  # fmt: skip


def glm(keys: Keys) -> Any:
    """Neighbours as pairs in the first part of each head."""
    from transformers import GlmConfig

    return GlmConfig(**_glm(keys, "pre"))


def glm4(keys: Keys) -> Any:
    from transformers import Glm4Config

    return Glm4Config(**_glm(keys, "sandwich"))
