"""JSON that comes with a folder, read with suspicion: a regular file, of bounded size, of the type that is expected.

Whoever sent the folder wrote these files. A FIFO would be waited for, a device read without end, a number such as
Infinity or 1e400 passed on, and a value of another type met far from here. So all of them are read by this reader.
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

from blockc.basics.errors import BlockcError, listed, shown
from blockc.basics.expected import expected

MOST = 1 << 24  # bytes, of a file that nothing says more of
Model = TypeVar("Model", bound=BaseModel)


class FileError(BlockcError):
    """A file beside a model that is not what it must be."""


def bounded(path: Path, most: int = MOST) -> bytes:
    """The bytes of a regular file of at most so many. Raises FileError, and FileNotFoundError where there is none."""
    # A FIFO without a writer is not waited for.
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


def json_object(path: Path, most: int = MOST) -> dict[str, Any]:
    """A file that holds one JSON object. Raises FileError, and FileNotFoundError where there is none."""
    return parsed(bounded(path, most), str(path))


def parsed(data: bytes, name: str, once: bool = False) -> dict[str, Any]:
    """Bytes that are one JSON object; a number that JSON has not, such as NaN, is refused. Raises FileError.

    `once`: no object, at any depth, may say a key twice.
    """
    pairs = _once if once else None
    try:
        value = json.loads(data, parse_constant=_refused, parse_float=_finite, object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise FileError(f"{name}: not JSON: {why}") from None
    if not isinstance(value, dict):
        raise FileError(f"{name}: not a JSON object")
    return value


def typed(path: Path, model: type[Model], most: int = MOST) -> Model:
    """A JSON object as this pydantic model, checked strictly. Raises FileError naming each value that does not fit."""
    data = bounded(path, most)
    parsed(data, str(path))  # for the numbers that pydantic takes and JSON has not
    try:
        return model.model_validate_json(data, strict=True)
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, each['loc'])) or 'the object'}: expected {expected(each)}" for each in error.errors()
        ]
        raise FileError("\n  ".join([f"{path}: not as blockc writes it:", *listed(faults)])) from None


def written(data: Any) -> bytes:
    """JSON as blockc writes it."""
    return (json.dumps(data, indent=2, allow_nan=False) + "\n").encode()


def reason(path: Path, error: FileError | OSError) -> str:
    """What an error of this reader, or of the system, says of the file at a path."""
    return f"{path}: {error.strerror or error}" if isinstance(error, OSError) else str(error)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if twice := [key for key, n in Counter(key for key, _ in pairs).items() if n > 1]:
        raise ValueError(f"{shown(twice[0])} stands twice")
    return dict(pairs)


def _finite(word: str) -> float:
    """1e400 is a number of JSON, and none of ours."""
    number = float(word)
    return number if math.isfinite(number) else _refused(word)


def _refused(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number that is read")
