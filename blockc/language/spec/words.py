"""Words that are no keys: other tools' names for ours, and those of the language that this version does not have."""

from __future__ import annotations

# Other tools' words, and what they are here. Never accepted: some mean two things in the field.
FOREIGN = {
    "hidden_size": "width", "n_embd": "width", "d_model": "width", "dim": "width", "embed_dim": "width",
    "model_dim": "width",
    "num_hidden_layers": "depth", "n_layer": "depth", "n_layers": "depth", "num_layers": "depth",
    "num_attention_heads": "attention.heads", "n_head": "attention.heads", "n_heads": "attention.heads",
    "num_heads": "attention.heads",
    "num_key_value_heads": "attention.kv_heads", "n_query_groups": "attention.kv_heads",
    "n_kv_heads": "attention.kv_heads", "num_kv_heads": "attention.kv_heads",
    "d_head": "attention.head_dim", "d_kv": "attention.head_dim", "attention_head_dim": "attention.head_dim",
    "query_pre_attn_scalar": "attention.scale (its -0.5th power)",
    "use_qk_norm": "attention.qk_norm", "qk_layernorm": "attention.qk_norm",
    "attn_sub_norm": "attention.sub_norm", "ffn_sub_norm": "mlp.sub_norm",
    "attention_bias": "attention.bias, a list of q k v o",
    "sliding_window": "attention.window", "sliding_window_size": "attention.window",
    "attn_logit_softcapping": "attention.softcap", "final_logit_softcapping": "head.softcap",
    "rope_theta": "attention.rope.theta", "rotary_emb_base": "attention.rope.theta",
    "rope_base": "attention.rope.theta",
    "rope_scaling": "attention.rope.scaling", "rotary_dim": "attention.rope.dims",
    "rotary_pct": "attention.rope.dims, a number of coordinates",
    "partial_rotary_factor": "attention.rope.dims, a number of coordinates",
    "original_max_position_embeddings": "original", "rope_type": "type",
    "intermediate_size": "mlp.width", "ffn_dim": "mlp.width", "n_inner": "mlp.width", "d_ff": "mlp.width",
    "ffn_hidden_size": "mlp.width",
    "hidden_act": "mlp.type", "activation": "mlp.type", "activation_function": "mlp.type",
    "mlp_bias": "mlp.bias, a list of gate up down",
    "num_experts": "mlp.experts.count", "num_local_experts": "mlp.experts.count",
    "n_routed_experts": "mlp.experts.count",
    "num_experts_per_tok": "mlp.experts.active", "top_k": "mlp.experts.active",
    "moe_intermediate_size": "mlp.width, which is that of one expert beside mlp.experts",
    "n_shared_experts": "mlp.experts.shared, whose width is that of all shared experts together",
    "norm_topk_prob": "mlp.experts.router.normalise", "routed_scaling_factor": "mlp.experts.router.scale",
    "n_group": "mlp.experts.router.groups.count", "topk_group": "mlp.experts.router.groups.active",
    "e_score_correction_bias": "mlp.experts.router.selection_bias",
    "q_lora_rank": "attention.latent.q_rank", "kv_lora_rank": "attention.latent.kv_rank",
    "qk_nope_head_dim": "attention.latent.nope_dim", "qk_rope_head_dim": "attention.latent.rope_dim",
    "v_head_dim": "attention.latent.v_dim",
    "rms_norm_eps": "norm.eps", "layer_norm_eps": "norm.eps", "layer_norm_epsilon": "norm.eps", "norm_eps": "norm.eps",
    "epsilon": "eps",
    "vocab_size": "vocab", "padded_vocab_size": "vocab",
    "max_position_embeddings": "context", "n_positions": "context", "n_ctx": "context", "block_size": "context",
    "max_seq_len": "context", "seq_len": "context", "context_length": "context",
    "tie_word_embeddings": "head.tied", "tie_embeddings": "head.tied",
    "model_type": "the keys that say it: no family is known by name",
    "use_parallel_residual": "norm.placement: parallel_two",
    "parallel_block": "norm.placement: parallel_one", "parallel_attn": "norm.placement: parallel_one",
    "lm_head_bias": "head.bias",
    "kv_groups": "attention.kv_heads: the number of key-value heads, that is, of groups "
    "(kv_groups is read two ways in the field)",
    "type_vocab_size": "embedding.segments", "num_labels": "head.classes",
    "pooling_mode": "pool.type", "normalize": "pool.unit",
    "version": "blockc: 1",
}  # fmt: skip

# Refused, and said to be so. A word of two parts is reserved under that key alone.
RESERVED = """
    encoder decoder cross_attention conv mamba delta streams side_inputs
    output_gate
""".split()  # noqa: SIM905 - a table, not a list


def is_reserved(name: str) -> bool:
    """Whether a word, or the last two of a dotted name, is kept for a later version."""
    return name.rpartition(".")[2] in RESERVED or ".".join(name.split(".")[-2:]) in RESERVED
