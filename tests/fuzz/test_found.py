"""What chance has found, each as a plain case."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from blockc.basics.errors import CheckpointError
from blockc.weights.checkpoint import open_checkpoint
from tests.fuzz.test_valid import made
from tests.spec_text import BARE, changed

library: Any = gguf
KIND: Any = gguf.GGMLQuantizationType


@pytest.mark.parametrize(
    ("below", "own"),
    [
        ("rope: {theta: 100, pairing: half, pairs: 1}", "rope: {pairs: none}"),
        ("rope: {theta: 100, pairing: half, dims: 2}", "rope: {dims: none, pairs: 1}"),
        ("qk_norm: {over: head, weights: shared}", "qk_norm: {over: projection, weights: none}"),
    ],
)
def test_a_part_that_removes_a_key_within_a_key_is_resolved_without_it(below: str, own: str) -> None:
    model = made(
        changed(
            f"attention: {{heads: 2, {below}}}\n{BARE}block: [{{residual: [attention]}}, {{residual: [second]}}, mlp]\n"
            f"parts: {{second: {{attention: {{{own}}}}}}}"
        )
    )
    assert made(model.resolved_yaml()).decoder.semantic_hash == model.decoder.semantic_hash


def text(word: str) -> bytes:
    return struct.pack("<Q", len(word)) + word.encode()


def test_an_array_of_gguf_that_goes_on_behind_the_end_is_refused(tmp_path: Path) -> None:
    """With a length of 2^62 the reader of the package counts to that."""
    path = tmp_path / "model.gguf"
    array = text("a") + struct.pack("<IIQ", 9, 0, 300_000)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + array)
    with pytest.raises(CheckpointError, match="the file ends before the data at byte"):
        open_checkpoint(path)


def test_arrays_of_gguf_in_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    deep = text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 3000 + struct.pack("<IQI", 4, 1, 7)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + deep)
    with pytest.raises(CheckpointError, match="not a GGUF file that can be read"):
        open_checkpoint(path)


def written(path: Path, tensor: Any, kind: Any) -> Path:
    writer = library.GGUFWriter(str(path), "llama")
    writer.add_tensor("a", tensor, raw_dtype=kind)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return path


def test_blocks_of_gguf_that_nobody_can_read_are_named(tmp_path: Path) -> None:
    path = written(tmp_path / "model.gguf", np.zeros((2, 40), np.uint8), KIND.Q8_1)
    held = open_checkpoint(path)
    with pytest.raises(CheckpointError, match="blocks of Q8_1 are not read"):
        held.tensors["a"].read()


def test_a_tensor_of_gguf_without_numbers_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "model.gguf", np.zeros((0, 32), np.float32), KIND.F32)
    with pytest.raises(CheckpointError, match=r"tensors without elements.*\n  empty: a"):
        open_checkpoint(path)
