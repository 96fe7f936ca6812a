"""What a model is run on to be proved: the same tokens whole, in chunks, token by token, padded, and with labels.

Each case says how the calls go; what must come out is always the oracle's float64 answer for each sequence alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np

from blockc.ir import Array, Sides

TOKENS = 13  # beyond a twin's window and past the first of its wavelengths
SHORT = 7


@dataclass(frozen=True)
class Case:
    """A batch of sequences, where each stands in its row, and the chunks in which it is fed."""

    name: str
    rows: tuple[Array, ...]  # the real tokens of each sequence
    starts: tuple[int, ...]  # where each begins in its row: padding stands before or after
    chunks: tuple[int, ...]
    labels: bool = False
    first: int = 0  # the position of each sequence's first token
    masked: bool = True  # an attention_mask is given; model.py alone can do without

    @property
    def several_on_a_past(self) -> bool:
        """Several new tokens after a past, in more than one row: more than onnxruntime's fused attention takes."""
        return len(self.rows) > 1 and any(chunk > 1 for chunk in self.chunks[1:])

    @property
    def length(self) -> int:
        return sum(self.chunks)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The columns of each chunk."""
        ends = np.cumsum(self.chunks).tolist()
        return tuple(slice(end - chunk, end) for chunk, end in zip(self.chunks, ends, strict=True))

    @property
    def input_ids(self) -> Array:
        ids = np.zeros((len(self.rows), self.length), np.int64)
        for i, (row, start) in enumerate(zip(self.rows, self.starts, strict=True)):
            ids[i, start : start + len(row)] = row
        return ids

    @property
    def attention_mask(self) -> Array:
        mask = np.zeros((len(self.rows), self.length), np.int64)
        for i, (row, start) in enumerate(zip(self.rows, self.starts, strict=True)):
            mask[i, start : start + len(row)] = 1
        return mask

    @property
    def position_ids(self) -> Array:
        return self.first + np.maximum(np.cumsum(self.attention_mask, axis=1) - 1, 0)

    @property
    def lengths(self) -> set[int]:
        """How long its calls are, and its sequences alone."""
        calls = (self.attention_mask[:, : new.stop].sum(axis=1).max() for new in self.slices)
        return {self.first + int(count) for count in (*calls, *map(len, self.rows))}

    def real_rows(self, logits: Array) -> list[Array]:
        """The rows of a (B, length, ...) array that are real tokens."""
        return [logits[i, s : s + len(row)] for i, (row, s) in enumerate(zip(self.rows, self.starts, strict=True))]


def sequences(vocab: int, seed: int = 7) -> tuple[Array, Array]:
    random = np.random.RandomState(seed)
    return random.randint(0, vocab, TOKENS), random.randint(0, vocab, SHORT)


def cases(
    vocab: int, cached: bool, sides: Iterable[Sides] = (), only: Collection[str] | None = None
) -> tuple[Case, ...]:
    """Every case that applies, or of these those of the names `only`; without a cache whole sequences alone.

    Where a length changes the function, again with positions that begin behind it.
    """
    plain = tuple(case for case in _plain_cases(vocab, cached) if only is None or case.name in only)
    beyond = (
        replace(case, name=f"{case.name}, beyond {side.original}", first=side.original)
        for side in sides
        for case in plain
    )
    return (*plain, *beyond)


def _plain_cases(vocab: int, cached: bool) -> tuple[Case, ...]:
    a, b = sequences(vocab)
    both = (a, np.roll(a, 3))
    whole = (
        Case("full", both, (0, 0), (TOKENS,)),
        Case("labels", both, (0, 0), (TOKENS,), labels=True),
        Case("padded left", (a, b), (0, TOKENS - SHORT), (TOKENS,)),
        Case("padded right", (a, b), (0, 0), (TOKENS,)),
        Case("full, no mask", both, (0, 0), (TOKENS,), masked=False),
    )
    if not cached:
        return whole
    return (
        *whole,
        Case("chunked", both, (0, 0), (1, 5, 4, 3)),
        Case("chunked, one row", (a,), (0,), (1, 5, 4, 3)),
        Case("decode", both, (0, 0), (6, *(1,) * (TOKENS - 6))),
        Case("padded left, decode", (a, b), (0, TOKENS - SHORT), (9, *(1,) * (TOKENS - 9))),
        Case("one token", (a[:1],), (0,), (1,)),
        Case("decode, no mask", both, (0, 0), (6, *(1,) * (TOKENS - 6)), masked=False),
    )
