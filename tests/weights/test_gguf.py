"""GGUF files: dequantised, un-permuted, and with their tokenizer. The files are written by the `gguf` package."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import torch
import transformers
from transformers import modeling_gguf_pytorch_utils
from transformers.integrations.gguf import gguf_tokenizer_mapping

from blockc import api
from blockc.basics.errors import CheckpointError
from blockc.graph.build import build_graph
from blockc.ir import Array, Function, parameters_of
from blockc.language.algebra import elaborate
from blockc.language.spec import from_tree
from blockc.layouts import GGUF_WORDS, LayoutError, load_gguf_layout, read_layout
from blockc.pipeline.compiled import Compiled
from blockc.source import SpecError, parse
from blockc.weights.checkpoint import open_checkpoint
from blockc.weights.gguf import tokenizer_json
from blockc.weights.matching import pack
from blockc.weights.plan import plan_weights
from blockc.weights.rules import group_sizes, random_parameters
from tests.checkpoints import ROOT, off_by, twin
from tests.cli.test_cli import run_without
from tests.weights.test_weights import CASES, GEMMA2

library: Any = gguf
outside: Any = gguf_tokenizer_mapping
outside_reader: Any = modeling_gguf_pytorch_utils
AutoModel: Any = transformers.AutoModelForCausalLM
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
    model: Compiled,
    path: Path,
    kind: str = "F32",
    architecture: str = "llama",
    skip: str = "",
    says: Mapping[str, float] | None = None,
    **extra: Array,
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
    for name, value in (says or {}).items():
        writer.add_float32(f"{architecture}.{name}", value)
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
    with pytest.raises(
        LayoutError, match=r"no checkpoint layout is named 'mamba'; there are: gemma2, gpt2, gptneox, llama"
    ):
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


def test_some_words_are_those_of_gguf_layouts_alone() -> None:
    assert {item.permute_rope for item in load_gguf_layout("llama").items} == {None, "heads", "kv_heads"}
    for text, message in (
        ("layout: 1\ntensors: {a: {of: [b], permute_rope: 4}}", "not a value of permute_rope"),
        ("layout: 1\ntensors: {a: {of: [b, c], permute_rope: heads}}", "permute_rope stands alone"),
        ("layout: 1\ntensors: {a: {of: [b], transpose: true, permute_rope: heads}}", "permute_rope stands alone"),
        ("layout: 1\ntensors: {a: {of: [b, c], plus_offset: true}}", "plus_offset stands alone"),
        ("layout: 1\ntensors: {a: {of: [b], plus_offset: 1}}", "plus_offset is yes or no"),
    ):
        with pytest.raises(SpecError) as caught:
            read_layout("x", parse(text.encode(), "x.yaml"), GGUF_WORDS)
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
    [
        {"model": "llama"},
        {"pre": "poro"},
        {"merges": None},
        {"token_type": [1]},
        {"add_bos_token": True},
    ],
)
def test_a_tokenizer_that_is_not_wholly_said_is_left_out(changed: dict[str, Any]) -> None:
    assert tokenizer_json(metadata(**changed)) is None


TEXT = (
    "It's 2024's  best\u00e9 \u2014 nai\u0308ve caf\u00e9: x1 += 1234567; //\tI'LL\r\n\r\n   don't"
    "\u00a0stop 3.14\u00bd  \n <|im_start|> \u65e5\u672c\u8a9e\U0001f642"
)


def trained(pre: str, split: Any) -> dict[str, Any]:
    """The metadata of a BPE that has learned a text split in this way."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = split  # type: ignore[assignment]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, show_progress=False, special_tokens=["<|endoftext|>", "<|im_start|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    text = (ROOT / "blockc" / "texts" / "alice.txt").read_text(encoding="utf-8")[:2400]
    tokenizer.train_from_iterator([text, TEXT * 3, "in 1066, 1914 and 2001 there were 123456 of them"], trainer)
    learned = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    merges = [" ".join(pair) for pair in learned["merges"]]
    return metadata(pre=pre, tokens=tokens, merges=merges, token_type=[3, 3] + [1] * (len(tokens) - 2), bos_token_id=0)


@pytest.mark.parametrize("pre", ["gpt-2", "phi-2", "qwen2", "llama-bpe"])
def test_ids_are_those_of_transformers(pre: str) -> None:
    """Which has these pre-tokenizers too, and builds its own tokenizer from the metadata."""
    digits = r"\p{N}{1,4}"  # so that pieces are learned that only the right split keeps apart
    said = trained(pre, tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(rf" ?\p{{L}}+|{digits}|\s+|[^\s\p{{L}}\p{{N}}]+"), "isolated"),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]))  # fmt: skip
    del said["tokenizer.ggml.add_bos_token"]
    grouped = {name: said[f"tokenizer.{key}"] for key, name in outside.GGUF_TOKENIZER_MAPPING["tokenizer"].items()
               if f"tokenizer.{key}" in said}  # fmt: skip
    reference, _ = outside.convert_gguf_tokenizer("llama", grouped)
    ours = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(said)))
    ids = ours.encode(TEXT).ids
    assert ids[:1] == [0] if pre == "llama-bpe" else 0 not in ids, "the first token of a text, where the model has one"
    text = unicodedata.normalize("NFC", TEXT) if pre == "qwen2" else TEXT
    assert ours.encode(TEXT, add_special_tokens=False).ids == reference.encode(text, add_special_tokens=False).ids
    assert ours.decode(ids) == text.replace("<|im_start|>", "")
    others = {other: tokenizer_json({**said, "tokenizer.ggml.pre": other}) for other in ("gpt-2", "qwen2", "llama-bpe")}
    pieces = {other: tuple(tokenizers.Tokenizer.from_str(json.dumps(t)).encode(TEXT, add_special_tokens=False).ids)
              for other, t in others.items()}  # fmt: skip
    assert len(set(pieces.values())) == 3, "the text tells them apart"


