"""What is encoded: batches of sentences of a book, as tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blockc.bench.quality import read_text

LENGTHS, BATCHES = (8, 32, 128), (1, 32)
RAGGED = {1: 16, 32: 2}  # batches of a call, by their texts
LONGEST = 128  # tokens of a sentence
_TURN = 4096  # tokens that are read in a turn, at least in one call
_CALLS = 16  # of a turn, at most
Tokens = list[int]


@dataclass(frozen=True)
class Case:
    """The batches of a call, read one after another."""

    name: str
    batches: list[list[Tokens]]

    @property
    def sentences(self) -> int:
        return sum(map(len, self.batches))

    @property
    def calls(self) -> int:
        """How many calls a turn has."""
        tokens = sum(len(batch) * max(map(len, batch)) for batch in self.batches)
        return min(max(_TURN // tokens, 1), _CALLS)


def read_cases(checkpoint: Path, quick: bool) -> list[Case]:
    """Sentences of one length, without padding, and as they come, padded to the longest of a batch."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    _, text = read_text(None)
    first, *stream, last = tokenizer.encode(text).ids
    made = [
        Case(f"{rows} x {length}", [_cut(stream, rows, length, first, last)])
        for length in (LENGTHS[:1] if quick else LENGTHS)
        for rows in BATCHES
    ]
    sentences = [tokenizer.encode(sentence).ids for sentence in _sentences(text)]
    real = [ids for ids in sentences if len(ids) <= LONGEST]
    return made + [Case(f"{rows} x real", _grouped(real, rows, count)) for rows, count in RAGGED.items()]


def _cut(stream: Sequence[int], rows: int, length: int, first: int, last: int) -> list[Tokens]:
    """Rows of so many tokens, one after another, each between the two special tokens."""
    inner = length - 2
    return [[first, *stream[i * inner : (i + 1) * inner], last] for i in range(rows)]


def _sentences(text: str) -> list[str]:
    return [found for each in re.split(r"(?<=[.!?])\s+", " ".join(text.split())) if (found := each.strip())]


def _grouped(rows: Sequence[Tokens], size: int, count: int) -> list[list[Tokens]]:
    return [list(rows[i * size : (i + 1) * size]) for i in range(count)]
