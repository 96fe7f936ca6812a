"""config.json to spec: counts of published models, the defaults of transformers, and what is refused."""

from __future__ import annotations

import ast
import io
import json
import random
import re
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import blockc
from blockc import api
from blockc.basics.errors import CheckpointError
from blockc.cli import app, run_guarded
from blockc.graph import interp
from blockc.graph.build import build_graph
from blockc.graph.shrink import shrink
from blockc.importing import find_config, import_config
from blockc.importing.maps import OPS, WORDS, load_map, model_types, read_map, unread_types
from blockc.importing.unlike import compare_config, read_config_beside
from blockc.ir import Array, parameters_of
from blockc.language.algebra import elaborate
from blockc.language.fmt import format_spec
from blockc.language.spec import Document, Spec, from_tree, load, resolve_spec
from blockc.layouts import load_layout
from blockc.pipeline.compiled import compile_spec
from blockc.report import make_report
from blockc.source import SpecError, override, parse, render_finding, to_plain
from blockc.source.jsontext import parse_json
from blockc.weights.matching import pack, unpack
from blockc.weights.rules import group_sizes, patterns, rules
from blockc.weights.safetensors import read_safetensors
from tests.checkpoints import save
from tests.paths import ROOT
from tests.reference.models import OUTSIDE
from tests.spec_orders import EVERY_KEY

ROWS: dict[str, dict[str, Any]] = {
    row["name"]: row for row in json.loads((ROOT / "tests" / "data" / "models.json").read_text())
}
Config = Mapping[str, Any]


def tree(config: Config | str) -> Any:
    text = config if isinstance(config, str) else json.dumps(config, indent=2)
    return import_config(text.encode(), "config.json", "imported").tree


def spec(config: Config) -> Spec:
    return from_tree(tree(config))


def said(config: Config) -> Any:
    """The keys of the spec."""
    return to_plain(tree(config))


def meaning(spec: Spec) -> str:
    return elaborate(spec).semantic_hash


def faults(config: Config | str) -> str:
    with pytest.raises(SpecError) as caught:
        tree(config)
    return "\n".join(render_finding(each) for each in caught.value.findings)


GPT2 = {"model_type": "gpt2"}
LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip


# Published models


@pytest.mark.parametrize("name", ROWS)
def test_a_published_config_gives_the_published_model(name: str, tmp_path: Path) -> None:
    """The count is that of transformers, the layout fits, and what `build` compares of a config.json was imported."""
    row = ROWS[name]
    made = spec(row["hf_config"])
    function = build_graph(elaborate(made))
    assert sum(param.size for param in parameters_of(function).values()) == row["parameters"] + row.get("buffers", 0)
    patterns(load_layout(made.top.checkpoint or ""), function, group_sizes(function))
    (tmp_path / "config.json").write_text(json.dumps(row["hf_config"]))
    assert compare_config(read_config_beside(tmp_path / "config.json"), function, made.top.context) == []


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if "active_parameters" in row])
def test_a_published_mixture_has_the_figures_of_its_code(name: str) -> None:
    row, made = ROWS[name], spec(ROWS[name]["hf_config"])
    decoder = elaborate(made)
    report = make_report(made, decoder, build_graph(decoder))
    found = {"parameters": report.parameters.total, "active_parameters": report.parameters.active}
    found |= {"buffers": report.parameters.buffers, "kv_values_per_token": report.kv_cache.values_per_token}
    assert found == {key: row[key] for key in found}


def test_every_model_type_has_a_published_config() -> None:
    assert {row["model_type"] for row in ROWS.values()} == set(model_types())


