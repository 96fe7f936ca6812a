"""Prefill and decode on one cache, whatever the graph's way of holding it.

B rows, S new tokens, T columns of the mask, V vocab.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blockc.ops import Array
from blockc.runtime.cache import Cache, Held
from blockc.runtime.opening import Opened, SessionError, opened
from blockc.runtime.sampling import Choose, greedy
from blockc.safetensors import widened
from blockc.target import Provider

_INT64 = 7


class Session:
    """A build's model and the cache of the rows that it reads.

    A row's tokens follow one another from the left; short rows are filled up on the right, and nothing of that is seen.
    Raises SessionError where the folder cannot be run, ProviderError where onnxruntime has not the provider.
    """

    def __init__(
        self, folder: Path | str, provider: Provider = "cpu", threads: int | None = None, prepack: bool = True
    ) -> None:
        """`prepack` copies the matrices into the order in which kernels read them: slower to open, then faster."""
        self._start(opened(Path(folder), provider, threads, prepack))

    @classmethod
    def of(cls, model: Opened) -> Session:
        """A session of a model that is open."""
        made = cls.__new__(cls)
        made._start(model)
        return made

    def _start(self, model: Opened) -> None:
        self.model = model
        self.inputs = {name: Held(_INT64) for name in sorted(self.model.inputs)}
        self.logits = Held(self.model.element)
        self.reset()

    @property
    def context(self) -> int:
        """The most tokens of a row."""
        return self.model.context

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many tokens of each row the cache holds."""
        return tuple(self._lengths.tolist())

    def reset(self) -> None:
        """Forgets all rows."""
        self.cache: Cache | None = None
        self._lengths = np.zeros(0, np.int64)
        self._mask = np.zeros((0, 0), np.int64)  # (B, length of the cache): 1 at tokens
        self._columns = 0  # how many of the mask are in use

    def prefill(self, rows: Sequence[Sequence[int]], room: int = 0) -> Array:
        """Reads new tokens of each row; logits (B, V) of each row's last one, in float32.

        On an empty cache these are the rows; later they go on, and must be as many. Memory is taken for `room` tokens
        beyond these; more is taken when more come. Raises SessionError.
        """
        counts = np.array([len(row) for row in rows], np.int64)
        if not len(rows) or not counts.all():
            raise SessionError("a row without a token has no last one: give each at least one")
        ids = np.zeros((len(rows), counts.max()), np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
        return self._call(ids, counts, room)

    def decode(self, tokens: Sequence[int] | Array) -> Array:
        """Reads the next token of each row; logits (B, V) after it, in float32. Raises SessionError."""
        ids = np.asarray(tokens, np.int64).reshape(-1, 1)
        return self._call(ids, np.ones(len(ids), np.int64), 0)

    def generate(
        self, prompts: Sequence[Sequence[int]], new: int, stop: Collection[int] = (), sampler: Choose = greedy
    ) -> Iterator[list[int | None]]:
        """At most `new` tokens behind each prompt, a step at a time: one token a row, None once the row has ended.

        A row ends with the first token of `stop`, which is given. Forgets what was read before. Raises SessionError.
        """
        self.reset()
        if new < 1:
            return
        self._refuse_long(max(map(len, prompts), default=0) + new)
        logits = self.prefill(prompts, room=new - 1)
        ended = [False] * len(prompts)
        for left in reversed(range(new)):
            tokens = sampler(logits)
            yield [None if end else int(token) for token, end in zip(tokens, ended, strict=True)]
            ended = [end or token in stop for token, end in zip(tokens.tolist(), ended, strict=True)]
            if all(ended) or not left:
                return
            logits = self.decode(tokens)

    def _call(self, ids: Array, counts: Array, room: int) -> Array:
        before = self._begun(ids, counts, room)
        joined = self.model.feeding == "joined"
        first = np.full_like(before, self._columns) if joined else before  # where each row's new tokens go
        cache = self._reserved(len(ids), int(first.max()) + ids.shape[1], room)
        self._feed(ids, counts, before, first)
        logits, value = self._logits_of(*ids.shape)
        cache.run({name: held.value for name, held in self.inputs.items()}, value)
        self._lengths = before + counts
        rows = logits[:, 0] if self.model.last else logits[np.arange(len(ids)), counts - 1]
        return widened(rows, "BF16") if rows.dtype == np.uint16 else rows.astype(np.float32)

    def _begun(self, ids: Array, counts: Array, room: int) -> Array:
        """The rows' lengths before these tokens, 0 where there were none. Raises SessionError for what cannot go on."""
        rows, new = ids.shape
        before = self._lengths if len(self._lengths) else np.zeros(rows, np.int64)
        if rows != len(before):
            raise SessionError(f"{rows} rows of tokens for a cache of {len(before)}: reset() begins new ones")
        if (bad := ids[(ids < 0) | (ids >= self.model.vocab)]).size:
            raise SessionError(f"token {bad[0]} is outside the vocabulary of {self.model.vocab}")
        if self.model.one_row and rows > 1 and new > 1 and before.any():
            raise SessionError(
                f"{rows} rows go on with up to {new} tokens, and the model's attention takes several new tokens on a "
                "cache in one row only: decode() them one by one, or give each row a session"
            )
        self._refuse_long(int((before + counts).max()) + room)
        return before

    def _refuse_long(self, tokens: int) -> None:
        if tokens > self.context:
            raise SessionError(f"{tokens} tokens of one row, and the model's context is {self.context}")

    def _reserved(self, rows: int, columns: int, room: int) -> Cache:
        """The cache, long enough for so many columns, and the mask as long as it. Growing doubles it at least."""
        if self.cache is None:
            self.cache = Cache(self.model, rows, columns + room)
        elif columns + room > self.cache.length:
            self.cache.grow(max(columns + room, 2 * self.cache.length))
        longer = self.cache.length - self._mask.shape[1]
        if longer:
            self._mask = np.pad(self._mask, ((0, rows - len(self._mask)), (0, longer)))
            self.inputs["attention_mask"].shaped(*self._mask.shape)
        return self.cache

    def _feed(self, ids: Array, counts: Array, before: Array, first: Array) -> None:
        """Writes the inputs: new tokens stand in the columns from each row's `first` on, padding behind them."""
        rows, new = ids.shape
        steps = np.arange(new)
        self._mask[np.arange(rows)[:, None], first[:, None] + steps] = steps < counts[:, None]
        self._columns = int((first + counts).max())
        total = self._mask.shape[1] if self.model.feeding == "buffer" else self._columns
        given = {
            "input_ids": ids,
            "attention_mask": self._mask[:, :total],
            "position_ids": before[:, None] + np.minimum(steps, counts[:, None] - 1),
            "write_indices": first,
        }
        for name, held in self.inputs.items():
            held.shaped(*given[name].shape)[:] = given[name]

    def _logits_of(self, rows: int, new: int) -> tuple[Array, Any]:
        """Memory for what comes out: kept for a token a row, for the logits of a whole prompt of this call alone."""
        out = self.logits if self.model.last or new == 1 else Held(self.model.element)
        return out.shaped(rows, 1 if self.model.last else new, self.model.vocab), out.value
