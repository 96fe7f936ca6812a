"""Prefill and decode with one cache, for graphs with any kind of cache.

B rows, S new tokens, T columns of the mask, V vocab.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from blockc.graph.contract import IDS, LOGITS, MASK, POSITIONS, TOP_LOGITS, TOP_TOKENS, WHERE, Contract
from blockc.graph.target import Provider
from blockc.ir import Array, Sides
from blockc.runtime.binding import BoundGraph
from blockc.runtime.cache import SessionCache
from blockc.runtime.lookup import Drafts, generate_by_lookup
from blockc.runtime.opening import OpenModel, SessionError, open_model
from blockc.runtime.sampling import Choose, Logits, Sampler, TopLogits, as_float32, greedy, keeps_nothing
from blockc.runtime.step import DecodeStep

ROUND = 256  # tokens; the buffers of a captured step have a multiple of it, so that few lengths are captured
MASK_ROUND = 64  # tokens; where rows go by their lengths, the mask of a step may be longer
LONG_ROUND = 128  # tokens; where a graph reads whole buffers, these are as long as the text, rounded up to a multiple


class Session:
    """A build's model, and the cache of the rows that it has read.

    Rows start at the left; short rows are padded on the right, and the padding is masked. Raises SessionError if the
    folder cannot be run, ProviderError if onnxruntime lacks the provider.
    """

    def __init__(
        self,
        folder: Path | str,
        provider: Provider = "cpu",
        threads: int | None = None,
        prepack: bool | None = True,
        capture: bool = False,
    ) -> None:
        """Opens a build. `prepack` copies matrices into the order of the kernels: slower to open, faster to run.
        None leaves them as they lie, but for codes: a build with codes is always prepacked, and False is refused.

        `capture` runs decode steps as a CUDA graph; then all calls must come from one thread.
        """
        self._start(open_model(Path(folder), provider, threads, prepack, capture))

    @classmethod
    def of(cls, model: OpenModel) -> Session:
        """A session with an open model."""
        made = cls.__new__(cls)
        made._start(model)
        return made

    def _start(self, model: OpenModel) -> None:
        self.model = model
        self.graph = BoundGraph(model)
        self.long: BoundGraph | None = None  # the graph of one new token, once a row is long
        self.cache: SessionCache | None = None
        self.step: DecodeStep | None = None
        self.drafts = Drafts()  # of the last text by lookup
        self._graphs = 0  # captured so far
        self.reset()

    @property
    def buffered(self) -> bool:
        """Whether the mask of every call is as long as the cache."""
        return self.model.contract.feeding == "buffer"

    @property
    def rounds(self) -> bool:
        """Whether several tokens of a call are rounded otherwise than one: products of codes round what they take."""
        return self.model.rounds

    @property
    def context(self) -> int:
        """The largest number of tokens in a row."""
        return self.model.context

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of tokens of each row in the cache."""
        return tuple(self._lengths)

    def reset(self) -> None:
        """Forgets all rows. A captured step keeps its memory, for the same number of rows."""
        if not self.model.captured:
            self.cache = self.step = None
        self._lengths: list[int] = []
        self._mask = np.zeros((0, 0), np.int64)  # (B, length of the cache): 1 at tokens
        self._columns = 0  # of the mask that are in use

    def prefill(self, rows: Sequence[Sequence[int]], room: int = 0) -> Logits:
        """Reads new tokens of each row. Returns float32 logits (B, V) after each row's last token, or the highest ones.

        On an empty cache this starts the rows; later calls extend them, and need as many rows. The cache gets `room`
        for more tokens, and grows if that is not enough. Raises SessionError.
        """
        counts = [len(row) for row in rows]
        if not rows or not all(counts):
            raise SessionError("a row without a token has no last one: give each at least one")
        ids = np.zeros((len(rows), max(counts)), np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
        return self._call(ids, counts, room)

    def extend(self, tokens: Sequence[int]) -> Array:
        """Reads new tokens of the one row. Returns float32 logits (S, V) after each of them. Raises SessionError."""
        if len(self._lengths) > 1:
            raise SessionError(f"{len(self._lengths)} rows are open, and one is extended by several tokens")
        if not tokens:
            raise SessionError("no token was given: one or more extend a row")
        contract = self.model.contract
        if contract.top or contract.rows_of(len(tokens)) < len(tokens):
            raise SessionError(
                f"{self.model.name}: {len(tokens)} tokens were given, and {_told_of(contract)}: build it with --logits "
                f"last:{len(tokens)}, or more"
            )
        return as_float32(self.extend_lent(tokens))

    def extend_lent(self, tokens: Sequence[int]) -> Array:
        """The same in the model's own float type and in memory that the next call writes: for who reads it at once."""
        outputs = self._run(np.array([tokens], np.int64), [len(tokens)], 0)
        return outputs[LOGITS][0]

    def rewind(self, length: int) -> None:
        """Forgets the tokens of the one row after its first `length` ones. Raises SessionError."""
        if len(self._lengths) != 1 or not 0 < length <= self._lengths[0]:
            raise SessionError(f"a rewind to {length} tokens, and the rows have {', '.join(map(str, self.lengths))}")
        if why := self.why_no_rewind:
            raise SessionError(f"{self.model.name}: {why}")
        self._refuse_unlike(length, self._lengths[0])
        self._lengths[0] = self._columns = length
        self._mask[0, length:] = 0

    @property
    def why_no_rewind(self) -> str:
        """Why tokens cannot be forgotten; empty if they can: then a later token is written in their place."""
        if self.model.contract.forgets:
            return ""
        return (
            "its cache is not a buffer in which a token can be written over: build it with --ep cpu or --cache buffer"
        )

    def decode(self, tokens: Sequence[int] | Array) -> Logits:
        """Reads the next token of each row. Returns logits (B, V) after it, as prefill does. Raises SessionError."""
        ids = np.asarray(tokens, np.int64).reshape(-1, 1)
        return self._call(ids, [1] * len(ids), 0)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        new: int,
        stop: Collection[int] = (),
        sampler: Choose = greedy,
        lookup: int = 0,
    ) -> Iterator[list[int | None]]:
        """Yields at most `new` tokens after each prompt, step by step: a token for each row, None after the row's end.

        A row ends with the first token of `stop`, which is yielded. Earlier rows are forgotten. If rope changes beyond
        a length, all tokens are read again when the longest row reaches it. Raises SessionError.

        `lookup`: up to so many next tokens of the one row are drafted from its own text, and checked in one call. The
        text is the same, also of a sampler with a seed, as far as several rows are rounded as one is: so in floats;
        `rounds` says where it is otherwise. `drafts` counts them.
        """
        self.reset()
        if new < 1:
            return
        if lookup:
            self._refuse_lookup(prompts, lookup)
        if self.model.contract.top and isinstance(sampler, Sampler) and (why := sampler.lacks(self.model.contract.top)):
            raise SessionError(
                f"{self.model.name}: {why}: give a top_k of {self.model.contract.top} or fewer, "
                "or build it with --logits last"
            )
        longest = max(map(len, prompts), default=0)
        self._refuse_long(longest + new)
        if any(side.grows for side in self.model.contract.sides):
            self._refuse_unlike(longest, longest + new - 1)
        if lookup:
            for token in generate_by_lookup(self, prompts[0], new, stop, sampler, lookup):
                yield [token]
            return
        texts = [list(prompt) for prompt in prompts]
        logits = self.prefill(texts, room=new - 1)
        lent = keeps_nothing(sampler)
        one, ended, alike = [1] * len(prompts), [False] * len(prompts), not self.model.contract.sides
        for left in reversed(range(new)):
            tokens = sampler(logits)
            yield [None if end else int(token) for token, end in zip(tokens, ended, strict=True)]
            ended = [end or token in stop for token, end in zip(tokens.tolist(), ended, strict=True)]
            if all(ended) or not left:
                return
            for text, token in zip(texts, tokens.tolist(), strict=True):
                text.append(token)
            held = max(self._lengths)
            if alike or self.find_conflict(held, held + 1) is None:
                logits = self._call(tokens.reshape(-1, 1), one, 0, lent)
            else:
                self.reset()
                logits = self.prefill(texts, room=left - 1)

    def _call(self, ids: Array, counts: list[int], room: int, lent: bool = False) -> Logits:
        """Logits (B, V) after each row's last token; `lent`: in memory that the next call writes, if that is fp32."""
        outputs = self._run(ids, counts, room)
        if self.model.contract.top:
            return TopLogits(outputs[TOP_LOGITS][:, 0].copy(), outputs[TOP_TOKENS][:, 0].copy())
        logits, every = outputs[LOGITS], ids.shape[1] > 1 and self.model.contract.logits_of_every_token
        last = logits[np.arange(len(ids)), np.array(counts) - 1] if every else logits[:, -1]
        return as_float32(last, lent)

    def _run(self, ids: Array, counts: list[int], room: int) -> dict[str, Array]:
        """Reads tokens (B, S), of each row the first `counts`. The outputs stay in memory that the next call writes."""
        rows, new = ids.shape
        before = self._lengths or [0] * rows
        after = [held + count for held, count in zip(before, counts, strict=False)]
        self._check_rows(ids, before, after, room)
        joined = self.model.contract.feeding == "joined"
        first = [self._columns] * rows if joined else before  # where each row's new tokens go
        columns = max(first)
        cache = self._reserve(rows, columns + new, room)
        graph = self._choose_graph(new, columns)
        step = self._bind_step(cache) if self.model.binds_steps and new == 1 and all(before) else None
        whole = step is not None or self.buffered or graph is self.long
        given = self._make_inputs(ids, counts, before, first, whole)
        if step is not None:
            step.run(given)
            outputs = {name: tensor.read() for name, tensor in step.outputs.items()}
        else:
            outputs = graph.run(cache, given, rows, self.model.contract.rows_of(new))
        self._lengths = after
        return outputs

    def _choose_graph(self, new: int, columns: int) -> BoundGraph:
        """The graph that is faster for so many new tokens after so many columns."""
        if new > 1 or self.model.step is None or columns < self.model.long:
            return self.graph
        if self.long is None:
            self.long = BoundGraph(self.model.step())
        return self.long

    def _check_rows(self, ids: Array, before: list[int], after: list[int], room: int) -> None:
        """Raises SessionError for tokens that cannot extend the rows from their lengths before to those after."""
        rows, new = ids.shape
        if rows != len(before):
            raise SessionError(f"{rows} rows of tokens for a cache of {len(before)}: reset() starts new rows")
        tokens = ids.ravel().tolist()  # of few numbers Python finds the least faster than NumPy
        if min(tokens) < 0 or max(tokens) >= self.model.vocab:
            bad = next(token for token in tokens if not 0 <= token < self.model.vocab)
            raise SessionError(f"token {bad} is outside the vocabulary of {self.model.vocab}")
        if new > 1 and rows > 1 and self.model.contract.one_row and any(before):
            raise SessionError(
                f"{rows} rows are extended by up to {new} tokens, and the model's attention takes several tokens "
                "after a cache in one row only: decode() them one by one, or open a session for each row"
            )
        longest = max(after)
        self._refuse_long(longest + room)
        if self.model.contract.sides:
            self._refuse_unlike(max(before), longest)

    def _refuse_lookup(self, prompts: Sequence[Sequence[int]], lookup: int) -> None:
        contract = self.model.contract
        if lookup < 0:
            raise SessionError(f"lookup is {lookup}: expected how many tokens to draft at most, or 0 for none")
        if len(prompts) != 1:
            raise SessionError(
                f"lookup takes one prompt, and there are {len(prompts)}: rows would keep drafts of different lengths, "
                "and the attention takes several tokens after a cache in one row only"
            )
        if contract.top or contract.rows_of(lookup + 1) <= lookup:
            raise SessionError(
                f"{self.model.name}: a draft of {lookup} tokens is checked by logits of {lookup + 1}, and "
                f"{_told_of(contract)}: build it with --logits last:{lookup + 1}"
            )
        if why := self.why_no_rewind:
            raise SessionError(f"{self.model.name}: {why}")

    def _refuse_long(self, tokens: int) -> None:
        if tokens > self.context:
            raise SessionError(f"{tokens} tokens of one row, and the model's context is {self.context}")

    def find_conflict(self, held: int, tokens: int) -> Sides | None:
        """The side on which keys cached at `held` tokens do not fit a call of `tokens` tokens; else None."""
        return next((side for side in self.model.contract.sides if held and not side.are_alike((held, tokens))), None)

    def _refuse_unlike(self, held: int, tokens: int) -> None:
        if side := self.find_conflict(held, tokens):
            otherwise = "differently at every length" if side.grows else "differently"
            raise SessionError(
                f"{tokens} tokens of one row with {held} of them in the cache: beyond {side.original} the model's "
                f"rope rotates tokens {otherwise}, also those in the cache: reset(), and read all again in one call"
            )

    def _reserve(self, rows: int, columns: int, room: int) -> SessionCache:
        """The cache, long enough for these columns, with a mask as long.

        It grows at least to twice its length; where a graph reads whole buffers, they follow the text closely.
        """
        follows = self.model.step is not None
        wanted = columns if follows else columns + room
        new = not len(self._lengths)
        if self.cache is None or (new and not self._fits(self.cache, rows, wanted)):
            self._release()
            self.cache = SessionCache(self.model, rows, self._round_up(wanted))
        elif wanted > self.cache.length:
            self._release()
            self.cache.grow(self._round_up(wanted if follows else max(wanted, 2 * self.cache.length)))
        longer = self.cache.length - self._mask.shape[1]
        if longer:
            self._mask = np.pad(self._mask, ((0, rows - len(self._mask)), (0, longer)))
        return self.cache

    def _fits(self, cache: SessionCache, rows: int, wanted: int) -> bool:
        """Whether new rows can take an earlier cache. One that is too long costs time where a graph reads all of it."""
        if cache.rows != rows or cache.length < wanted:
            return False
        return self.model.step is None or cache.length == self._round_up(wanted)

    def _round_up(self, length: int) -> int:
        """The length of the buffers, rounded up: each length of a captured cache is captured by itself."""
        step = ROUND if self.model.captured else 1 if self.model.step is None else LONG_ROUND
        return max(length, min(-(-length // step) * step, self.context))

    def _bind_step(self, cache: SessionCache) -> DecodeStep:
        """The decode step for these buffers. Other buffers need another capture."""
        if self.step is None:
            self._graphs += 1
            self.step = DecodeStep(cache, self._graphs)
        return self.step

    def _release(self) -> None:
        if self.step is not None:
            self.step.release()
            self.step = None

    def _make_inputs(
        self, ids: Array, counts: list[int], before: list[int], first: list[int], whole: bool
    ) -> dict[str, Array]:
        """The inputs of a call. New tokens are in columns from each row's `first` on, with padding after them.

        `whole`: the mask is as long as the buffers.
        """
        rows, new = ids.shape
        positions, where = np.array(before).reshape(-1, 1), np.array(first)
        if new == 1:
            for row, at in enumerate(first):
                self._mask[row, at] = 1
        else:
            steps, real = np.arange(new), np.array(counts).reshape(-1, 1)
            self._mask[np.arange(rows)[:, None], where[:, None] + steps] = steps < real
            positions = positions + np.minimum(steps, real - 1)
        self._columns = max(at + count for at, count in zip(first, counts, strict=True))
        columns = self._mask.shape[1] if whole else self._columns
        if new == 1 and self.model.contract.feeding == "rows":  # so that few steps bind another mask
            columns = min(-(-columns // MASK_ROUND) * MASK_ROUND, self._mask.shape[1])
        return {IDS: ids, MASK: self._mask[:, :columns], POSITIONS: positions, WHERE: where}


def _told_of(contract: Contract) -> str:
    if contract.top:
        return f"it gives the {contract.top} highest logits of one"
    return f"it gives those of the last {contract.last}" if contract.last != 1 else "it gives those of the last one"
