"""Text token by token: what each token adds to the text before it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from itertools import islice

from blockc.runtime.text import Tokenizer

_MARK = "\N{REPLACEMENT CHARACTER}"  # decoders write it for bytes that are no character
_LONGEST = 4  # bytes of a character in UTF-8


class TextStream:
    """The text after a prompt, piece by piece: each character as soon as it is whole.

    All pieces and the rest make decode(prompt + tokens) without decode(prompt) at its start. If the prompt ends inside
    a character, the token that completes the character gives it whole; if none does, it belongs to the prompt. Invalid
    bytes of UTF-8 are marked in place. (ByteFallback marks a whole run of bytes for one invalid byte, and so would take
    back characters that were printed.)

    Only a window of tokens is decoded. It starts with the tokens of the piece before, since a decoder may treat the
    very first token differently. Of a prompt only the last tokens matter, as many as a character has bytes.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.window: list[int] = []
        self.piece = 0  # the index in the window of the first token without a piece
        self.done = 0  # characters of the window's text that were returned
        self.part = b""  # bytes of a character that the last tokens begin
        self.lent = False  # whether that character begins in the prompt
        read = (token for token in reversed(prompt) if tokenizer.word_of(token) is not None)
        for token in reversed(list(islice(read, _LONGEST))):
            self.push(token)
        self.lent = bool(self.part)

    def push(self, token: int) -> str:
        """The text that the token adds; empty while a character is incomplete."""
        word = self.tokenizer.word_of(token)
        if word is None:
            return ""
        read = self.tokenizer.bytes_of(word)
        if not self.tokenizer.by_byte:
            self.part = _split(self.part + read)[1]
            return self._append(token)
        if not read:
            return self._mark_broken() + self._append(token)
        try:
            used = codecs.utf_8_decode(self.part + read, "strict", False)[1]
        except UnicodeDecodeError:
            return self._mark_broken(read, token)
        self.part = (self.part + read)[used:]
        return self._append(token)

    def rest(self) -> str:
        """The text that was held back: a mark for a character that was never completed."""
        if self.tokenizer.by_byte:
            return self._mark_broken()
        self.part = b""
        return self._take_new()

    def _mark_broken(self, read: bytes = b"", token: int | None = None) -> str:
        """Marks for the bytes of `part`, each a token, when `read` or the end of the text leaves them invalid."""
        if not self.part + read:
            return ""
        held = len(self.window) - len(self.part)
        self.window, own = self.window[:held], _split(self.part, final=True)[0]
        text, self.part = _split(self.part + read, final=token is None)
        if not self.window and self.tokenizer.stand_in is not None:  # the next token is not the first of the text
            self.window = [self.tokenizer.stand_in]
            self.done = len(self.tokenizer.decode(self.window))
        self.window += [token] * len(self.part) if token is not None else []
        text, self.lent = text.removeprefix(own) if self.lent else text, False
        return text

    def _append(self, token: int) -> str:
        self.window.append(token)
        return "" if self.part and self.tokenizer.by_byte else self._take_new()

    def _take_new(self) -> str:
        text = self._text()
        new = text[self.done :]
        if not new:
            return ""
        self.window, self.piece = self.window[self.piece :], len(self.window) - self.piece
        self.done = len(self._text())
        if self.lent and not self.tokenizer.by_byte:
            new = new.removeprefix(_MARK)
        self.lent = False
        return new

    def _text(self) -> str:
        """The window's text, without the mark of a character that is not yet complete."""
        text = self.tokenizer.decode(self.window)
        return text.removesuffix(_MARK) if self.part else text


def _split(data: bytes, final: bool = False) -> tuple[str, bytes]:
    """(The text, with invalid bytes marked; the bytes at the end that may begin a character.)"""
    text, used = codecs.utf_8_decode(data, "replace", final)
    return text, data[used:]
