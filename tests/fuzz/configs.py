"""config.json by chance: tiny ones of each model type with a key or two changed, and what transformers makes of them.

    python -m tests.fuzz.configs --count 5000 --state build/configs.jsonl

draws changes by number from a seed, so that a run can go on where it ended (`--from`, or the state file), and prints
what differs. A change is `same` where count and logits are those of transformers, `refused` where the import says why,
`theirs` where transformers makes no such model, `large` where its model is too large to be run, else it is wrong.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import random
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from blockc.basics.errors import CheckpointError
from blockc.graph import interp
from blockc.graph.build import build_graph
from blockc.importing import import_config
from blockc.importing.maps import load_map, model_types
from blockc.ir import Array, Function, parameters_of
from blockc.language.algebra import elaborate
from blockc.language.spec import Spec, from_tree
from blockc.layouts import LayoutError, load_layout
from blockc.source import SpecError
from blockc.weights.matching import unpack
from blockc.weights.rules import group_sizes, rules
from blockc.weights.safetensors import read_safetensors

Config = dict[str, Any]
CLOSE = 2e-4  # of the logits' spread: transformers has cosines, and many norms, in float32
TOKENS = 40  # beyond the short windows and original contexts that are drawn
LARGEST = 3_000_000  # parameters

SIZES: Config = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED: Config = {**SIZES, "num_key_value_heads": 2}
GPT: Config = {"vocab_size": 64, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "bos_token_id": 1,
               "eos_token_id": 2}  # fmt: skip
GEMMA: Config = {**GROUPED, "head_dim": 12}
TWO: Config = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT: Config = {**SIZES, **TWO, "num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 14,
                  "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6, "n_routed_experts": 8,
                  "n_shared_experts": 1, "n_group": 4,
                  "topk_group": 3, "first_k_dense_replace": 1}  # fmt: skip
MASKED = ["AnyForMaskedLM"]  # the class of an encoder; where a change takes the key away, it is that without a head
# A tiny model of a type, where it is not what `base` makes of the sizes above.
OWN: dict[str, Config] = {
    "bloom": {"vocab_size": 64, "hidden_size": 32, "n_layer": 3, "n_head": 4, "seq_length": 64, "bos_token_id": 1,
              "eos_token_id": 2},
    "cohere": {**GROUPED, "head_dim": 8},
    "cohere2": {**GROUPED, "num_hidden_layers": 4, "sliding_window": 6, "head_dim": 8},
    "deepseek_v2": {**LATENT, "topk_method": "group_limited_greedy"},
    "deepseek_v3": LATENT,
    "distilbert": {"vocab_size": 64, "dim": 32, "hidden_dim": 48, "n_layers": 3, "n_heads": 4,
                   "max_position_embeddings": 64},
    "electra": {**SIZES, "embedding_size": 32},
    "falcon": {key: value for key, value in SIZES.items() if key != "intermediate_size"},
    "gemma": GEMMA,
    "gemma2": {**GEMMA, "query_pre_attn_scalar": 20, "sliding_window": 6},
    "gemma3_text": {**GEMMA, "query_pre_attn_scalar": 20, "sliding_window": 6, "num_hidden_layers": 7},
    "glm": {**GROUPED, "head_dim": 8},
    "glm4": {**GROUPED, "head_dim": 8},
    "glm4_moe": {**GROUPED, **TWO, "head_dim": 8, "n_routed_experts": 8, "n_shared_experts": 1,
                 "first_k_dense_replace": 1},
    "gpt_oss": {**GROUPED, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6},
    "granitemoe": {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "attention_multiplier": 0.4,
                   "embedding_multiplier": 3.0, "residual_multiplier": 0.7, "logits_scaling": 2.0},
    "minimax_m2": {**GROUPED, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 4},
    "mixtral": {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "olmoe": {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {**GROUPED, **TWO, "num_experts": 4, "shared_expert_intermediate_size": 40},
    "qwen3_moe": {**GROUPED, **TWO, "head_dim": 8, "num_experts": 4, "norm_topk_prob": True},
    "hunyuan_v1_dense": {**GROUPED, "head_dim": 8},
    "helium": {**GROUPED, "head_dim": 8},
    "gpt_neo": {"vocab_size": 64, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 64,
                "attention_types": [[["global", "local"], 1]], "window_size": 6, "bos_token_id": 1, "eos_token_id": 2},
    "gpt_neox": {**SIZES, "intermediate_size": 64},
    "granite": {**GROUPED, "attention_multiplier": 0.4, "embedding_multiplier": 3.0, "residual_multiplier": 0.7,
                "logits_scaling": 2.0},
    "mistral": {**GROUPED, "sliding_window": 6},
    "modernbert": {**SIZES, "num_hidden_layers": 4, "local_attention": 6, "cls_token_id": 1, "sep_token_id": 2},
    "mpt": {"vocab_size": 64, "d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 64, "expansion_ratio": 2},
    "olmo3": {**GROUPED, "num_hidden_layers": 4, "sliding_window": 6},
    "opt": {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 48,
            "max_position_embeddings": 64, "word_embed_proj_dim": 32, "pad_token_id": 1},
    "phi": {**SIZES, "num_key_value_heads": 4},
    "qwen2": {**GROUPED, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "qwen3": {**GROUPED, "head_dim": 8},
    "smollm3": {**GROUPED, "num_hidden_layers": 4},
}  # fmt: skip

ACTIVATIONS = ("silu", "swish", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "relu2", "quick_gelu",
               "mish", "tanh", "linear", "gelu_python")  # fmt: skip
LISTS = {"short_factor": [1.0, 1.25, 1.5, 2.0, 2.0, 2.5], "long_factor": [2.0, 2.5, 3.0, 4.0, 5.0, 6.0]}
# Values for a key that a config has not, by its name; of others some number, truth or word.
VALUES: dict[str, tuple[Any, ...]] = {
    "rope_theta": (500.0, 100000, None), "rotary_emb_base": (300, 5000.0), "rope_local_base_freq": (200.0,),
    "partial_rotary_factor": (0.5, 0.25, 1.0, None), "rotary_pct": (0.5, 1.0), "rope_pct": (0.5, 1.0),
    "rotary_dim": (4, 8, None), "sliding_window": (5, 30, 64, None), "use_sliding_window": (True, False),
    "sliding_window_size": (5,), "sliding_window_pattern": (2, 3), "_sliding_window_pattern": (2, 3),
    "max_window_layers": (0, 1, 2, 99), "head_dim": (4, 8, 16, None), "num_key_value_heads": (1, 2, 4, None),
    "n_inner": (40, None), "attention_bias": (True, False), "mlp_bias": (True, False), "bias": (True, False),
    "tie_word_embeddings": (True, False, None), "hidden_act": ACTIVATIONS, "hidden_activation": (*ACTIVATIONS, None),
    "activation_function": ACTIVATIONS, "activation": ACTIVATIONS, "original_max_position_embeddings": (16, 32),
    "attn_logit_softcapping": (3.0, None), "final_logit_softcapping": (2.0, None), "query_pre_attn_scalar": (5, 64),
    "clip_qkv": (0.3, None), "logit_scale": (0.5, None), "softmax_scale": (0.5, None), "num_kv_heads": (1, 2, 4, None),
    "num_ln_in_parallel_attn": (1, 2, None), "pretraining_tp": (1, 2), "slow_but_exact": (True, False),
    "ff_factor": (4,), "n_head_kv": (2,), "finetuned": (True,), "unsloth_fixed": (True,), "unsloth_version": ("1",),
    "quantization_config": ({}, None), "max_sequence_length": (64,), "model_max_length": (64,),
    "no_rope_layers": ([1, 0, 1, 0], [0, 1, 1]), "no_rope_layer_interval": (2, 3), "qk_layernorm": (True, False),
    "layer_types": (["full_attention"] * 3, ["sliding_attention", "full_attention"] * 2, ["sliding_attention"] * 3,
                    None),
    "word_embed_proj_dim": (16, 32), "alibi": (True, False), "seq_length": (64,), "n_ctx": (32, 64),
    "rms_norm_eps": (1e-3, None), "layer_norm_eps": (1e-3, None), "layer_norm_epsilon": (1e-3, None),
    "norm_eps": (1e-3,), "norm_epsilon": (1e-3, None), "embedding_multiplier": (2.0,), "residual_multiplier": (0.5,),
    "attention_multiplier": (0.3,), "logits_scaling": (4.0,), "rms_norm": (True,), "scale_attn_weights": (True, False),
    "scale_attn_by_inverse_layer_idx": (True, False), "use_qk_norm": (True, False),
    "use_parallel_residual": (True, False),
}  # fmt: skip
FACTORS: Config = {"factor": 4.0, "original_max_position_embeddings": 16, "low_freq_factor": 1.0,
                   "high_freq_factor": 4.0, "beta_fast": 8, "beta_slow": 2, "mscale": 0.7, "mscale_all_dim": 0.4,
                   "attention_factor": 1.3,
                   "truncate": False, "finetuned": True, "rope_theta": 700.0, **LISTS}  # fmt: skip
NEEDED = {
    "default": (), "linear": ("factor",), "dynamic": ("factor",), "yarn": ("factor",),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"), "su": ("short_factor", "long_factor"), "ntk": ("factor",),
}  # fmt: skip


@cache
def types() -> tuple[str, ...]:
    """The model types that have a map here and a class in transformers."""
    from transformers import CONFIG_MAPPING

    return tuple(name for name in model_types() if name in CONFIG_MAPPING and load_map(name).inner is None)


def base(model_type: str) -> Config:
    """A tiny config of a model type: of the sizes, those that its map reads."""
    map_ = load_map(model_type)
    sizes = {**GROUPED, **GPT, "rotary_dim": 4}
    read = {key: value for key, value in sizes.items() if key in map_.read or key.endswith("_token_id")}
    own = OWN.get(model_type) or read
    return copy.deepcopy({**own, "architectures": MASKED} if is_encoder(model_type) else own)


def is_encoder(model_type: str) -> bool:
    """Whether its model without a named class has no head."""
    return next(iter(load_map(model_type).cases), "") == "Model"


# Changes


@cache
def pool() -> tuple[str, ...]:
    """Every key that any map reads, under every spelling."""
    found: set[str] = {*VALUES}
    for name in model_types():
        found |= {key for key in load_map(name).known if "." not in key}
    return tuple(sorted(found - {"model_type", "rope_parameters", "rope_scaling"}))


@cache
def saved(model_type: str) -> Config:
    """The base as transformers writes it, with all its keys."""
    from transformers import AutoConfig

    return json.loads(AutoConfig.for_model(model_type, **base(model_type)).to_json_string())


def drawn(number: int, seed: int = 0) -> tuple[str, Config, list[str]]:
    """(A model type, a config of it, what was changed in it), the same for a number and a seed."""
    chance = random.Random(f"{seed}:{number}")
    model_type = types()[number % len(types())]
    bare: Config = {"model_type": model_type, **base(model_type)}
    config = bare if chance.random() < 0.5 else {**copy.deepcopy(saved(model_type)), "model_type": model_type}
    said: list[str] = []
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3))):
        change = chance.choice((left_out, nulled, odd, foreign, foreign, foreign, own, own, scaled, scaled))
        said.append(change(chance, config))
    return model_type, config, said


def left_out(chance: random.Random, config: Config) -> str:
    key = chance.choice(sorted(config.keys() - {"model_type"}) or ["-"])
    config.pop(key, None)
    return f"without {key}"


def nulled(chance: random.Random, config: Config) -> str:
    key = chance.choice(sorted(config.keys() - {"model_type"}))
    config[key] = None
    return f"{key} null"


def odd(chance: random.Random, config: Config) -> str:
    """A value of another size or kind in the place of one that stands there."""
    key = chance.choice(sorted(config.keys() - {"model_type"}))
    config[key] = _odd(chance, config[key])
    return f"{key} {config[key]!r}"


def _odd(chance: random.Random, value: Any) -> Any:
    match value:
        case bool():
            return chance.choice((not value, not value, str(value), int(value)))
        case int():
            return chance.choice((value + 1, value * 2, max(value // 2, 1), 1, 0, -value, float(value), str(value)))
        case float():
            return chance.choice((value * 2, value / 10, 0.0, 1, 1.0, -value, str(value)))
        case str():
            return chance.choice((*ACTIVATIONS, "", value.upper(), 3, True))
        case list():
            items: list[Any] = list(value)
            return chance.choice((items[:-1], items[::-1], items + items[:1], [], [*items[:-1], "x"]))
        case dict():
            return {**value, **{name: FACTORS[name] for name in chance.sample(sorted(FACTORS), 1)}}
        case _:
            return chance.choice((1, 2, 4, 0.5, True, False, "x", {}, []))


def foreign(chance: random.Random, config: Config) -> str:
    """A key of any family."""
    key = chance.choice(pool())
    config[key] = chance.choice(VALUES.get(key) or (1, 2, 8, 0.5, True, False, None, "x"))
    return f"{key} {config[key]!r}"


def own(chance: random.Random, config: Config) -> str:
    """A key that the map of the model type knows."""
    keys = sorted(key for key in load_map(config["model_type"]).known if "." not in key)
    keys = [key for key in keys if key in VALUES] or keys
    key = chance.choice([each for each in keys if each not in ("model_type", "rope_parameters", "rope_scaling")])
    config[key] = chance.choice(VALUES.get(key) or (1, 2, 8, 0.5, True, False, None))
    return f"{key} {config[key]!r}"


def scaled(chance: random.Random, config: Config) -> str:
    """A scaling of rope, with what it needs and some of what it may have, or not."""
    kind = chance.choice(sorted(NEEDED))
    held = {name: FACTORS[name] for name in NEEDED[kind] if chance.random() < 0.95}
    held |= {name: FACTORS[name] for name in chance.sample(sorted(FACTORS), chance.choice((0, 0, 1, 2)))}
    pairs = _pairs(config)
    held |= {name: held[name][:pairs] for name in LISTS if name in held}
    held["factor"] = chance.choice((2.0, 4.0, 8)) if "factor" in held else None
    if held["factor"] is None:
        del held["factor"]
    word = chance.choice(("rope_type", "type"))
    at = chance.choice(("rope_scaling", "rope_scaling", "rope_parameters"))
    config[at] = {word: kind, **held}
    if at == "rope_scaling" and chance.random() < 0.8:
        config.pop("rope_parameters", None)
    if chance.random() < 0.3:
        config["max_position_embeddings"] = chance.choice((16, 32, 128))
    return f"{at} {config[at]!r}"


def _pairs(config: Config) -> int:
    head, width, heads = (config.get(key) for key in ("head_dim", "hidden_size", "num_attention_heads"))
    if isinstance(head, int):
        return head // 2
    return width // heads // 2 if isinstance(width, int) and isinstance(heads, int) and heads else 4


# What is made of them


@dataclass(frozen=True)
class Outcome:
    """`word` is same, refused, theirs, large, or what is wrong: differs, count, misfit, away, traceback.

    Away is a refusal whose place is not in config.json.
    """

    word: str
    why: str = ""

    @property
    def wrong(self) -> bool:
        return self.word not in ("same", "refused", "theirs", "large")


def outcome(config: Mapping[str, Any]) -> Outcome:
    """What the import makes of a config.json, beside what transformers does."""
    data = json.dumps(config).encode()
    try:
        imported = import_config(data, "config.json", "fuzz")
        spec = from_tree(imported.tree)
        function = build_graph(elaborate(spec))
    except SpecError as error:
        return _refusal(error)
    except Exception as error:
        return Outcome("traceback", f"{type(error).__name__}: {error}")
    theirs = reference(config)
    if isinstance(theirs, Outcome):
        return theirs
    return _compared(spec, function, theirs)


def _refusal(error: SpecError) -> Outcome:
    away = [each.place.file for each in error.findings if each.place.file != "config.json"]
    why = "; ".join(each.message for each in error.findings)
    return Outcome("away", f"{why} at {away}") if away else Outcome("refused", why)


def _compared(spec: Spec, function: Function, theirs: Any) -> Outcome:
    count = _size(theirs) + _buffers(theirs) - _ignored(spec, theirs)
    ours = sum(param.size for param in parameters_of(function).values())
    if ours != count:
        return Outcome("count", f"{ours}, transformers has {count}")
    try:  # of a model of the same size, so that an import with a larger vocabulary is not its fault
        truth = truth_of(theirs, tokens_of(spec))
    except Exception as error:
        return Outcome("theirs", f"{type(error).__name__}: {error}")
    if spec.top.checkpoint is None:
        return Outcome("refused", "no layout reads such a model")
    try:
        off = offset(spec, function, theirs, truth)
    except (CheckpointError, LayoutError) as error:
        return Outcome("misfit", str(error))
    close = CLOSE * max(1, spec.top.depth / 4) * max(1, spec.top.width / 512)  # roundings grow with the sums
    return Outcome("same") if off < close else Outcome("differs", f"by {off:.2g}")


def tokens_of(spec: Spec) -> Array:
    low = min(3, spec.top.vocab - 1)
    return np.random.RandomState(7).randint(low, spec.top.vocab, (1, min(TOKENS, spec.top.context)))


def truth_of(theirs: Any, ids: Array) -> Array:
    """The logits of transformers, or its hidden states, in float64."""
    given = {"input_ids": ids}
    padding = getattr(getattr(theirs.base_model, "embeddings", None), "padding_idx", None)
    if padding is not None:  # behind which positions begin; told, no token is taken for padding
        given["position_ids"] = np.arange(ids.shape[1])[None] + padding + 1
    with torch.no_grad():
        made = theirs.double()(**{key: torch.from_numpy(array) for key, array in given.items()})
    theirs.float()
    return (made.logits if "logits" in made else made.last_hidden_state).numpy()


def offset(spec: Spec, function: Function, theirs: Any, truth: Array) -> float:
    """The largest difference of the logits, of their spread. Raises CheckpointError where the tensors do not fit."""
    held = rules(load_layout(spec.top.checkpoint or ""), function, group_sizes(function))
    params = unpack(held, saved_tensors(theirs))
    spread = max(float(truth.std()), 0.25 * float(np.abs(truth).max()))
    return float(np.abs(logits(function, params, tokens_of(spec)) - truth).max()) / (spread or 1.0)


def logits(function: Function, params: Mapping[str, Array], ids: Array) -> Array:
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(ids.shape[1])[None],
             "token_type_ids": np.zeros_like(ids)}  # fmt: skip
    made = interp.interpret(function, {each.name: feeds[each.name] for each in function.inputs}, dict(params))
    return made["logits"] if "logits" in made else made["hidden"]


def saved_tensors(model: Any) -> dict[str, Array]:
    """As transformers writes them: under the names of files, what is tied once."""
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        held = read_safetensors(Path(folder))
        return {name: np.array(array, np.float64) for name, array in held.items()}


def _buffers(model: Any) -> int:
    """Numbers that stand in its files and are not learned, such as those of an activation."""
    held = model.state_dict()
    return sum(each.numel() for name, each in model.named_buffers() if name in held and each.is_floating_point())


def _ignored(spec: Spec, model: Any) -> int:
    """Parameters that transformers holds and does not compute with, as the layout says."""
    names = load_layout(spec.top.checkpoint).ignored if spec.top.checkpoint else {}
    held = re.compile("|".join(re.escape(name).replace(r"\{i\}", "[0-9]+") for name in names) or "(?!)")
    return sum(parameter.numel() for name, parameter in model.named_parameters() if held.fullmatch(name))


def _size(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def reference(config: Mapping[str, Any]) -> Any:
    """The model of transformers with random parameters, in float64; or why there is none."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    named = config.get("architectures")
    encoder = "AutoModelForMaskedLM" if isinstance(named, list) and named[:1] == MASKED else "AutoModel"
    kind: Any = getattr(transformers, encoder if is_encoder(config["model_type"]) else "AutoModelForCausalLM")
    class_ = CONFIG_MAPPING[config["model_type"]]
    # Eager alone has caps of scores; and eager Falcon adds its slopes twice, once with the mask and once by itself.
    # The grouped product of experts knows no float64.
    how = {"attn_implementation": "sdpa" if config.get("alibi") else "eager", "experts_implementation": "eager"}
    try:
        if not _tiny(config):
            with torch.device("meta"):
                size = _size(kind.from_config(class_.from_dict(copy.deepcopy(dict(config))), **how))
            if size > LARGEST:
                return Outcome("large")
        theirs = class_.from_dict(copy.deepcopy(dict(config)))
        model = kind.from_config(theirs, dtype=torch.float32, **how)
    except Exception as error:
        return Outcome("theirs", f"{type(error).__name__}: {error}")
    chance = torch.Generator().manual_seed(11)
    for name, parameter in model.named_parameters():
        normal = torch.randn(parameter.shape, generator=chance)
        gain = "norm" in name.lower() or "ln_" in name
        parameter.data = 0.3 * normal + (1.0 if gain and name.endswith("weight") else 0.0)
    return model.eval()


