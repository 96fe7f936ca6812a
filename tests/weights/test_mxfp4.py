"""Experts in MXFP4, as gpt-oss is published: read as the floats that transformers makes of them, or carried."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import save_file
from transformers.integrations import mxfp4

from blockc import api
from blockc.basics.errors import CheckpointError, UsageError
from blockc.emit.external import external_tensors, operators_of
from blockc.graph.quant import Quant, parse_quant
from blockc.graph.target import Target
from blockc.ir import Array, Blocks
from blockc.language.spec import resolve_spec
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.weights import mxfp4 as own
from blockc.weights.carry import carried_blocks, row_order, why_not_carried
from blockc.weights.checkpoint import open_checkpoint
from blockc.weights.data import write_data
from blockc.weights.matching import split_tensor
from blockc.weights.mxfp4 import Mxfp4Tensor
from blockc.weights.plan import DATA, WeightPlan, plan_weights
from blockc.weights.rules import Rule
from tests.checkpoints import off_by, parameters_in, rules_of, tensors, twin
from tests.reference.models import spec_of

outside: Any = mxfp4
EIGHT = Blocks(8, 32)
EXACT = Quant("experts", (("*.experts.*", EIGHT),), level=0)


def model() -> Compiled:
    """gpt-oss' twin with widths that are whole blocks."""
    keys = resolve_spec(twin("gpt-oss-20b").spec)
    return compile_spec(spec_of({**keys, "width": 64, "mlp": {**keys["mlp"], "width": 32}}))


def coded(held: dict[str, Array]) -> tuple[dict[str, torch.Tensor], dict[str, Array]]:
    """(A file whose matrices of experts are random codes; the floats that transformers makes of it.)"""
    stored: dict[str, torch.Tensor] = {}
    floats: dict[str, Array] = {}
    chance = torch.Generator().manual_seed(4)
    for name, array in held.items():
        if array.ndim != 3:
            stored[name], floats[name] = torch.from_numpy(array), array
            continue
        experts, inputs, outputs = array.shape
        codes = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8, generator=chance)
        scales = torch.randint(118, 126, codes.shape[:-1], dtype=torch.uint8, generator=chance)
        stored |= {f"{name}_blocks": codes, f"{name}_scales": scales}
        floats[name] = outside.convert_moe_packed_tensors(codes, scales, dtype=torch.float32).numpy()
        assert floats[name].shape == array.shape
    return stored, floats


