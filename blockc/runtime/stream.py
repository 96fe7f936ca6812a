"""Text that comes token by token: what each one adds to the text before it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from itertools import islice

from blockc.runtime.text import Tokenizer

_MARK = "\N{REPLACEMENT CHARACTER}"  # decoders put it where bytes are no character
_LONGEST = 4  # bytes of a character in UTF-8


class TextStream:
    """The text behind a prompt, piece by piece: each character as soon as it is whole.

    The pieces and the rest together are decode(prompt + tokens) without decode(prompt) at its head. Where the prompt
    ends inside a character, the mark at its end is no part of that head: the character is printed whole with the token
    that ends it, and one that never ends is the prompt's. Bytes that are no UTF-8 are marked where they stand.
    (ByteFallback marks a whole run of bytes for one fault in it, and so takes back characters that have been printed.)

    Only a window of tokens is decoded. Its first tokens are those of the piece before, since a decoder may treat the
    first token of all otherwise. Of a prompt its last tokens are enough, as many as one character may have: bytes that
    they begin with and that are none are seen to be so.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.window: list[int] = []
        self.piece = 0  # where in the window the tokens begin that no piece was given for
        self.done = 0  # characters of the window's text that have been given
        self.part = b""  # of a character that the last tokens begin
        self.lent = False  # that character begins in the prompt
        read = (token for token in reversed(prompt) if tokenizer.word_of(token) is not None)
        for token in reversed(list(islice(read, _LONGEST))):
            self.push(token)
        self.lent = bool(self.part)

    def push(self, token: int) -> str:
        """What the token adds, which is nothing while a character is in pieces."""
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
        """What was held back: a mark for a character that never became whole."""
        if self.tokenizer.by_byte:
            return self._mark_broken()
        self.part = b""
        return self._take_new()

    def _mark_broken(self, read: bytes = b"", token: int | None = None) -> str:
        """Marks for `part`, whose tokens are a byte each, where it does not go on as UTF-8: with `read`, or at all."""
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
        """The window's, without the mark of a character that has yet to become whole."""
        text = self.tokenizer.decode(self.window)
        return text.removesuffix(_MARK) if self.part else text


def _split(data: bytes, final: bool = False) -> tuple[str, bytes]:
    """(Text with its faults marked; the bytes at the end that may begin a character.)"""
    text, used = codecs.utf_8_decode(data, "replace", final)
    return text, data[used:]
