"""GGUF files: dequantised, un-permuted, and with their tokenizer. The files are written by the `gguf` package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers

from blockc import api
from blockc.compile import Compiled
from blockc.gguf import tokenizer_json
from blockc.layouts import gguf_layout
from blockc.ops import Array
from blockc.source import SpecError, parse
from blockc.weights import CheckpointError, LayoutError, group_sizes, random_parameters, read_layout
from tests.checkpoints import ROOT, off_by, twin
from tests.test_cli import run_without

library: Any = gguf
NAMES = {"attention.q": "attn_q", "attention.k": "attn_k", "attention.v": "attn_v", "attention.o": "attn_output",
         "mlp.gate": "ffn_gate", "mlp.up": "ffn_up", "mlp.down": "ffn_down", "attention_norm": "attn_norm",
         "mlp_norm": "ffn_norm"}  # fmt: skip
TOP = {
    "embedding.weight": "token_embd.weight",
    "final_norm.weight": "output_norm.weight",
    "head.weight": "output.weight",
}


def interleaved(array: Array, heads: int) -> Array:
    """As llama.cpp's converter turns the rows of q and k."""
    return array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def gguf_name(path: str) -> str:
    if path in TOP:
        return TOP[path]
    _, layer, rest = path.split(".", 2)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def write(
    model: Compiled, path: Path, kind: str = "F32", architecture: str = "llama", skip: str = "", **extra: Array
) -> dict[str, Array]:
    """Random weights as a GGUF file of that encoding. (The parameters that it holds, after the encoding.)"""
    sizes = group_sizes(model.function)
    writer = library.GGUFWriter(path, architecture)
    params: dict[str, Array] = {}
    wanted = library.GGMLQuantizationType[kind]
    for name, array in random_parameters(model.function, 4).items():
        heads = {"q": sizes["heads"], "k": sizes["kv_heads"]}.get(name.split(".")[-2])
        held = (interleaved(array, heads) if heads else array).astype(np.float32)
        encoding = wanted if held.ndim > 1 and held.shape[-1] % 32 == 0 else library.GGMLQuantizationType.F32
        data = library.quants.quantize(held, encoding)
        back = library.quants.dequantize(data, encoding).reshape(held.shape)
        params[name] = array if kind == "F32" else uninterleaved(back, heads) if heads else back
        if name != skip:
            writer.add_tensor(gguf_name(name), data, raw_dtype=encoding)
    for name, array in extra.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {name: array.astype(np.float64) for name, array in params.items()}


def uninterleaved(array: Array, heads: int) -> Array:
    rows = interleaved(np.arange(array.shape[0]), heads)
    back = np.empty_like(array)
    back[rows] = array
    return back


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1", "Q4_0"])
@pytest.mark.parametrize("name", ["llama3-8b", "smollm2-135m"])
def test_logits_are_the_oracles_on_the_dequantised_weights(name: str, kind: str, tmp_path: Path) -> None:
    params = write(twin(name), tmp_path / "model.gguf", kind)
    made = api.build(twin(name), tmp_path / "out", proof=False, weights=tmp_path / "model.gguf")
    assert made.notes == ("encoded weights cannot be linked: packed",)
    assert off_by(twin(name), tmp_path / "out" / "model.onnx", params) < 3e-5


def test_forgetting_to_permute_would_show(tmp_path: Path) -> None:
    """The test above can fail: with q and k as the file has them the logits are far off."""
    model = twin("llama3-8b")
    params = write(model, tmp_path / "model.gguf")
    api.build(model, tmp_path / "out", proof=False, weights=tmp_path / "model.gguf")
    heads = group_sizes(model.function)["heads"]
    params["layers.0.attention.q.weight"] = interleaved(params["layers.0.attention.q.weight"], heads)
    assert off_by(model, tmp_path / "out" / "model.onnx", params) > 1e-2


def test_a_spec_of_either_pairing_is_the_same_function_of_one_file(tmp_path: Path) -> None:
    half = twin("llama3-8b")
    neighbours = api.twin(api.compile(ROOT / "specs" / "llama3-8b.yaml", ["attention.rope.pairing=interleaved"]))
    params = write(half, tmp_path / "model.gguf")
    api.build(neighbours, tmp_path / "out", proof=False, weights=tmp_path / "model.gguf")
    assert "interleaved" in (tmp_path / "out" / "spec.resolved.yaml").read_text()
    assert off_by(half, tmp_path / "out" / "model.onnx", params) < 3e-5


