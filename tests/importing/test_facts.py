"""What a checkpoint says of its model is what the spec says, or the build fails naming every difference."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from blockc import api
from blockc.basics.errors import CheckpointError
from blockc.importing import import_config
from blockc.importing.figures import figures_by_layer, figures_of
from blockc.importing.unlike import ConfigBeside, compare_config, read_config_beside
from blockc.language.parts.mlp import TYPES
from blockc.language.spec import from_tree
from blockc.pipeline.compiled import compile_spec
from blockc.source import parse
from tests.checkpoints import ROOT, save, tensors, twin
from tests.weights.test_weights import CASES, GPT2


def beside(folder: Path, config: Mapping[str, Any], case: str, context: int | None = 64) -> list[str]:
    """What is unlike the function of a case, and each line's place, which is that of the key it names."""
    text, file = json.dumps(config, indent=1), folder / "config.json"
    file.write_text(text)
    lines = compare_config(read_config_beside(file), CASES[case].function, context)
    for line in lines:
        assert line.count(str(file)) == line.count("config.json") == 1, line  # by its path, and once
        for name, at in re.findall(rf"unlike: ([\w.]+) (?:is|gives) .* \({file}:(\d+):\d+\)", line):
            assert f'"{name.rpartition(".")[2]}"' in text.splitlines()[int(at) - 1]
    return [re.sub(rf" \({file}:\d+:\d+\)", "", line).replace(f"{folder}/", "") for line in lines]


def config_of(case: str, **changed: Any) -> dict[str, Any]:
    config = json.loads(CASES[case].config().to_json_string(use_diff=True)) | changed
    if "rope_theta" in changed:
        config["rope_parameters"] = {**config["rope_parameters"], "rope_theta": config.pop("rope_theta")}
    return config


@pytest.mark.parametrize("case", CASES)
def test_what_transformers_writes_of_a_model_is_what_its_spec_says(case: str, tmp_path: Path) -> None:
    CASES[case].config().save_pretrained(tmp_path)
    said = read_config_beside(tmp_path / "config.json")
    assert said.imported is not None and said.notes == ()
    assert compare_config(said, CASES[case].function, 64) == []


WRONG: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "theta": ("llama", {"rope_theta": 10000.0},
              ["rope_parameters.rope_theta is 10000, and the spec's attention.rope.theta is 5000"]),
    "eps": ("llama", {"rms_norm_eps": 1e-6}, ["rms_norm_eps is 1e-06, and the spec's norm.eps is 1e-05"]),
    "default": ("llama", {"rms_norm_eps": None},
                ["config.json leaves norm.eps to llama, which has 1e-06, and the spec's norm.eps is 1e-05"]),
    "heads": ("llama", {"num_attention_heads": 2, "head_dim": 16},
              ["num_attention_heads is 2, and the spec's attention.heads is 4"]),
    "activation": ("llama", {"hidden_act": "gelu"}, ["hidden_act is gelu, and the spec's activation is silu"]),
    "exact": ("gpt2", {"activation_function": "gelu"},
              ["activation_function is gelu, and the spec's activation is gelu_tanh"]),
    "no window": ("mistral", {"sliding_window": None},
                  ["config.json leaves attention.window to mistral, which has none, and the spec's attention.window "
                   "is 8"]),
    "other window": ("gemma2", {"sliding_window": 4},
                     ["sliding_window gives 4 and none, and the spec's attention.window is 8 and none"]),
    "other layers": ("gemma2", {"layer_types": ["full_attention", "sliding_attention"]},
                     ["sliding_window gives none in layer 0 and 1 more, and the spec's attention.window is 8 there"]),
    "cap": ("gemma2", {"final_logit_softcapping": 20.0},
            ["final_logit_softcapping is 20, and the spec's head.softcap is 30"]),
    "scale": ("gemma2", {"query_pre_attn_scalar": 16},
              ["query_pre_attn_scalar gives 0.25, and the spec's attention.scale is 0.2041241"]),
    "dims": ("gpt-j", {"rotary_dim": 16}, ["rotary_dim is 16, and the spec's attention.rope.dims is 8"]),
    "tied": ("llama", {"tie_word_embeddings": True},
             ["tie_word_embeddings is true, and the spec's head.tied is false"]),
    "context": ("llama", {"max_position_embeddings": 32},
                ["max_position_embeddings is 32, and the spec's context is longer: 64"]),
}  # fmt: skip


@pytest.mark.parametrize(("case", "changed", "lines"), WRONG.values(), ids=WRONG)
def test_a_config_that_says_otherwise_is_named(
    case: str, changed: dict[str, Any], lines: list[str], tmp_path: Path
) -> None:
    assert beside(tmp_path, config_of(case, **changed), case) == [f"unlike: {line}" for line in lines]


