"""What a GGUF file says of its model is what the graph computes, as llama.cpp computes it, or the build fails."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from blockc import api
from blockc.basics.errors import CheckpointError
from blockc.graph.build import build_graph
from blockc.ir import Function
from blockc.language.algebra import elaborate
from blockc.language.spec import from_tree
from blockc.source import parse
from blockc.weights.gguf.keys import metadata_keys
from blockc.weights.gguf.keyvalue import KeyValue
from blockc.weights.gguf.metadata import Metadata
from blockc.weights.gguf.rope import read_scaling
from tests.checkpoints import ROOT, twin
from tests.importing.test_facts import MLPS
from tests.layouts.test_layouts import GGUF
from tests.weights.test_gguf import write
from tests.weights.test_weights import CASES, GEMMA2, GPT2, GPT_NEOX, LLAMA, OLMO2

library: Any = gguf
initial: Any = ROPE_INIT_FUNCTIONS
FOUND: dict[str, Any] = {
    "block_count": 2, "embedding_length": 64, "attention.head_count": 4, "attention.head_count_kv": [2, 2],
    "rope.freq_base": np.float32(5000).item(), "rope.dimension_count": 16, "vocab_size": 128, "context_length": 64,
    "attention.layer_norm_rms_epsilon": np.float32(1e-5).item(), "feed_forward_length": 96, "rope.scaling.type": "none",
    "attention.key_length": 16, "attention.value_length": 16, "rope.scaling.finetuned": False, "expert_count": 0,
}  # fmt: skip


def function(text: str, **changed: str) -> Function:
    for old, new in changed.items():
        assert old in text
        text = text.replace(old, new)
    return build_graph(elaborate(from_tree(parse(text.encode(), "small.yaml"))))


def scaled(scaling: str) -> Function:
    return function(LLAMA.replace("pairing: half", f"pairing: half, scaling: {scaling}"))


def misfits(
    said: dict[str, Any], of: Function | None = None, architecture: str = "llama", factors: Any = None
) -> list[str]:
    values = {f"{architecture}.{name}": value for name, value in said.items() if value is not None}
    return Metadata(architecture, values, factors).find_misfits(of or CASES["llama"].function, 64)


def test_what_a_converter_writes_of_a_model_fits_it() -> None:
    assert misfits(FOUND) == []


# One key, one fact


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("attention.head_count", 8, "8, and the spec's attention.heads is 4"),
        ("attention.head_count_kv", [2, 4], "4, and the spec's attention.kv_heads is 2 (layer 1)"),
        ("attention.key_length", 32, "32, and the spec's attention.head_dim is 16"),
        ("attention.value_length", 32, "32, and the spec's attention.head_dim is 16"),
        ("attention.scale", 0.5, "0.5, and the spec's attention.scale is 0.25"),
        ("attention.max_alibi_bias", 8.0, "8, and the spec's attention.alibi.max_bias is none"),
        ("attention.clamp_kqv", 8.0, "8, and the spec's attention.clip is none"),
        ("attn_logit_softcapping", 50.0, "50, and the spec's attention.softcap is none"),
        ("final_logit_softcapping", 30.0, "30, and the spec's head.softcap is none"),
        ("block_count", 3, "3, and the spec's depth is 2"),
        ("vocab_size", 129, "129, and the spec's vocab is 128"),
        ("embedding_length", 65, "65, and the spec's width is 64"),
        ("feed_forward_length", [96, 97], "97, and the spec's mlp.width is 96 (layer 1)"),
        ("attention.layer_norm_rms_epsilon", 1e-6, "1e-06, and the spec's norm.eps is 1e-05"),
        ("attention.layer_norm_epsilon", 1e-5, "1e-05, and the spec's norm.eps is none"),
        ("rope.freq_base", 10000.0, "10000, and the spec's attention.rope.theta is 5000"),
        ("rope.dimension_count", 8, "8, and the spec's attention.rope.dims is 16"),
        ("attention.sliding_window", 8, "8, and the spec's attention.window is none"),
        ("context_length", 32, "32, and the spec's context is longer: 64"),
        ("vocab_size", "many", "many, and the spec's vocab is 128"),
    ],
)
def test_a_key_that_says_otherwise_is_named(name: str, value: Any, line: str) -> None:
    assert misfits(FOUND | {name: value}) == [f"unlike: llama.{name} is {line}"]


def test_a_list_has_a_value_for_each_layer() -> None:
    (line,) = misfits(FOUND | {"attention.head_count_kv": [2, 2, 2]})
    assert line == "unlike: llama.attention.head_count_kv has 3 values, and the spec 2 layers"


@pytest.mark.parametrize(
    "said",
    [
        {"attn_logit_softcapping": 0.0, "final_logit_softcapping": 0.0, "attention.scale": 0.0},
        {"attention.layer_norm_epsilon": 0.0, "attention.max_alibi_bias": 0.0, "attention.clamp_kqv": 0.0},
        {"attention.key_length_swa": 0},
        {"logit_scale": 0.0, "residual_scale": 0.0, "embedding_scale": 0.0, "rope.dimension_sections": [0, 0, 0, 0]},
        {"rope.scaling.yarn_ext_factor": -1.0, "rope.scaling.yarn_log_multiplier": 0.0, "rope.scale_linear": 1.0},
        {"rope.scaling.type": None, "rope.scaling.factor": 0.0},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0},
        {"ssm.conv_kernel": 0, "use_parallel_residual": False, "pooling_type": 0, "attention.causal": True},
    ],
)  # fmt: skip
def test_what_llama_cpp_writes_of_a_model_that_has_none_of_it_changes_nothing(said: dict[str, Any]) -> None:
    assert misfits(FOUND | said) == []


# The scaling of rope, by the frequencies that llama.cpp makes


@pytest.mark.parametrize(
    ("said", "spec"),
    [
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, "{type: linear, factor: 2}"),
        ({"rope.scaling.type": None, "rope.scale_linear": 4.0}, None),
        ({"rope.scaling.type": None, "rope.scaling.factor": 4.0}, None),
        ({"rope.scaling.type": None}, "{type: linear, factor: 2}"),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 2.0}, "{type: linear, factor: 2}"),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 2.0, "rope.scaling.attn_factor": 1.5},
         "{type: linear, factor: 2}"),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.scaling.original_context_length": 32},
         "{type: linear, factor: 2}"),
    ],
)  # fmt: skip
def test_a_rope_that_is_scaled_otherwise_is_refused(said: dict[str, Any], spec: str | None) -> None:
    lines = misfits(FOUND | said, scaled(spec) if spec else None)
    assert lines and all(line.startswith("unlike: ") and "rope" in line for line in lines)


YARN = "{{type: yarn, factor: {}, original: {}, beta_fast: {}, beta_slow: {}, truncate: true}}"


@pytest.mark.parametrize(
    ("spec", "fits"),
    [((4, 16, 32, 1), True), ((2, 32, 32, 1), False), ((4, 32, 32, 1), False), ((2, 16, 32, 1), False),
     ((4, 16, 1, 0.1), False)],
)  # fmt: skip
def test_yarn_is_compared_by_all_its_numbers(spec: tuple[float, ...], fits: bool) -> None:
    said = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}
    assert (misfits(FOUND | said, scaled(YARN.format(*spec))) == []) is fits


def test_the_frequencies_are_those_of_transformers() -> None:
    """Which computes the same yarn: the spec's table is compared with both."""
    config = transformers.LlamaConfig(
        hidden_size=512, num_attention_heads=4, max_position_embeddings=4096, rope_parameters={
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 512},
    )  # fmt: skip
    theirs, attention = initial["yarn"](config, torch.device("cpu"))
    said = {"type": "yarn", "factor": 8.0, "original_context_length": 512}
    wanted, fault = read_scaling({f"rope.scaling.{k}": KeyValue(k, v) for k, v in said.items()}, None, None)
    assert wanted is not None and not fault
    ours = 10000.0 ** (-np.arange(64) / 64) / wanted.divisors(10000.0, 128)
    assert np.allclose(ours, theirs.numpy(), rtol=5e-7, atol=0)
    assert math.isclose(wanted.amplitude, attention, rel_tol=1e-6) and len(set(wanted.divisors(1e4, 128))) > 10


