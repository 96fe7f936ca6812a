"""Configurations of transformers for decoders with factors on what they add, and norms without parameters.

Each is written out from the twin's resolved keys; what a family leaves no choice in is asserted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Keys = Mapping[str, Any]
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # within the twin's vocabulary


def _sizes(keys: Keys) -> dict[str, Any]:
    """Of heads that together are as wide as the stream, and a gated MLP; no matrix has a bias."""
    a, mlp = keys["attention"], keys["mlp"]
    assert keys["positions"] == "none" and a["heads"] * a["head_dim"] == keys["width"]
    assert not a["bias"] and mlp["type"] == "swiglu" and not mlp["bias"]
    return {
        "vocab_size": keys["vocab"], "hidden_size": keys["width"], "num_hidden_layers": keys["depth"],
        "num_attention_heads": a["heads"], "num_key_value_heads": a["kv_heads"], "intermediate_size": mlp["width"],
        "hidden_act": "silu", "max_position_embeddings": keys["context"], "attention_bias": False,
        "tie_word_embeddings": keys["head"]["tied"], **IDS,
    }  # fmt: skip


def _rope(rope: Keys, pairing: str) -> dict[str, Any]:
    assert rope.keys() == {"theta", "pairing"} and rope["pairing"] == pairing
    return {"rope_type": "default", "rope_theta": rope["theta"]}


def granite(keys: Keys) -> Any:
    from transformers import GraniteConfig

    norm, head = keys["norm"], keys["head"]
    assert (norm["type"], norm["placement"]) == ("rms", "pre") and head.keys() == {"tied", "scale"}
    return GraniteConfig(
        **_sizes(keys), mlp_bias=False, rms_norm_eps=norm["eps"],
        rope_parameters=_rope(keys["attention"]["rope"], "half"), embedding_multiplier=keys["embedding"]["scale"],
        residual_multiplier=keys["residual_scale"], attention_multiplier=keys["attention"]["scale"],
        logits_scaling=1 / head["scale"],
    )  # fmt: skip


def olmo(keys: Keys) -> Any:
    """Norms without parameters, of 1e-5, are no choice."""
    from transformers import OlmoConfig

    a, norm = keys["attention"], keys["norm"]
    assert norm == {"type": "layer", "eps": 1e-5, "weight": False, "bias": False, "placement": "pre", "final": True}
    assert a["scale"] == a["head_dim"] ** -0.5
    return OlmoConfig(**_sizes(keys), rope_parameters=_rope(a["rope"], "half"), clip_qkv=a["clip"])


def _command(keys: Keys) -> dict[str, Any]:
    """One norm for both branches, without a bias, is no choice."""
    a, norm, head = keys["attention"], keys["norm"], keys["head"]
    assert (norm["type"], norm["bias"], norm["placement"]) == ("layer", False, "parallel_one")
    assert a["scale"] == a["head_dim"] ** -0.5 and head.keys() == {"tied", "scale"} and head["tied"]
    return {**_sizes(keys), "layer_norm_eps": norm["eps"], "logit_scale": head["scale"]}


def cohere(keys: Keys) -> Any:
    from transformers import CohereConfig

    a, norm = keys["attention"], {"type": "layer", "eps": keys["norm"]["eps"]}
    assert a.get("qk_norm") in (None, {"over": "head", "weights": "own", **norm})
    return CohereConfig(
        **_command(keys), rope_parameters=_rope(a["rope"], "interleaved"), use_qk_norm="qk_norm" in a,
    )  # fmt: skip


def cohere2(keys: Keys) -> Any:
    """Without rope where there is no window is no choice."""
    from transformers import Cohere2Config

    a, layers = keys["attention"], keys["layers"]
    assert layers["pattern"] == ["local", "local", "global"] and keys["depth"] == 6
    assert layers["kinds"]["global"] == {"attention": {"window": "none", "rope": "none"}}
    return Cohere2Config(
        **_command(keys), head_dim=a["head_dim"], rope_parameters=_rope(a["rope"], "interleaved"),
        sliding_window=a["window"], layer_types=2 * ["sliding_attention", "sliding_attention", "full_attention"],
    )  # fmt: skip