# Each MLP's word, with a clamped one's numbers, and what its activation is called.
MLPS = [*((word, act.name) for word, (act, _) in TYPES.items()),
        ("swiglu_clamped, limit: 7, alpha: 1.702", "clamped_swiglu")]  # fmt: skip


@pytest.mark.parametrize(("type_", "word"), MLPS)
def test_every_other_activation_is_unlike_the_files(type_: str, word: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of("gpt2")))
    text = GPT2.replace("gelu_tanh", type_)
    lines = compare_config(
        read_config_beside(tmp_path / "config.json"), compile_spec(from_tree(parse(text, "spec.yaml"))).function, 64
    )
    wanted = rf"unlike: activation_function .*gelu_tanh.*, and the spec's activation is {word}"
    assert [line for line in lines if re.fullmatch(wanted, line)] == ([] if word == "gelu_tanh" else lines[:1])
    assert bool(lines) is (type_ != "gelu_tanh")


def test_a_value_that_no_spec_has_is_refused_at_its_line(tmp_path: Path) -> None:
    config = config_of("llama", hidden_act="mish", rope_magic=2, colour="red")
    (line, other) = beside(tmp_path, config, "llama")
    assert re.fullmatch(
        r"unlike: config.json:\d+:\d+: no word of a spec stands for this hidden_act \[BLC704\]; .*; got \"mish\"", line
    )
    assert re.fullmatch(r"unlike: config.json:\d+:\d+: unknown key rope_magic \[BLC703\]", other)


@pytest.mark.parametrize(
    "name",
    ["rope_magic", "logit_scale", "sliding_windows", "attn_softcap", "norm_epsilon", "clip", "swiglu_limit",
     "qkv_clamp", "expert_count", "parallel_blocks", "logit_mean"],
)  # fmt: skip
def test_an_unknown_key_that_tells_of_the_function_is_refused_and_another_noted(name: str, tmp_path: Path) -> None:
    assert f"unknown key {name}" in beside(tmp_path, config_of("llama", **{name: 2}), "llama")[0]
    assert beside(tmp_path, config_of("llama", colour="red"), "llama") == []
    file = tmp_path / "config.json"
    assert read_config_beside(file).notes == (f"{file}: unknown keys that were not compared: colour",)
    beside(tmp_path, config_of("llama", **{f"colour_{i:02}": i for i in range(23)}), "llama")
    assert read_config_beside(file).notes[0].endswith("colour_18, colour_19, and 3 more")


SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip


@pytest.mark.parametrize(
    ("case", "scaling", "keys"),
    [
        ("llama", SCALED, ["type", "factor", "low_freq_factor", "high_freq_factor", "original"]),
        ("llama", {"type": "yarn", "factor": 4.0}, ["type", "attention_factor", "factor"]),
        ("llama-tied", SCALED, []),
        ("llama-tied", SCALED | {"factor": 32.0}, ["factor"]),
        ("llama-tied", None, ["type", "factor", "low_freq_factor", "high_freq_factor", "original"]),
        ("llama-tied", {"rope_type": "default"}, ["type", "factor", "low_freq_factor", "high_freq_factor", "original"]),
    ],
)
def test_scaled_rope_is_compared(case: str, scaling: Any, keys: list[str], tmp_path: Path) -> None:
    config = config_of(case)
    theta = config.pop("rope_parameters")["rope_theta"]
    lines = beside(tmp_path, {**config, "rope_theta": theta, "rope_scaling": scaling}, case, 16)
    found = [line.split("the spec's attention.rope.scaling.")[1].split()[0] for line in lines]
    assert sorted(found) == sorted(keys)


@pytest.mark.parametrize("text", ["[]", "{", "", "\x00", "[" * 100_000])
def test_a_config_that_is_no_json_object_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config.json(:1:\d+)?: not a JSON object"):
        read_config_beside(tmp_path / "config.json")


def test_a_config_of_a_model_type_without_a_map_is_noted(tmp_path: Path) -> None:
    """Code that it names is not looked at. A file that is not there says nothing."""
    strange = {"model_type": "strange", "auto_map": {"AutoModel": "evil.Evil"}, "rope_theta": 7}
    assert beside(tmp_path, strange, "llama") == []
    (note,) = read_config_beside(tmp_path / "config.json").notes
    assert note == f"{tmp_path / 'config.json'}: unknown model type strange: it was not compared with the spec"
    assert (
        beside(tmp_path, {"rope_theta": 7}, "llama") == []
        and len(read_config_beside(tmp_path / "config.json").notes) == 1
    )
    assert read_config_beside(tmp_path / "absent.json") == ConfigBeside()