def _tiny(config: Mapping[str, Any]) -> bool:
    """All sizes are said, and none is large."""
    said = all(config.get(key) is not None for key in base(config["model_type"]))
    return said and all(value <= 512 for value in config.values() if isinstance(value, int | float))


# The long run


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz.configs")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--from", dest="first", type=int)
    parser.add_argument("--seed", type=int, help="by default that of the state file, or the next one where it is done")
    parser.add_argument("--state", type=Path, default=Path("build/configs.jsonl"))
    parser.add_argument("--only", help="one model type")
    said = parser.parse_args(arguments)
    quiet()
    said.state.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in said.state.read_text().splitlines()] if said.state.is_file() else []
    seed, after = _next(done, said.count)
    seed = seed if said.seed is None else said.seed
    if said.seed is not None:
        after = max((line["number"] + 1 for line in done if line["seed"] == seed), default=0)
    first = after if said.first is None else said.first
    counts: Counter[str] = Counter()
    began = time.perf_counter()
    with said.state.open("a", encoding="utf-8") as state:
        for number in range(first, said.count):
            model_type, config, changes = drawn(number, seed)
            if said.only and model_type != said.only:
                continue
            found = outcome(config)
            counts[found.word] += 1
            line = {"number": number, "seed": seed, "type": model_type, "changes": changes, "word": found.word,
                    "why": found.why[:300]}  # fmt: skip
            state.write(json.dumps(line) + "\n")
            state.flush()
            if found.wrong:
                print(f"{number} {model_type}: {'; '.join(changes)}: {found.word} {found.why[:300]}", flush=True)
    earlier = Counter(line["word"] for line in done if line["seed"] == seed and line["number"] < first)
    spent = time.perf_counter() - began
    print(f"seed {seed}: {counts.total()} changes in {spent:.0f} s: {dict(counts)}; before them {dict(earlier)}")
    return 1 if any(Outcome(word).wrong for word in (*counts, *earlier)) else 0


def _next(done: list[dict[str, Any]], count: int) -> tuple[int, int]:
    """(The seed, and the first number that is to be drawn) behind what a state file has."""
    if not done:
        return 0, 0
    seed, number = done[-1]["seed"], done[-1]["number"] + 1
    return (seed, number) if number < count else (seed + 1, 0)


def quiet() -> None:
    import transformers

    set_error: Callable[[], None] = transformers.logging.set_verbosity_error
    set_error()
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    np.seterr(all="ignore")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
