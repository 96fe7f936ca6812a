"""The cases of a proof: the same tokens whole, in chunks, token by token, padded, and with labels.

A case describes the calls. The expected result is always the oracle's float64 answer for each sequence alone.
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
    """A batch of sequences, the start of each in its row, and the chunks in which the rows are fed."""

    name: str
    rows: tuple[Array, ...]  # the real tokens of each sequence
    starts: tuple[int, ...]  # the column at which each begins; the rest of its row is padding
    chunks: tuple[int, ...]
    labels: bool = False
    first: int = 0  # the position of each sequence's first token
    masked: bool = True  # whether an attention_mask is given; only model.py can do without
    by_token: bool = False  # for graphs that take one new token of each row
    own_slots: bool = False  # whether each row's tokens lie in its cache from the first slot on, without its padding

    @property
    def several_on_a_past(self) -> bool:
        """Several rows with several new tokens after a past, which onnxruntime's fused attention does not take."""
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
    def token_type_ids(self) -> Array:
        """The second half of each sequence is its second segment."""
        types = np.zeros((len(self.rows), self.length), np.int64)
        for i, (row, start) in enumerate(zip(self.rows, self.starts, strict=True)):
            types[i, start : start + len(row)] = np.arange(len(row)) * 2 // len(row)
        return types

    def labels_for(self, axes: int, classes: int) -> Array:
        """Labels for logits of so many axes: of each token (B, S) or of each text (B); 0 or 1 for a score."""
        wanted = self.input_ids if axes == 3 else self.input_ids[:, 0]
        return wanted % max(classes, 2)

    @property
    def lengths(self) -> set[int]:
        """The lengths of its calls, and of its sequences."""
        calls = (self.attention_mask[:, : new.stop].sum(axis=1).max() for new in self.slices)
        return {self.first + int(count) for count in (*calls, *map(len, self.rows))}

    def real_rows(self, logits: Array) -> list[Array]:
        """The rows of a (B, length, ...) array that are real tokens."""
        return [logits[i, s : s + len(row)] for i, (row, s) in enumerate(zip(self.rows, self.starts, strict=True))]


def sequences(vocab: int, seed: int = 7) -> tuple[Array, Array]:
    random = np.random.RandomState(seed)
    return random.randint(0, vocab, TOKENS), random.randint(0, vocab, SHORT)


def cases(
    vocab: int,
    cached: bool,
    sides: Iterable[Sides] = (),
    only: Collection[str] | None = None,
    by_token: bool = False,
) -> tuple[Case, ...]:
    """Every case that applies, or those of them named in `only`; without a cache, whole sequences only.

    `by_token` adds those for a graph that takes one new token of each row.

    Where the function changes beyond a length, each case is repeated with positions that start there.
    """
    every = (*_plain_cases(vocab, cached), *(_cases_by_token(vocab) if cached and by_token else ()))
    plain = tuple(case for case in every if only is None or case.name in only)
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


def _cases_by_token(vocab: int) -> tuple[Case, ...]:
    a, b = sequences(vocab)
    both, later, each = (a, np.roll(a, 3)), (0, TOKENS - SHORT), (1,) * TOKENS
    return (
        Case("token by token", both, (0, 0), each, by_token=True),
        Case("padded left, token by token", (a, b), later, each, by_token=True),
        Case("own slots, token by token", (a, b), later, each, by_token=True, own_slots=True),
    )