def test_a_whole_word_of_llama_skips_its_merges() -> None:
    said = metadata(pre="llama-bpe", bos_token_id=0)
    del said["tokenizer.ggml.add_bos_token"]
    said["tokenizer.ggml.tokens"] = [*said["tokenizer.ggml.tokens"], "hello"]  # which no merge gives
    said["tokenizer.ggml.token_type"] = [*said["tokenizer.ggml.token_type"], 1]
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(said)))
    assert tokenizer.encode("hello").tokens == ["<|endoftext|>", "hello"]
    assert tokenizer.encode("hello", "hello").tokens == ["<|endoftext|>", "hello", "hello"]


# Files of other architectures, as llama.cpp's converter makes them of transformers' tensors


def converted(case: str, name: str, array: Array) -> Array:
    """What the converter does to a tensor, beside giving it another name."""
    heads, kv_heads = 4, 2
    if case == "llama" and ("q_proj" in name or "k_proj" in name):
        return interleaved(array, heads if "q_proj" in name else kv_heads)
    if case == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        return array.T
    if case == "gpt-neox" and "query_key_value" in name:
        return np.concatenate(
            list(array.reshape(heads, 3, -1, *array.shape[1:]).swapaxes(0, 1).reshape(3, -1, *array.shape[1:]))
        )
    return array + np.float32(1) if case == "gemma2" and name.endswith("norm.weight") else array


ARCHITECTURES = {"llama": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3", "olmo2": "OLMO2",
                 "gpt2": "GPT2", "phi": "PHI2", "gpt-neox": "GPTNEOX", "gemma2": "GEMMA2"}  # fmt: skip


def converted_file(case: str, path: Path) -> tuple[dict[str, Array], dict[str, Array]]:
    """(The parameters, and transformers' tensors of them) of one of the small models, written as a GGUF file."""
    arch = library.MODEL_ARCH[ARCHITECTURES[case]]
    names = library.get_tensor_name_map(arch, 2)
    params = {name: array.astype(np.float32) for name, array in CASES[case].params().items()}
    held = {name: np.ascontiguousarray(array) for name, array in pack(CASES[case].rules, params).items()}
    writer = library.GGUFWriter(path, library.MODEL_ARCH_NAMES[arch])
    config = CASES[case].config()
    writer.add_name(case)
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", 4))
    writer.add_embedding_length(64)
    writer.add_vocab_size(128)
    for name, array in held.items():
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(found, np.ascontiguousarray(converted(case, name, array)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return params, held


def read_params(function: Function, path: Path) -> dict[str, Array]:
    made = plan_weights(function, open_checkpoint(path), "llama", "pack", "fp32")
    shapes = {name: param.shape for name, param in parameters_of(function).items()}
    return {p: np.concatenate([x.ravel() for x in s.pieces()]).reshape(shapes[p]) for p, s in made.sources.items()}


@pytest.mark.parametrize("case", ARCHITECTURES)
def test_what_the_converter_makes_is_read_back(case: str, tmp_path: Path) -> None:
    params, held = converted_file(case, tmp_path / "model.gguf")
    read = read_params(CASES[case].function, tmp_path / "model.gguf")
    assert read.keys() == params.keys()
    for name, array in params.items():
        assert np.abs(read[name] - array).max() <= 3e-7, name  # what a gain loses to the 1 that is added
    if ARCHITECTURES[case] in ("OLMO2", "PHI2", "GPTNEOX"):
        return  # which transformers does not read
    with torch.device("meta"):
        empty = AutoModel.from_config(CASES[case].config())
    theirs = outside_reader.load_gguf_checkpoint(tmp_path / "model.gguf", return_tensors=True, model_to_load=empty)
    assert set(held) <= set(theirs["tensors"])
    for name, array in held.items():
        assert np.abs(theirs["tensors"][name].numpy() - array).max() <= 3e-7, name


def test_a_gain_with_its_offset_in_it_is_read_by_the_specs_offset(tmp_path: Path) -> None:
    """A spec without one multiplies by what the file holds: the same function."""
    params, _ = converted_file("gemma2", tmp_path / "model.gguf")
    plain = build_graph(elaborate(from_tree(parse(GEMMA2.replace("offset: 1, ", "").encode(), "small.yaml"))))
    read = read_params(plain, tmp_path / "model.gguf")
    for name, array in params.items():
        assert np.array_equal(read[name], array + np.float32(1) if "norm" in name else array), name


def test_reading_a_gguf_file_is_the_commands_too(tmp_path: Path) -> None:
    (tmp_path / "twin.yaml").write_text(twin("llama3-8b").resolved_yaml())
    write(twin("llama3-8b"), tmp_path / "model.gguf", "Q8_0")
    command = [sys.executable, "-m", "blockc", "build", str(tmp_path / "twin.yaml"), "--no-verify"]
    command += ["--weights", str(tmp_path / "model.gguf"), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("encoded weights cannot be linked: packed\n")
