"""Text to token ids and back, by the checkpoint's tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from blockc.basics.jsonfile import FileError, read_bounded, read_json_object, reason_of
from blockc.runtime.opening import SessionError
from blockc.weights.special import FILES, GENERATION, TOKENIZER, TOKENS, SpecialError, special_ids, special_token

TOKENIZER_FILE = "tokenizer.json"
MAX_TOKENIZER = 1 << 28  # bytes

_SPECIAL = ("bos", "eos", "unk", "pad")
_IDS = 1 << 32  # the package's ids are below this
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """tokenizer.json of a folder, and the special tokens from the files beside it.

    `stop` are the ids that end a text, empty if no file names any. `vocab`, if given, is the size of the model's
    vocabulary. `special` are the special tokens by name, for a chat template. Raises SessionError;
    ModuleNotFoundError without the `tokenizers` package.
    """

    def __init__(self, folder: Path, vocab: int | None = None) -> None:
        self.known: Any = read_tokenizer(folder / TOKENIZER_FILE)
        files = {name: optional_object(folder / name) for name in FILES}
        try:
            self.stop = special_ids("eos", files, self.known.token_to_id, vocab, folder)
        except SpecialError as error:
            raise SessionError(str(error)) from None
        self.special = {
            f"{name}_token": token for name in _SPECIAL if (token := self._find_token(name, files)) is not None
        }
        kinds = set(_decoder_steps(self.known.decoder))
        self.by_byte = "ByteFallback" in kinds  # tokens such as <0xE8> are bytes; else a token is whole text,
        self.by_letter = "ByteLevel" in kinds and not self.by_byte  # or each of its letters is a byte

    def _find_token(self, name: str, files: dict[str, dict[str, Any]]) -> str | None:
        """A special token by its text, or by its id where the files give only that."""
        for file in (TOKENIZER, TOKENS):
            if (token := special_token(name, files[file])) is not None:
                return token
        number = files[GENERATION].get(f"{name}_token_id")
        return self.known.id_to_token(number) if type(number) is int and 0 <= number < _IDS else None

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The ids of a text; with `special` also those that the tokenizer adds, which chat templates already have."""
        return list(self.known.encode(whole_text(text), add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        return str(self.known.decode(list(ids), skip_special_tokens=True))

    def word_of(self, token: int) -> str | None:
        """A token as written in the vocabulary; None if it is special, empty or unknown, and so adds no text."""
        word = self.known.id_to_token(token)
        return None if not word or word in self._unread else word

    def bytes_of(self, word: str) -> bytes:
        """The bytes of a token that may be a part of a character; empty for a token of whole text."""
        if self.by_byte:
            found = _BYTE.fullmatch(word)
            return bytes.fromhex(found[1]) if found else b""
        if not self.by_letter:
            return b""
        read = [_LETTERS.get(letter) for letter in word]
        return word.encode() if None in read else bytes(cast(list[int], read))

    @cached_property
    def stand_in(self) -> int | None:
        """A token whose one byte is a letter; None where there is none."""
        return next((token for byte in range(65, 91) if (token := self.known.token_to_id(f"<0x{byte:02X}>"))), None)

    @cached_property
    def _unread(self) -> frozenset[str]:
        added = self.known.get_added_tokens_decoder().values()
        return frozenset(str(token.content) for token in added if token.special)


def whole_text(text: str) -> str:
    """The text, with a mark for bytes that are not UTF-8: an argument may be any bytes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _letters() -> Iterator[tuple[str, int]]:
    """(Letter, byte) of a byte-level vocabulary: bytes printable in Latin-1 are themselves, others follow from 256."""
    others = 256
    for byte in range(256):
        printed = 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
        yield chr(byte if printed else others), byte
        others += not printed


_LETTERS = dict(_letters())


def read_tokenizer(path: Path) -> Any:
    """tokenizer.json as the package's object. Raises SessionError; ModuleNotFoundError without the package."""
    try:
        data = read_bounded(path, MAX_TOKENIZER)
    except FileNotFoundError:
        raise SessionError(
            f"{path.parent}: no tokenizer.json, so no text: put the checkpoint's there, or give blockc.runtime.Session "
            "the ids of tokens"
        ) from None
    except (FileError, OSError) as error:
        raise SessionError(reason_of(path, error)) from None
    return parse_tokenizer(data, str(path))


def parse_tokenizer(data: bytes, name: str) -> Any:
    """The bytes of tokenizer.json as the package's object, which cuts no text. Raises SessionError."""
    import tokenizers

    try:
        known = tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:  # what the package raises has no type of its own
        raise SessionError(f"{name}: not a tokenizer: {error}") from None
    known.no_truncation()
    known.no_padding()
    return known


def _decoder_steps(decoder: Any) -> Iterator[str]:
    """The names of the decoder's steps from tokens to text."""
    steps: list[Any] = [] if decoder is None else [json.loads(decoder.__getstate__())]
    while steps:
        step = steps.pop()
        yield str(step["type"])
        steps += step.get("decoders", [])


def optional_object(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is no such file. Raises SessionError."""
    try:
        return read_json_object(path)
    except FileNotFoundError:
        return {}
    except (FileError, OSError) as error:
        raise SessionError(reason_of(path, error)) from None
