"""The tokens on which a build chooses scales: those of a text, by the checkpoint's own tokenizer."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from blockc.basics.errors import BlockcError, CheckpointError
from blockc.ir import Array
from blockc.pipeline.compiled import Compiled
from blockc.runtime.text import TOKENIZER_FILE, parse_tokenizer

TOKENS = 2048  # of a text that are read at most
ROW = 512  # tokens that see one another
ENOUGH = 512  # with fewer, scales are worse
MAX_TEXT = 1 << 20  # bytes that are read of a file
PIECE = 1 << 15  # characters: almost always enough for TOKENS


class CalibrationError(BlockcError):
    """A text on which no scales can be chosen."""


def read_rows(path: Path, companions: Mapping[str, bytes], model: Compiled) -> list[Array]:
    """The first tokens of a text, in rows (1, S). Raises CalibrationError, CheckpointError where it has no tokenizer.

    ModuleNotFoundError without the `tokenizers` package.
    """
    text = _read_text(path)
    if TOKENIZER_FILE not in companions:
        raise CheckpointError(f"the checkpoint has no {TOKENIZER_FILE}, so no tokens for the text {path}: put it there")
    tokenizer = parse_tokenizer(companions[TOKENIZER_FILE], f"{TOKENIZER_FILE} of the checkpoint")
    ids: list[int] = []
    for piece in (text[:PIECE], text):
        ids = list(tokenizer.encode(piece, add_special_tokens=False).ids)[:TOKENS]
        if len(ids) == TOKENS:
            break
    if not ids:
        raise CalibrationError(f"{path}: has no token")
    vocab = model.spec.top.vocab
    if max(ids) >= vocab:
        raise CheckpointError(
            f"{TOKENIZER_FILE} of the checkpoint has a token {max(ids)}, and the model {vocab} tokens"
        )
    step = min(ROW, model.spec.top.context)
    return [np.array([ids[start : start + step]]) for start in range(0, len(ids), step)]


def too_few(path: Path, rows: Sequence[Array]) -> list[str]:
    """A note for a text of few tokens."""
    count = sum(row.size for row in rows)
    return [] if count >= ENOUGH else [f"calibrated on the {count} tokens of {path}: {ENOUGH} or more are better"]


def _read_text(path: Path) -> str:
    """The beginning of a text. A file that never ends, such as a pipe, is refused."""
    if path.exists() and not path.is_file():
        raise CalibrationError(f"{path}: not a file, expected a text")
    with path.open("rb") as file:
        data = file.read(MAX_TEXT)
        whole = not file.read(1)
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(data, final=whole)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise CalibrationError(f"{path}: line {line} is not a text in UTF-8") from None
    if not text.strip():
        raise CalibrationError(f"{path}: is empty, expected a text")
    return text
