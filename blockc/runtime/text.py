"""Text to token ids and back, by the tokenizer that a checkpoint brought along."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from blockc.basics.jsonfile import FileError, bounded, json_object, reason
from blockc.runtime.opening import SessionError
from blockc.weights.special import FILES, GENERATION, TOKENIZER, TOKENS, SpecialError, special_ids, special_token

MAX_TOKENIZER = 1 << 28  # bytes

_SPECIAL = ("bos", "eos", "unk", "pad")
_IDS = 1 << 32  # the package counts no further
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """tokenizer.json of a folder, and what the files beside it say of special tokens.

    `stop` are the ids that end a text, empty where no file says so; `vocab`, where it is given, is how many tokens the
    model has. `special` are the tokens by name, as a chat template is given them.
    Raises SessionError; ModuleNotFoundError without the `tokenizers` package.
    """

    def __init__(self, folder: Path, vocab: int | None = None) -> None:
        self.known: Any = _read_tokenizer(folder / "tokenizer.json")
        self.known.no_truncation()
        self.known.no_padding()
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
        """By its text, or by its number where only that is said."""
        for file in (TOKENIZER, TOKENS):
            if (token := special_token(name, files[file])) is not None:
                return token
        number = files[GENERATION].get(f"{name}_token_id")
        return self.known.id_to_token(number) if type(number) is int and 0 <= number < _IDS else None

    def encode(self, text: str, special: bool = True) -> list[int]:
        """`special`: with what the tokenizer puts around a text. A chat template has that in itself."""
        whole = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # an argument may be any bytes
        return list(self.known.encode(whole, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Without special tokens."""
        return str(self.known.decode(list(ids), skip_special_tokens=True))

    def word_of(self, token: int) -> str | None:
        """A token as the vocabulary has it; None where it adds nothing to a text: it is special, empty or unknown."""
        word = self.known.id_to_token(token)
        return None if not word or word in self._unread else word

    def bytes_of(self, word: str) -> bytes:
        """Of a token that may hold parts of characters. Empty for one that is whole text."""
        if self.by_byte:
            found = _BYTE.fullmatch(word)
            return bytes.fromhex(found[1]) if found else b""
        if not self.by_letter:
            return b""
        read = [_LETTERS.get(letter) for letter in word]
        return word.encode() if None in read else bytes(cast(list[int], read))

    @cached_property
    def stand_in(self) -> int | None:
        """A token of one byte that is a character."""
        return next((token for byte in range(65, 91) if (token := self.known.token_to_id(f"<0x{byte:02X}>"))), None)

    @cached_property
    def _unread(self) -> frozenset[str]:
        added = self.known.get_added_tokens_decoder().values()
        return frozenset(str(token.content) for token in added if token.special)


def _letters() -> Iterator[tuple[str, int]]:
    """The letters of a byte-level vocabulary: bytes that Latin-1 prints are themselves, the others follow it."""
    others = 256
    for byte in range(256):
        printed = 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
        yield chr(byte if printed else others), byte
        others += not printed


_LETTERS = dict(_letters())


def _read_tokenizer(path: Path) -> Any:
    import tokenizers

    try:
        data = bounded(path, MAX_TOKENIZER)
    except FileNotFoundError:
        raise SessionError(
            f"{path.parent}: no tokenizer.json, so no text: put the checkpoint's there, or give blockc.runtime.Session "
            "the ids of tokens"
        ) from None
    except (FileError, OSError) as error:
        raise SessionError(reason(path, error)) from None
    try:
        return tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:  # what the package raises has no type of its own
        raise SessionError(f"{path}: not a tokenizer: {error}") from None


def _decoder_steps(decoder: Any) -> Iterator[str]:
    """The steps that turn tokens into text, by name."""
    steps: list[Any] = [] if decoder is None else [json.loads(decoder.__getstate__())]
    while steps:
        step = steps.pop()
        yield str(step["type"])
        steps += step.get("decoders", [])


def optional_object(path: Path) -> dict[str, Any]:
    """Empty where there is no such file. Raises SessionError."""
    try:
        return json_object(path)
    except FileNotFoundError:
        return {}
    except (FileError, OSError) as error:
        raise SessionError(reason(path, error)) from None
