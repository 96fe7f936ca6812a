"""Models with latent attention and dense MLPs, and what transformers calls the same: DeepSeek V2 and V3."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from blockc.graph.shrink import shrink
from blockc.ir import Array
from blockc.language.spec import from_tree, resolve_spec
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.source import parse
from blockc.weights.rules import random_parameters
from tests.reference.models import Keys, transformers_model

SEED = 41
EPS = 1e-6  # of the norms of latents, whatever the configuration says of others

_BASE = """\
blockc: 1
name: {name}
vocab: 102400
width: {width}
depth: {depth}
context: 163840
attention:
  heads: {heads}
  latent: {latent}
  scale: {scale!r}
  rope:
    theta: 10000
    pairing: interleaved
    scaling:
      {{type: yarn, factor: 40, original: 4096, beta_fast: 32, beta_slow: 1, truncate: true,
       attention_factor: {factor}}}
mlp: {{type: swiglu, width: {mlp}}}
norm: {{type: rms, eps: 1e-5, placement: pre}}
head: {{tied: false}}
"""


def _yarn(mscale: float) -> float:
    """0.1 mscale ln 40 + 1"""
    return 0.1 * mscale * math.log(40) + 1


@dataclass(frozen=True)
class Family:
    """A model type of transformers: its two factors of yarn, and a spec of its sizes."""

    config: str
    mscale: float
    mscale_all_dim: float
    text: str


V3 = Family(
    "DeepseekV3Config", 1.0, 1.0,
    _BASE.format(
        name="deepseek-v3-dense", width=7168, depth=61, heads=128, mlp=18432, factor=1.0,
        scale=192**-0.5 * _yarn(1) ** 2,
        latent="{q_rank: 1536, kv_rank: 512, nope_dim: 128, rope_dim: 64, v_dim: 128, norm: {eps: 1e-6}}",
    ),
)  # fmt: skip
# As V2-Lite, which has one factor for both; these are unlike, so that cosines and sines are multiplied too.
V2 = Family(
    "DeepseekV2Config", 1.0, 0.707,
    _BASE.format(
        name="deepseek-v2-dense", width=2048, depth=27, heads=16, mlp=10944, factor=_yarn(1) / _yarn(0.707),
        scale=192**-0.5 * _yarn(0.707) ** 2,
        latent="{kv_rank: 512, nope_dim: 128, rope_dim: 64, v_dim: 128, norm: {eps: 1e-6}}",
    ),
)  # fmt: skip
FAMILIES = {"v3": V3, "v2": V2}


def compiled(text: str) -> Compiled:
    return compile_spec(from_tree(parse(text, "s.yaml")))


@cache
def twin(text: str) -> Compiled:
    return compile_spec(shrink(from_tree(parse(text, "s.yaml"))))


def params(made: Compiled) -> dict[str, Array]:
    return random_parameters(made.function, SEED)


def checkpoint(made: Compiled) -> dict[str, Array]:
    """The parameters under transformers' names: kv_b_proj has a head's keys, its values, and so each head."""
    held, keys = params(made), resolve_spec(made.spec)
    own = {"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}
    of_layers = {
        "attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
        **{f"attention.{n}": f"self_attn.{n}_proj" for n in ("q", "q_a", "q_b", "o")},
        "attention.kv_a": "self_attn.kv_a_proj_with_mqa",
        **{f"attention.{n}_a_norm": f"self_attn.{n}_a_layernorm" for n in ("q", "kv")},
        **{f"mlp.{n}": f"mlp.{n}_proj" for n in ("gate", "up", "down")},
    }  # fmt: skip
    made_of = dict(own)
    for i in range(keys["depth"]):
        made_of |= {f"layers.{i}.{ours}": f"model.layers.{i}.{theirs}" for ours, theirs in of_layers.items()}
    packed = {
        f"{theirs}.weight": held.pop(f"{ours}.weight") for ours, theirs in made_of.items() if f"{ours}.weight" in held
    }
    for i in range(keys["depth"]):
        ups = (held.pop(f"layers.{i}.attention.mixed.{name}") for name in ("k_up", "v_up"))
        by_heads = [up.reshape(keys["attention"]["heads"], -1, up.shape[1]) for up in ups]
        whole = np.concatenate(by_heads, axis=1)
        packed[f"model.layers.{i}.self_attn.kv_b_proj.weight"] = whole.reshape(-1, whole.shape[2])
    assert not held
    return packed


def config_of(family: Family, keys: Keys) -> Any:
    """Of a twin's resolved keys: all of its layers dense."""
    import transformers

    a, rope = keys["attention"], keys["attention"]["rope"]
    latent, scaling = a["latent"], rope["scaling"]
    assert latent["norm"]["eps"] == EPS and rope["pairing"] == "interleaved"
    yarn = {
        "rope_type": "yarn", "rope_theta": rope["theta"], "original_max_position_embeddings": scaling["original"],
        "factor": scaling["factor"], "beta_fast": scaling["beta_fast"], "beta_slow": scaling["beta_slow"],
        "mscale": family.mscale, "mscale_all_dim": family.mscale_all_dim,
    }  # fmt: skip
    make: Callable[..., Any] = getattr(transformers, family.config)
    return make(
        vocab_size=keys["vocab"], hidden_size=keys["width"], num_hidden_layers=keys["depth"],
        intermediate_size=keys["mlp"]["width"], num_attention_heads=a["heads"], num_key_value_heads=a["heads"],
        q_lora_rank=latent.get("q_rank"), kv_lora_rank=latent["kv_rank"], qk_nope_head_dim=latent["nope_dim"],
        qk_rope_head_dim=latent["rope_dim"], v_head_dim=latent["v_dim"], first_k_dense_replace=keys["depth"],
        max_position_embeddings=keys["context"], rms_norm_eps=keys["norm"]["eps"], rope_parameters=yarn,
        tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def outside(family: Family, made: Compiled) -> Any:
    """The model of transformers with the parameters of this twin, in float64."""
    return transformers_model(config_of(family, resolve_spec(made.spec)), checkpoint(made))
