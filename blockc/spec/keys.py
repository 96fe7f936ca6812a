"""The keys of the language as Pydantic classes. Whatever is not a field here is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from blockc.parts import Attention, Mlp, Model, Norm, OrNone, Positions

Positive = Annotated[int, Field(gt=0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Label = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]

Placement = Literal["pre", "post", "sandwich", "parallel_two"]


class Embedding(Model):
    """Order: look up, scale, add positions."""

    scale: Annotated[float, Field(gt=0)] | Literal["sqrt_width"] | None = None


class Head(Model):
    """Order: linear, softcap. A tied head is the embedding's own matrix."""

    tied: bool
    softcap: OrNone[Annotated[float, Field(gt=0)]] = None


class NormKeys(Norm):
    """The norm of every label that ends in _norm, where the norms stand, and whether one follows the last layer."""

    placement: Placement | None = None
    final: bool | None = None

    @property
    def part(self) -> Norm:
        return Norm(type=self.type, eps=self.eps, bias=self.bias, offset=self.offset)


class LayerKeys(Model):
    """What a layer is made of; `layers.kinds` varies these and no others."""

    norm: OrNone[NormKeys] = None
    attention: OrNone[Attention] = None
    mlp: OrNone[Mlp] = None
    block: Annotated[list[Any] | None, Field(description="a term of the block algebra")] = None
    parts: dict[Label, dict[str, Any]] | None = None


class Expect(Model):
    """Known figures: compared, never filled in."""

    parameters: Positive | None = None
    active_parameters: Positive | None = None
    kv_values_per_token: Annotated[int, Field(ge=0)] | None = None
    layers: dict[str, Positive] | None = None


class Init(Model):
    """How an untrained model starts: the standard deviation of its matrices. No effect on the function."""

    std: Annotated[float, Field(gt=0)]


class Layers(Model):
    """first and last are laid once, pattern is tiled over what lies between."""

    first: list[Any] | None = None
    pattern: list[Any] | None = None
    last: list[Any] | None = None
    kinds: dict[Label, dict[str, Any]]


class TopKeys(Model):
    """What is said once for the whole model."""

    blockc: Literal[1]
    name: Name
    description: str | None = None
    checkpoint: Name | None = None
    vocab: Positive
    width: Positive
    depth: Positive
    context: Positive
    positions: OrNone[Positions] = None
    embedding: OrNone[Embedding] = None
    head: Head
    layers: Layers | None = None
    init: Init | None = None
    expect: Expect | None = None


class Document(TopKeys, LayerKeys):
    """A whole spec file, for the JSON schema that editors read."""


LAYER_KEYS = frozenset(LayerKeys.model_fields)
TOP_KEYS = frozenset(TopKeys.model_fields)

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
    "attention_bias": "attention.bias, a list of q k v o",
    "sliding_window": "attention.window", "sliding_window_size": "attention.window",
    "attn_logit_softcapping": "attention.softcap", "final_logit_softcapping": "head.softcap",
    "rope_theta": "attention.rope.theta", "rotary_emb_base": "attention.rope.theta", "rope_base": "attention.rope.theta",
    "rope_scaling": "attention.rope.scaling", "rotary_dim": "attention.rope.dims",
    "rotary_pct": "attention.rope.dims, a number of coordinates",
    "partial_rotary_factor": "attention.rope.dims, a number of coordinates",
    "original_max_position_embeddings": "original", "rope_type": "type",
    "intermediate_size": "mlp.width", "ffn_dim": "mlp.width", "n_inner": "mlp.width", "d_ff": "mlp.width",
    "ffn_hidden_size": "mlp.width",
    "hidden_act": "mlp.type", "activation": "mlp.type", "activation_function": "mlp.type",
    "mlp_bias": "mlp.bias, a list of gate up down",
    "rms_norm_eps": "norm.eps", "layer_norm_eps": "norm.eps", "layer_norm_epsilon": "norm.eps", "norm_eps": "norm.eps",
    "epsilon": "eps",
    "vocab_size": "vocab", "padded_vocab_size": "vocab",
    "max_position_embeddings": "context", "n_positions": "context", "n_ctx": "context", "block_size": "context",
    "max_seq_len": "context", "seq_len": "context", "context_length": "context",
    "tie_word_embeddings": "head.tied", "tie_embeddings": "head.tied", "model_type": "the keys that say it: no family is known by name",
    "use_parallel_residual": "norm.placement: parallel_two",
    "kv_groups": "attention.kv_heads: the number of key-value heads, that is, of groups (kv_groups is read two ways in the field)",
    "version": "blockc: 1",
}  # fmt: skip