def test_the_factors_of_a_scaled_rope_are_compared() -> None:
    """A GGUF file says the scaling of Llama 3.1 as a tensor, which divides the frequencies."""
    config = CASES["llama-tied"].config()
    theirs, _ = initial["llama3"](config, torch.device("cpu"))
    factors = 10000.0 ** (-np.arange(12) / 12) / theirs.double().numpy()
    single = tuple(factors.astype(np.float32).tolist())
    said = FOUND | {"rope.freq_base": 10000.0, "rope.dimension_count": 24, "attention.key_length": 24,
                    "attention.value_length": 24}  # fmt: skip
    of = CASES["llama-tied"].function
    assert misfits(said, of, factors=single) == []
    (line,) = misfits(said, of, factors=(*single[:-1], 32.0))
    assert line.startswith("unlike: rope_freqs.weight divides the frequencies of rope by 1 to 32 (by 32 at pair 11), ")
    (line,) = misfits(said, of)
    assert line.startswith("unlike: the file's rope, which has no scaling, divides the frequencies of rope by 1, and ")
    (line,) = misfits(FOUND, factors=(1.0,) * 4)
    assert line == "unlike: rope_freqs.weight has 4 factors, and the spec's rope 8 pairs"


@pytest.mark.parametrize("kind", ["longrope", "su", 3])
def test_a_scaling_that_is_not_read_is_refused(kind: Any) -> None:
    (line,) = misfits(FOUND | {"rope.scaling.type": kind})
    assert line == f"not read: llama.rope.scaling.type is {kind}, expected none, linear, yarn"


