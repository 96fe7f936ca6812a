"""Configurations of transformers for decoders whose MLPs are mixtures of experts.

Each is written out from the twin's resolved keys; what a family leaves no choice in is asserted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tests.reference.ropes import rope

Keys = Mapping[str, Any]
IDS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # within the twin's vocabulary


def _yarn(keys: Keys) -> dict[str, Any]:
    """Of latent attention: scores are multiplied by (0.1 m ln factor + 1)^2 where m, for both of its words, is so."""
    a = keys["attention"]
    scaling, latent = a["rope"]["scaling"], a["latent"]
    assert a["rope"]["pairing"] == "interleaved" and (scaling["type"], scaling["attention_factor"]) == ("yarn", 1)
    assert latent["norm"]["eps"] == 1e-6, "whatever the configuration says of others"
    ratio = a["scale"] * math.sqrt(latent["nope_dim"] + latent["rope_dim"])
    m = round((math.sqrt(ratio) - 1) / (0.1 * math.log(scaling["factor"])), 9)  # as a file says it
    said = {key: scaling[key] for key in ("factor", "beta_fast", "beta_slow", "truncate")}
    return said | {
        "rope_type": "yarn", "rope_theta": a["rope"]["theta"], "mscale": m, "mscale_all_dim": m,
        "original_max_position_embeddings": scaling["original"],
    }  # fmt: skip


def _sizes(keys: Keys) -> dict[str, Any]:
    a, norm = keys["attention"], keys["norm"]
    assert keys["positions"] == "none" and keys["mlp"]["type"] in ("swiglu", "swiglu_clamped")
    assert (norm["type"], norm.get("offset", 0), norm["placement"]) == ("rms", 0, "pre")
    scaled = _yarn(keys) if "latent" in a else rope(a["rope"])
    return {
        "vocab_size": keys["vocab"], "hidden_size": keys["width"], "num_hidden_layers": keys["depth"],
        "num_attention_heads": a["heads"], "num_key_value_heads": a.get("kv_heads", a["heads"]), "hidden_act": "silu",
        "max_position_embeddings": keys["context"], "rms_norm_eps": norm["eps"],
        "tie_word_embeddings": keys["head"]["tied"], "rope_parameters": scaled,
        "num_experts_per_tok": _sparse(keys)["experts"]["active"], **IDS,
    }  # fmt: skip


def _sparse(keys: Keys) -> Keys:
    """The MLP of layers with experts, where the first ones have none."""
    return keys["mlp"] if "experts" in keys["mlp"] else keys["layers"]["kinds"]["sparse"]["mlp"]


def _whole(a: Keys) -> None:
    """Scores over the square root of a head, and all earlier tokens in sight."""
    assert a["scale"] == a["head_dim"] ** -0.5 and "window" not in a


def _router(keys: Keys, **said: Any) -> Keys:
    """The router's keys, of which these are no choice."""
    router = _sparse(keys)["experts"]["router"]
    plain: dict[str, Any] = {"scale": "none", "bias": "none", "selection_bias": "none", "groups": "none"}
    assert all(router.get(key, plain.get(key)) == value for key, value in (plain | said).items()), router
    return router


def _all_alike(keys: Keys) -> None:
    assert "layers" not in keys and "shared" not in keys["mlp"]["experts"] and not keys["mlp"]["bias"]


def mixtral(keys: Keys) -> Any:
    """Softmax over all experts, divided by the sum of the chosen, is no choice."""
    from transformers import MixtralConfig

    a, mlp = keys["attention"], keys["mlp"]
    _whole(a)
    _all_alike(keys)
    _router(keys, scores="softmax", normalise=True)
    assert not a["bias"]
    return MixtralConfig(
        **_sizes(keys), head_dim=a["head_dim"], intermediate_size=mlp["width"],
        num_local_experts=mlp["experts"]["count"], sliding_window=None,
    )  # fmt: skip


def qwen3_moe(keys: Keys) -> Any:
    """Its norms of queries and keys are no choice: each head by itself, with the eps of the others."""
    from transformers import Qwen3MoeConfig

    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    _whole(a)
    _all_alike(keys)
    router = _router(keys, scores="softmax")
    assert a["qk_norm"] == {"over": "head", "weights": "shared", "type": "rms", "eps": norm["eps"]} and not a["bias"]
    return Qwen3MoeConfig(
        **_sizes(keys), head_dim=a["head_dim"], moe_intermediate_size=mlp["width"],
        num_experts=mlp["experts"]["count"], norm_topk_prob=router["normalise"], decoder_sparse_step=1,
        mlp_only_layers=[], use_sliding_window=False, attention_bias=False,
    )  # fmt: skip


