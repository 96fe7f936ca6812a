"""What a checkpoint says of its model is what the spec says, or the build fails naming every difference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blockc import api
from blockc.facts import config_says, misfits
from blockc.weights import CheckpointError
from tests.checkpoints import save, tensors, twin
from tests.test_weights import CASES


@pytest.mark.parametrize("case", CASES)
def test_what_transformers_writes_of_a_model_is_what_its_spec_says(case: str, tmp_path: Path) -> None:
    """And enough of it is looked at: of each model the sizes, the norm's eps and the activation."""
    CASES[case].config().save_pretrained(tmp_path)
    said = config_says(tmp_path / "config.json")
    assert {"vocab", "width", "depth", "attention.heads", "norm.eps", "activation"} <= {one.key for one in said}
    assert misfits(said, CASES[case].function, 64) == []


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "theta": ("llama", {"rope_theta": 10000.0}, "10000, and the spec's attention.rope.theta is 5000"),
    "eps": ("llama", {"rms_norm_eps": 1e-6}, "1e-06, and the spec's norm.eps is 1e-05"),
    "heads": ("llama", {"num_attention_heads": 8}, "8, and the spec's attention.heads is 4"),
    "activation": ("llama", {"hidden_act": "gelu"}, "gelu, and the spec's activation is silu"),
    "strange": ("llama", {"hidden_act": "mish"}, "mish, and the spec's activation is silu"),
    "exact": ("gpt2", {"activation_function": "gelu"}, "gelu, and the spec's activation is gelu_tanh"),
    "window": ("llama", {"sliding_window": 8}, "8, and the spec's attention.window is none"),
    "no window": ("mistral", {"sliding_window": None}, "none, and the spec's attention.window is 8"),
    "other window": ("gemma2", {"sliding_window": 4}, "4, and the spec's attention.window is 8 and none"),
    "cap": ("gemma2", {"final_logit_softcapping": 20.0}, "20, and the spec's head.softcap is 30"),
    "scale": ("gemma2", {"query_pre_attn_scalar": 16}, "0.25, and the spec's attention.scale is 0.2041241"),
    "dims": ("gpt-j", {"rotary_dim": 16}, "16, and the spec's attention.rope.dims is 8"),
    "tied": ("llama", {"tie_word_embeddings": True}, "true, and the spec's head.tied is false"),
    "context": ("llama", {"max_position_embeddings": 32}, "32, and the spec's context is longer: 64"),
}  # fmt: skip


@pytest.mark.parametrize(("case", "changed", "line"), WRONG.values(), ids=WRONG)
def test_a_config_that_says_otherwise_is_named(case: str, changed: dict[str, Any], line: str, tmp_path: Path) -> None:
    config = CASES[case].config().to_dict()
    if "rope_theta" in changed:
        config["rope_parameters"] = {**config["rope_parameters"], **changed}
    (tmp_path / "config.json").write_text(json.dumps(config | changed))
    (name,) = (name + " ** -0.5" * (name == "query_pre_attn_scalar") for name in changed)
    assert misfits(config_says(tmp_path / "config.json"), CASES[case].function, 64) == [f"unlike: {name} is {line}"]


SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip


@pytest.mark.parametrize(
    ("case", "key", "value", "keys"),
    [
        ("llama", "rope_scaling", SCALED, ["type", "factor", "low_freq_factor", "high_freq_factor", "original"]),
        ("llama", "rope_scaling", {"type": "yarn"}, ["type"]),
        ("llama-tied", "rope_scaling", SCALED, []),
        ("llama-tied", "rope_scaling", SCALED | {"factor": 32.0}, ["factor"]),
        ("llama-tied", "rope_scaling", None, ["type"]),
        ("llama-tied", "rope_parameters", {"rope_theta": 10000.0, "rope_type": "default"}, ["type"]),
    ],
)
def test_scaled_rope_is_compared(case: str, key: str, value: Any, keys: list[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({key: value}))
    lines = misfits(config_says(tmp_path / "config.json"), CASES[case].function)
    assert [line.split("attention.rope.scaling.")[1].split()[0] for line in lines] == keys


@pytest.mark.parametrize("text", ["[]", "{", "", "\x00", "[" * 100_000])
def test_a_config_that_is_no_json_object_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config.json: not (a JSON object|JSON: )"):
        config_says(tmp_path / "config.json")


def test_a_config_that_says_nothing_known_is_passed_over(tmp_path: Path) -> None:
    strange = {"auto_map": {"AutoModel": "evil.Evil"}, "hidden_size": {"a": 1}, "rope_scaling": "x", "vocab_size": None}
    (tmp_path / "config.json").write_text(json.dumps(strange | {"num_attention_heads": [4, 4]}))
    assert misfits(config_says(tmp_path / "config.json"), CASES["llama"].function) == []
    assert config_says(tmp_path / "absent.json") == ()


def test_a_build_names_every_difference_and_writes_nothing(tmp_path: Path) -> None:
    held = tensors(twin("llama3-8b"))
    del held["model.norm.weight"]
    save(tmp_path / "in" / "model.safetensors", held)
    said = {"rope_theta": 10000.0, "rms_norm_eps": 1e-6, "num_key_value_heads": twin("llama3-8b").spec.top.vocab}
    (tmp_path / "in" / "config.json").write_text(json.dumps(said))
    with pytest.raises(CheckpointError) as caught:
        api.build(twin("llama3-8b"), tmp_path / "out", proof=False, weights=tmp_path / "in")
    first, *lines = str(caught.value).splitlines()
    assert first == "the checkpoint does not fit the spec:"
    assert [line.split()[:2] for line in lines] == [
        ["unlike:", "num_key_value_heads"], ["unlike:", "rms_norm_eps"], ["unlike:", "rope_theta"],
        ["missing:", "model.norm.weight"],
    ]  # fmt: skip
    assert not (tmp_path / "out").exists()
