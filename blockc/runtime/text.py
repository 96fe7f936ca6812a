"""Text to token ids and back, by the tokenizer that a checkpoint brought along."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blockc.runtime.opening import SessionError

_BEFORE = 5  # tokens of the prompt that a stream decodes along, so that a space between it and the text is kept
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")

MAX_JSON = 1 << 28  # bytes


class Tokenizer:
    """tokenizer.json of a folder, and what the files beside it say of special tokens.

    `stop` are the ids that end a text: of generation_config.json, else the token that tokenizer_config.json names;
    empty where neither does. `special` are the tokens by name, as a chat template is given them.
    Raises SessionError; ModuleNotFoundError without the `tokenizers` package.
    """

    def __init__(self, folder: Path) -> None:
        import tokenizers

        path = folder / "tokenizer.json"
        if not path.is_file():
            raise SessionError(
                f"{folder}: no tokenizer.json, so no text: put the checkpoint's there, or use the Session of Python"
            )
        try:
            self.known: Any = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # what the package raises has no type of its own
            raise SessionError(f"{path}: not a tokenizer: {error}") from None
        self.known.no_truncation()
        self.known.no_padding()
        said = json_object(folder / "generation_config.json")
        named = json_object(folder / "special_tokens_map.json") | json_object(folder / "tokenizer_config.json")
        self.special = {name: token for name in _SPECIAL if (token := self._token(name, named, said)) is not None}
        self.stop = self._stop(folder, said.get("eos_token_id"))

    def _token(self, name: str, named: dict[str, Any], said: dict[str, Any]) -> str | None:
        """By its text, or by its number where only that is said."""
        token, number = named.get(name), said.get(f"{name}_id")
        if isinstance(token, dict):
            token = token.get("content")
        if token is None and type(number) is int and number >= 0:
            token = self.known.id_to_token(number)
        return token if isinstance(token, str) else None

    def _stop(self, folder: Path, said: Any) -> tuple[int, ...]:
        if said is None:
            found = self.known.token_to_id(self.special.get("eos_token", ""))
            return () if found is None else (int(found),)
        listed = said if isinstance(said, list) else [said]
        if bad := [i for i in listed if type(i) is not int]:
            raise SessionError(f"{folder / 'generation_config.json'}: eos_token_id holds {bad[0]!r}, which is no id")
        return tuple(listed)

    def ids(self, text: str, special: bool = True) -> list[int]:
        """`special`: with what the tokenizer puts around a text. A chat template has that in itself."""
        whole = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # an argument may be any bytes
        return list(self.known.encode(whole, add_special_tokens=special).ids)

    def text(self, ids: Sequence[int]) -> str:
        return str(self.known.decode(list(ids), skip_special_tokens=True))


class Stream:
    """The text behind a prompt, piece by piece: each token's as soon as its characters are whole.

    Tokens are decoded together with those of the piece before, since what a token reads as depends on its neighbours;
    of the two texts, with and without the new ones, the difference is what is new.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.ids = list(prompt[-_BEFORE:])
        self.first, self.given = 0, len(self.ids)

    def push(self, token: int) -> str:
        """What the token adds, which is nothing while a character is in pieces."""
        self.ids.append(token)
        new = self._new()
        return "" if new.endswith(_UNFINISHED) else self._give(new)

    def rest(self) -> str:
        """What was held back, with a mark for a character that never became whole."""
        return self._give(self._new())

    def _new(self) -> str:
        before = self.tokenizer.text(self.ids[self.first : self.given])
        return self.tokenizer.text(self.ids[self.first :])[len(before) :]

    def _give(self, new: str) -> str:
        if new:
            self.first, self.given = self.given, len(self.ids)
        return new


def json_object(path: Path) -> dict[str, Any]:
    """Empty where there is no such file. Raises SessionError."""
    try:
        data = json.loads(path.read_bytes()) if path.stat().st_size <= MAX_JSON else None
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise SessionError(f"{path}: not a JSON object of at most {MAX_JSON} bytes")
    return data
