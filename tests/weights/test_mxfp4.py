"""Experts in MXFP4, as gpt-oss is published: read as the floats that transformers makes of them, one at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers.integrations import mxfp4

from blockc import api
from blockc.basics.errors import CheckpointError
from blockc.ir import Array
from blockc.language.spec import resolve_spec
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.weights.checkpoint import open_checkpoint
from blockc.weights.data import write_data
from blockc.weights.mxfp4 import Mxfp4Tensor
from blockc.weights.plan import DATA, plan_weights
from tests.checkpoints import tensors, twin
from tests.reference.models import spec_of

outside: Any = mxfp4


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
    assert "8 tensors in MXFP4 are read as floats" in made.notes
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


def test_a_config_in_mxfp4_is_imported(tmp_path: Path) -> None:
    said = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["a"]}}
    (tmp_path / "config.json").write_text(json.dumps(said))
    assert api.compile(tmp_path / "config.json").parameters == 116_829_156_672, "that of gpt-oss-120b"
