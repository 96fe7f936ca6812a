"""What an import makes of what files really say, beside what transformers makes of it; and what is warned of."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from blockc import api
from blockc.graph.build import build_graph
from blockc.importing import ImportResult, import_config
from blockc.importing.maps import load_map, model_types
from blockc.importing.unlike import compare_config, read_config_beside
from blockc.ir import functions_of, parameters_of
from blockc.language.algebra import elaborate
from blockc.language.spec import from_tree
from blockc.ops import RotaryTable
from blockc.pipeline.compiled import compile_spec
from blockc.source import SpecError, parse, render_finding, to_plain
from tests.fuzz.configs import LISTS, Outcome, base, outcome, quiet
from tests.importing.test_import import run
from tests.paths import DATA

CASES = DATA / "cases2"
Config = dict[str, Any]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}  # fmt: skip
LONG = {"type": "longrope", "original_max_position_embeddings": 16, **{key: each[:4] for key, each in LISTS.items()}}


def imported(config: Config) -> ImportResult:
    return import_config(json.dumps(config, indent=1).encode(), "config.json", "x")


def case(name: str) -> Config:
    return json.loads((CASES / f"{name}.json").read_text())


def codes(config: Config) -> list[str]:
    return [each.code.name for each in imported(config).warnings]


# Where the file says one thing and transformers computes another

OTHERWISE: dict[str, tuple[str, Config, str]] = {
    "a theta that is not read": ("gpt_neox", {"rope_theta": 500}, "rope_theta is 500 here, and 10000 is taken"),
    "a part that is not read": ("gpt_neox", {"partial_rotary_factor": 0.5}, "0.5 here, and 0.25 is taken"),
    "an original inside": ("phi3", {"rope_scaling": LONG}, "16 here, and 4096 is taken"),
    "a sum over slices": ("bloom", {"slow_but_exact": True, "pretraining_tp": 2}, "a sum without biases is taken"),
    "truncate inside": ("olmo3", {"rope_scaling": {**YARN, "truncate": False}}, "false here, and true is taken"),
    "a type that is not read": ("gemma3_text", {"rope_scaling": {**YARN, "type": "linear"}}, "and yarn is taken"),
    "an old name of the type": ("gemma3_text", {"rope_scaling": {"type": "linear", "factor": 8.0}}, "default is taken"),
    "kinds of layers": ("mistral", {"layer_types": ["full_attention"] * 3}, "sliding_attention is taken"),
    "a width of four": ("mpt", {"expansion_ratio": 2}, "2 here, and 4 is taken"),
    "the first gelu": ("gemma", {"hidden_act": "gelu"}, "gelu_pytorch_tanh is taken"),
    "an eps under another name": ("stablelm", {"norm_eps": 1e-2}, "0.01 here, and 1e-05 is taken"),
    "a window under another name": ("gemma2", {"sliding_window_size": 3}, "3 here, and 6 is taken"),
}


@pytest.mark.parametrize(("kind", "change", "said"), OTHERWISE.values(), ids=OTHERWISE)
def test_what_transformers_takes_otherwise_is_taken_so_and_warned_of(kind: str, change: Config, said: str) -> None:
    quiet()
    config: Config = {"model_type": kind, **base(kind), **change}
    assert outcome(config) == Outcome("same")
    (found,) = (each for each in imported(config).warnings if each.severity == "warning")
    assert (found.code.name, found.place.file) == ("BLC708", "config.json")
    assert said in render_finding(found)


def test_a_type_that_is_not_read_and_says_the_same_is_not_warned_of() -> None:
    assert codes({"model_type": "gemma3_text", **base("gemma3_text"), "rope_scaling": {**YARN, "type": "yarn"}}) == []


@pytest.mark.parametrize("kind", ["glm", "glm4"])
def test_a_part_of_the_head_that_is_null_is_the_whole_head(kind: str) -> None:
    quiet()
    config: Config = {"model_type": kind, **base(kind), "partial_rotary_factor": None}
    assert outcome(config) == Outcome("same")
    rope = to_plain(imported(config).tree)["attention"]["rope"]  # type: ignore[index,call-overload]
    assert "dims" not in rope


def test_two_norms_of_the_old_falcon_are_two() -> None:
    """transformers makes both and runs neither, so that its parameters are all there is to compare with."""
    config = case("falcon-two-norms")
    spec = from_tree(imported(config).tree)
    theirs: Any = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    ours = parameters_of(build_graph(elaborate(spec)))
    assert sum(param.size for param in ours.values()) == sum(p.numel() for p in theirs.parameters())
    assert "layers.0.mlp_norm.weight" in ours
    config["num_ln_in_parallel_attn"] = None
    assert "layers.0.mlp_norm.weight" not in parameters_of(build_graph(elaborate(from_tree(imported(config).tree))))


# Taken, and equal

TAKEN: dict[str, tuple[str, Config]] = {
    "both mscales": ("llama", {"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.4}}),
    "one mscale": ("llama", {"rope_scaling": {**YARN, "mscale": 0.7}}),
    "an mscale of 0": ("llama", {"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 0}}),
    "yarn of global layers": ("gemma3_text", {"rope_scaling": YARN}),
    "llama3 of global layers": ("gemma3_text", {"rope_scaling": LLAMA3}),
    "llama3 of global layers of olmo3": ("olmo3", {"rope_scaling": LLAMA3}),
    "local layers without rope": ("smollm3", {"use_sliding_window": True, "sliding_window": 5}),
    "local layers by name": (
        "smollm3", {"use_sliding_window": True, "sliding_window": 5,
                    "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    "longrope by length": ("phi3", {"original_max_position_embeddings": 16, "rope_scaling": LONG}),
    "longrope once called yarn": (
        "phi3", {"original_max_position_embeddings": 16, "rope_scaling": {**LONG, "type": "yarn"}},
    ),
    "swish": ("llama", {"hidden_act": "swish"}),
    "a gate of relu": ("llama", {"hidden_act": "relu"}),
    "relu squared": ("starcoder2", {"hidden_act": "relu2"}),
    "a bias that is off": ("mistral", {"attention_bias": False, "mlp_bias": False}),
    "no quantisation": ("llama", {"quantization_config": {}}),
    "kinds of layers that are one": ("mistral", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "another word for a length": ("llama", {"max_sequence_length": 64}),
    "a factor said twice": ("falcon", {"ff_factor": 4}),
    "what wrote the file": ("llama", {"unsloth_fixed": True, "unsloth_version": "2025.1.1"}),
    "how it was trained": ("llama", {"rope_scaling": {**YARN, "finetuned": True}}),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "change"), TAKEN.values(), ids=TAKEN)
def test_what_real_files_say_is_taken_as_transformers_takes_it(kind: str, change: Config) -> None:
    quiet()
    assert outcome({"model_type": kind, **base(kind), **change}) == Outcome("same")


LINEAR, DYNAMIC = ({"rope_type": kind, "factor": 2.0} for kind in ("linear", "dynamic"))


@pytest.mark.parametrize("scaling", [LINEAR, LLAMA3, YARN, DYNAMIC], ids=lambda scaling: scaling["rope_type"])
def test_scalings_that_the_check_of_phi3_refuses_are_those_of_its_code(scaling: Config) -> None:
    """Its table of angles, made with these parameters, past the check of its configuration."""
    from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

    config: Config = {"model_type": "phi3", **base("phi3"), "original_max_position_embeddings": 16}
    theirs: Any = transformers.AutoConfig.for_model(**config)
    theirs.rope_parameters = {"rope_theta": 10000.0, "partial_rotary_factor": 1.0, **scaling}
    rotary = Phi3RotaryEmbedding(theirs)
    function = build_graph(elaborate(from_tree(imported({**config, "rope_scaling": scaling}).tree)))
    (table,) = {n.op for each in functions_of(function) for n in each.nodes if isinstance(n.op, RotaryTable)}
    assert torch.from_numpy(table.frequencies).float().allclose(rotary.inv_freq, rtol=5e-7, atol=0)
    assert table.factor == pytest.approx(rotary.attention_scaling, rel=1e-6)


def test_two_activations_of_gemma_are_the_one_that_is_meant() -> None:
    config = case("gemma7b-two-activations")
    keys: Any = to_plain(imported(config).tree)
    assert keys["mlp"]["type"] == "geglu_tanh" and codes(config) == ["BLC708"]
    spec = from_tree(imported(config).tree)
    assert sum(param.size for param in parameters_of(build_graph(elaborate(spec))).values()) == 8_537_680_896


def test_the_context_of_yarn_is_the_larger_of_two_figures_and_both_are_named(tmp_path: Path) -> None:
    quiet()
    config = case("yarn")
    (note,) = imported(config).warnings
    assert from_tree(imported(config).tree).top.context == 64 and note.severity == "note"
    assert "max_position_embeddings is 16 here, and 64 is taken" in note.message
    assert outcome(config) == Outcome("same")  # beyond position 16 too
    longer = {**config, "max_position_embeddings": 100}
    assert from_tree(imported(longer).tree).top.context == 100 and imported(longer).warnings == ()
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, out, err = run("import", str(tmp_path))
    assert code == 0 and "context: 64" in out and "[BLC709]" in err


def test_a_build_and_an_import_show_their_warnings(tmp_path: Path) -> None:
    config = {"model_type": "gpt_neox", **base("gpt_neox"), "rope_theta": 500}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "10000 is taken" in run("import", str(tmp_path))[2]
    code, _, err = run("build", str(tmp_path), "--no-verify", "--out", str(tmp_path / "out"))
    assert code == 0 and "10000 is taken" in err
    assert "10000 is taken" in read_config_beside(tmp_path / "config.json").notes[0]


# One reader: what the import takes is what lies beside weights


@pytest.mark.parametrize("name", ["gemma-gelu", "qwen2-window", "dynamic-original", "phi3-inner-original", "yarn",
                                  "falcon-two-norms", "gemma3-mm", "unsloth", "finetuned"])  # fmt: skip
def test_what_is_imported_is_like_the_file_beside_its_weights(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(case(name)))
    model = api.compile(tmp_path / "config.json")
    said = read_config_beside(tmp_path / "config.json")
    assert said.imported is not None and compare_config(said, model.function, model.spec.top.context) == []


# Wrappers


WRAPPERS: dict[str, Config] = {
    "gemma3": {"vision_config": {"hidden_size": 32, "rope_theta": 7}, "mm_tokens_per_image": 4},
    "llava": {"vision_config": {"model_type": "clip_vision_model"}, "projector_hidden_act": "gelu"},
    "a-type-of-its-own": {"audio_config": {}, "scale_factor": 4, "architectures": ["Any"]},
}  # fmt: skip


@pytest.mark.parametrize("kind", WRAPPERS)
def test_what_stands_around_a_language_model_is_without_effect_on_it(kind: str) -> None:
    for inner in ("llama", "gemma3_text", "qwen2"):
        text: Config = {"model_type": inner, **base(inner)}
        whole = {"model_type": kind, **WRAPPERS[kind], "text_config": text}
        made = imported(whole)
        assert to_plain(made.tree) == to_plain(imported(text).tree) and made.warnings == ()


def test_the_language_model_of_a_wrapper_has_a_map() -> None:
    wrappers = [load_map(name).inner for name in model_types()]
    inner = [found[1] for found in wrappers if found is not None]
    assert inner and {*inner} <= {*model_types()}


def test_what_a_wrapper_says_of_its_language_model() -> None:
    text: Config = {"model_type": "llama", **base("llama")}
    whole = {"model_type": "strange", "text_config": text, "tie_word_embeddings": True, "hidden_size": 99}
    keys: Any = to_plain(imported(whole).tree)
    assert keys["head"] == {"tied": True} and keys["width"] == 32
    (warned,) = imported(whole).warnings
    assert warned.message == "hidden_size stands around the language model, and is not read: that of text_config is 32"
    for around, message in (({"text_config": {**text, "model_type": "odd"}}, "unknown model type odd"),
                            ({"text_config": 3}, "unknown model type strange"),
                            ({"quantization_config": {"quant_method": "awq"}}, "quantised by awq"),
                            ({"text_config": {**text, "mystery": 1}}, "unknown key mystery")):  # fmt: skip
        with pytest.raises(SpecError, match=message):
            imported({**whole, **around})


# Refusals


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "hidden_size": 30},
        {"model_type": "opt", "hidden_size": 32},
        {"model_type": "gpt_neox", **base("gpt_neox"), "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"model_type": "gptj", "n_embd": 32, "n_head": 4},
        {"model_type": "gpt_neo", "num_layers": 3},
        {"model_type": "gpt_neo", "hidden_size": -32},
        {"model_type": "smollm3", **base("smollm3"), "no_rope_layers": [1]},
        {"model_type": "llama", **base("llama"), "max_position_embeddings": "64"},
    ],
    ids=lambda config: config["model_type"],
)
def test_a_refusal_stands_in_config_json(config: Config) -> None:
    """Also of what only the model type's map says, or that the graph does not stand."""
    with pytest.raises(SpecError) as caught:
        elaborate(from_tree(imported(config).tree))
    lines = json.dumps(config, indent=1).splitlines()
    for each in caught.value.findings:
        for place in (each.place, *(place for _, place in each.others)):
            assert place.file == "config.json" and place.line <= len(lines)


