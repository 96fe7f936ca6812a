"""Files that are named as weights: what is read though it lies otherwise, and what is said of what is none."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from blockc import api
from blockc.basics.errors import CheckpointError
from blockc.ir import Array
from blockc.weights.checkpoint import has_weights, open_checkpoint
from tests.checkpoints import off_by, save, save_sharded, tensors, twin
from tests.weights.test_gguf import write

library: Any = gguf
MODEL = "smollm2-135m"


def split(folder: Path, parts: int, name: str = "x", count: int | None = None) -> dict[str, Array]:
    """A GGUF model in parts, by the package's own writer. (Its parameters.)"""
    params = write(twin(MODEL), folder / "whole.gguf")
    reader = library.GGUFReader(folder / "whole.gguf")
    held = reader.tensors
    for i in range(parts):
        writer = library.GGUFWriter(folder / f"{name}-{i + 1:05}-of-{parts:05}.gguf", "llama")
        if i == 0:
            writer.add_uint32("llama.block_count", 2)
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", parts)
        writer.add_int32("split.tensors.count", len(held) if count is None else count)
        for tensor in held[i::parts]:
            writer.add_tensor(tensor.name, tensor.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    (folder / "whole.gguf").unlink()
    return params


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        api.build(twin(MODEL), path.parent / "out", proof=False, weights=path)
    assert not (path.parent / "out").exists()
    return str(caught.value)


# GGUF in parts, and in folders


@pytest.mark.parametrize("named", ["x-00001-of-00003.gguf", "x-00003-of-00003.gguf", "."])
def test_a_split_file_is_read_whole(named: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    params = split(tmp_path / "in", 3)
    api.build(twin(MODEL), tmp_path / "out", proof=False, weights=tmp_path / "in" / named)
    assert off_by(twin(MODEL), tmp_path / "out" / "model.onnx", params) < 3e-5


def test_a_split_file_that_is_not_whole_is_named(tmp_path: Path) -> None:
    split(tmp_path, 3)
    second = tmp_path / "x-00002-of-00003.gguf"
    kept = second.read_bytes()
    second.unlink()
    assert refused(tmp_path / "x-00001-of-00003.gguf").splitlines()[1:] == ["  x-00002-of-00003.gguf"]
    second.write_bytes((tmp_path / "x-00003-of-00003.gguf").read_bytes())
    assert "x-00002-of-00003.gguf: not part 2 of 3" in refused(tmp_path / "x-00001-of-00003.gguf")
    (tmp_path / "alone.gguf").write_bytes(kept)
    assert "part 2 of 3 of a split GGUF file" in refused(tmp_path / "alone.gguf")
    second.write_bytes(kept)
    open_checkpoint(tmp_path / "x-00001-of-00003.gguf")


def test_a_split_file_of_fewer_tensors_than_it_says_is_named(tmp_path: Path) -> None:
    split(tmp_path, 2, count=99)
    assert "hold 20 tensors together, expected 99" in refused(tmp_path / "x-00001-of-00002.gguf")


def test_a_folder_of_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    params = write(twin(MODEL), tmp_path / "in.gguf")
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "in.gguf").rename(folder / "X.GGUF")
    assert has_weights(folder)
    for weights in (folder, folder / "X.GGUF"):
        api.build(twin(MODEL), tmp_path / "out", proof=False, weights=weights)
        assert off_by(twin(MODEL), tmp_path / "out" / "model.onnx", params) < 3e-5


def test_of_several_gguf_files_one_must_be_named(tmp_path: Path) -> None:
    split(tmp_path, 2)
    write(twin(MODEL), tmp_path / "other.gguf")
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path)
    first, *names = str(caught.value).splitlines()
    assert first.endswith("holds several GGUF files: name one of them")
    assert [name.strip() for name in names] == ["other.gguf", "x-00001-of-00002.gguf"]
    open_checkpoint(tmp_path / "other.gguf")


def test_safetensors_come_before_gguf(tmp_path: Path) -> None:
    write(twin(MODEL), tmp_path / "other.gguf")
    save(tmp_path / "model.safetensors", tensors(twin(MODEL)))
    assert open_checkpoint(tmp_path).files


