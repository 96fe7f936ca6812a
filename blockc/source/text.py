"""Bytes to text to scalars: encodings, refused characters, and YAML 1.2's core schema without its ambiguous words."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple

from blockc.diagnostics import Code
from blockc.diagnostics.reading import CHARACTER, ENCODING
from blockc.diagnostics.words import NO_VALUE, ODD_NUMBER, OUT_OF_RANGE
from blockc.source.tree import Place, spec_error

MAX_DIGITS = 30  # of an integer


class SourceText:
    """Text with the place of each index in it. An index after the end counts as the end."""

    def __init__(self, file: str, text: str) -> None:
        self.file, self.text = file, text
        self.lines = text.split("\n")
        self.starts = list(accumulate((len(line) + 1 for line in self.lines[:-1]), initial=0))

    def place(self, start: int, end: int | None = None) -> Place:
        """From start to end, or to the end of start's line if that comes first."""
        start = min(start, len(self.text))
        row = bisect_right(self.starts, start) - 1
        line, column = self.lines[row], start - self.starts[row]
        covered = line[column : max(start, end or 0) - self.starts[row]].rstrip()
        return Place(self.file, row + 1, column + 1, max(1, len(covered)), line)


# Broader than what PyYAML refuses: it takes U+0085, U+2028 and U+2029 for line ends, which editors do not
# count, and leaves U+FEFF out of its columns.
_RAW_REFUSED = re.compile("[^\t\n -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
VALUE_REFUSED = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_BOMS = (
    (b"\xff\xfe\0\0", "UTF-32"),
    (b"\0\0\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)


def decode(data: bytes, file: str) -> str:
    """Bytes of UTF-8, with or without its byte order mark, as text."""
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            raise spec_error(ENCODING, Place(file, 1, 1), f"the file is {encoding}", expected="UTF-8", got=encoding)
    bad = data.find(0)
    code, message, got = CHARACTER, f"NUL byte at byte offset {bad}", ""
    hint = "a UTF-16 or binary file has such bytes"
    try:
        if bad < 0:
            return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad = data.index(error.object[error.start :])  # "utf-8-sig" counts from behind the mark
        code, message, got = ENCODING, "the file is not UTF-8", f"byte 0x{data[bad]:02x} at byte offset {bad}"
        hint = "save it as UTF-8; it may be Latin-1 or Windows-1252"
    source = SourceText(file, data.decode("utf-8-sig", "replace"))
    before = data[:bad].decode("utf-8-sig", "replace")
    raise spec_error(code, source.place(len(before)), message, expected="UTF-8 text", got=got, hint=hint)


def character_name(char: str) -> str:
    names = {"\r": "carriage return", "\f": "form feed", "\x1b": "escape", "\ufeff": "byte order mark"}
    kind = "lone surrogate" if "\ud800" <= char <= "\udfff" else names.get(char, "control character")
    return f"{kind} U+{ord(char):04X}"


def check_characters(source: SourceText) -> None:
    """Refuse characters that end lines for some readers only, act on a terminal, or are no characters."""
    bad = _RAW_REFUSED.search(source.text)
    if bad is None:
        return
    place, char = source.place(bad.start(), bad.end()), bad.group()
    if char == "\0":
        offset = len(source.text[: bad.start()].encode("utf-8", "surrogatepass"))
        raise spec_error(CHARACTER, place, f"NUL byte at byte offset {offset}", expected="UTF-8 text")
    raise spec_error(CHARACTER, place, f"{character_name(char)} in the text", hint="remove it")


# Scalars


class ScalarFault(NamedTuple):
    """Why a plain scalar is refused."""

    code: Code
    message: str
    hint: str


_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_TEXT_HINT = "; quote it if it is text"
_REFUSED = (
    (r"|~|null|Null|NULL", NO_VALUE, "no value", "write none, or leave the key out"),
    (
        r"[-+]?0[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?",
        ODD_NUMBER,
        "a number with a leading zero",
        "remove the zero" + _TEXT_HINT,
    ),
    (r"[-+]?0[xXoObB][0-9a-fA-F_]+", ODD_NUMBER, "a number that is not decimal", "write it in decimal" + _TEXT_HINT),
    (
        r"(?=.*_)[-+]?(\._*[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9_]+)?",
        ODD_NUMBER,
        "an underscore in a number",
        "remove the underscores" + _TEXT_HINT,
    ),
    (
        r"[-+]?\.(inf|Inf|INF|nan|NaN|NAN)",
        OUT_OF_RANGE,
        "not a finite number",
        "write a number, or none to turn it off",
    ),
)
_REFUSALS = tuple((re.compile(pattern), ScalarFault(code, message, hint)) for pattern, code, message, hint in _REFUSED)
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def resolve_scalar(word: str) -> str | int | float | bool | ScalarFault:
    """The value of a plain scalar under the YAML 1.2 core schema, or what is wrong with it."""
    for pattern, wrong in _REFUSALS:
        if pattern.fullmatch(word):
            return wrong
    if word in _BOOLEANS:
        return _BOOLEANS[word]
    if _INTEGER.fullmatch(word):
        if len(word.lstrip("+-")) > MAX_DIGITS:
            return ScalarFault(OUT_OF_RANGE, f"an integer of more than {MAX_DIGITS} digits", "write less" + _TEXT_HINT)
        return int(word)
    if not _FLOAT.fullmatch(word):
        return word
    number = float(word)
    if math.isinf(number):
        return ScalarFault(OUT_OF_RANGE, "a number too large for a float", "write a smaller one" + _TEXT_HINT)
    if number == 0 and re.search("[1-9]", re.split("[eE]", word)[0]):
        return ScalarFault(OUT_OF_RANGE, "a number too small for a float", "write 0 if zero is meant")
    return number
