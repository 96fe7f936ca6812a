"""Streams of text beside decode(), for every cut between a prompt and what follows it, by every kind of decoder."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from blockc.runtime.stream import TextStream
from blockc.runtime.text import Tokenizer
from tests.checkpoints import ROOT

MARK = "\N{REPLACEMENT CHARACTER}"
SPECIAL = ["<unk>", "<s>", "</s>"]
# Of one, two, three and four bytes; joined emoji, a flag, combining marks, right to left, code.
SCRAPS = (
    "the cat", " sat", "  ", "\n", "\n    return x", "def f(a, b):", ".", " n't", "é", "e\u0301", "ß", "жук", "שלום",
    "مرحبا", "日本語", "語", "한국", "ไทย", "नमस्ते",
    "😀", "😀😀", "👩\u200d🚀", "👨\u200d👩\u200d👧", "🇪🇺", "🏳️\u200d🌈", "𝛼", "<think>", "</s>",
    "\u00a0", "\ufeff", "▁", "Ġ", "<0x41>",
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(SCRAPS), min_size=1, max_size=8).map("".join)
TRAINED = [
    "the cat sat on the mat. the cat doesn't return x",
    "def f(a, b):\n    return x",
    "日本語 жук שלום مرحبا 😀",
] * 9


def _trained(model: Any, trainer: Any, before: Any, decoder: Any) -> Any:
    made: Any = tokenizers.Tokenizer(model)
    made.pre_tokenizer, made.decoder = before, decoder
    made.train_from_iterator(TRAINED, trainer)
    return made


def byte_level() -> Any:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer: Any = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return _trained(models.BPE(), trainer, split, decoders.ByteLevel())


def byte_level_across() -> Any:
    """Merges that hold the end of one character and the beginning of the next."""
    split: Any = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = [split.pre_tokenize_str(pair)[0][0] for pair in ("語日", "日本", "本語")]
    merges = [(read[2], read[3]) for read in letters]
    words = [*SPECIAL, *pre_tokenizers.ByteLevel.alphabet(), *map("".join, merges)]
    made: Any = tokenizers.Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    made.pre_tokenizer, made.decoder = split, decoders.ByteLevel()
    return made


def byte_fallback() -> Any:
    """As Llama 2 and Mistral have it."""
    return tokenizers.Tokenizer.from_file(str(ROOT / "tests" / "data" / "cases2" / "byte-fallback-tokenizer.json"))


def byte_fallback_unstripped() -> Any:
    """As Gemma has it: no space is put before a text, and none taken."""
    data = json.loads(byte_fallback().to_str())
    data["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    data["decoder"]["decoders"].pop()
    return tokenizers.Tokenizer.from_str(json.dumps(data))


def byte_fallback_metaspace() -> Any:
    """The other way to write it: Metaspace before the text and behind the bytes."""
    data = json.loads(byte_fallback().to_str())
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    data |= {"normalizer": None, "pre_tokenizer": space}
    data["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, space, {"type": "Fuse"}]}
    return tokenizers.Tokenizer.from_str(json.dumps(data))


def word_piece() -> Any:
    trainer: Any = trainers.WordPieceTrainer(vocab_size=120, special_tokens=["[UNK]", *SPECIAL], show_progress=False)
    return _trained(
        models.WordPiece(unk_token="[UNK]"), trainer, pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    )


def unigram() -> Any:
    """As T5 and XLM-R have it."""
    trainer: Any = trainers.UnigramTrainer(
        vocab_size=90, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    made = _trained(models.Unigram(), trainer, pre_tokenizers.Metaspace(), decoders.Metaspace())
    made.normalizer = normalizers.NFKC()
    return made


def end_of_word() -> Any:
    """As OpenAI's first GPT had it: the end of a word is marked, not its beginning."""
    trainer: Any = trainers.BpeTrainer(
        vocab_size=150, special_tokens=SPECIAL, end_of_word_suffix="</w>", show_progress=False
    )
    model = models.BPE(unk_token="<unk>", end_of_word_suffix="</w>")
    return _trained(model, trainer, pre_tokenizers.BertPreTokenizer(), decoders.BPEDecoder())


def words() -> Any:
    """No decoder at all: tokens with a space between."""
    trainer: Any = trainers.WordLevelTrainer(special_tokens=SPECIAL, show_progress=False)
    made = _trained(models.WordLevel(unk_token="<unk>"), trainer, pre_tokenizers.Whitespace(), decoders.Fuse())
    data = json.loads(made.to_str())
    return tokenizers.Tokenizer.from_str(json.dumps({**data, "decoder": None}))


MAKERS = (
    byte_level, byte_level_across, byte_fallback, byte_fallback_unstripped, byte_fallback_metaspace, word_piece,
    unigram, end_of_word, words,
)  # fmt: skip
BY_BYTE = (byte_fallback, byte_fallback_unstripped, byte_fallback_metaspace)


@cache
def made(make: Any) -> Tokenizer:
    tokenizer = make()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens(["<think>"])
    if tokenizer.post_processor is None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    with TemporaryDirectory() as folder:
        tokenizer.save(str(Path(folder) / "tokenizer.json"))
        return Tokenizer(Path(folder))


def whole(tokenizer: Tokenizer, ids: Sequence[int], upto: str, by_byte: bool) -> str:
    """The longest head of the text `upto` that some of the first tokens are, whole characters only: as decode() says.

    A mark at the end of a byte-level text may be of a character that is not whole; where bytes are tokens, of fewer
    tokens than these.
    """
    read = tokenizer.decode(ids)
    if upto.startswith(read) and not read.endswith(MARK):
        return read
    if not by_byte:
        return read.removesuffix(MARK)
    shorter = (tokenizer.decode(ids[: len(ids) - less]) for less in range(1, 4))
    return next(text for text in shorter if upto.startswith(text))


