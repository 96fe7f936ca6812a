"""Prefill and decode on one cache, whatever the graph's way of holding it.

B rows, S new tokens, T columns of the mask, V vocab.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from blockc.graph.contract import IDS, LOGITS, MASK, POSITIONS, TOP_LOGITS, TOP_TOKENS, WHERE
from blockc.graph.target import Provider
from blockc.ir import Array, Sides
from blockc.runtime.cache import HostTensor, SessionCache
from blockc.runtime.opening import OpenModel, SessionError, open_model
from blockc.runtime.sampling import Choose, Logits, Sampler, TopLogits, greedy
from blockc.runtime.step import DecodeStep
from blockc.weights.safetensors import widen

ROUND = 256  # tokens by which the buffers of a captured step are made longer, so that few lengths are captured


class Session:
    """A build's model and the cache of the rows that it reads.

    A row's tokens follow one another from the left; short rows are filled up on the right, and nothing of that is seen.
    Raises SessionError where the folder cannot be run, ProviderError where onnxruntime has not the provider.
    """

    def __init__(
        self,
        folder: Path | str,
        provider: Provider = "cpu",
        threads: int | None = None,
        prepack: bool = True,
        capture: bool = False,
    ) -> None:
        """`prepack` copies the matrices into the order in which kernels read them: slower to open, then faster.

        `capture` runs decode steps as a CUDA graph. All calls must then come from one thread.
        """
        self._start(open_model(Path(folder), provider, threads, prepack, capture))

    @classmethod
    def of(cls, model: OpenModel) -> Session:
        """A session of a model that is open."""
        made = cls.__new__(cls)
        made._start(model)
        return made

    def _start(self, model: OpenModel) -> None:
        self.model = model
        self.inputs = {port.name: HostTensor(model.type_of(port.dtype)) for port in model.contract.inputs}
        self.outputs = {port.name: HostTensor(model.type_of(port.dtype)) for port in model.contract.outputs}
        self.cache: SessionCache | None = None
        self.step: DecodeStep | None = None
        self._graphs = 0  # captured so far
        self.reset()

    @property
    def buffered(self) -> bool:
        """The mask is as long as the cache in every call."""
        return self.model.contract.feeding == "buffer"

    @property
    def context(self) -> int:
        """The most tokens of a row."""
        return self.model.context

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many tokens of each row the cache holds."""
        return tuple(self._lengths.tolist())

    def reset(self) -> None:
        """Forgets all rows. What is captured stays, with its memory, for rows of the same number."""
        if not self.model.captured:
            self.cache = self.step = None
        self._lengths = np.zeros(0, np.int64)
        self._mask = np.zeros((0, 0), np.int64)  # (B, length of the cache): 1 at tokens
        self._columns = 0  # how many of the mask are in use

    def prefill(self, rows: Sequence[Sequence[int]], room: int = 0) -> Logits:
        """Reads new tokens of each row; logits (B, V) of each row's last one, in float32, or the highest of them.

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

    def decode(self, tokens: Sequence[int] | Array) -> Logits:
        """Reads the next token of each row; logits (B, V) after it, as prefill's. Raises SessionError."""
        ids = np.asarray(tokens, np.int64).reshape(-1, 1)
        return self._call(ids, np.ones(len(ids), np.int64), 0)

    def generate(
        self, prompts: Sequence[Sequence[int]], new: int, stop: Collection[int] = (), sampler: Choose = greedy
    ) -> Iterator[list[int | None]]:
        """At most `new` tokens behind each prompt, a step at a time: one token a row, None once the row has ended.

        A row ends with the first token of `stop`, which is given. Forgets what was read before. Where rope turns tokens
        otherwise from some length on, all is read anew when the longest row is that long. Raises SessionError.
        """
        self.reset()
        if new < 1:
            return
        if self.model.contract.top and isinstance(sampler, Sampler) and (why := sampler.lacks(self.model.contract.top)):
            raise SessionError(
                f"{self.model.name}: {why}: give a top_k of {self.model.contract.top} or fewer, "
                "or build it with --logits last"
            )
        longest = max(map(len, prompts), default=0)
        self._refuse_long(longest + new)
        if any(side.grows for side in self.model.contract.sides):
            self._refuse_unlike(longest, longest + new - 1)
        texts = [list(prompt) for prompt in prompts]
        logits = self.prefill(texts, room=new - 1)
        ended = [False] * len(prompts)
        for left in reversed(range(new)):
            tokens = sampler(logits)
            yield [None if end else int(token) for token, end in zip(tokens, ended, strict=True)]
            ended = [end or token in stop for token, end in zip(tokens.tolist(), ended, strict=True)]
            if all(ended) or not left:
                return
            for text, token in zip(texts, tokens.tolist(), strict=True):
                text.append(token)
            held = max(self.lengths)
            if self._find_conflict(held, held + 1) is None:
                logits = self.decode(tokens)
            else:
                self.reset()
                logits = self.prefill(texts, room=left - 1)

    def _call(self, ids: Array, counts: Array, room: int) -> Logits:
        before = self._check_rows(ids, counts, room)
        joined = self.model.contract.feeding == "joined"
        first = np.full_like(before, self._columns) if joined else before  # where each row's new tokens go
        cache = self._reserve(len(ids), int(first.max()) + ids.shape[1], room)
        step = self._bind_step(cache) if self.model.binds_steps and ids.shape[1] == 1 and before.all() else None
        given = self._make_inputs(ids, counts, before, first, whole=step is not None or self.buffered)
        if step is not None:
            step.run(given)
            outputs = {name: tensor.read() for name, tensor in step.outputs.items()}
        else:
            outputs = self._run(cache, given, *ids.shape)
        self._lengths = before + counts
        if self.model.contract.top:
            return TopLogits(outputs[TOP_LOGITS][:, 0].copy(), outputs[TOP_TOKENS][:, 0].copy())
        logits, every = outputs[LOGITS], self.model.contract.every
        rows = logits[np.arange(len(ids)), counts - 1] if every else logits[:, 0]
        return widen(rows, "BF16") if rows.dtype == np.uint16 else rows.astype(np.float32)

    def _check_rows(self, ids: Array, counts: Array, room: int) -> Array:
        """The rows' lengths before these tokens, 0 where there were none. Raises SessionError for what cannot go on."""
        rows, new = ids.shape
        before = self._lengths if len(self._lengths) else np.zeros(rows, np.int64)
        if rows != len(before):
            raise SessionError(f"{rows} rows of tokens for a cache of {len(before)}: reset() begins new ones")
        if (bad := ids[(ids < 0) | (ids >= self.model.vocab)]).size:
            raise SessionError(f"token {bad[0]} is outside the vocabulary of {self.model.vocab}")
        if self.model.contract.one_row and rows > 1 and new > 1 and before.any():
            raise SessionError(
                f"{rows} rows go on with up to {new} tokens, and the model's attention takes several new tokens on a "
                "cache in one row only: decode() them one by one, or give each row a session"
            )
        self._refuse_long(int((before + counts).max()) + room)
        self._refuse_unlike(int(before.max()), int((before + counts).max()))
        return before

    def _refuse_long(self, tokens: int) -> None:
        if tokens > self.context:
            raise SessionError(f"{tokens} tokens of one row, and the model's context is {self.context}")

    def _find_conflict(self, held: int, tokens: int) -> Sides | None:
        """A cache whose keys were turned in a call of `held` tokens does not go with every longer call."""
        return next((side for side in self.model.contract.sides if held and not side.alike((held, tokens))), None)

    def _refuse_unlike(self, held: int, tokens: int) -> None:
        if side := self._find_conflict(held, tokens):
            otherwise = "otherwise at every length" if side.grows else "otherwise"
            raise SessionError(
                f"{tokens} tokens of one row on a cache of {held}: beyond {side.original} the model's rope turns "
                f"tokens {otherwise}, and those of the cache are turned: reset() and read all anew in one call"
            )

    def _reserve(self, rows: int, columns: int, room: int) -> SessionCache:
        """The cache, long enough for so many columns, and the mask as long as it. Growing doubles it at least."""
        wanted = columns + room
        new = not len(self._lengths)
        if self.cache is None or (new and (self.cache.rows != rows or self.cache.length < wanted)):
            self._release()
            self.cache = SessionCache(self.model, rows, self._round_up(wanted))
        elif wanted > self.cache.length:
            self._release()
            self.cache.grow(self._round_up(max(wanted, 2 * self.cache.length)))
        longer = self.cache.length - self._mask.shape[1]
        if longer:
            self._mask = np.pad(self._mask, ((0, rows - len(self._mask)), (0, longer)))
            self.inputs[MASK].reshape(*self._mask.shape)
        return self.cache

    def _round_up(self, length: int) -> int:
        """A capture is of one length: the same is taken for many."""
        return max(length, min(-(-length // ROUND) * ROUND, self.context)) if self.model.captured else length

    def _bind_step(self, cache: SessionCache) -> DecodeStep:
        """The decode step on these buffers; what an earlier one captured is of no use on others."""
        if self.step is None:
            self._graphs += 1
            self.step = DecodeStep(cache, self._graphs)
        return self.step

    def _release(self) -> None:
        if self.step is not None:
            self.step.release()
            self.step = None

    def _make_inputs(self, ids: Array, counts: Array, before: Array, first: Array, whole: bool) -> dict[str, Array]:
        """The inputs: new tokens stand in the columns from each row's `first` on, padding behind them.

        `whole`: the mask is as long as the buffers.
        """
        rows, new = ids.shape
        steps = np.arange(new)
        self._mask[np.arange(rows)[:, None], first[:, None] + steps] = steps < counts[:, None]
        self._columns = int((first + counts).max())
        return {
            IDS: ids,
            MASK: self._mask if whole else self._mask[:, : self._columns],
            POSITIONS: before[:, None] + np.minimum(steps, counts[:, None] - 1),
            WHERE: first,
        }

    def _run(self, cache: SessionCache, given: dict[str, Array], rows: int, new: int) -> dict[str, Array]:
        """A call whose shapes are its own. Memory for what comes out is kept, but for the logits of a whole prompt."""
        for name, each in self.inputs.items():
            each.write(given[name])
        tokens = new if self.model.contract.every else 1
        kept = self.outputs if tokens == 1 else {name: HostTensor(each.element) for name, each in self.outputs.items()}
        ports = self.model.contract.outputs
        made = {port.name: kept[port.name].reshape(rows, tokens, self.model.width(port)) for port in ports}
        cache.run(self.inputs, kept)
        return made
