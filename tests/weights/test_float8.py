"""Checkpoints in fp8 with scales beside them: read as the floats that torch makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from blockc import api
from blockc.basics.errors import CheckpointError
from blockc.ir import Array
from blockc.weights.checkpoint import open_checkpoint
from blockc.weights.safetensors import F8, widen
from tests.checkpoints import tensors, twin
from tests.paths import DATA

BLOCK = (16, 24)


def test_every_code_is_the_number_that_torch_says() -> None:
    codes = np.arange(256, dtype=np.uint8)
    wanted = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(widen(codes, F8), wanted)
    assert np.isnan(wanted).sum() == 2


def coded(
    held: dict[str, Array], block: tuple[int, int] | None = BLOCK
) -> tuple[dict[str, torch.Tensor], dict[str, Array]]:
    """(A checkpoint whose matrices of layers are in fp8; the floats that torch makes of it.)"""
    stored: dict[str, torch.Tensor] = {}
    floats: dict[str, Array] = {}
    for name, array in held.items():
        whole = torch.from_numpy(np.float32(array))
        if whole.ndim != 2 or ".layers." not in name:
            stored[name], floats[name] = whole, whole.numpy()
            continue
        rows, columns = block or whole.shape
        counts = -(-whole.shape[0] // rows), -(-whole.shape[1] // columns)
        scales = torch.rand(counts, generator=torch.Generator().manual_seed(len(name))) / 100 + 0.001
        wide = scales.repeat_interleave(rows, 0)[: whole.shape[0]].repeat_interleave(columns, 1)[:, : whole.shape[1]]
        stored[name] = (whole / wide).clamp(-448, 448).to(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = scales if block else scales.reshape(())
        floats[name] = (stored[name].float() * wide).numpy()
    return stored, floats


def save(folder: Path, stored: dict[str, torch.Tensor], block: object = BLOCK) -> Path:
    folder.mkdir()
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    said = {"model_type": "of no map", "quantization_config": {"quant_method": "fp8", "weight_block_size": block}}
    (folder / "config.json").write_text(json.dumps(said))
    return folder


@pytest.mark.parametrize("block", [BLOCK, None], ids=["in blocks", "of a whole matrix"])
def test_a_checkpoint_in_fp8_is_read_as_floats(
    block: tuple[int, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a matrix is read in several pieces."""
    monkeypatch.setattr("blockc.weights.float8.CHUNK", 2000)
    stored, floats = coded(tensors(twin("llama3-8b")), block)
    held = open_checkpoint(save(tmp_path / "in", stored)).tensors
    assert held.keys() == floats.keys()
    for name, wanted in floats.items():
        np.testing.assert_array_equal(held[name].read(), wanted)
        np.testing.assert_array_equal(np.concatenate([*held[name].chunks()]), wanted.reshape(-1))


@pytest.mark.parametrize(("name", "mode"), [("llama3-8b", None), ("llama3-8b", "link"), ("deepseek-v3", None)])
def test_a_build_has_the_floats(name: str, mode: Literal["link"] | None, tmp_path: Path) -> None:
    """Packed, whatever is asked for: a graph cannot point into codes. Each expert has scales of its own."""
    model = twin(name)
    stored, floats = coded(tensors(model))
    count = sum(tensor.dtype == torch.float8_e4m3fn for tensor in stored.values())
    assert count == 14 or any(".experts.7." in tensor for tensor in stored)
    built = api.build(model, tmp_path / "out", proof=False, weights=save(tmp_path / "in", stored), mode=mode)
    said = f"{count} tensors in fp8, {count} of them with scales"
    assert any(note.startswith(said) for note in built.notes), built.notes
    (tmp_path / "floats").mkdir()
    save_file({name: torch.from_numpy(a) for name, a in floats.items()}, tmp_path / "floats" / "model.safetensors")
    api.build(model, tmp_path / "other", proof=False, weights=tmp_path / "floats", mode="pack")
    coded_, plain = ((tmp_path / folder / "model.onnx.data").read_bytes() for folder in ("out", "other"))
    assert coded_ == plain
    assert api.verify(tmp_path / "out").outdated == ()


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ((16, 16), r"weight_scale_inv is \(.*\): expected \(.*\), a scale for each block of 16 x 16"),
        ([16], "weight_block_size is .* expected two counts"),
        ([0, 16], "weight_block_size is .* expected two counts"),
        ("all", "weight_block_size is all: expected two counts"),
    ],
)
def test_scales_that_do_not_fit_are_refused(block: object, why: str, tmp_path: Path) -> None:
    stored, _ = coded(tensors(twin("llama3-8b")))
    with pytest.raises(CheckpointError, match=why):
        open_checkpoint(save(tmp_path / "in", stored, block))


def test_a_config_in_fp8_is_imported(tmp_path: Path) -> None:
    rows = json.loads((DATA / "models.json").read_text())
    config = next(row["hf_config"] for row in rows if row["model_type"] == "llama")

    def imported(**more: object) -> api.Compiled:
        (tmp_path / "config.json").write_text(json.dumps(config | more))
        return api.compile(tmp_path / "config.json")

    wanted = imported().parameters
    assert imported(quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]}).parameters == wanted
    with pytest.raises(api.SpecError, match="quantised by gptq"):
        imported(quantization_config={"quant_method": "gptq"})
