"""Configurations of transformers for decoders that say in their own way where a token stands.

Each is written out from the twin's resolved keys; what a family leaves no choice in is asserted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.reference.ropes import rope

Keys = Mapping[str, Any]
IDS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # within the twin's vocabulary


def opt(keys: Keys) -> Any:
    """Biases everywhere and two rows before the first position are no choice."""
    from transformers import OPTConfig

    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    assert keys["positions"] == {"type": "learned", "offset": 2} and keys["head"] == {"tied": True}
    assert a["heads"] == a["kv_heads"] and a["scale"] == a["head_dim"] ** -0.5
    assert a["bias"] == ["q", "k", "v", "o"] and mlp["bias"] == ["up", "down"] and mlp["type"] == "relu"
    before, wide = norm["placement"] == "pre", keys.get("embedding", {"width": keys["width"]})
    assert (norm["type"], norm["eps"], norm["bias"], norm["final"]) == ("layer", 1e-5, True, before)
    assert norm["placement"] in ("pre", "post") and wide.keys() == {"width"}
    return OPTConfig(
        vocab_size=keys["vocab"], hidden_size=keys["width"], num_hidden_layers=keys["depth"], ffn_dim=mlp["width"],
        max_position_embeddings=keys["context"], do_layer_norm_before=before, num_attention_heads=a["heads"],
        activation_function="relu", word_embed_proj_dim=wide["width"], tie_word_embeddings=True, pad_token_id=1,
        bos_token_id=2, eos_token_id=2,
    )  # fmt: skip


def bloom(keys: Keys) -> Any:
    """Its MLP is four times as wide as the stream; biases everywhere are no choice, nor is the embedding's norm."""
    from transformers import BloomConfig

    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    own = {"type": "layer", "eps": norm["eps"], "bias": True}
    assert keys["embedding"] == {"norm": own} and keys["positions"] == "none" and a["alibi"] == {"max_bias": 8}
    assert norm == {**own, "placement": "pre", "final": True} and keys["head"] == {"tied": True}
    assert a["heads"] == a["kv_heads"] and a["scale"] == a["head_dim"] ** -0.5 and a["bias"] == ["q", "k", "v", "o"]
    assert mlp == {"type": "gelu_tanh", "width": 4 * keys["width"], "bias": ["up", "down"]}
    return BloomConfig(
        vocab_size=keys["vocab"], hidden_size=keys["width"], n_layer=keys["depth"], n_head=a["heads"],
        layer_norm_epsilon=norm["eps"], apply_residual_connection_post_layernorm=False, tie_word_embeddings=True, **IDS,
    )  # fmt: skip


def mpt(keys: Keys) -> Any:
    """Its MLP is four times as wide as the stream, and nothing has a bias."""
    from transformers import MptConfig

    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    assert (norm["type"], norm["bias"], norm["placement"]) == ("layer", False, "pre") and keys["positions"] == "none"
    assert a["heads"] == a["kv_heads"] and a["scale"] == a["head_dim"] ** -0.5 and not a["bias"]
    assert mlp == {"type": "gelu", "width": 4 * keys["width"], "bias": []} and keys["head"] == {"tied": True}
    return MptConfig(
        vocab_size=keys["vocab"], d_model=keys["width"], n_layers=keys["depth"], n_heads=a["heads"],
        max_seq_len=keys["context"], expansion_ratio=4, layer_norm_epsilon=norm["eps"], tie_word_embeddings=True,
        attn_config={"alibi": True, "alibi_bias_max": round(a["alibi"]["max_bias"])}, **IDS,
    )  # fmt: skip


def gemma3(keys: Keys) -> Any:
    """Norms of queries and keys are no choice: each head by itself, with the eps and the offset of the others."""
    from transformers import Gemma3TextConfig

    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    local, whole = _kinds(keys, "local", "global")
    assert keys["embedding"] == {"scale": "sqrt_width"} and (norm["offset"], norm["placement"]) == (1, "sandwich")
    assert a["qk_norm"] == {"over": "head", "weights": "shared", "type": "rms", "eps": norm["eps"], "offset": 1}
    assert mlp["type"] == "geglu_tanh" and keys["head"] == {"tied": True} and not a["bias"] and "window" not in whole
    return Gemma3TextConfig(
        **_sizes(keys), head_dim=a["head_dim"], intermediate_size=mlp["width"],
        hidden_activation="gelu_pytorch_tanh", rms_norm_eps=norm["eps"],
        query_pre_attn_scalar=round(a["scale"] ** -2), sliding_window=local["window"],
        layer_types=_types(keys, local="sliding_attention", **{"global": "full_attention"}),
        rope_parameters={"sliding_attention": rope(local["rope"]), "full_attention": rope(whole["rope"])},
    )  # fmt: skip


