"""JSON files of a folder from elsewhere: they must be regular files of bounded size, with values of the expected type.

The files are untrusted. A FIFO would block, a device would never end, a number such as Infinity or 1e400 would be
passed on, and a value of a wrong type would fail far from here. So this module reads all of them.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from blockc.basics.errors import BlockcError, escape, shorten
from blockc.basics.expected import describe_expected

MOST = 1 << 24  # bytes of a file, unless the caller says otherwise
Model = TypeVar("Model", bound=BaseModel)


class FileError(BlockcError):
    """A file beside a model that cannot be used."""


def read_bounded(path: Path, most: int = MOST) -> bytes:
    """The bytes of a regular file of at most `most`. Raises FileError, or FileNotFoundError for a missing file."""
    # O_NONBLOCK: opening a FIFO without a writer would block.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise FileError(f"{path}: not a regular file")
    with os.fdopen(handle, "rb") as file:
        data = file.read(most + 1) if status.st_size <= most else b""
        if status.st_size > most or len(data) > most:
            raise FileError(f"{path}: larger than {most:,} bytes")
    return data


def read_json_object(path: Path, most: int = MOST) -> dict[str, Any]:
    """The one JSON object in a file. Raises FileError, or FileNotFoundError for a missing file."""
    return parse_json_object(read_bounded(path, most), str(path))


def parse_json_object(data: bytes, name: str, once: bool = False) -> dict[str, Any]:
    """The one JSON object in these bytes. Raises FileError, also for NaN and other words that JSON does not have.

    `once` refuses an object, at any depth, that has a key twice.
    """
    pairs = _refuse_duplicates if once else None
    try:
        value = json.loads(data, parse_constant=_refuse_constant, parse_float=_parse_finite, object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise FileError(f"{name}: not JSON: {why}") from None
    if not isinstance(value, dict):
        raise FileError(f"{name}: not a JSON object")
    return value


def read_typed(path: Path, model: type[Model], most: int = MOST) -> Model:
    """A JSON object as this pydantic model, checked strictly. Raises FileError naming each value that does not fit."""
    data = read_bounded(path, most)
    parse_json_object(data, str(path))  # refuses NaN and Infinity, which pydantic accepts
    try:
        return model.model_validate_json(data, strict=True)
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, each['loc'])) or 'the object'}: expected {describe_expected(each)}"
            for each in error.errors()
        ]
        raise FileError("\n  ".join([f"{path}: not as blockc writes it:", *shorten(faults)])) from None


def dump_json(data: Any) -> bytes:
    """JSON as blockc writes it."""
    return (json.dumps(data, indent=2, allow_nan=False) + "\n").encode()


def reason_of(path: Path, error: FileError | OSError) -> str:
    """The message of an error of this reader, or of the system, about the file at a path."""
    return f"{path}: {error.strerror or error}" if isinstance(error, OSError) else str(error)


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if twice := [key for key, n in Counter(key for key, _ in pairs).items() if n > 1]:
        raise ValueError(f"{escape(twice[0])} stands twice")
    return dict(pairs)


def _parse_finite(word: str) -> float:
    """JSON allows 1e400; a float does not hold it."""
    number = float(word)
    return number if math.isfinite(number) else _refuse_constant(word)


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number that is read")
