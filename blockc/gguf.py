"""GGUF files, through the `gguf` package: tensors dequantised one at a time, and the tokenizer of the metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blockc.ops import Array
from blockc.safetensors import CheckpointError, Shape, shown


@dataclass(frozen=True)
class Encoded:
    """A tensor in blocks of some kind of GGUF: `rows` is its shape in bytes, or in numbers of `stored`."""

    path: Path
    offset: int
    rows: Shape
    stored: np.dtype[Any]
    kind: Any  # gguf.GGMLQuantizationType
    shape: Shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)

    def chunks(self) -> Iterator[Array]:
        yield self.read().reshape(-1)

    def read(self) -> Array:
        from gguf.quants import dequantize

        count = int(np.prod(self.rows))
        data = np.fromfile(self.path, self.stored, count, offset=self.offset)
        if data.size != count:
            raise CheckpointError(f"{self.path} has become shorter while it was read")
        return np.asarray(dequantize(data.reshape(self.rows), self.kind), np.float32).reshape(self.shape)


@dataclass(frozen=True)
class GGUF:
    architecture: str
    tensors: Mapping[str, Encoded]
    metadata: Mapping[str, Any]

    def companions(self) -> dict[str, bytes]:
        """tokenizer.json where the metadata says all of it, and the chat template."""
        found: dict[str, bytes] = {}
        if isinstance(template := self.metadata.get("tokenizer.chat_template"), str):
            found["chat_template.jinja"] = template.encode()
        if (tokenizer := tokenizer_json(self.metadata)) is not None:
            found["tokenizer.json"] = (json.dumps(tokenizer, ensure_ascii=False, indent=2) + "\n").encode()
        return found


def read(path: Path) -> GGUF:
    """The header of a GGUF file. Raises CheckpointError; ModuleNotFoundError without the `gguf` package."""
    import gguf

    try:
        reader: Any = gguf.GGUFReader(path)
        metadata = {name: item.contents() for name, item in reader.fields.items()}
        tensors = {str(t.name): _encoded(path, t) for t in reader.tensors}
    except (ValueError, KeyError, IndexError, OverflowError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: not a GGUF file that can be read: {shown(error)}") from None
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not tensors:
        raise CheckpointError(f"{path}: a GGUF file without {'tensors' if architecture else 'general.architecture'}")
    return GGUF(architecture, tensors, metadata)


def _encoded(path: Path, tensor: Any) -> Encoded:
    """GGUF counts axes from the innermost one."""
    from gguf.quants import quant_shape_from_byte_shape

    shape = tuple(int(n) for n in reversed(tensor.shape))
    rows = tuple(int(n) for n in tensor.data.shape)
    if tensor.data.dtype == np.uint8 and tuple(quant_shape_from_byte_shape(rows, tensor.tensor_type)) != shape:
        raise ValueError(f"{tensor.name} is {shape}, but its blocks are {rows}")
    return Encoded(path, int(tensor.data_offset), rows, tensor.data.dtype, tensor.tensor_type, shape)


# By model (this one is the byte-level BPE) and pre-tokenizer, how text is split, as llama.cpp has it. What is not here
# is left out.
_SPLITS: dict[tuple[object, object], list[dict[str, Any]]] = {
    ("gpt2", "smollm"): [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ]
}
_NORMAL, _CONTROL, _USER = 1, 3, 4


def tokenizer_json(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """A byte-level BPE as the `tokenizers` package has it, or None where the metadata does not say all of it."""
    said = {name.removeprefix("tokenizer.ggml."): value for name, value in metadata.items()}
    splits = _SPLITS.get((said.get("model"), said.get("pre")))
    tokens, kinds, merges = (said.get(name) for name in ("tokens", "token_type", "merges"))
    if splits is None or not tokens or not merges or len(kinds or ()) != len(tokens):
        return None
    if said.get("add_bos_token") or said.get("add_eos_token") or set(kinds or ()) - {_NORMAL, _CONTROL, _USER}:
        return None
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": i, "content": token, **plain, "special": kind == _CONTROL}
        for i, (token, kind) in enumerate(zip(tokens, kinds or (), strict=True))
        if kind != _NORMAL
    ]
    bytewise = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    unknown = said.get("unknown_token_id")
    model = {
        "type": "BPE", "dropout": None, "unk_token": None if unknown is None else tokens[unknown],
        "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": False, "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges,
    }  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits}, "post_processor": None, "decoder": bytewise,
        "model": model,
    }  # fmt: skip