@pytest.mark.parametrize(
    ("model_type", "change", "named", "also"),
    [("gpt2", {"activation_function": "mish"}, "activation_function", "quick_gelu"),
     ("falcon", {"activation": "mish"}, "activation", "gelu_new"),
     ("gemma2", {"hidden_activation": "mish", "hidden_act": "gelu"}, "hidden_activation", "relu2"),
     ("apertus", {"hidden_act": "mish"}, "hidden_act", "xielu"),
     ("llama", {"rope_scaling": {"type": "ntk"}}, "rope_scaling.type", "yarn")],
    ids=str,
)  # fmt: skip
def test_a_refusal_names_the_key_as_the_file_spells_it(model_type: str, change: Config, named: str, also: str) -> None:
    """And every word that it takes, whichever tables of its map have them."""
    with pytest.raises(SpecError) as caught:
        imported({"model_type": model_type, **base(model_type), **change})
    (found,) = caught.value.findings
    assert found.message == f"no word of a spec stands for this {named}"
    assert also in found.expected.split(" or ")


def test_two_objects_for_one_rope_are_refused_where_they_differ() -> None:
    config: Config = {"model_type": "llama", **base("llama"), "rope_parameters": {"rope_theta": 7.0}}
    with pytest.raises(SpecError, match="rope_scaling and another object of the same meaning differ"):
        imported({**config, "rope_scaling": YARN})
    assert imported({**config, "rope_scaling": {"rope_theta": 7.0}})


def test_a_vocabulary_beyond_int64_is_refused_at_its_line() -> None:
    config = {"model_type": "llama", "hidden_size": 32, "vocab_size": 10**29}
    with pytest.raises(SpecError) as caught:
        from_tree(import_config(json.dumps(config, indent=1).encode(), "config.json", "x").tree)
    places = [(each.place.file, each.place.line) for each in caught.value.findings]
    assert ("config.json", 4) in places and {file for file, _ in places} == {"config.json"}


def test_a_config_that_is_no_regular_file_is_said_to_be_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(SpecError, match="is not a regular file"):
        api.compile(tmp_path)


def test_a_figure_that_the_spec_alone_lacks_is_named_by_its_own_key(tmp_path: Path) -> None:
    """Not by the list of layer types, which is a list and speaks of windows."""
    config = {"model_type": "gemma3_text", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64,
              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
              "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = read_config_beside(tmp_path / "config.json")
    lines = [line for line in api.import_spec(tmp_path / "config.json").splitlines() if "embedding:" not in line]
    other = compile_spec(from_tree(parse("\n".join([*lines, ""]), "spec.yaml")))
    (found,) = compare_config(said, other.function, 64)
    assert "embedding.scale" in found and "layer_types" not in found