def qwen2_moe(keys: Keys) -> Any:
    """Its head_dim is width / heads, and the expert that each token takes stands behind a gate."""
    from transformers import Qwen2MoeConfig

    a, mlp = keys["attention"], keys["mlp"]
    _whole(a)
    router, shared = _router(keys, scores="softmax"), mlp["experts"]["shared"]
    assert a["bias"] == ["q", "k", "v"] and a["head_dim"] * a["heads"] == keys["width"]
    assert shared["gate"] == "sigmoid" and "layers" not in keys and not mlp["bias"]
    return Qwen2MoeConfig(
        **_sizes(keys), moe_intermediate_size=mlp["width"], num_experts=mlp["experts"]["count"],
        shared_expert_intermediate_size=shared["width"], norm_topk_prob=router["normalise"], decoder_sparse_step=1,
        mlp_only_layers=[], use_sliding_window=False, qkv_bias=True,
    )  # fmt: skip


def olmoe(keys: Keys) -> Any:
    """Its norms of queries and keys are no choice: all heads at once, with the eps of the others."""
    from transformers import OlmoeConfig

    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    _whole(a)
    _all_alike(keys)
    router = _router(keys, scores="softmax")
    assert a["qk_norm"] == {"over": "projection", "type": "rms", "eps": norm["eps"]} and not a["bias"]
    assert a["head_dim"] * a["heads"] == keys["width"] and "clip" not in a
    return OlmoeConfig(
        **_sizes(keys), intermediate_size=mlp["width"], num_experts=mlp["experts"]["count"],
        norm_topk_prob=router["normalise"], attention_bias=False, clip_qkv=None,
    )  # fmt: skip


def granite_moe(keys: Keys) -> Any:
    """Softmax over the chosen logits, which is that over all divided by the sum of the chosen."""
    from transformers import GraniteMoeConfig

    a, mlp = keys["attention"], keys["mlp"]
    _all_alike(keys)
    _router(keys, scores="softmax", normalise=True)
    assert a["head_dim"] * a["heads"] == keys["width"] and not a["bias"] and "window" not in a
    return GraniteMoeConfig(
        **_sizes(keys), intermediate_size=mlp["width"], num_local_experts=mlp["experts"]["count"],
        attention_bias=False, embedding_multiplier=keys["embedding"]["scale"], attention_multiplier=a["scale"],
        residual_multiplier=keys["residual_scale"], logits_scaling=1 / keys["head"]["scale"],
    )  # fmt: skip


