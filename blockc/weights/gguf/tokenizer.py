"""The tokenizer in a GGUF file's metadata, as the files that the `tokenizers` package and runtimes read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


def generation_config(metadata: Mapping[str, Any]) -> dict[str, int | list[int]]:
    """The ids of special tokens for generation_config.json; two eos where a token ends a turn as well."""
    bos, eos, eot, pad = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot", "padding"))
    ends = list(dict.fromkeys(i for i in (eos, eot) if i is not None))
    said = {"bos_token_id": bos, "eos_token_id": ends[0] if len(ends) == 1 else ends or None, "pad_token_id": pad}
    return {key: i for key, i in said.items() if i is not None}


@dataclass(frozen=True)
class _Split:
    """A pre-tokenizer's steps. `normal` is the normaliser; with `whole`, words in the vocabulary skip the merges."""

    steps: tuple[dict[str, Any], ...]
    normal: str | None = None
    whole: bool = False
    bos: bool = False  # the default of add_bos_token


def _split_bytes(split: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": split}


def _split_regex(numbers: str) -> dict[str, Any]:
    pattern = (
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


# The pre-tokenizers of byte-level BPE by their GGUF names, as in llama.cpp and in the models' tokenizer.json. A file
# with another one gets no tokenizer.json.
_GPT2 = _Split((_split_bytes(split=True),))
_LLAMA3 = _Split((_split_regex(r"\p{N}{1,3}"), _split_bytes(split=False)), whole=True, bos=True)
_SPLITS: dict[object, _Split] = {
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "smollm": _Split(({"type": "Digits", "individual_digits": True}, _split_bytes(split=True))),
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _Split((_split_regex(r"\p{N}"), _split_bytes(split=False)), normal="NFC"),
}
_BYTE_LEVEL = "gpt2"  # what GGUF calls the byte-level BPE
_NORMAL, _CONTROL, _USER = 1, 3, 4


def tokenizer_json(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """A byte-level BPE as the `tokenizers` package reads it, or None where the metadata lacks some of it."""
    said = {name.removeprefix("tokenizer.ggml."): value for name, value in metadata.items()}
    split = _SPLITS.get(said.get("pre")) if said.get("model") == _BYTE_LEVEL else None
    tokens, kinds, merges = (said.get(name) for name in ("tokens", "token_type", "merges"))
    if split is None or not tokens or not merges or len(kinds or ()) != len(tokens):
        return None
    before = bool(said.get("add_bos_token", split.bos))
    first = said.get("bos_token_id") if before else None
    if said.get("add_eos_token") or before is not (first is not None):
        return None
    if set(kinds or ()) - {_NORMAL, _CONTROL, _USER}:
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
        "ignore_merges": split.whole, "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges,
    }  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": split.normal} if split.normal else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(split.steps)},
        "post_processor": None if first is None else _prepend_token(tokens[first], first),
        "decoder": bytewise, "model": model,
    }  # fmt: skip


def _prepend_token(token: str, number: int) -> dict[str, Any]:
    """A post-processor that puts a token before every text."""
    bos = {"SpecialToken": {"id": token, "type_id": 0}}
    texts = [{"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB")]
    return {
        "type": "TemplateProcessing", "single": [bos, texts[0]], "pair": [bos, *texts],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }  # fmt: skip