# The specs that were written by hand, and the rows that they are of
WRITTEN = {
    "afm-4.5b": "arcee-ai/AFM-4.5B",
    "apertus-8b": "swiss-ai/Apertus-8B-2509",
    "baichuan-7b": "baichuan-inc/Baichuan-7B",
    "baichuan-13b": "baichuan-inc/Baichuan-13B-Base",
    "bitnet-2b": "microsoft/bitnet-b1.58-2B-4T-bf16",
    "bloom-560m": "bigscience/bloom-560m",
    "codegen-350m": "Salesforce/codegen-350M-mono",
    "command-r-35b": "CohereForAI/c4ai-command-r-v01",
    "command-r7b": "CohereForAI/c4ai-command-r7b-12-2024",
    "deepseek-v2-lite": "deepseek-ai/DeepSeek-V2-Lite",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "ernie4.5-0.3b": "baidu/ERNIE-4.5-0.3B-PT",
    "falcon-40b": "tiiuae/falcon-40b",
    "falcon-7b": "tiiuae/falcon-7b",
    "gemma-2b": "google/gemma-2b",
    "gemma2-9b": "google/gemma-2-9b",
    "gemma3-1b": "google/gemma-3-1b-it",
    "gemma3-4b": "google/gemma-3-4b-it (text)",
    "glm4-9b": "THUDM/glm-4-9b-chat-hf",
    "glm4-9b-0414": "THUDM/GLM-4-9B-0414",
    "glm4.5-air": "zai-org/GLM-4.5-Air",
    "gpt-j-6b": "EleutherAI/gpt-j-6b",
    "gpt-neo-125m": "EleutherAI/gpt-neo-125m",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "gpt2": "openai-community/gpt2",
    "granite3.0-8b": "ibm-granite/granite-3.0-8b-base",
    "granite3.1-1b-a400m": "ibm-granite/granite-3.1-1b-a400m-instruct",
    "helium1-preview-2b": "kyutai/helium-1-preview-2b",
    "hy-mt2-7b": "tencent/Hy-MT2-7B",
    "internlm2-7b": "internlm/internlm2-7b",
    "llama3-8b": "meta-llama/Meta-Llama-3-8B",
    "llama3-70b": "meta-llama/Meta-Llama-3-70B",
    "llama3.1-405b": "meta-llama/Llama-3.1-405B",
    "llama3.2-1b": "meta-llama/Llama-3.2-1B",
    "minimax-m2": "MiniMaxAI/MiniMax-M2",
    "minitron-4b": "nvidia/Minitron-4B-Base",
    "mistral-7b": "mistralai/Mistral-7B-v0.1",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
    "mpt-7b": "mosaicml/mpt-7b",
    "nanogpt": "nanoGPT default (124M, vocab 50304, bias False)",
    "olmo2-7b": "allenai/OLMo-2-1124-7B",
    "olmo3-7b": "allenai/Olmo-3-7B-Instruct",
    "olmoe-1b-7b": "allenai/OLMoE-1B-7B-0924",
    "opt-125m": "facebook/opt-125m",
    "opt-350m": "facebook/opt-350m",
    "persimmon-8b": "adept/persimmon-8b-base",
    "phi-2": "microsoft/phi-2",
    "phi-4-mini": "microsoft/Phi-4-mini-instruct",
    "phi3-mini-4k": "microsoft/Phi-3-mini-4k-instruct",
    "pythia-410m": "EleutherAI/pythia-410m",
    "qwen1.5-moe-a2.7b": "Qwen/Qwen1.5-MoE-A2.7B",
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B",
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "santacoder": "bigcode/gpt_bigcode-santacoder",
    "seed-oss-36b": "ByteDance-Seed/Seed-OSS-36B-Instruct",
    "smollm2-135m": "HuggingFaceTB/SmolLM2-135M",
    "stablelm-3b": "stabilityai/stablelm-3b-4e1t",
    "stablelm2-1.6b": "stabilityai/stablelm-2-1_6b",
    "starcoder2-3b": "bigcode/starcoder2-3b",
}


LONGER = {"afm-4.5b": 20 * 4096}  # factor x original, beyond max_position_embeddings


@pytest.mark.parametrize("name", WRITTEN)
def test_the_import_means_what_was_written_by_hand(name: str) -> None:
    """But for a context that yarn makes longer than the published figure, which the spec keeps."""
    ours, made = load(ROOT / "specs" / f"{name}.yaml"), tree(ROWS[WRITTEN[name]]["hf_config"])
    assert from_tree(made).top.context == LONGER.get(name, ours.top.context)
    assert meaning(from_tree(override(made, f"context={ours.top.context}"))) == meaning(ours)


# Against transformers

OURS = [name for name, outside in OUTSIDE.items() if outside.config is not None]


@pytest.mark.parametrize("name", OURS)
def test_what_transformers_saves_of_a_twin_is_the_twin(name: str) -> None:
    """The configuration with which the twin of a spec was proved against transformers, as transformers writes it."""
    outside = OUTSIDE[name]
    assert outside.config is not None
    twin = shrink(load(ROOT / "specs" / f"{name}.yaml"))
    config = written(outside.config(resolve_spec(twin)))
    if config["model_type"] == "bloom":  # which says no context
        config["seq_length"] = twin.top.context
    long = override(tree(config), f"context={twin.top.context}")  # which a twin's yarn reaches beyond
    keys = resolve_spec(twin)["attention"]
    if "latent" in keys:  # whose scale a file says by m in (0.1 m ln factor + 1) ^ 2
        assert to_plain(long)["attention"]["scale"] == pytest.approx(keys["scale"], rel=1e-9)
        long = override(long, f"attention.scale={keys['scale']!r}")
    assert meaning(from_tree(long)) == meaning(twin)


@cache
def saved(model_type: str, **changed: Any) -> dict[str, Any]:
    """The configuration of transformers with all its keys, as it saves them."""
    return written(transformers.AutoConfig.for_model(model_type, **changed))