def _sizes(keys: Keys) -> dict[str, Any]:
    a = keys["attention"]
    assert keys["positions"] == "none"
    return {
        "vocab_size": keys["vocab"], "hidden_size": keys["width"], "num_hidden_layers": keys["depth"],
        "num_attention_heads": a["heads"], "num_key_value_heads": a["kv_heads"],
        "max_position_embeddings": keys["context"], "tie_word_embeddings": keys["head"]["tied"], **IDS,
    }  # fmt: skip


def _kinds(keys: Keys, *names: str) -> list[dict[str, Any]]:
    """The attention of each kind, which says what is otherwise than in the first."""
    kinds = keys["layers"]["kinds"]
    assert set(kinds) == set(names)
    return [_over(keys["attention"], kinds[name].get("attention", {})) for name in names]


def _over(below: Keys, above: Keys) -> dict[str, Any]:
    merged = {**below}
    for key, value in above.items():
        inner = isinstance(value, Mapping) and isinstance(below.get(key), Mapping)
        merged[key] = _over(below[key], value) if inner else value
    return {key: value for key, value in merged.items() if value != "none"}


def _types(keys: Keys, **words: str) -> list[str]:
    """What the library calls the kind of each layer. A pattern is tiled, and the last tile may be cut."""
    tile: list[str] = []
    for entry in keys["layers"]["pattern"]:
        tile += [entry] if isinstance(entry, str) else [kind for kind, count in entry.items() for _ in range(count)]
    return [words[tile[i % len(tile)]] for i in range(keys["depth"])]


def olmo3(keys: Keys) -> Any:
    """Norms of queries and keys are no choice: all heads at once, with the eps of the others."""
    from transformers import Olmo3Config

    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    local, whole = _kinds(keys, "local", "full")
    assert a["qk_norm"] == {"over": "projection", "type": "rms", "eps": norm["eps"]} and norm["placement"] == "branch"
    assert a["scale"] == a["head_dim"] ** -0.5 and a["head_dim"] * a["heads"] == keys["width"] and not a["bias"]
    assert mlp["type"] == "swiglu" and not mlp["bias"] and "offset" not in norm and "window" not in whole
    return Olmo3Config(
        **_sizes(keys), intermediate_size=mlp["width"], hidden_act="silu", rms_norm_eps=norm["eps"],
        sliding_window=local["window"], layer_types=_types(keys, local="sliding_attention", full="full_attention"),
        rope_parameters={"sliding_attention": rope(local["rope"]), "full_attention": rope(whole["rope"])},
    )  # fmt: skip


def smollm3(keys: Keys) -> Any:
    from transformers import SmolLM3Config

    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    turned, still = _kinds(keys, "rope", "nope")
    assert still == {key: value for key, value in turned.items() if key != "rope"} and "window" not in a
    assert a["scale"] == a["head_dim"] ** -0.5 and a["head_dim"] * a["heads"] == keys["width"] and not a["bias"]
    assert mlp["type"] == "swiglu" and not mlp["bias"] and (norm["type"], norm["placement"]) == ("rms", "pre")
    types = _types(keys, rope="1", nope="0")
    return SmolLM3Config(
        **_sizes(keys), intermediate_size=mlp["width"], hidden_act="silu", rms_norm_eps=norm["eps"],
        attention_bias=False, mlp_bias=False, use_sliding_window=False, no_rope_layers=[int(t) for t in types],
        rope_parameters=rope(turned["rope"]),
    )  # fmt: skip


def phi4_mini(keys: Keys) -> Any:
    """The list by the length of a run is no choice."""
    from transformers import Phi3Config

    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    rope, scaling = a["rope"], a["rope"]["scaling"]
    original = scaling["original"]
    assert (scaling["type"], scaling["choose"]) == ("longrope", "by_length") and original < keys["context"]
    assert rope["pairing"] == "half" and not a["bias"] and "window" not in a
    assert a["scale"] == a["head_dim"] ** -0.5 and a["head_dim"] * a["heads"] == keys["width"]
    assert mlp["type"] == "swiglu" and not mlp["bias"] and (norm["type"], norm["placement"]) == ("rms", "pre")
    return Phi3Config(
        **_sizes(keys), intermediate_size=mlp["width"], hidden_act="silu", rms_norm_eps=norm["eps"],
        original_max_position_embeddings=original, sliding_window=None,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": rope["theta"], "attention_factor": scaling["attention_factor"],
            "partial_rotary_factor": rope["dims"] / a["head_dim"], "short_factor": scaling["short"],
            "long_factor": scaling["long"],
            "original_max_position_embeddings": original,
        },
    )  # fmt: skip