def test_all_that_does_not_fit_is_listed(tmp_path: Path) -> None:
    write(twin("smollm2-135m"), tmp_path / "model.gguf", skip="final_norm.weight", stray=np.ones(4, np.float32))
    with pytest.raises(CheckpointError) as caught:
        api.build(twin("smollm2-135m"), tmp_path / "out", proof=False, weights=tmp_path / "model.gguf")
    assert "missing: output_norm.weight" in str(caught.value) and "extra: stray" in str(caught.value)


def test_another_architecture_and_a_broken_file_are_named(tmp_path: Path) -> None:
    model = twin("llama3-8b")
    write(model, tmp_path / "a.gguf", architecture="mamba")
    with pytest.raises(LayoutError, match=r"no checkpoint layout is named 'mamba'; there are: llama"):
        api.build(model, tmp_path / "out", proof=False, weights=tmp_path / "a.gguf")
    write(model, tmp_path / "b.gguf")
    data = (tmp_path / "b.gguf").read_bytes()
    for broken in (data[:-100], data[:1000], b"GGUF", b"", b"PK" + data, data[:8] + b"\xff" * 8 + data[16:]):
        (tmp_path / "c.gguf").write_bytes(broken)
        with pytest.raises(CheckpointError, match=r"c.gguf"):
            api.build(model, tmp_path / "out", proof=False, weights=tmp_path / "c.gguf")
    assert not (tmp_path / "out").exists()


def test_without_the_package_it_says_so(tmp_path: Path) -> None:
    write(twin("llama3-8b"), tmp_path / "model.gguf")
    weights = ("--weights", str(tmp_path / "model.gguf"))
    done = run_without(("gguf",), "build", "specs/llama3-8b.yaml", *weights, "--out", str(tmp_path / "out"))
    assert done.returncode == 3
    assert "the package gguf is missing" in done.stderr
    assert not (tmp_path / "out").exists()


def test_permute_rope_is_a_word_of_gguf_layouts_alone() -> None:
    assert {item.permute_rope for item in gguf_layout("llama").items} == {None, "heads", "kv_heads"}
    for text, message in (
        ("layout: 1\ntensors: {a: {of: [b], permute_rope: 4}}", "not a value of permute_rope"),
        ("layout: 1\ntensors: {a: {of: [b, c], permute_rope: heads}}", "permute_rope stands alone"),
        ("layout: 1\ntensors: {a: {of: [b], transpose: true, permute_rope: heads}}", "permute_rope stands alone"),
    ):
        with pytest.raises(SpecError) as caught:
            read_layout("x", parse(text.encode(), "x.yaml"), ("permute_rope",))
        assert caught.value.findings[0].message == message


def metadata(**changed: Any) -> dict[str, Any]:
    """A byte-level BPE of all bytes, a few merges and two special tokens, as GGUF says it."""
    tokens = ["<|endoftext|>", "<|im_start|>", *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()), "he", "hell"]
    tokens += ["ll", "Ġw", "12"]
    said = {"model": "gpt2", "pre": "smollm", "tokens": tokens, "merges": ["h e", "l l", "he ll", "Ġ w", "1 2"],
            "token_type": [3, 3] + [1] * (len(tokens) - 2), "unknown_token_id": 0, "add_bos_token": False}  # fmt: skip
    return {f"tokenizer.ggml.{name}": value for name, value in {**said, **changed}.items()}


def test_the_tokenizer_of_the_metadata_works() -> None:
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(metadata())))
    text = "hello world 12, naïve\n<|im_start|>日本"
    encoded = tokenizer.encode(text)
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == text
    assert encoded.tokens[:3] == ["hell", "o", "Ġw"]
    assert "12" not in encoded.tokens, "digits stand alone, whatever the merges say"
    assert "<|im_start|>" in encoded.tokens


@pytest.mark.parametrize(
    "changed",
    [{"model": "llama"}, {"pre": "llama-bpe"}, {"merges": None}, {"token_type": [1]}, {"add_bos_token": True}],
)
def test_a_tokenizer_that_is_not_wholly_said_is_left_out(changed: dict[str, Any]) -> None:
    assert tokenizer_json(metadata(**changed)) is None


def test_reading_a_gguf_file_is_the_commands_too(tmp_path: Path) -> None:
    (tmp_path / "twin.yaml").write_text(twin("llama3-8b").resolved_yaml())
    write(twin("llama3-8b"), tmp_path / "model.gguf", "Q8_0")
    command = [sys.executable, "-m", "blockc", "build", str(tmp_path / "twin.yaml"), "--no-verify"]
    command += ["--weights", str(tmp_path / "model.gguf"), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("encoded weights cannot be linked: packed\n")