def written(config: Any) -> dict[str, Any]:
    return json.loads(config.to_json_string(use_diff=True))


KNOWN = [name for name in model_types() if name in transformers.CONFIG_MAPPING and load_map(name).inner is None]


@pytest.mark.parametrize("model_type", KNOWN)
def test_a_key_that_is_left_out_is_what_transformers_takes_it_for(model_type: str) -> None:
    """Each key by itself, and all of them; of a config whose width, heads and window are not the defaults."""
    assert said({"model_type": model_type}) == said(saved(model_type))
    whole = changed(saved(model_type))
    for key in whole:
        if key == "model_type":
            continue
        rest = {name: value for name, value in whole.items() if name != key}
        theirs = written(transformers.AutoConfig.for_model(**rest))
        assert said(rest) == said(theirs), key


def changed(config: dict[str, Any]) -> dict[str, Any]:
    """Twice the width and a window, where there are such."""
    twice = ("hidden_size", "n_embd", "d_model")
    return {
        **config,
        **{key: 2 * config[key] for key in twice if key in config},
        **({"sliding_window": 96} if "sliding_window" in config else {}),
    }


FALCON: dict[str, Any] = {"alibi": True, "bias": True, "multi_query": False, "parallel_attn": False}


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_a_folder_of_transformers_is_imported_and_computes_the_same(pairing: str, tmp_path: Path) -> None:
    """Heads of 8: import, load, and save give the same logits and the same bytes."""
    common: dict[str, Any] = {"vocab_size": 128, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}
    config: Any = (
        transformers.LlamaConfig(**common, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                 num_attention_heads=4, num_key_value_heads=2)
        if pairing == "half"
        else transformers.GPTJConfig(**common, n_embd=32, n_layer=2, n_head=4, rotary_dim=8)
    )  # fmt: skip
    torch.manual_seed(5)
    theirs = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    theirs.float().save_pretrained(tmp_path)
    text = api.import_spec(tmp_path)
    assert f"pairing: {pairing}" in text and "as the checkpoint's tensors have them" in text
    model = compile_spec(from_tree(parse(text, "spec.yaml")))
    held = rules(load_layout(model.spec.top.checkpoint or ""), model.function, group_sizes(model.function))
    tensors = read_safetensors(tmp_path)
    params = unpack(held, tensors)
    again = pack(held, params)
    assert again.keys() == tensors.keys() and all(np.array_equal(again[name], tensors[name]) for name in tensors)
    assert np.abs(_logits(model.function, params) - _torch(theirs.double())).max() < 1e-5


@pytest.mark.parametrize("changes", [{}, {"alibi": False}, {"parallel_attn": True}], ids=str)
def test_falcon_with_slopes_and_one_branch_after_the_other(changes: Config, tmp_path: Path) -> None:
    """Slopes of eight heads and few positions are whole in the half precision in which transformers takes them."""
    config = transformers.FalconConfig(
        vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=8, **{**FALCON, **changes}
    )
    theirs = _saved(transformers.FalconForCausalLM(config), tmp_path)
    text = api.import_spec(tmp_path)
    model = compile_spec(from_tree(parse(text, "spec.yaml")))
    assert ("alibi: {max_bias: 8, scale: 0.3535" in text) == config.alibi
    held = rules(load_layout(model.spec.top.checkpoint or ""), model.function, group_sizes(model.function))
    params = unpack(held, read_safetensors(tmp_path))
    assert np.abs(_logits(model.function, params) - _torch(theirs)).max() < 1e-5


def _saved(model: Any, folder: Path) -> Any:
    """With no parameter as it starts, in a folder; in float64."""
    torch.manual_seed(6)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.float().eval().save_pretrained(folder)
    return model.double()


@pytest.mark.parametrize("qk_layernorm", [False, True])
def test_stablelm_with_one_norm_a_layer_and_norms_of_heads(qk_layernorm: bool, tmp_path: Path) -> None:
    """A file has a tensor for the norm of each head, which no layout joins: here they are put together by hand."""
    config = transformers.StableLmConfig(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, qk_layernorm=qk_layernorm, use_parallel_residual=True, tie_word_embeddings=False,
    )  # fmt: skip
    theirs, tensors = _saved(transformers.StableLmForCausalLM(config), tmp_path), read_safetensors(tmp_path)
    model = compile_spec(spec(json.loads((tmp_path / "config.json").read_text())))
    if not qk_layernorm:
        assert "placement: parallel_one" in api.import_spec(tmp_path)
        params = unpack(rules(load_layout("stablelm-parallel"), model.function, {}), tensors)
    else:
        with pytest.raises(CheckpointError, match=r"no layout describes .* import config.json alone"):
            api.import_spec(tmp_path)
        norms = {name: tensors.pop(name) for name in [*tensors] if "_layernorm.norms." in name}
        plain_ = compile_spec(spec({**written(config), "qk_layernorm": False}))
        params = unpack(rules(load_layout("stablelm-parallel"), plain_.function, {}), tensors)
        for i, (what, heads) in product(range(2), (("q", 4), ("k", 2))):
            at = f"model.layers.{i}.self_attn.{what}_layernorm.norms"
            params[f"layers.{i}.attention.{what}_norm.weight"] = np.stack(
                [norms[f"{at}.{head}.weight"] for head in range(heads)]
            )
    assert np.abs(_logits(model.function, params) - _torch(theirs)).max() < 1e-5