def test_a_gguf_file_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    """A download cache names files by their hash."""
    write(twin(MODEL), tmp_path / "in.gguf")
    (tmp_path / "in.gguf").rename(tmp_path / "0a1b2c")
    assert open_checkpoint(tmp_path / "0a1b2c").metadata is not None


def big_endian(path: Path) -> None:
    write(twin(MODEL), path.with_name("little.gguf"))
    writer = library.GGUFWriter(path, "llama", endianess=library.GGUFEndian.BIG)
    for tensor in library.GGUFReader(path.with_name("little.gguf")).tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_name("little.gguf").unlink()


def adapter(path: Path) -> None:
    writer = library.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_tensor("blk.0.attn_q.weight.lora_a", np.ones((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def empty_gguf(path: Path) -> None:
    writer = library.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", np.ones((4, 4), np.float32))
    writer.add_tensor("output_norm.weight", np.ones((0,), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def empty_tensor(path: Path) -> None:
    save(path, tensors(twin(MODEL)) | {"model.norm.weight": np.ones((0,), np.float32)})


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 269060552\n"
PAGE = b"\n<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>\n"
OLD = b"GGUF" + struct.pack("<I", 1) + bytes(16)
FILES: dict[str, tuple[str, bytes | Callable[[Path], None], str]] = {
    "pointer": ("model.safetensors", POINTER, "it is a git-lfs pointer instead of the weights: fetch them with"),
    "page": ("model.safetensors", PAGE, "it is an HTML page, which some sites send instead of a file: download"),
    "answer": ("model.safetensors", b'{"error": "Invalid credentials"}', "not a safetensors file: it is JSON text"),
    "archive": ("model.safetensors", b"PK\x03\x04" + bytes(99), "as torch.save writes it: pickled weights are never"),
    "another name": ("model.safetensors", b"GGUF" + bytes(99), "it is a GGUF file: call it .gguf"),
    "gguf pointer": ("x.gguf", POINTER, "not a GGUF file: it is a git-lfs pointer"),
    "gguf page": ("x.gguf", PAGE, "not a GGUF file: it is an HTML page"),
    "gguf of 2023": ("x.gguf", OLD, "a GGUF file of version 1, of 2023, which is no longer read: convert it again"),
    "big-endian": ("x.gguf", big_endian, "a big-endian GGUF file, for other processors: turn a copy of it with"),
    "adapter": ("x.gguf", adapter, "a GGUF file of the type adapter, and not a model"),
    "empty gguf": ("x.gguf", empty_gguf, "empty: output_norm.weight\n  gather the parameters, and save them again"),
    "empty tensor": ("model.safetensors", empty_tensor, "empty: model.norm.weight\n  gather the parameters"),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_a_file_of_another_kind_is_said_to_be_what_it_is(case: str, tmp_path: Path) -> None:
    name, made, line = FILES[case]
    if isinstance(made, bytes):
        (tmp_path / name).write_bytes(made)
    else:
        made(tmp_path / name)
    assert line in refused(tmp_path / name)
    assert str(tmp_path / name) in refused(tmp_path / name)


def test_an_index_that_is_a_pointer_is_said_to_be_one(tmp_path: Path) -> None:
    save_sharded(tmp_path / "in", tensors(twin(MODEL)), 2)
    (tmp_path / "in" / "model.safetensors.index.json").write_bytes(POINTER)
    with pytest.raises(CheckpointError, match=r"index\.json: .*it is a git-lfs pointer"):
        open_checkpoint(tmp_path / "in")


def test_of_many_tensors_without_elements_the_first_are_named(tmp_path: Path) -> None:
    held = {f"t{i:03}": np.ones((0,), np.float32) for i in range(100)}
    assert "and 80 more" in refused(save(tmp_path / "model.safetensors", held))


def test_a_folder_without_weights_says_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert not has_weights(tmp_path)
    with pytest.raises(CheckpointError, match=r"holds neither model\.safetensors nor model\.safetensors\.index\.json"):
        open_checkpoint(tmp_path)
