"""calibrate: how much each column of a matrix matters, by what the model reads there.

    importance_k = mean of x_k^2 over the tokens        x: what a matrix is multiplied by

The model runs in NumPy float32, matrix by matrix from the checkpoint's file, up to where the last matrix reads. Tokens
are drawn by a seed, or given: which ones matters little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from blockc.basics.progress import Progress, no_progress
from blockc.graph import interp
from blockc.graph.contract import IDS, inputs_of_texts
from blockc.ir import Array, Function, Node, ancestors_of, inline
from blockc.ops import Embed, Linear
from blockc.weights.streamed import stream_experts

TOKENS = 512
SEED = 0


def draw_tokens(vocab: int, context: int) -> Array:
    """One row of tokens, each any of the vocabulary."""
    return np.random.RandomState(SEED).randint(vocab, size=(1, min(TOKENS, context)))


def calibrate(
    function: Function,
    rows: Callable[[str], Iterator[Array]],
    read: Callable[[str], Array],
    texts: Sequence[Array],
    progress: Progress = no_progress,
) -> dict[str, Array]:
    """The importance of each matrix's columns, by its path. `texts` are rows of tokens, (1, S) each.

    `rows` reads a parameter in pieces, `read` whole. Of a table of tokens only the rows that are wanted are held.
    """
    found: dict[str, Array] = {}

    def note(path: str, x: Array) -> None:
        found[path] = found.get(path, 0) + np.einsum("nk,nk->k", x, x, dtype=np.float64)

    flat = stream_experts(inline(function), rows, note)
    linears = [n for n in flat.nodes if isinstance(n.op, Linear)]
    inner = ancestors_of(linears)
    ends = dict.fromkeys(n.inputs[0] for n in linears if n not in inner)
    cut = replace(flat, outputs=tuple((str(i), value) for i, value in enumerate(ends)))
    readers: dict[str, list[Node]] = {}
    for n in linears:
        readers.setdefault(n.inputs[0].name, []).append(n)
    tokens = 0

    def watch(name: str, array: Array) -> None:
        if name not in readers:
            return
        x = array.reshape(-1, array.shape[-1])
        for n in readers[name]:
            note(n.params[0].name, x)
            progress("calibrating", len(found), len(linears))

    table = next(n for n in flat.nodes if isinstance(n.op, Embed) and n.inputs[0].name == IDS)
    every, places = np.unique(np.concatenate([row.reshape(-1) for row in texts]), return_inverse=True)
    held = _rows_of(rows(table.params[0].name), every, table.params[0].shape[1])
    params = _Read(read, {table.params[0].name: held})
    for row in texts:
        ids, places = places[: row.size].reshape(row.shape), places[row.size :]
        interp.interpret(cut, inputs_of_texts(cut, ids), params, watch, np.float32)
        tokens += row.size
    return {path: squares / tokens for path, squares in found.items()}


def _rows_of(pieces: Iterator[Array], wanted: Array, width: int) -> Array:
    """These rows of a table, which are in order."""
    found, done, start = np.empty((wanted.size, width), np.float32), 0, 0
    flat = found.reshape(-1)
    first = wanted.astype(np.int64) * width  # of each wanted row, its first number's place
    for piece in pieces:
        numbers, end = piece.reshape(-1), start + piece.size
        while done < wanted.size and first[done] < end:
            low, high = max(first[done], start), min(first[done] + width, end)
            at = done * width + low - first[done]
            flat[at : at + high - low] = numbers[low - start : high - start]
            if first[done] + width > end:
                break  # the rest of the row is in the next piece
            done += 1
        start = end
    return found


class _Read(Mapping[str, Array]):
    """Parameters that are read when they are asked for, and not kept."""

    def __init__(self, read: Callable[[str], Array], held: Mapping[str, Array]) -> None:
        self.read, self.held = read, held

    def __getitem__(self, path: str) -> Array:
        return self.held[path] if path in self.held else self.read(path)

    def __iter__(self) -> Iterator[str]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)