def test_stablelm_2_12b_has_the_parameters_of_its_code() -> None:
    """StableLmForCausalLM of transformers 5.24.0 on the meta device."""
    made = spec({
        "model_type": "stablelm", "vocab_size": 100352, "hidden_size": 5120, "intermediate_size": 13824,
        "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "qk_layernorm": True,
        "use_parallel_residual": True, "use_qkv_bias": False, "partial_rotary_factor": 0.25,
        "tie_word_embeddings": False,
    })  # fmt: skip
    assert sum(param.size for param in parameters_of(build_graph(elaborate(made))).values()) == 12_143_185_920


IDS = np.random.RandomState(0).randint(3, 128, (2, 9))


def _logits(function: Any, params: Mapping[str, Array]) -> Array:
    feeds = {"input_ids": IDS, "attention_mask": np.ones_like(IDS), "position_ids": np.arange(9)[None].repeat(2, 0)}
    return interp.interpret(function, feeds, params)["logits"]


def _torch(model: Any) -> Array:
    with torch.no_grad():
        return model(torch.tensor(IDS)).logits.numpy()


# Spellings

ROPE: dict[str, Any] = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                        "original_max_position_embeddings": 32}  # fmt: skip
SAME: dict[str, tuple[Config, Config]] = {
    "rope_scaling null": ({"rope_scaling": None}, {}),
    "rope_parameters": ({"rope_theta": 5000.0}, {"rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}}),
    "type": ({"rope_scaling": {"type": "llama3", **ROPE}}, {"rope_scaling": {"rope_type": "llama3", **ROPE}}),
    "both": ({"rope_scaling": {"type": "llama3", "rope_type": "llama3", **ROPE}, "rope_theta": 7.0},
             {"rope_parameters": {"rope_type": "llama3", **ROPE, "rope_theta": 7}}),
    "dtype": ({"torch_dtype": "bfloat16"}, {"dtype": "float16"}),
    "head_dim null": ({"head_dim": None}, {"head_dim": 16}),
    "kv_heads null": ({"num_key_value_heads": None}, {"num_key_value_heads": 4}),
    "float": ({"rope_theta": 10000}, {"rope_theta": 1e4}),
    "auto_map": ({"auto_map": {"AutoModel": "evil.Evil"}, "architectures": ["Any"]}, {}),
}  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_two_spellings_of_one_thing(one: Config, other: Config) -> None:
    assert said({**LLAMA, **one}) == said({**LLAMA, **other})


WINDOWS: dict[str, Config] = {
    "null": {"model_type": "mistral", "sliding_window": None},
    "of the context": {"model_type": "mistral", "sliding_window": 64},
    "not used": {"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": False, "max_window_layers": 1},
    "not used, listed": {"model_type": "qwen2", "sliding_window": 8, "layer_types": ["full_attention"] * 2},
    "no layer": {"model_type": "qwen3", "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 2},
}


@pytest.mark.parametrize("config", WINDOWS.values(), ids=WINDOWS)
def test_a_window_that_hides_nothing_is_none(config: Config) -> None:
    keys = said({**LLAMA, **config})
    assert "window" not in keys["attention"] and "layers" not in keys


def test_a_window_is_of_the_layers_that_have_it() -> None:
    config = {**LLAMA, "model_type": "qwen2", "sliding_window": 8, "use_sliding_window": True, "num_hidden_layers": 6,
              "num_key_value_heads": 2}  # fmt: skip
    window = {"attention": {"window": 8}}
    assert said({**config, "max_window_layers": 0})["attention"]["window"] == 8
    assert said({**config, "max_window_layers": 2})["layers"] == {
        "first": [{"full": 2}], "pattern": ["local"], "kinds": {"full": {}, "local": window},
    }  # fmt: skip
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    assert said({**config, "layer_types": kinds})["layers"]["pattern"] == [{"local": 2}, "full"]
    odd = [*kinds[:2], *kinds[2:4], "full_attention", "full_attention"]
    laid = [layer.kind for layer in spec({**config, "layer_types": odd}).layers]
    assert laid == ["local" if kind == "sliding_attention" else "full" for kind in odd]


def test_what_follows_from_other_keys_is_not_written() -> None:
    keys = said({**LLAMA, "num_key_value_heads": 4, "head_dim": 16, "attention_bias": False, "mlp_bias": True})
    assert keys["attention"] == {"heads": 4, "rope": {"theta": 10000, "pairing": "half"}}
    assert keys["mlp"] == {"type": "swiglu", "width": 96, "bias": ["gate", "up", "down"]}
    assert said({**LLAMA, "head_dim": 32, "num_key_value_heads": 2})["attention"]["head_dim"] == 32


def test_a_language_model_among_encoders_is_that_model_alone(tmp_path: Path) -> None:
    """As transformers saves one: the text's own config, and around it nothing that changes it."""
    text = transformers.Gemma3TextConfig(hidden_size=96, num_hidden_layers=7, sliding_window=24)
    whole = json.loads(transformers.Gemma3Config(text_config=text.to_dict()).to_json_string(use_diff=True))
    assert whole["vision_config"] and meaning(spec(whole)) == meaning(spec(written(text)))
    (tmp_path / "config.json").write_text(json.dumps(whole))
    other = spec(written(transformers.Gemma3TextConfig(hidden_size=96, num_hidden_layers=7, sliding_window=25)))
    (line,) = compare_config(read_config_beside(tmp_path / "config.json"), build_graph(elaborate(other)), 64)
    assert line.startswith(f"unlike: sliding_window gives 24 and none ({tmp_path / 'config.json'}:")
    assert line.endswith("and the spec's attention.window is 25 and none")
    for name in ("quantization_config", "compression_config"):
        assert meaning(spec({**LLAMA, name: None})) == meaning(spec(LLAMA))


# What is refused


def test_all_that_is_unknown_is_named_in_one_go() -> None:
    config = {**LLAMA, "hidden_sise": 64, "mystery": 1, "hidden_act": "mish", "rope_scaling": {"type": "ntk", "a": 1}}
    text = json.dumps(config, indent=2)
    lines = [line for line in faults(text).splitlines() if line.startswith("config.json:")]
    at = {number: line.strip() for number, line in enumerate(text.splitlines(), 1)}
    assert [(at[int(line.split(":")[1])].split(":")[0], line.split(": ", 1)[1]) for line in lines] == [
        ('"hidden_sise"', "unknown key hidden_sise [BLC703]"),
        ('"mystery"', "unknown key mystery [BLC703]"),
        ('"hidden_act"', "no word of a spec stands for this hidden_act [BLC704]"),
        ('"type"', "no word of a spec stands for this rope_scaling.type [BLC704]"),
        ('"a"', "unknown key rope_scaling.a [BLC703]"),
    ]
    assert "did you mean hidden_size?" in faults(text)


REFUSED: dict[str, tuple[Config | str, str]] = {
    "model type": ({"model_type": "lama"}, "unknown model type lama [BLC702]"),
    "path": ({"model_type": "../llama"}, "unknown model type ../llama [BLC702]"),
    "common": ({"model_type": "_common"}, "unknown model type _common [BLC702]"),
    "no model type": ({"hidden_size": 64}, "missing key model_type [BLC705]"),
    "a number": ({"model_type": 7}, "model_type is a word [BLC704]"),
    "another function": ({**GPT2, "scale_attn_by_inverse_layer_idx": True}, "this scale_attn_by_inverse_layer_idx"),
    "truth": ({**LLAMA, "attention_bias": "no"}, "attention_bias is yes or no [BLC704]"),
    "no number": ({**GPT2, "n_embd": "768"}, "not a number [BLC704]"),
    "zero": ({**LLAMA, "num_attention_heads": 0}, "nothing can be computed [BLC704]"),
    "differ": ({**LLAMA, "rope_theta": 1.0, "rope_parameters": {"rope_theta": 2.0}}, "and another key differ [BLC704]"),
    "too few": ({**LLAMA, "model_type": "qwen2", "layer_types": ["full_attention"]}, "not a word for each layer"),
    "other kind": ({**LLAMA, "model_type": "qwen2", "layer_types": ["linear_attention"] * 2}, "layer_types [BLC704]"),
    "factor": ({**LLAMA, "rope_scaling": {"type": "llama3"}}, "missing key rope_parameters.factor [BLC705]"),
    "quantised": ({**LLAMA, "quantization_config": {"bits": 4}}, "quantization_config: the weights are quantised, and"),
    "quantised by": (
        {**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 4}}, "are quantised by gptq, and",
    ),
    "quantised within": (
        {"model_type": "gemma3", "text_config": {"quantization_config": {"quant_method": "awq"}}}, "quantised by awq",
    ),
    "no language model": ({"model_type": "gemma3"}, "missing key text_config"),
    "ties": ({"model_type": "gemma3", "text_config": {"tie_word_embeddings": True}, "tie_word_embeddings": False},
             "tie_word_embeddings of the language model and of the whole differ"),
    "below": ({**LLAMA, "hidden_size": {"a": 1}}, "unknown key hidden_size.a [BLC703]"),
    "comma": ('{"model_type": "gpt2",}', "config.json:1:23: a comma before the closing bracket [BLC701]"),
    "twice": ('{"model_type": "gpt2",\n "model_type": "llama"}', "config.json:2:2: duplicate key model_type"),
    "nan": ('{"model_type": "gpt2", "n_embd": NaN}', "config.json:1:34: a value is missing"),
    "open": ('{"model_type": "gpt2', "a text that does not end"),
    "behind": ('{"model_type": "gpt2"} {}', "text after the end of the object"),
    "list": ("[1, 2]", "not a JSON object"),
    "empty": ("", "a value is missing"),
    "deep": ('{"model_type": ' + "[" * 100_000, "nested more than 64 deep"),
    "many": ("{" + ",".join(f'"k{i}": 0' for i in range(10_001)) + "}", "more than 10000 values"),
    "digits": ('{"model_type": "gpt2", "n_embd": ' + "9" * 5000 + "}", "no value of JSON stands here"),
}  # fmt: skip


@pytest.mark.parametrize(("config", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_understood_is_refused(config: Config | str, message: str) -> None:
    assert message in faults(config)


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads", "attention.kv_heads 3 does not divide attention.heads 4"),
        ({"hidden_size": 64.0}, "hidden_size", "width"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps", "norm.eps"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "depth"),
    ],
)
def test_a_spec_that_would_be_wrong_is_wrong_at_the_config(changes: Config, key: str, message: str) -> None:
    text = json.dumps({**LLAMA, **changes}, indent=2)
    with pytest.raises(SpecError) as caught:
        from_tree(tree(text))
    found = caught.value.findings[0]
    assert found.place.file == "config.json" and f'"{key}"' in text.splitlines()[found.place.line - 1]
    assert message in found.message


@pytest.mark.parametrize(("fraction", "dims"), [(0.25, 4), (0.5, 8), (1.0, None)])
def test_a_part_of_a_head_is_a_whole_number_of_coordinates(fraction: float, dims: int | None) -> None:
    config = {**LLAMA, "model_type": "phi", "partial_rotary_factor": fraction}
    assert said(config)["attention"]["rope"].get("dims") == dims
    with pytest.raises(SpecError, match=r"attention.rope.dims") as caught:
        spec({**config, "partial_rotary_factor": 0.4})
    assert caught.value.findings[0].place.file == "config.json"


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "internlm2", "stablelm"])
def test_dynamic_rope_begins_where_the_positions_of_the_config_end(kind: str, tmp_path: Path) -> None:
    word = "type" if kind == "internlm2" else "rope_type"
    config = {**LLAMA, "model_type": kind, "num_key_value_heads": 4, "rope_scaling": {word: "dynamic", "factor": 2.5}}
    made = spec(config)
    assert (made.top.context, resolve_spec(made)["attention"]["rope"]["scaling"]) == (
        160, {"type": "dynamic", "factor": 2.5, "original": 64},
    )  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    says, function = read_config_beside(tmp_path / "config.json"), build_graph(elaborate(made))
    assert compare_config(says, function, 160) == []
    (line,) = compare_config(says, function, 161)
    assert "gives 160" in line and line.endswith("and the spec's context is longer: 161")
    other = spec({**config, "max_position_embeddings": 32, "rope_scaling": {word: "dynamic", "factor": 2}})
    assert len(compare_config(says, build_graph(elaborate(other)), 160)) == 2


@pytest.mark.parametrize(
    ("context", "choice"), [(64, {"choose": "short"}), (128, {"choose": "by_length", "original": 64})]
)
def test_longrope_goes_by_length_where_its_context_is_longer(context: int, choice: dict[str, Any]) -> None:
    lists = {"short_factor": [1, 1.5, 2, 2, 2, 2, 2, 2], "long_factor": [1, 2, 3, 4, 5, 6, 7, 8]}
    rope = {"type": "longrope", **lists}
    config = {**LLAMA, "model_type": "phi3", "max_position_embeddings": context, "rope_scaling": rope}
    scaling = resolve_spec(spec({**config, "original_max_position_embeddings": 64}))["attention"]["rope"]["scaling"]
    assert {key: scaling[key] for key in ("choose", "original") if key in scaling} == choice


def test_odd_bytes_end_in_a_finding() -> None:
    """Random ones, and a config with some of its bytes changed."""
    chance = random.Random(6)
    whole = json.dumps({**LLAMA, "rope_scaling": {"rope_type": "llama3", **ROPE}}, indent=1).encode()
    for _ in range(300):
        odd = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            odd[chance.randrange(len(odd))] = chance.choice(b'\x00\xff{}[],:"0-9eE \n\\tfn')
        for data in (bytes(odd), chance.randbytes(5000)):
            try:
                from_tree(import_config(data, "config.json", "odd").tree)
            except SpecError as error:
                assert error.findings and all(each.code.name.startswith("BLC") for each in error.findings)


@pytest.mark.parametrize(
    "text",
    ['{"a": [1, 2.5, -3e2, "b\\u00e9\\"", true, false, {"c": {}}, []]}', '\t{ "a" : "\\ud83d\\ude00" }\r\n', "{}"],
)
def test_json_is_read_as_json_is_read(text: str) -> None:
    assert to_plain(parse_json(text.encode(), "c.json")) == json.loads(text)


# The maps

WRONG_MAPS: dict[str, tuple[str, str]] = {
    "version": ("import: 2\nspec: {width: 1}\n", "unknown version"),
    "word": ("import: 1\nspecs: {width: 1}\n", "did you mean spec?"),
    "unread": ("import: 1\nspec: {width: <a>}\nabsent: {b: 1}\n", "b is given a value, and nothing reads it"),
    "hole": ("import: 1\nspec: {width: <a> or b}\n", "not a key of config.json"),
    "beside": ("import: 1\nspec: {width: {from: a, is: {b: 1}, other: 2}}\n", "unknown word other"),
    "without": ("import: 1\nspec: {width: {if: a}}\n", "if without then"),
    "reason": ("import: 1\nspec: {width: 1}\nwithout_effect: {a: true}\n", "not a text"),
    "table": ("import: 1\nspec: {width: {from: a, is: b}}\n", "not a table"),
    "list": ("import: 1\nspec: {width: 1}\nabsent: [a]\n", "not a mapping"),
    "key": ("import: 1\nspec: {width: 1}\nonly: {a b: 1}\n", "a b is no key of config.json"),
}


@pytest.mark.parametrize(("text", "message"), WRONG_MAPS.values(), ids=WRONG_MAPS)
def test_a_map_is_read_strictly(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_map(parse(text, "map.yaml"))
    assert message in str(caught.value)


def test_every_map_is_right_and_in_the_order_of_a_spec() -> None:
    for name in model_types():
        keys = list(load_map(name).spec.entries)
        assert keys == [key for key in Document.key_order() if key in keys]


def test_the_words_of_maps_are_no_words_of_specs() -> None:
    assert not set(EVERY_KEY) & OPS.keys()


def compared(node: ast.AST) -> Iterator[object]:
    """The constants that a piece of code compares with, looks up, or takes for a key."""
    match node:
        case ast.Compare():
            sides: list[ast.AST | None] = [node.left, *node.comparators]
        case ast.MatchValue():
            sides = [node.value]
        case ast.Subscript():
            sides = [node.slice]
        case ast.Dict():
            sides = [*node.keys]
        case _:
            sides = []
    for side in sides:
        yield from (n.value for n in ast.walk(side) if isinstance(n, ast.Constant)) if side is not None else ()


@pytest.mark.parametrize("name", unread_types())
def test_a_model_type_that_is_not_read_is_refused_with_its_reason(name: str) -> None:
    assert name in transformers.CONFIG_MAPPING and name not in model_types()
    said = faults({"model_type": name})
    assert f"the model type {name} is not read: it has {unread_types()[name]} [BLC702]" in said
    assert "did you mean" not in said


def test_no_code_asks_for_the_name_of_a_family() -> None:
    package = Path(blockc.__file__).parent
    names = {*model_types(), *(path.stem for path in (package / "layouts").rglob("*.yaml"))}
    asked = {
        (path.name, value)
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for value in compared(node)
        if value in names
    }
    assert asked == {("tokenizer.py", "qwen2")}  # a way in which tokenizers split, under its name


def test_the_page_names_every_model_type_and_every_word() -> None:
    page = (ROOT / "docs" / "import.md").read_text(encoding="utf-8")
    types = page.partition("## Model types\n")[2].partition("## Maps\n")[0]
    assert re.findall(r"`([\w-]+)`", types) == list(model_types())
    assert all(f"`{word}`" in page for word in WORDS)
    assert all(f"`{{{word}: " in page for word in OPS)


def test_the_page_lists_what_is_taken_otherwise() -> None:
    """A row for each key of each map, and no row of another."""
    page = (ROOT / "docs" / "import.md").read_text(encoding="utf-8")
    table = page.partition("## What is taken otherwise\n")[2].partition("There the published")[0]
    rows = [
        [re.findall(r"`(\w+)", cell) for cell in line.split("|")[1:3]] for line in table.splitlines() if "`" in line
    ]
    listed = {(kind, keys[0]) for kinds, keys in rows for kind in kinds}
    common = load_map("llama").read_otherwise
    said = {
        (name, "type" if key == "rope_scaling_type" else key.rpartition(".")[2])
        for name in model_types()
        for key in load_map(name).read_otherwise
        if key not in common or name == "phi3"
    }
    assert said == listed


# The command line


def run(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run_guarded(lambda: app([*arguments], standalone_mode=False))
    return code, out.getvalue(), err.getvalue()


def folder(at: Path, config: Config = LLAMA) -> Path:
    at.mkdir()
    (at / "config.json").write_text(json.dumps(config))
    return at


def weights(config: Config) -> dict[str, Array]:
    function = build_graph(elaborate(spec(config)))
    held = rules(load_layout("llama"), function, group_sizes(function))
    return {rule.name: np.ones(rule.shape, np.float32) for rule in held}


SPEC = """\
blockc: 1  # imported from a config.json of model_type llama
name: tiny-llama
vocab: 128
width: 64
depth: 2
context: 64
attention: {heads: 4, kv_heads: 2, rope: {theta: 10000, pairing: half}}
mlp: {type: swiglu, width: 96}
norm: {type: rms, eps: 1e-6, placement: pre}
head: {tied: false}
checkpoint: llama
# parameters: as computed from these sizes
expect: {parameters: 78144, kv_values_per_token: 128}
"""


def test_import_prints_the_spec_that_a_person_would_write(tmp_path: Path) -> None:
    at = folder(tmp_path / "Tiny Llama", {**LLAMA, "num_key_value_heads": 2})
    assert run("import", str(at)) == (0, SPEC, "")
    assert format_spec(SPEC.encode(), "spec") == SPEC.encode()
    assert {each.severity for each in api.check_text(SPEC.encode(), "spec.yaml")} == {"warning"}  # of its tiny widths
    assert run("import", str(at / "config.json"), "-o", str(tmp_path / "spec.yaml")) == (0, "", "")
    assert (tmp_path / "spec.yaml").read_text() == SPEC


def test_the_kinds_of_layers_are_written_one_below_the_other(tmp_path: Path) -> None:
    at = folder(tmp_path / "g", {"model_type": "gemma2"})
    text = run("import", str(at))[1]
    assert (
        "layers:\n  pattern: [local, global]\n  kinds:\n    local: {attention: {window: 4096}}\n    global: {}\n"
        in text
    )
    assert "layers: {local: 13, global: 13}}" in text
    assert meaning(from_tree(parse(text, "spec.yaml"))) == meaning(spec({"model_type": "gemma2"}))


def test_a_wrong_config_leaves_no_file(tmp_path: Path) -> None:
    at = folder(tmp_path / "in", {**LLAMA, "mystery": 1})
    code, out, err = run("import", str(at), "-o", str(tmp_path / "spec.yaml"))
    assert (code, out) == (1, "") and "unknown key mystery [BLC703]" in err
    assert not (tmp_path / "spec.yaml").exists()
    assert run("import", str(tmp_path))[0] == 2
    assert run("import", str(tmp_path / "absent"))[0] == 2
    assert find_config(tmp_path) is None


def test_a_checkpoint_that_does_not_fit_is_named_before_its_weights_are_read(tmp_path: Path) -> None:
    at = folder(tmp_path / "in")
    held = weights(LLAMA)
    save(at / "model.safetensors", held)
    assert "# parameters: as the checkpoint's tensors have them" in api.import_spec(at)
    del held["model.norm.weight"]
    other = {"lm_head.weight": held["lm_head.weight"].T, "model.extra": held["lm_head.weight"]}
    save(at / "model.safetensors", {**held, **other})
    with pytest.raises(CheckpointError) as caught:
        api.import_spec(at)
    assert [line.split()[:2] for line in str(caught.value).splitlines()[1:]] == [
        ["missing:", "model.norm.weight"], ["misshapen:", "lm_head.weight"], ["extra:", "model.extra"],
    ]  # fmt: skip


def test_build_takes_a_checkpoint_folder(tmp_path: Path) -> None:
    at = folder(tmp_path / "in")
    save(at / "model.safetensors", weights(LLAMA))
    code, out, err = run("build", str(at), "--no-verify", "--out", str(tmp_path / "out"))
    assert (code, err) == (0, "") and "model.onnx" in out
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["weights"]["mode"] == "link"
    assert manifest["semantic_hash"] == meaning(spec(LLAMA))
    code, _, err = run("build", str(at / "config.json"), "--no-verify", "--out", str(tmp_path / "bare"))
    assert code == 0 and "weights" not in json.loads((tmp_path / "bare" / "manifest.json").read_text())
    assert "128 x 64" in run("show", str(at))[1] or run("show", str(at))[0] == 0
