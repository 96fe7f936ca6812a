"""Feeds a case to a function: chunk after chunk, each with the states that the chunk before it returned.

The graph's contract says how it is fed. A graph by rows takes rows that start at the left; a graph with a buffer takes
a mask and a cache of one length, and the place to write; any other takes rows with their padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from blockc.basics.floats import format_of
from blockc.graph.contract import IDS, LOGITS, MASK, POSITIONS, SEGMENTS, TOP_LOGITS, TOP_TOKENS, WHERE, Contract
from blockc.ir import Array
from blockc.proof.cases import Case

Arrays = dict[str, Array]
SPARE = 3  # slots of a buffer that no token ever fills


@dataclass(frozen=True)
class Feed:
    """The inputs of one call, without its past."""

    inputs: Arrays
    columns: Array  # (B, S): the column of each new token in the case, -1 for padding


def feeds_of(contract: Contract, case: Case) -> Iterator[Feed]:
    """The feed of each chunk, as the graph's contract wants it."""
    match contract.feeding:
        case "rows":
            yield from _row_feeds(case)
        case "buffer":
            yield from _buffer_feeds(case)
        case "joined":
            for feed, new in zip(_joined_feeds(case), case.slices, strict=True):
                segments = {SEGMENTS: case.token_type_ids[:, new]} if contract.takes(SEGMENTS) else {}
                yield replace(feed, inputs=feed.inputs | segments)


def _joined_feeds(case: Case) -> Iterator[Feed]:
    for new in case.slices:
        yield Feed(
            {
                IDS: case.input_ids[:, new],
                MASK: case.attention_mask[:, : new.stop],
                POSITIONS: case.position_ids[:, new],
            },
            _columns_of(case, new),
        )


def _buffer_feeds(case: Case) -> Iterator[Feed]:
    for feed, new in zip(_joined_feeds(case), case.slices, strict=True):
        mask = feed.inputs[MASK]
        where = np.full(len(case.rows), new.start, np.int64)
        if case.own_slots:
            where = mask[:, : new.start].sum(axis=1)
            mask = (np.arange(new.stop) < mask.sum(axis=1, keepdims=True)).astype(np.int64)
        mask = np.pad(mask, ((0, 0), (0, case.length + SPARE - new.stop)))
        yield Feed(feed.inputs | {MASK: mask, WHERE: where}, feed.columns)


def _row_feeds(case: Case) -> Iterator[Feed]:
    """Moves padding to the right, both of a prompt's new tokens and of each row's mask."""
    for new in case.slices:
        seen = case.attention_mask[:, : new.stop]
        fresh = [np.flatnonzero(row[new]) for row in seen]
        shape = (len(case.rows), new.stop - new.start)
        ids, positions, columns = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.full(shape, -1)
        for i, at in enumerate(fresh):
            ids[i, : len(at)] = case.input_ids[i, new][at]
            positions[i, : len(at)] = case.position_ids[i, new][at]
            columns[i, : len(at)] = new.start + at
        mask = (np.arange(new.stop) < seen.sum(axis=1, keepdims=True)).astype(np.int64)
        yield Feed({IDS: ids, MASK: mask, POSITIONS: positions}, columns)


def _columns_of(case: Case, new: slice) -> Array:
    return np.where(case.attention_mask[:, new] == 1, np.arange(new.start, new.stop), -1)


def numpy_dtype(dtype: str, real: np.dtype | type | str) -> np.dtype:
    """NumPy's dtype for a graph's dtype, in a run whose floats are `real`."""
    return np.dtype(real if dtype == "float" else format_of(dtype, "fp32").numpy)


def empty_states(contract: Contract, case: Case, dtype: np.dtype | type = np.float32) -> Arrays:
    length = case.length + SPARE if contract.feeding == "buffer" else 0
    return {
        held.past: np.zeros(held.shape_for(len(case.rows), length), numpy_dtype(held.dtype, dtype))
        for held in contract.held
    }


def run_in_chunks(
    contract: Contract, case: Case, call: Callable[[Arrays], Arrays], dtype: np.dtype | type = np.float32
) -> Arrays:
    """The outputs by name, but for states. Those of tokens are in the columns of the case, (B, length, N).

    Logits of a graph that returns one row a call are (B, calls, V). Where a graph returns only the highest logits, or
    those of the last tokens, all others are -inf. An output of whole texts is that of the last call, (B, N).
    """
    state = empty_states(contract, case, dtype)
    parts: dict[str, list[Array]] = {}
    for feed in feeds_of(contract, case):
        outputs = call(feed.inputs | state)
        for name, given in _placed(contract, feed, outputs):
            parts.setdefault(name, []).append(given)
        state = {held.past: outputs[held.present] for held in contract.held}
    return {name: np.concatenate(each, axis=1) if each[0].ndim == 3 else each[-1] for name, each in parts.items()}


def _placed(contract: Contract, feed: Feed, outputs: Arrays) -> Iterator[tuple[str, Array]]:
    """Each output of one call beside the states, in the columns of the case where it is of tokens."""
    if contract.top:
        outputs = {LOGITS: _scatter(outputs, contract.vocab or 0)}
    names = (LOGITS,) if contract.top else tuple(port.name for port in contract.outputs)
    for name in names:
        given = outputs[name]
        whole = given.ndim != 3 or (name == LOGITS and contract.last == 1)
        yield name, given if whole else _place(given, feed.columns, contract)


def _scatter(outputs: Arrays, vocab: int) -> Array:
    """(B, 1, k) to (B, 1, V), -inf elsewhere; all NaN where they are not in order or repeat a token."""
    values, tokens = outputs[TOP_LOGITS], outputs[TOP_TOKENS]
    whole = np.full((*values.shape[:-1], vocab), -np.inf, values.dtype)
    np.put_along_axis(whole, tokens, values, axis=-1)
    twice = np.isfinite(whole).sum(axis=-1) < values.shape[-1]
    whole[twice | (np.diff(values, axis=-1) > 0).any(axis=-1)] = np.nan
    return whole


def _place(logits: Array, columns: Array, contract: Contract) -> Array:
    """Each row's logits in the columns that its tokens have in the case. Raises ValueError for more or fewer."""
    rows, tokens = columns.shape
    given = contract.rows_of(tokens)
    if logits.shape[:2] != (rows, given):
        raise ValueError(f"logits of {logits.shape[1]} tokens, expected {given}")
    absent = 0 if contract.last is None else -np.inf
    placed = np.full((rows, tokens, logits.shape[2]), absent, logits.dtype)
    first = columns.max(initial=0, where=columns >= 0) - tokens + 1
    for row, places in enumerate(columns):
        real = np.flatnonzero(places >= 0)
        at = real if contract.last is None else np.arange(given)[given - len(real[-given:]) :]
        if contract.last is not None and np.isneginf(logits[row, at]).any():
            raise ValueError("a logit is -inf, which here says that none was returned")
        placed[row, places[real[-given:]] - first] = logits[row, at]
    return placed