@pytest.mark.parametrize("make", MAKERS)
@settings(max_examples=40, deadline=None)
@given(text=TEXTS)
def test_every_cut_of_a_text_streams_what_decode_has_behind_it(make: Any, text: str) -> None:
    """And after each token all characters that are whole by then, none later."""
    tokenizer, by_byte = made(make), make in BY_BYTE
    ids = tokenizer.encode(text)
    all_ = tokenizer.decode(ids)
    heads = [whole(tokenizer, ids[:i], all_, by_byte) for i in range(len(ids) + 1)]
    for cut in range(len(ids) + 1):
        stream, said = TextStream(tokenizer, ids[:cut]), ""
        for i in range(cut, len(ids)):
            said += stream.push(ids[i])
            assert heads[cut] + said == heads[i + 1], (cut, i)
        assert heads[cut] + said + stream.rest() == all_ and stream.rest() == ""


@pytest.mark.parametrize(
    ("prompt", "text", "wanted"), [("😀😀", "😀 ok", "😀 ok"), ("hi 日本", "語", "語"), ("日本語" * 9, "日本", "日本")]
)
def test_a_prompt_of_bytes_is_not_cut_inside_a_character(prompt: str, text: str, wanted: str) -> None:
    tokenizer = made(byte_fallback)
    before, ids = tokenizer.encode(prompt), tokenizer.encode(prompt + text)
    assert ids[: len(before)] == before
    stream = TextStream(tokenizer, before)
    assert "".join(map(stream.push, ids[len(before) :])) + stream.rest() == wanted


def test_a_character_that_begins_in_the_prompt_is_printed_whole_where_it_ends() -> None:
    for make in (byte_level_across, byte_fallback):
        tokenizer = made(make)
        ids = tokenizer.encode("a語 ok")
        cut = next(i for i in range(1, len(ids)) if MARK in tokenizer.decode(ids[:i]))
        stream = TextStream(tokenizer, ids[:cut])
        assert "".join(map(stream.push, ids[cut:])) == "語 ok"


def test_a_character_that_never_ends_is_the_prompts_where_it_begins_there() -> None:
    for make in (byte_level_across, byte_fallback):
        tokenizer = made(make)
        half, after = tokenizer.encode("a語", special=False)[:-1], tokenizer.encode("ok", special=False)
        ids = [token for token in after if tokenizer.decode([token])]
        stream = TextStream(tokenizer, half)
        assert "".join(map(stream.push, ids)).strip() == "ok"
        assert TextStream(tokenizer, half).rest() == ""
        begun = TextStream(tokenizer)
        assert "".join(map(begun.push, half)) == "a" and begun.rest() == MARK and begun.rest() == ""


@pytest.mark.parametrize("make", [byte_level, byte_level_across])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_tokens_of_a_byte_level_vocabulary_stream_as_decode_reads_them(make: Any, data: st.DataObject) -> None:
    tokenizer = made(make)
    ids = data.draw(st.lists(st.integers(0, tokenizer.known.get_vocab_size() + 3), max_size=14))
    cut = data.draw(st.integers(0, len(ids)))
    stream = TextStream(tokenizer, ids[:cut])
    said = "".join(map(stream.push, ids[cut:])) + stream.rest()
    before, all_ = tokenizer.decode(ids[:cut]), tokenizer.decode(ids)
    assert said == all_[len(before if all_.startswith(before) else before.removesuffix(MARK)) :]


def _read(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Llama 2's tokens as text: runs of bytes as UTF-8, with a mark for each fault; a space at the head is taken."""
    words = [word for token in ids if (word := tokenizer.known.id_to_token(token)) and word not in SPECIAL]
    text, run = "", b""
    for word in [*words, ""]:
        if byte := re.fullmatch("<0x(..)>", word):
            run += bytes.fromhex(byte[1])
            continue
        text += run.decode("utf-8", "replace") + word.replace("▁", " ")
        run = b""
    return text.removeprefix(" ")


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_tokens_of_a_byte_fallback_vocabulary_are_marked_where_they_are_at_fault(data: st.DataObject) -> None:
    """decode() marks the whole run, which would take back what is printed; without a fault both say the same."""
    tokenizer = made(byte_fallback)
    lead = st.sampled_from([tokenizer.known.token_to_id(f"<0x{byte:02X}>") for byte in (0x20, 0xE8, 0xF0, 0x9F, 0x98)])
    ids = data.draw(st.lists(lead | st.integers(0, tokenizer.known.get_vocab_size() - 1), max_size=12))
    stream = TextStream(tokenizer)
    said = "".join(map(stream.push, ids)) + stream.rest()
    assert said == _read(tokenizer, ids)
    if MARK not in said:
        assert said == tokenizer.decode(ids)


@pytest.mark.parametrize("make", MAKERS)
def test_a_token_costs_the_decoding_of_a_few(make: Any) -> None:
    """However long the text and the prompt are, and whatever special tokens stand between."""
    tokenizer = made(make)
    decoded: list[int] = []
    read = tokenizer.decode

    class Counting(Tokenizer):
        def __init__(self) -> None:
            self.__dict__ |= tokenizer.__dict__

        def text(self, ids: Sequence[int]) -> str:
            decoded.append(len(ids))
            return read(ids)

    end = tokenizer.known.token_to_id("</s>")
    ids = [*tokenizer.encode("the cat 日本語日本語日本 😀 x" * 40), *[end] * 300, *tokenizer.encode(" the cat" * 40)]
    stream = TextStream(Counting(), ids)
    assert sum(decoded) < 200
    for token in ids:
        decoded.clear()
        stream.push(token)
        assert sum(decoded) <= 16
