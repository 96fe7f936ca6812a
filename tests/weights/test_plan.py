"""Where each parameter comes from: what fits is linked or packed, and what does not is listed in one go."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from blockc import api
from blockc.basics.errors import CheckpointError
from blockc.graph.target import Target
from blockc.ir import Array, parameters_of
from blockc.layouts import load_layout
from blockc.weights.checkpoint import open_checkpoint
from blockc.weights.data import largest, narrow, write_data
from blockc.weights.matching import pack
from blockc.weights.plan import DATA, PAGE, Mode, WeightPlan, plan_weights
from blockc.weights.rules import group_sizes, random_parameters, rules
from tests.checkpoints import encoded, rules_of, save, save_sharded, tensors, twin

FP16 = Target(dtype="fp16")


def planned(name: str, path: Path, mode: Mode = "link") -> WeightPlan:
    model = twin(name)
    return plan_weights(model.function, open_checkpoint(path), model.spec.top.checkpoint, mode, "fp32")


@pytest.mark.parametrize("name", ["llama3-8b", "gemma2-9b", "gpt2", "pythia-410m"])
def test_each_parameter_has_one_place_of_its_length(name: str, tmp_path: Path) -> None:
    save(tmp_path / "model.safetensors", tensors(twin(name)))
    shapes = {path: param.shape for path, param in parameters_of(twin(name).function).items()}
    for mode in ("link", "pack"):
        made = planned(name, tmp_path, mode).references
        assert {path: r.shape for path, r in made.items()} == shapes
        assert all(r.length == 4 * np.prod(r.shape) for r in made.values())
        spans = sorted((r.location, r.offset, r.offset + r.length) for r in made.values())
        assert all(a[0] != b[0] or a[2] <= b[1] for a, b in pairwise(spans)), "none overlaps"
        assert all(r.offset % PAGE == 0 for r in made.values() if r.location == DATA)


def test_what_is_only_renamed_is_linked_and_the_rest_packed(tmp_path: Path) -> None:
    def linked(name: str) -> set[str]:
        save(tmp_path / name / "model.safetensors", tensors(twin(name)))
        return set(planned(name, tmp_path / name).linked)

    assert linked("llama3-8b") == set(parameters_of(twin("llama3-8b").function))
    gpt2 = linked("gpt2")
    assert "embedding.weight" in gpt2 and "layers.0.attention.o.bias" in gpt2
    assert not gpt2 & {"layers.0.attention.o.weight", "layers.0.attention.q.weight", "layers.0.attention.q.bias"}
    pythia = linked("pythia-410m")
    assert "layers.0.attention.o.weight" in pythia and "layers.0.attention.q.weight" not in pythia


def test_a_tied_weight_is_stored_once(tmp_path: Path) -> None:
    held = tensors(twin("smollm2-135m"))
    assert "lm_head.weight" not in held
    save(tmp_path / "model.safetensors", held | {"lm_head.weight": held["model.embed_tokens.weight"]})
    made = planned("smollm2-135m", tmp_path, "pack")
    assert made.notes == ("lm_head.weight equals embedding.weight, which the spec ties it to: stored once",)
    written = write_data(made, tmp_path / DATA)
    assert written is not None
    assert written.size == (tmp_path / DATA).stat().st_size < 4 * twin("smollm2-135m").parameters + PAGE * len(held)


def test_a_tied_head_that_differs_is_refused(tmp_path: Path) -> None:
    held = tensors(twin("gpt2"))
    save(tmp_path / "model.safetensors", held | {"lm_head.weight": held["transformer.wte.weight"] + 1e-6})
    with pytest.raises(CheckpointError, match=r"untied: lm_head.weight differs from embedding.weight"):
        planned("gpt2", tmp_path)


def test_an_untied_spec_needs_its_head(tmp_path: Path) -> None:
    held = tensors(twin("llama3-8b"))
    del held["lm_head.weight"]
    save(tmp_path / "model.safetensors", held)
    with pytest.raises(CheckpointError, match=r"missing: lm_head.weight \(\d+, \d+\)"):
        planned("llama3-8b", tmp_path)


def test_all_that_is_wrong_is_listed_in_one_go_and_nothing_is_written(tmp_path: Path) -> None:
    held = tensors(twin("smollm2-135m"))
    del held["model.layers.0.mlp.up_proj.weight"], held["model.norm.weight"]
    held["model.layers.0.mlp.gate_proj.weight"] = held["model.layers.0.mlp.gate_proj.weight"][:-1]
    held["model.layers.1.self_attn.q_proj.weight"] = held["model.layers.1.self_attn.q_proj.weight"].T[:, :-1]
    held |= {"stray": np.ones(3, np.float32), "model.layers.9.mlp.up_proj.weight": np.ones(3, np.float32)}
    held["lm_head.weight"] = held["model.embed_tokens.weight"] * 2
    path = save(tmp_path / "model.safetensors", held, words={"model.layers.0.input_layernorm.weight": "I64"})
    with pytest.raises(CheckpointError) as caught:
        api.build(twin("smollm2-135m"), tmp_path / "out", proof=False, weights=path)
    assert not (tmp_path / "out").exists()
    lines = str(caught.value).splitlines()
    for start in (
        "  missing: model.layers.0.mlp.up_proj.weight",
        "  missing: model.norm.weight",
        "  misshapen: model.layers.0.mlp.gate_proj.weight is",
        "  misshapen: model.layers.1.self_attn.q_proj.weight is",
        "  misshapen: model.layers.0.input_layernorm.weight holds int64",
        "  extra: stray",
        "  extra: model.layers.9.mlp.up_proj.weight",
        "  untied: lm_head.weight differs",
    ):
        assert [line for line in lines if line.startswith(start)], start
    assert len(lines) == 9


@pytest.mark.parametrize("mode", ["link", "pack"])
@pytest.mark.parametrize("word", ["F32", "F16", "BF16"])
def test_nan_and_inf_are_reported_by_name(mode: Mode, word: str, tmp_path: Path) -> None:
    held = tensors(twin("gpt2"))
    held["transformer.ln_f.bias"][1] = np.nan
    held["transformer.h.0.attn.c_attn.weight"][2, 3] = -np.inf
    save(tmp_path / "model.safetensors", held, word)
    with pytest.raises(CheckpointError) as caught:
        api.build(twin("gpt2"), tmp_path / "out", proof=False, weights=tmp_path / "model.safetensors", mode=mode)
    assert {line.split(":")[1].split()[0] for line in str(caught.value).splitlines()[1:]} == {
        "transformer.ln_f.bias",
        "transformer.h.0.attn.c_attn.weight",
    }
    assert "NaN or Inf" in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("mode", ["link", "pack"])
def test_what_the_float_type_cannot_hold_is_named(mode: Mode, tmp_path: Path) -> None:
    held = tensors(twin("llama3-8b"))
    held["lm_head.weight"][0, 0] = 1e5
    path = save(tmp_path / "model.safetensors", held)
    with pytest.raises(CheckpointError, match=r"too large: lm_head.weight holds 100000, and fp16 ends at 65504"):
        api.build(twin("llama3-8b"), tmp_path / "out", proof=False, weights=path, mode=mode, target=FP16)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save_sharded(tmp_path, tensors(twin("llama3-8b")), 3)
    assert len(planned("llama3-8b", tmp_path).links) == 3
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003.safetensors: no such file"):
        planned("llama3-8b", tmp_path)


def test_the_names_of_the_parameters_serve_where_the_spec_names_no_layout(tmp_path: Path) -> None:
    model = twin("block-4x4")
    assert model.spec.top.checkpoint is None
    params = {path: array.astype(np.float32) for path, array in random_parameters(model.function, 3).items()}
    save(tmp_path / "model.safetensors", params)
    assert {s.name for s in planned("block-4x4", tmp_path).sources.values()} == set(params)


def test_the_largest_magnitude_sees_everything() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        assert largest(np.array([1, -3, 2], dtype)) == 3
        assert largest(np.array([[1, -np.inf], [0, 2]], dtype)[:, ::-1]) == np.inf
        assert np.isnan(largest(np.array([np.inf, -np.nan, 2], dtype)))


def test_rounding_to_bf16_is_that_of_the_library() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")  # onnx brings it along
    random = np.random.RandomState(0)
    numbers = np.concatenate([random.standard_normal(10_000), [0, -0.0, 1e-40, 3e38, 1 + 2**-8, 1 + 3 * 2**-8]])
    wanted = numbers.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    assert np.array_equal(narrow(numbers.astype(np.float32), "bf16"), wanted)
    assert encoded(np.array([1.5], np.float32), "BF16") == narrow(np.array([1.5], np.float32), "bf16").tobytes()


def test_permuted_rows_come_back() -> None:
    """Halves as a file of interleaved pairs has them: by the formula of llama.cpp's converter."""
    model = twin("llama3-8b")
    table = rules_of(model)
    one = next(r for r in table if r.name == "model.layers.0.self_attn.q_proj.weight")
    heads = group_sizes(model.function)["heads"]
    params: dict[str, Array] = random_parameters(model.function, 1)
    weight = params["layers.0.attention.q.weight"]
    file = weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)
    permuted = replace(one, permuted=heads)
    packed = pack(replace(table, each=(permuted,)), {"layers.0.attention.q.weight": weight})
    assert np.array_equal(packed[one.name], file)
    assert not np.array_equal(file, weight)
    assert rules(load_layout("llama"), model.function, group_sizes(model.function)).each == table.each
