"""Norms inside a part, and the numbers of an activation: what is refused, what is fused, and what a config says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from blockc import api
from blockc.basics.errors import CheckpointError
from blockc.graph.target import Target
from blockc.importing import import_config
from blockc.importing.unlike import compare_config, read_config_beside
from blockc.ir import Array
from blockc.language.spec import from_tree, resolve_spec
from blockc.layouts import load_layout
from blockc.ops import MergeHeads, RmsNorm
from blockc.ort.ops import GroupQueryAttention, HeadNorm
from blockc.pipeline.compiled import compile_spec
from blockc.source import SpecError, parse, to_plain
from blockc.weights.matching import pack, unpack
from blockc.weights.rules import group_sizes, rules
from blockc.weights.safetensors import read_safetensors, write_safetensors
from tests.proof.test_reference import changed
from tests.reference.models import OUTSIDE, twin
from tests.spec_text import findings, spec

BARE = "norm: none\nblock: [attention, mlp]\n"
REFUSED: dict[str, tuple[str, str]] = {
    "no side": ("attention: {heads: 2, qk_norm: {over: head, weights: shared, order: behind}}", "qk_norm.order: not a"),
    "behind, of all": ("attention: {heads: 2, qk_norm: {over: projection, order: after_rope}}", "rope turns heads"),
    "weights of none": (
        "attention: {heads: 2, qk_norm: {over: head, weight: false, weights: own}}", "has none that heads could share",
    ),
    "offset of none": (
        "attention: {heads: 2, qk_norm: {over: head, weight: false, offset: 1}}",
        "offset is part of a norm whose weights",
    ),
    "bias of rms": ("attention: {heads: 2, qk_norm: {over: head, weights: shared, bias: true}}", "an rms norm has no"),
    "bias of each head": (
        "attention: {heads: 2, qk_norm: {over: head, weights: own, type: layer, eps: 1, bias: true}}", "a bias stands",
    ),
    "bias without weight": (
        "attention: {heads: 2, qk_norm: {over: head, weight: false, type: layer, eps: 1, bias: true}}", "a bias stands",
    ),
    "within, no norm": (BARE + "attention: {heads: 2, sub_norm: {weight: true}}", "there is no norm to take type"),
    "within, in an MLP": (BARE + "mlp: {type: relu, width: 4, sub_norm: {weight: true}}", "there is no norm to take"),
    "within, unsaid": ("mlp: {type: relu, width: 4, sub_norm: {}}", "missing key mlp.sub_norm.weight"),
    "within, bias of rms": ("mlp: {type: relu, width: 4, sub_norm: {weight: true, bias: true}}", "an rms norm has no"),
    "within, bias of none": (
        "attention: {heads: 2, sub_norm: {weight: false, type: layer, eps: 1, bias: true}}", "has no parameters",
    ),
    "a gate of xielu": ("mlp: {type: xielu, width: 4, bias: [gate]}", "xielu has no gate to bias"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_a_norm_that_is_not_fully_said_is_refused(change: str, message: str) -> None:
    (found,) = findings(change)
    assert message in found.message


def test_without_rope_either_side_of_it_is_the_same() -> None:
    behind = "attention: {heads: 2, qk_norm: {over: head, weights: shared, order: after_rope}}"
    assert compile_spec(spec(behind)).decoder == compile_spec(spec(behind.replace(", order: after_rope", ""))).decoder
    turned = behind.replace("qk_norm", "rope: {theta: 10000, pairing: half}, qk_norm")
    assert compile_spec(spec(turned)).decoder != compile_spec(spec(turned.replace(", order: after_rope", ""))).decoder


def test_the_norms_within_take_over_what_the_layers_norm_says() -> None:
    made = spec(
        "norm: {type: rms, eps: 0.25, offset: 1, placement: pre}\n"
        "attention: {heads: 2, sub_norm: {weight: true}}\nmlp: {type: relu, width: 4, sub_norm: {weight: true, eps: 2}}"
    )
    said = resolve_spec(made)
    assert said["attention"]["sub_norm"] == {"weight": True, "type": "rms", "eps": 0.25, "offset": 1}
    assert said["mlp"]["sub_norm"] == {"weight": True, "type": "rms", "eps": 2, "offset": 1}


# The order and the numbers show


SHOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "the side of rope": ("hy-mt2-7b", {"attention": {"qk_norm": {"order": "before_rope"}}}),
    "the norm before o": ("bitnet-2b", {"attention": {"sub_norm": {"eps": 1e-3}}}),
    "the norm before down": ("bitnet-2b", {"mlp": {"sub_norm": {"eps": 1e-3}}}),
    "the square": ("bitnet-2b", {"mlp": {"type": "reglu"}}),
    "neighbours": ("ernie4.5-0.3b", {"attention": {"rope": {"pairing": "half"}}}),
}


@pytest.mark.parametrize(("name", "change"), SHOWN.values(), ids=SHOWN)
def test_what_is_said_of_a_norm_shows(name: str, change: dict[str, Any]) -> None:
    tokens = np.random.RandomState(7).randint(0, 90, (1, 12))
    truth = OUTSIDE[name].logits(twin(name))(tokens)
    error = np.abs(logits(changed(name, change), OUTSIDE[name].params(twin(name)), tokens) - truth).max()
    assert error > 10 * OUTSIDE[name].closeness * truth.std()


@pytest.mark.parametrize("number", ["alpha_p", "alpha_n", "beta", "eps"])
def test_each_number_of_the_activation_shows(number: str) -> None:
    name, tokens = "apertus-8b", np.random.RandomState(7).randint(0, 90, (1, 12))
    params = OUTSIDE[name].params(twin(name))
    truth = OUTSIDE[name].logits(twin(name))(tokens)
    assert np.abs(logits(twin(name), params, tokens) - truth).max() < OUTSIDE[name].closeness * truth.std()
    other = {path: array - 0.05 * path.endswith(number) for path, array in params.items()}
    assert np.abs(logits(twin(name), other, tokens) - truth).max() > 10 * OUTSIDE[name].closeness * truth.std()


def logits(model: Any, params: Mapping[str, Array], tokens: Array) -> Array:
    from blockc.graph import interp

    feeds = {
        "input_ids": tokens, "attention_mask": np.ones_like(tokens),
        "position_ids": np.arange(tokens.shape[1])[None],
    }  # fmt: skip
    return interp.interpret(model.function, feeds, params)["logits"]


# Knobs that the specs' own twins do not turn, against transformers

FURTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "biases behind rope": ("hy-mt2-7b", {"attention": {"bias": ["q", "k", "v", "o"]}}),
    "wide heads": ("hy-mt2-7b", {"attention": {"head_dim": 24, "scale": 24**-0.5}}),
    "biases beside neighbours": (
        "ernie4.5-0.3b", {"attention": {"bias": ["q", "k", "v", "o"]}, "mlp": {"bias": ["gate", "up", "down"]}},
    ),
    "a whole head turned": ("persimmon-8b", {"attention": {"rope": {"dims": 16}}}),
    "another activation": ("persimmon-8b", {"mlp": {"type": "relu"}}),
    "a gate of SiLU": ("bitnet-2b", {"mlp": {"type": "swiglu"}}),
}  # fmt: skip


@pytest.mark.parametrize(("name", "change"), FURTHER.values(), ids=FURTHER)
def test_the_outside_logits_of_further_knobs(name: str, change: dict[str, Any]) -> None:
    model, outside = changed(name, change), OUTSIDE[name]
    tokens = np.random.RandomState(7).randint(0, 90, (2, 16))
    truth = outside.logits(model)(tokens)
    for row, wanted in zip(tokens, truth, strict=True):
        error = np.abs(logits(model, outside.params(model), row[None])[0] - wanted).max()
        assert error < outside.closeness * truth.std()


# Fused


@pytest.mark.parametrize("name", ["hy-mt2-7b", "persimmon-8b", "bitnet-2b"])
@pytest.mark.parametrize("target", [Target("cpu"), Target("cpu", padding="right")], ids=["cpu", "by rows"])
def test_attention_is_one_kernel_wherever_its_norms_stand(name: str, target: Target) -> None:
    model, nodes = twin(name), twin(name).flatten(target).nodes
    attentions = [n for n in nodes if "QueryAttention" in type(n.op).__name__]
    assert len(attentions) == 2 and not any(left.node.endswith("mixed") for left in model.unfused(target))
    behind = name == "hy-mt2-7b"
    for n in attentions:
        q = n.inputs[0].node.op
        assert isinstance(q, MergeHeads) == behind
        assert isinstance(q, HeadNorm) == (name == "persimmon-8b")
        assert not (behind and isinstance(n.op, GroupQueryAttention) and n.op.rotary)
    assert sum(isinstance(n.op, RmsNorm) and n.name.endswith("q_norm") for n in nodes) == 2 * behind


# Checkpoints and configs


def test_an_activations_numbers_are_read_and_written_as_a_file_has_them(tmp_path: Path) -> None:
    model = OUTSIDE["apertus-8b"].model(twin("apertus-8b"), torch.float32)
    model.save_pretrained(tmp_path)
    tensors = read_safetensors(tmp_path)
    beta = tensors["model.layers.1.mlp.act_fn.beta"]
    assert beta.shape == () and beta != 0.5
    held = rules(load_layout("apertus"), twin("apertus-8b").function, group_sizes(twin("apertus-8b").function))
    again = pack(held, unpack(held, tensors))
    assert again.keys() == tensors.keys()
    assert all(again[n].shape == tensors[n].shape and np.array_equal(again[n], tensors[n]) for n in tensors)
    with pytest.raises(CheckpointError, match=r"missing: model\.layers\.1\.mlp\.act_fn\.beta"):
        unpack(held, {name: array for name, array in tensors.items() if array is not beta})


@pytest.mark.parametrize(("alpha", "fixed"), [(1000.0, True), (3, True), (None, False), (0, False)])
def test_a_dynamic_rope_with_an_alpha_is_a_larger_theta(alpha: float | None, fixed: bool, tmp_path: Path) -> None:
    scaling = {"type": "dynamic", "factor": 2.0, **({} if alpha is None else {"alpha": alpha})}
    config: dict[str, Any] = {
        "model_type": "hunyuan_v1_dense", "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 64, "rope_theta": 10000.0, "rope_scaling": scaling,
    }  # fmt: skip
    made = from_tree(import_config(json.dumps(config).encode(), "config.json", "h").tree)
    rope = resolve_spec(made)["attention"]["rope"]
    assert (made.top.context, "scaling" in rope) == ((64, False) if fixed else (128, True))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (
        compare_config(read_config_beside(tmp_path / "config.json"), compile_spec(made).function, made.top.context)
        == []
    )
    wrong = compile_spec(
        from_tree(import_config(json.dumps({**config, "rope_theta": 9999.0}).encode(), "c.json", "h").tree)
    )
    assert any(
        "rope_theta" in line for line in compare_config(read_config_beside(tmp_path / "config.json"), wrong.function)
    )
    if fixed:
        theirs = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
        ours = rope["theta"] ** (-np.arange(0, 16, 2) / 16)
        np.testing.assert_allclose(ours, theirs.model.rotary_emb.inv_freq.numpy(), rtol=1e-6)


APERTUS: dict[str, Any] = {"model_type": "apertus"}


@pytest.mark.parametrize(
    ("said", "theta", "kind"),
    [
        ({}, 12000000, "llama3"),
        ({"rope_parameters": None}, 12000000, "llama3"),
        ({"rope_parameters": {"rope_type": "default"}}, 12000000, None),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 500000, None),
    ],
)
def test_a_rope_of_which_nothing_is_said_is_the_models_own(said: dict[str, Any], theta: int, kind: str | None) -> None:
    rope = keys({**APERTUS, **said})["attention"]["rope"]
    assert (rope["theta"], rope.get("scaling", {}).get("type")) == (theta, kind)
    theirs = transformers.ApertusConfig(**{k: v for k, v in said.items() if v is not None}).rope_parameters
    assert (theirs["rope_theta"], theirs["rope_type"]) == (theta, kind or "default")


def test_a_rope_of_which_half_is_said_is_refused() -> None:
    """Releases of transformers differ in what they take it for."""
    with pytest.raises(SpecError, match="no word of a spec stands for this rope_theta"):
        keys({**APERTUS, "rope_theta": 500000.0})


def keys(config: Mapping[str, Any]) -> Any:
    return to_plain(import_config(json.dumps(config).encode(), "config.json", "x").tree)


PACKED = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}
BITNET: dict[str, Any] = {
    "model_type": "bitnet", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip


def test_packed_ternary_weights_are_refused_by_name(tmp_path: Path) -> None:
    """Four rows in a row of bytes, with a scale; with the config that says so and without it."""
    with pytest.raises(SpecError, match="the weights are quantised by bitnet"):
        keys({**BITNET, "quantization_config": PACKED})
    (tmp_path / "config.json").write_text(json.dumps(BITNET))
    function = compile_spec(from_tree(parse(api.import_spec(tmp_path), "s.yaml"))).function
    held = rules(load_layout("bitnet"), function, group_sizes(function))
    tensors = {rule.name: np.ones(rule.shape, np.float32) for rule in held}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    assert "as the checkpoint's tensors have them" in api.import_spec(tmp_path)
    name = "model.layers.0.mlp.down_proj.weight"
    tensors[name] = np.zeros((tensors[name].shape[0] // 4, tensors[name].shape[1]), np.uint8)
    tensors[f"{name}_scale"] = np.ones(1, np.float32)
    write_safetensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(CheckpointError) as caught:
        api.import_spec(tmp_path)
    assert f"misshapen: {name}" in str(caught.value) and f"extra: {name}_scale" in str(caught.value)
    tensors[name] = np.zeros((64, 96), np.uint8)
    del tensors[f"{name}_scale"]
    write_safetensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(CheckpointError, match=rf"{name}"):
        api.import_spec(tmp_path)