def test_a_factor_that_is_no_number_is_refused() -> None:
    for value in ("4", -1.0, math.inf, math.nan, True):
        (line,) = misfits(FOUND | {"rope.scaling.type": "linear", "rope.scaling.factor": value})
        assert line.startswith("not read: llama.rope.scaling.factor is "), value


# Windows


@pytest.mark.parametrize("window", [0, 64, 4096])
def test_a_window_that_hides_nothing_is_none(window: int) -> None:
    """In the file as in the spec."""
    assert misfits(FOUND | {"attention.sliding_window": window}) == []
    wide = function(LLAMA.replace("kv_heads: 2,", "kv_heads: 2, window: 63,"))
    assert len(misfits(FOUND | {"attention.sliding_window": window}, wide)) == 1


LOCAL: dict[str, Any] = {"attention.sliding_window": 8, "context_length": 64}


def test_windows_stand_in_the_layers_of_the_architecture() -> None:
    of = CASES["gemma2"].function  # local, global
    assert misfits(LOCAL, of, "gemma2") == []
    turned = function(GEMMA2.replace("[local, global]", "[global, local]"))
    assert misfits(LOCAL, turned, "gemma2") == [
        "unlike: gemma2.attention.sliding_window is 8, and the spec's attention.window is none (layer 0)",
        "unlike: gemma2.attention.sliding_window is none, and the spec's attention.window is 8 (layer 1)",
    ]
    assert misfits(LOCAL | {"attention.sliding_window_pattern": [False, True]}, turned, "gemma2") == []
    assert misfits(LOCAL | {"attention.sliding_window": 4}, of, "gemma2") == [
        "unlike: gemma2.attention.sliding_window is 4, and the spec's attention.window is 8 (layer 0)"
    ]