def save(folder: Path, stored: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_every_code_and_scale_is_the_number_that_transformers_says(tmp_path: Path) -> None:
    codes = torch.arange(256, dtype=torch.uint8).repeat(255).reshape(3, 85, 16, 16)
    scales = torch.arange(255, dtype=torch.uint8).repeat_interleave(16).reshape(3, 85, 16)
    held = open_checkpoint(save(tmp_path / "in", {"a_blocks": codes, "a_scales": scales})).tensors
    assert set(held) == {"a"}
    wanted = outside.convert_moe_packed_tensors(codes, scales, dtype=torch.float32).numpy()
    np.testing.assert_array_equal(held["a"].read(), wanted)
    pieces = [*held["a"].chunks()]
    assert len(pieces) == 3
    np.testing.assert_array_equal(np.concatenate(pieces), wanted.reshape(-1))


def test_a_build_has_the_floats(tmp_path: Path) -> None:
    held = model()
    stored, floats = coded(tensors(held))
    folder = save(tmp_path / "in", stored)
    made = plan_weights(held.function, open_checkpoint(folder), held.spec.top.checkpoint, None, "fp32")
    assert made.mode == "pack"
    assert "8 tensors are in MXFP4" in made.notes
    assert sum(isinstance(source.tensor, Mxfp4Tensor) for source in made.sources.values()) == 4 * 3
    (tmp_path / "floats").mkdir()
    whole = {name: torch.from_numpy(array).contiguous() for name, array in floats.items()}
    save_file(whole, tmp_path / "floats" / "model.safetensors")
    plain = plan_weights(held.function, open_checkpoint(tmp_path / "floats"), "gpt-oss", "pack", "fp32")
    for plan, name in ((made, "coded"), (plain, "plain")):
        (tmp_path / name).mkdir()
        write_data(plan, tmp_path / name / DATA)
    assert (tmp_path / "coded" / DATA).read_bytes() == (tmp_path / "plain" / DATA).read_bytes()


@pytest.mark.parametrize(
    ("codes", "scales"), [((2, 4, 1, 16), (2, 4, 2)), ((2, 4, 16), (2, 4)), ((2, 4, 1, 32), (2, 4, 1))]
)
def test_codes_that_do_not_fit_are_refused(codes: tuple[int, ...], scales: tuple[int, ...], tmp_path: Path) -> None:
    stored = {"a_blocks": torch.zeros(codes, dtype=torch.uint8), "a_scales": torch.zeros(scales, dtype=torch.uint8)}
    with pytest.raises(CheckpointError, match="a_blocks is .* expected .* a scale for each block"):
        open_checkpoint(save(tmp_path / "in", stored))


def test_a_scale_beyond_all_numbers_is_not_passed_over(tmp_path: Path) -> None:
    held = model()
    stored, _ = coded(tensors(held))
    stored["model.layers.1.mlp.experts.down_proj_scales"][3, 2, 0] = 255
    plan = plan_weights(held.function, open_checkpoint(save(tmp_path / "in", stored)), "gpt-oss", None, "fp32")
    with pytest.raises(CheckpointError, match="not finite: model.layers.1.mlp.experts.down_proj"):
        write_data(plan, tmp_path / DATA)


@pytest.mark.parametrize("target", [Target("cpu"), Target(quant=parse_quant("int8"))], ids=["cpu", "portable"])
def test_a_build_carries_the_codes(target: Target, tmp_path: Path) -> None:
    """Portable by a recipe that asks for such blocks; `--ep cpu` has gate and up of an expert in turn."""
    held = model()
    stored, floats = coded(tensors(held))
    weights, anew = save(tmp_path / "in", stored), target.quant is not None
    made = api.build(held, tmp_path / "out", target=target, proof=False, weights=weights, dequantise=anew)
    assert anew or "carried as the checkpoint encodes them: 8 tensors in MXFP4" in made.notes
    said = json.loads((tmp_path / "out" / "manifest.json").read_text())["target"]["quant"]
    rules = {pattern: (blocks["bits"], blocks["size"]) for pattern, blocks in said["rules"] if blocks}
    names = ["*"] if anew else [f"layers.*.mlp.experts.{name}" for name in ("gate", "up", "down")]
    assert rules == dict.fromkeys(names, (8, 32))
    numbers, params = read_experts(tmp_path / "out"), parameters_in(held, floats)
    assert len(numbers) == 4 * (3 if anew else 2)
    for path, found in numbers.items():
        stem, _, name = path.rpartition(".")
        if name == "inner":
            np.testing.assert_array_equal(found[:, ::2], params[f"{stem}.gate"])
            np.testing.assert_array_equal(found[:, 1::2], params[f"{stem}.up"])
        else:
            np.testing.assert_array_equal(found, params[path])
    assert not api.verify(tmp_path / "out").outdated


def read_experts(folder: Path) -> dict[str, Array]:
    """The numbers that the codes and scales of a build stand for, by the path of their matrix."""
    tensors_ = onnx.load(str(folder / "model.onnx")).graph.initializer
    arrays = {each.name: onnx.numpy_helper.to_array(each) for each in tensors_}
    found: dict[str, Array] = {}
    for name, codes in arrays.items():
        if name.endswith("_codes"):
            stem = name.removesuffix("_codes")
            apart = codes.reshape(*arrays[f"{stem}_scales"].shape, 32).astype(np.float64) - 128
            found[stem] = (apart * arrays[f"{stem}_scales"][..., None]).reshape(*codes.shape[:2], -1)
    return found


@pytest.mark.parametrize(
    "target", [Target("cpu", packed=True, quant=EXACT), Target(quant=EXACT)], ids=["cpu", "portable"]
)
def test_logits_are_the_oracles_on_what_transformers_makes_of_the_codes(target: Target, tmp_path: Path) -> None:
    """Without rounding; onnxruntime's QMoE rounds what it multiplies to 8 bits, and is near."""
    held = model()
    stored, floats = coded(tensors(held))
    params = parameters_in(held, floats)
    plan = plan_weights(held.function, open_checkpoint(save(tmp_path / "in", stored)), "gpt-oss", "pack", "fp32")
    lower(held, target, plan, tmp_path / "exact")
    assert "QMoE" not in {kind for _, kind in operators_of((tmp_path / "exact" / "model.onnx").read_bytes())}
    assert off_by(held, tmp_path / "exact" / "model.onnx", params) < 3e-5
    if target.provider:
        lower(held, replace(target, quant=replace(EXACT, level=4)), plan, tmp_path / "rounded")
        assert "QMoE" in {kind for _, kind in operators_of((tmp_path / "rounded" / "model.onnx").read_bytes())}
        assert 1e-4 < off_by(held, tmp_path / "rounded" / "model.onnx", params) < 0.2


def lower(model: Compiled, target: Target, plan: WeightPlan, folder: Path) -> None:
    """model.onnx of a target that a build does not have, with the plan's weights beside it."""
    folder.mkdir()
    made = replace(plan, result=model.run_recipe(target))
    write_data(made, folder / DATA)
    (folder / "model.onnx").write_bytes(model.lower(target, external_tensors(made.references)))


def test_every_code_and_scale_is_carried_exactly(tmp_path: Path) -> None:
    codes = torch.arange(256, dtype=torch.uint8).repeat(250).reshape(5, 50, 16, 16)
    scales = torch.arange(250, dtype=torch.uint8).repeat_interleave(16).reshape(5, 50, 16)
    tensor = open_checkpoint(save(tmp_path / "in", {"a_blocks": codes, "a_scales": scales})).tensors["a"]
    assert isinstance(tensor, Mxfp4Tensor) and tensor.shape == (5, 512, 50)
    wanted = outside.convert_moe_packed_tensors(codes, scales, dtype=torch.float32).numpy()
    found = restored(tensor, np.arange(250)).reshape(5, 50, 512).swapaxes(1, 2)
    np.testing.assert_array_equal(found, wanted)


def restored(tensor: Mxfp4Tensor, order: Array) -> Array:
    pieces = [EIGHT.restore(codes, scales, lows, tensor.shape[1]) for codes, scales, lows in tensor.codes(order)]
    return np.concatenate(pieces)


def test_rows_are_those_of_the_layout_read_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = model()
    stored, _ = coded(tensors(held))
    files = open_checkpoint(save(tmp_path / "in", stored)).tensors
    monkeypatch.setattr(own, "PIECE", 7 * 64)
    rules = [rule for rule in rules_of(held) if isinstance(files[rule.name], Mxfp4Tensor)]
    assert sorted(len(rule.targets) for rule in rules) == [1] * 4 + [2] * 4
    for rule in rules:
        tensor = files[rule.name]
        assert isinstance(tensor, Mxfp4Tensor) and carried_blocks(tensor, rule) == EIGHT
        for part, wanted in enumerate(split_tensor(rule, tensor.read())):
            order = row_order(rule, part)
            np.testing.assert_array_equal(restored(tensor, order).reshape(wanted.shape), wanted)
            step = 7 * 64 // tensor.shape[1]
            assert [len(codes) for codes, _, _ in tensor.codes(order)][:-1] == [step] * ((len(order) - 1) // step)


def test_codes_take_the_memory_of_a_few_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experts, outputs, inputs = 32, 64, 1024
    stored = {
        "a_blocks": torch.zeros((experts, outputs, inputs // 32, 16), dtype=torch.uint8),
        "a_scales": torch.zeros((experts, outputs, inputs // 32), dtype=torch.uint8),
    }
    tensor = open_checkpoint(save(tmp_path / "in", stored)).tensors["a"]
    assert isinstance(tensor, Mxfp4Tensor)
    monkeypatch.setattr(own, "PIECE", 1 << 15)
    order = np.arange(experts * outputs)
    tracemalloc.start()
    try:
        assert sum(len(codes) for codes, _, _ in tensor.codes(order)) == len(order)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < experts * outputs * inputs / 8, "an eighth of all codes"


def test_a_layout_that_does_not_turn_the_matrices_leaves_no_codes() -> None:
    stored: Any = None
    tensor = Mxfp4Tensor(stored, stored)
    turned = Rule("x", ("a",), 1, 0, True, ((3, 4, 64),))
    assert why_not_carried(tensor, turned) == ""
    columns = replace(turned, targets=("a", "b"), axis=2, shapes=((3, 4, 32), (3, 4, 32)))
    for other in (replace(turned, transpose=False), replace(turned, plus=1.0), columns):
        assert "layout" in why_not_carried(tensor, other) and carried_blocks(tensor, other) is None


def test_codes_are_not_quantised_once_more_unless_asked(tmp_path: Path) -> None:
    held = model()
    stored, _ = coded(tensors(held))
    weights, target = save(tmp_path / "in", stored), Target("cpu", quant=parse_quant("int4"))
    with pytest.raises(UsageError, match=r"int4: the weights are quantised already \(8 tensors in MXFP4\)"):
        api.build(held, tmp_path / "out", target=target, proof=False, weights=weights)
    stored["model.layers.1.mlp.experts.down_proj_scales"][3, 2, 0] = 255
    with pytest.raises(CheckpointError, match=r"model.layers.1.mlp.experts.down_proj"):
        api.build(held, tmp_path / "out", target=Target("cpu"), proof=False, weights=save(tmp_path / "bad", stored))


def test_a_config_in_mxfp4_is_imported(tmp_path: Path) -> None:
    said = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["a"]}}
    (tmp_path / "config.json").write_text(json.dumps(said))
    assert api.compile(tmp_path / "config.json").parameters == 116_829_156_672, "that of gpt-oss-120b"