def gpt_oss(keys: Keys) -> Any:
    """Sinks, clamped pairs and biases everywhere are no choice."""
    from transformers import GptOssConfig

    a, mlp, layers = keys["attention"], keys["mlp"], keys["layers"]
    _router(keys, scores="softmax", normalise=True, bias=True)
    assert a["scale"] == a["head_dim"] ** -0.5 and a["bias"] == ["q", "k", "v", "o"] and a["sinks"] is True
    assert mlp["type"] == "swiglu_clamped" and mlp["bias"] == ["gate", "up", "down"] and "shared" not in mlp["experts"]
    assert layers["pattern"] == ["local", "full"] and layers["kinds"]["full"] == {"attention": {"window": "none"}}
    return GptOssConfig(
        **_sizes(keys), head_dim=a["head_dim"], intermediate_size=mlp["width"],
        num_local_experts=mlp["experts"]["count"], swiglu_limit=mlp["limit"], swiglu_alpha=mlp["alpha"],
        attention_bias=True, sliding_window=a["window"],
        layer_types=["sliding_attention", "full_attention"] * (keys["depth"] // 2),
    )  # fmt: skip


def glm4_moe(keys: Keys) -> Any:
    """Sigmoid scores with a bias for the choice, an expert for each token, and first layers without experts."""
    from transformers import Glm4MoeConfig

    a, dense, mlp, layers = keys["attention"], keys["mlp"], _sparse(keys), keys["layers"]
    _whole(a)
    groups = mlp["experts"]["router"].get("groups", "none")
    router = _router(keys, scores="sigmoid", selection_bias=True, groups=groups)
    scale = router.get("scale", "none")
    said = {"n_group": 1, "topk_group": 1}
    if groups != "none":
        assert groups["score"] == "top2_sum"
        said = {"n_group": groups["count"], "topk_group": groups["active"]}
    assert a["bias"] == ["q", "k", "v"] and layers["pattern"] == ["sparse"] and layers["kinds"]["dense"] == {}
    assert mlp["experts"]["shared"].get("gate", "none") == "none" and not dense["bias"]
    sizes = _sizes(keys)
    sizes["rope_parameters"] |= {"partial_rotary_factor": a["rope"]["dims"] / a["head_dim"]}
    return Glm4MoeConfig(
        **sizes, **said, head_dim=a["head_dim"], intermediate_size=dense["width"], moe_intermediate_size=mlp["width"],
        n_routed_experts=mlp["experts"]["count"], first_k_dense_replace=len(layers["first"]),
        n_shared_experts=mlp["experts"]["shared"]["width"] // mlp["width"], norm_topk_prob=router["normalise"],
        routed_scaling_factor=1.0 if scale == "none" else scale, attention_bias=True, use_qk_norm="qk_norm" in a,
    )  # fmt: skip


def minimax_m2(keys: Keys) -> Any:
    """Sigmoid scores with a bias for the choice, and norms of all heads at once, are no choice."""
    from transformers import MiniMaxM2Config

    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    _whole(a)
    _all_alike(keys)
    _router(keys, scores="sigmoid", normalise=True, selection_bias=True)
    assert a["qk_norm"] == {"over": "projection", "type": "rms", "eps": norm["eps"]} and not a["bias"]
    sizes = _sizes(keys)
    sizes["rope_parameters"] |= {"partial_rotary_factor": a["rope"]["dims"] / a["head_dim"]}
    return MiniMaxM2Config(
        **sizes, head_dim=a["head_dim"], intermediate_size=mlp["width"], num_local_experts=mlp["experts"]["count"],
    )  # fmt: skip


def _deepseek(keys: Keys) -> dict[str, Any]:
    a, dense, mlp, layers = keys["attention"], keys["mlp"], _sparse(keys), keys["layers"]
    latent, shared = a["latent"], mlp["experts"]["shared"]
    assert layers["pattern"] == ["sparse"] and layers["kinds"]["dense"] == {} and "window" not in a
    assert shared.get("gate", "none") == "none" and not dense["bias"] and not a.get("bias")
    first = sum(sum(each.values()) if isinstance(each, dict) else 1 for each in layers["first"])
    q_rank = latent.get("q_rank", "none")
    return _sizes(keys) | {
        "q_lora_rank": None if q_rank == "none" else q_rank, "kv_lora_rank": latent["kv_rank"],
        "qk_nope_head_dim": latent["nope_dim"], "qk_rope_head_dim": latent["rope_dim"], "v_head_dim": latent["v_dim"],
        "intermediate_size": dense["width"], "moe_intermediate_size": mlp["width"],
        "n_routed_experts": mlp["experts"]["count"], "first_k_dense_replace": first,
    }  # fmt: skip


def deepseek_v2(keys: Keys) -> Any:
    """Softmax over all experts, and weights that are not divided by their sum, are no choice."""
    from transformers import DeepseekV2Config

    mlp = _sparse(keys)
    _router(keys, scores="softmax", normalise=False)
    assert mlp["experts"]["shared"]["width"] % mlp["width"] == 0
    return DeepseekV2Config(
        **_deepseek(keys), topk_method="greedy", n_shared_experts=mlp["experts"]["shared"]["width"] // mlp["width"],
        routed_scaling_factor=1.0, norm_topk_prob=False,
    )  # fmt: skip


def deepseek_v3(keys: Keys) -> Any:
    """Sigmoid scores with a bias for the choice, in groups by the sum of their two best, are no choice."""
    from transformers import DeepseekV3Config

    mlp, groups = _sparse(keys), _sparse(keys)["experts"]["router"]["groups"]
    scale = mlp["experts"]["router"].get("scale", "none")
    router = _router(keys, scores="sigmoid", selection_bias=True, groups=groups, scale=scale)
    assert groups["score"] == "top2_sum" and mlp["experts"]["shared"]["width"] % mlp["width"] == 0
    return DeepseekV3Config(
        **_deepseek(keys), n_group=groups["count"], topk_group=groups["active"], rope_interleave=True,
        n_shared_experts=mlp["experts"]["shared"]["width"] // mlp["width"], norm_topk_prob=router["normalise"],
        routed_scaling_factor=1.0 if scale == "none" else scale,
    )  # fmt: skip
