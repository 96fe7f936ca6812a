"""Configurations of transformers for decoders that are kin of Llama, GPT-J or GPT-2, and differ in one or two things.

Each is written out from the twin's resolved keys; what a family leaves no choice in is asserted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.reference.ropes import rope

Keys = Mapping[str, Any]
IDS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # within the twin's vocabulary
_PLAIN = {
    "gelu_tanh": "gelu_pytorch_tanh",
    "gelu": "gelu",
    "quick_gelu": "quick_gelu",
    "relu2": "relu2",
    "relu": "relu",
}
_GATED = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu", "reglu2": "relu2"}


def _sizes(keys: Keys) -> dict[str, Any]:
    a = keys["attention"]
    assert keys["positions"] == "none" and a["scale"] == a["head_dim"] ** -0.5 and "window" not in a
    return {
        "vocab_size": keys["vocab"], "hidden_size": keys["width"], "num_hidden_layers": keys["depth"],
        "intermediate_size": keys["mlp"]["width"], "num_attention_heads": a["heads"],
        "num_key_value_heads": a["kv_heads"], "head_dim": a["head_dim"], "max_position_embeddings": keys["context"],
        "tie_word_embeddings": keys["head"]["tied"], **IDS,
    }  # fmt: skip


def _rms(keys: Keys) -> float:
    norm = keys["norm"]
    assert (norm["type"], norm.get("offset", 0), norm["placement"]) == ("rms", 0, "pre")
    return norm["eps"]


def arcee(keys: Keys) -> Any:
    """No gate is no choice."""
    from transformers import ArceeConfig

    a, mlp = keys["attention"], keys["mlp"]
    assert not a["bias"] and not mlp["bias"] and a["head_dim"] * a["heads"] == keys["width"]
    return ArceeConfig(
        **_sizes(keys), hidden_act=_PLAIN[mlp["type"]], rms_norm_eps=_rms(keys), rope_parameters=rope(a["rope"]),
        attention_bias=False, mlp_bias=False,
    )  # fmt: skip


def nemotron(keys: Keys) -> Any:
    """No gate, and norms of 1 + weight with a bias, are no choice."""
    from transformers import NemotronConfig

    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    assert not a["bias"] and not mlp["bias"]
    assert (norm["type"], norm["bias"], norm["offset"], norm["placement"]) == ("layer", True, 1, "pre")
    part = a["rope"].get("dims", a["head_dim"]) / a["head_dim"]
    return NemotronConfig(
        **_sizes(keys), hidden_act=_PLAIN[mlp["type"]], norm_eps=norm["eps"], attention_bias=False, mlp_bias=False,
        rope_parameters={**rope(a["rope"]), "partial_rotary_factor": part},
    )  # fmt: skip


def helium(keys: Keys) -> Any:
    """Neighbours as pairs in the whole of each head are no choice, nor is an output as wide as the stream."""
    from transformers import HeliumConfig

    a, mlp = keys["attention"], keys["mlp"]
    assert not a["bias"] and not mlp["bias"] and a["head_dim"] * a["heads"] == keys["width"]
    assert a["rope"].keys() == {"theta", "pairing"} and a["rope"]["pairing"] == "interleaved"
    return HeliumConfig(
        **_sizes(keys), hidden_act=_GATED[mlp["type"]], rms_norm_eps=_rms(keys), attention_bias=False, mlp_bias=False,
        rope_parameters={"rope_type": "default", "rope_theta": a["rope"]["theta"]},
    )  # fmt: skip


def seed_oss(keys: Keys) -> Any:
    from transformers import SeedOssConfig

    a, mlp = keys["attention"], keys["mlp"]
    assert [m for m in a["bias"] if m != "o"] in ([], ["q", "k", "v"]) and len(mlp["bias"]) in (0, 3)
    return SeedOssConfig(
        **_sizes(keys), hidden_act=_GATED[mlp["type"]], rms_norm_eps=_rms(keys), rope_parameters=rope(a["rope"]),
        attention_bias="q" in a["bias"], attention_out_bias="o" in a["bias"], mlp_bias=bool(mlp["bias"]),
    )  # fmt: skip


def _gpt(keys: Keys, placement: str) -> dict[str, Any]:
    """What CodeGen and GPTBigCode, and GPT-2 before them, call the same things."""
    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    assert a["head_dim"] * a["heads"] == keys["width"] and a["scale"] == a["head_dim"] ** -0.5
    assert mlp["bias"] == ["up", "down"] and (norm["type"], norm["bias"]) == ("layer", True)
    assert norm["placement"] == placement and "offset" not in norm
    return {
        "vocab_size": keys["vocab"], "n_positions": keys["context"], "n_embd": keys["width"], "n_layer": keys["depth"],
        "n_head": a["heads"], "n_inner": mlp["width"], "activation_function": _PLAIN[mlp["type"]],
        "layer_norm_epsilon": norm["eps"], "tie_word_embeddings": keys["head"]["tied"], "bos_token_id": 1,
        "eos_token_id": 2,
    }  # fmt: skip


def codegen(keys: Keys) -> Any:
    """One norm for both branches, neighbours as pairs and the base of the rotation are no choice."""
    from transformers import CodeGenConfig

    a = keys["attention"]
    assert not a["bias"] and a["heads"] == a["kv_heads"] and keys["head"] == {"tied": False, "bias": True}
    assert (a["rope"]["theta"], a["rope"]["pairing"], "scaling" in a["rope"]) == (10000, "interleaved", False)
    return CodeGenConfig(**_gpt(keys, "parallel_one"), rotary_dim=a["rope"].get("dims", a["head_dim"]))


def gpt_bigcode(keys: Keys) -> Any:
    """One head of keys and values, or as many as queries. Biases everywhere are no choice."""
    from transformers import GPTBigCodeConfig

    a = keys["attention"]
    assert (
        keys["positions"] == {"type": "learned"} and keys["head"] == {"tied": True} and a["kv_heads"] in (1, a["heads"])
    )
    assert a["bias"] == ["q", "k", "v", "o"] and "rope" not in a
    return GPTBigCodeConfig(**_gpt(keys, "pre"), multi_query=a["kv_heads"] == 1)