def test_local_layers_have_a_rope_of_their_own() -> None:
    """That of OLMo 3 is not scaled there."""
    text = OLMO2.replace("depth: 2", "depth: 4") + (
        "layers:\n  pattern: [{local: 3}, full]\n"
        "  kinds: {local: {attention: {window: 8}}, full: {attention: {rope: {scaling: {type: linear, factor: 4}}}}}\n"
    )
    said = LOCAL | {"rope.freq_base": 5000.0, "rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    assert misfits(said, function(text), "olmo2") == []
    (line,) = misfits(said | {"rope.freq_base_swa": 10000.0}, function(text), "olmo2")
    assert line.endswith("is 10000, and the spec's attention.rope.theta is 5000 (layers 0, 1, 2)")
    everywhere = text.replace("pairing: half", "pairing: half, scaling: {type: linear, factor: 4}")
    (line,) = misfits(said, function(everywhere), "olmo2")
    assert line.endswith("by 1, and the spec's attention.rope.scaling by 4 (layers 0, 1, 2)")
    (line,) = misfits(FOUND | {"rope.freq_base_swa": 10000.0})
    assert line.startswith("not read: llama.rope.freq_base_swa is 10000, of layers with a window")


# What follows from the architecture


def test_what_the_architecture_computes_is_compared() -> None:
    assert misfits({}, function(LLAMA.replace("swiglu", "geglu"))) == [
        "unlike: activation of the architecture llama is silu, and the spec's activation is gelu"
    ]
    parallel = LLAMA.replace("placement: pre", "placement: parallel_two")
    assert misfits({}, function(parallel)) == [
        "unlike: parallel branches of the architecture llama is false, and the spec's parallel branches is true"
    ]
    assert misfits({}, function(LLAMA + "embedding: {scale: 2}\nresidual_scale: 0.5\n")) == [
        "unlike: embedding.scale of the architecture llama is none, and the spec's embedding.scale is 2",
        "unlike: residual_scale of the architecture llama is none, and the spec's residual_scale is 0.5",
    ]
    clipped = function(LLAMA.replace("attention: {", "attention: {clip: 8, "))
    assert misfits({}, clipped) == [
        "unlike: attention.clip of the architecture llama is none, and the spec's attention.clip is 8"
    ]
    assert misfits({"attention.clamp_kqv": 8.0}, clipped) == []
    plain = function(GEMMA2.replace("embedding: {scale: sqrt_width}\n", ""))
    (line,) = misfits({}, plain, "gemma2")
    assert line == "unlike: embedding.scale of the architecture gemma2 is 8, and the spec's embedding.scale is none"


OF_GPT2 = "unlike: activation of the architecture gpt2 is gelu_tanh, and the spec's activation is {}"


@pytest.mark.parametrize(("type_", "word"), MLPS)
def test_every_other_activation_is_unlike_that_of_the_architecture(type_: str, word: str) -> None:
    of = function(GPT2.replace("bias: [up, down]}", "}").replace("gelu_tanh", type_))
    assert misfits({}, of, "gpt2") == ([] if word == "gelu_tanh" else [OF_GPT2.format(word)])
    parallel = function(GPT2.replace("placement: pre", "placement: parallel_one").replace("gelu_tanh", type_))
    assert sum("parallel branches" in line for line in misfits({}, parallel, "gpt2")) == 1


def test_gpt_neox_says_whether_its_branches_are_parallel() -> None:
    of = {True: CASES["gpt-neox"].function, False: function(GPT_NEOX.replace("parallel_two", "pre"))}
    for parallel, each in of.items():
        assert misfits({"use_parallel_residual": parallel}, each, "gptneox") == []
        assert len(misfits({"use_parallel_residual": not parallel}, each, "gptneox")) == 1


@pytest.mark.parametrize("architecture", GGUF)
def test_what_follows_from_an_architecture_holds_of_its_model(architecture: str) -> None:
    case = {"gptneox": "gpt-neox", "phi2": "phi"}.get(architecture, architecture)
    assert misfits({}, CASES[case].function, architecture) == []


# Keys that nobody compares


@pytest.mark.parametrize(
    "key",
    ["llama.rope.scaling.truncate", "llama.rope_theta", "llama.attention.sliding_windows", "llama.ffn_clamp",
     "llama.norm_before", "llama.expert_bias", "llama.logit_cap", "llama.swiglu_limit", "llama.ffn_bias",
     "llama.head_gate", "mistral.rope.freq_base", "rope.scaling.factor"],
)  # fmt: skip
def test_an_unknown_key_that_may_change_the_function_is_refused(key: str) -> None:
    metadata = Metadata("llama", {"general.architecture": "llama", "tokenizer.ggml.scores": [0.0], key: 2.0})
    assert metadata.find_misfits(CASES["llama"].function) == [f"unknown: {key} is 2; no spec is compared with it"]
    assert metadata.unknown == []


@pytest.mark.parametrize(
    ("key", "value"),
    [("logit_scale", 0.0625), ("residual_scale", 0.22), ("embedding_scale", 12.0), ("attention.causal", False),
     ("expert_count", 8), ("rope.scaling.yarn_log_multiplier", 0.1),
     ("rope.dimension_sections", [16, 24, 24, 0]), ("ssm.conv_kernel", 4), ("attention.temperature_scale", 0.1)],
)  # fmt: skip
def test_a_key_of_what_no_architecture_here_computes_is_refused(key: str, value: Any) -> None:
    assert any(line.startswith(f"not read: llama.{key} is ") for line in misfits(FOUND | {key: value}))


def test_every_key_of_the_package_is_known() -> None:
    """Whatever the gguf package can write of a decoder is compared, harmless with a value, or without effect."""
    known = metadata_keys()
    groups = [value for value in vars(library.Keys).values() if isinstance(value, type)]
    groups += [value for group in groups for value in vars(group).values() if isinstance(value, type)]
    names = {v for group in groups for v in vars(group).values() if isinstance(v, str) and v.startswith("{arch}.")}
    names = {name.removeprefix("{arch}.") for name in names if name.count("{") == 1}
    assert len(names) > 100
    known_names = {*known.compared, *known.without_effect}
    assert [name for name in sorted(names - known_names) if known.harmless(name) is None] == []
    assert sorted(known.architectures) == GGUF


# A build


def test_a_file_and_a_spec_of_another_theta(tmp_path: Path) -> None:
    model = twin("llama3-8b")
    write(model, tmp_path / "model.gguf", says={"rope.freq_base": 500000.0})
    api.build(model, tmp_path / "out", proof=False, weights=tmp_path / "model.gguf")
    other = api.twin(api.compile(ROOT / "specs" / "llama3-8b.yaml", ["attention.rope.theta=10000"]))
    line = "llama.rope.freq_base is 500000, and the spec's attention.rope.theta is 10000"
    with pytest.raises(CheckpointError, match=re.escape(line)):
        api.build(other, tmp_path / "other", proof=False, weights=tmp_path / "model.gguf")
    assert not (tmp_path / "other").exists()


def test_a_key_of_which_nothing_is_known_is_named(tmp_path: Path) -> None:
    model = twin("llama3-8b")
    write(model, tmp_path / "model.gguf", says={"merged_by": 1.0})
    made = api.build(model, tmp_path / "out", proof=False, weights=tmp_path / "model.gguf")
    assert made.notes[0] == "not compared, because they are unknown: llama.merged_by"