def test_a_spec_that_does_not_stand_is_a_fault_where_asserts_are_left_out_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 30}))
    (fault,) = read_config_beside(tmp_path / "config.json").faults
    assert "attention.heads 32 does not divide width 30" in fault
    asked = "import sys; from pathlib import Path; from blockc.importing.unlike import read_config_beside; "
    asked += "print(*read_config_beside(Path(sys.argv[1])).faults)"
    command = [sys.executable, "-O", "-c", asked, str(tmp_path / "config.json")]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == f"{fault}\n"


def test_a_spec_in_block_algebra_that_is_the_same_function_is_like_the_file(tmp_path: Path) -> None:
    """Own names for the parts, and branches in another order, change no function; a branch that reads another does."""
    config = {"model_type": "gpt_neox", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64,
              "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = read_config_beside(tmp_path / "config.json")
    keys = """\
blockc: 1
name: x
vocab: 64
width: 32
depth: 2
context: 64
attention: {heads: 4, bias: [q, k, v, o], rope: {theta: 10000, pairing: half, dims: 2}}
mlp: {type: gelu, width: 64, bias: [up, down]}
norm: {type: layer, eps: 1e-5, bias: true}
head: {tied: false}
parts: {before: {norm: {}}, other: {norm: {}}}
"""
    for block, like in (
        ("[{residual: [{sum: [[other, mlp], [before, attention]]}]}]", True),
        ("[{residual: [before, attention]}, {residual: [other, mlp]}]", False),
        ("[{residual: [before, {sum: [[attention], [other, mlp]]}]}]", False),
    ):
        model = compile_spec(from_tree(parse(f"{keys}block: {block}\n", "spec.yaml")))
        assert (compare_config(said, model.function, 64) == []) is like, block


def test_figures_do_not_go_by_what_parts_are_called() -> None:
    """A norm's bias is none of a matrix, a matrix may bear any name, and a factor is what it scales."""
    keys = """\
blockc: 1
name: x
vocab: 64
width: 32
depth: 2
context: 64
embedding: {scale: 3, width: 16}
positions: {type: learned}
attention: {heads: 4, bias: [o], rope: {theta: 10000, pairing: half}}
mlp: {type: gelu, width: 96, bias: [up]}
norm: {type: layer, eps: 1e-5, bias: true}
head: {tied: false, bias: true, scale: 0.5}
parts: {before: {norm: {}}, behind: {norm: {}}, normal: {mlp: {}}}
block: [{residual: [before, attention]}, {residual: [behind, normal]}]
"""
    function = compile_spec(from_tree(parse(keys, "spec.yaml"))).function
    layer = figures_by_layer(function)[1]
    assert layer["biases"] == {"attention.o.bias", "normal.up.bias"} and layer["mlp.width"] == {96}
    found = figures_of(function)
    assert found["biases"] == {*layer["biases"], "head.bias"}
    assert found["embedding.scale"] == {3} and found["head.scale"] == {0.5}
    assert found["vocab"] == {64} and found["width"] == {32} and found["head.tied"] == {False}
    tied = compile_spec(from_tree(parse(keys.replace("tied: false", "tied: true"), "spec.yaml"))).function
    assert figures_of(tied) == found | {"head.tied": {True}}


def test_what_scales_a_branch_is_named(tmp_path: Path) -> None:
    config = {"model_type": "granite", "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96,
              "num_hidden_layers": 2, "num_attention_heads": 4, "residual_multiplier": 0.5}  # fmt: skip
    said = json.dumps(config)
    ours = compile_spec(from_tree(import_config(said.encode(), "config.json", "x").tree)).function
    file = tmp_path / "config.json"
    file.write_text(said.replace("0.5", "0.25"))
    (line,) = compare_config(read_config_beside(file), ours, 64)
    assert line.startswith("unlike: residual_multiplier is 0.25 (")
    assert line.endswith(", and the spec's residual_scale is 0.5")


def test_a_build_names_every_difference_and_writes_nothing(tmp_path: Path) -> None:
    model = twin("llama3-8b")
    held = tensors(model)
    del held["model.norm.weight"]
    save(tmp_path / "in" / "model.safetensors", held)
    top = model.spec.top
    said = {"model_type": "llama", "vocab_size": top.vocab, "hidden_size": top.width, "num_hidden_layers": top.depth,
            "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 1, "max_position_embeddings": 64,
            "rope_theta": 10000.0, "rms_norm_eps": 1e-6}  # fmt: skip
    (tmp_path / "in" / "config.json").write_text(json.dumps(said))
    with pytest.raises(CheckpointError) as caught:
        api.build(model, tmp_path / "out", proof=False, weights=tmp_path / "in")
    first, *lines = str(caught.value).splitlines()
    assert first == "the checkpoint does not fit the spec:"
    named = [line.split()[:2] for line in lines]
    assert named[-1] == ["missing:", "model.norm.weight"]
    assert {"num_key_value_heads", "rms_norm_eps", "rope_theta"} <= {name for _, name in named[:-1]}
    assert not (tmp_path / "out").exists()
