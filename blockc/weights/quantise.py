"""Writer of what passes derive: tensor by tensor, matrices in blocks a few rows at a time."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from blockc.ir import Array, Blocks
from blockc.ir.columns import Columns, Turn
from blockc.ir.derive import Derivation, Interleave, Join, Quantise, Reshape

PIECE = 1 << 20  # numbers that a thread quantises before it hands them on
PART = 1 << 16  # of these at a time: they stay in the processor's caches
THREADS = min(4, os.cpu_count() or 1)
AHEAD = 2 * THREADS  # pieces that are held at most
KEPT = 1 << 25  # scales that are held from the codes until they are written; of more, codes are made twice
FACTORS = (0.7, 0.775, 0.85, 0.925, 1.0, 1.075, 1.15)
LEAST = 1e-6  # importance, of the mean: what no token used is stored as well as can be, too
ALIKE = 16 / 15  # from this factor on no code of 4 bits is at an end, and either sign gives the same
Codes = tuple[Array, Array, Array | None]  # packed codes, scales, lows
Rows = Callable[[str], Iterator[Array]]  # a parameter's numbers in their order, in pieces of any shape
Carried = Callable[[str, Blocks], Iterator[Codes] | None]  # its codes in such blocks, where there are any already


def carry_nothing(path: str, blocks: Blocks) -> Iterator[Codes] | None:
    """Of a source that holds numbers and no codes."""
    return None


@dataclass
class Quantiser:
    """`rows` reads a parameter in pieces, `read` whole. `importance` says how much each column of a matrix matters.

    `hold` gives scales and lows as they will be stored: codes are made for those.
    `carried` gives codes that the source has already, which are taken as they are.
    """

    rows: Rows
    read: Callable[[str], Array]
    shapes: Mapping[str, tuple[int, ...]]
    importance: Mapping[str, Array] = field(default_factory=dict[str, Array])
    hold: Callable[[Array], Array] = np.asarray
    carried: Carried = carry_nothing
    _kept: dict[tuple[str, Blocks], dict[str, list[Array]]] = field(default_factory=dict)  # until they are written

    def pieces(self, derivation: Derivation) -> Iterator[Array]:
        """The numbers of what is derived, in their order."""
        match derivation:
            case Quantise((str(path),), "codes", blocks):
                yield from self._codes(path, blocks)
            case Quantise((str(path),), tensor, blocks):
                yield from self._of_blocks(path, blocks, tensor)
            case Quantise((Interleave(sources, 1),), tensor, blocks):
                yield from take_turns([self.pieces(Quantise((source,), tensor, blocks)) for source in sources])
            case Interleave((str(), *_) as sources, 1):
                yield from take_turns([self._rows_below(str(source)) for source in sources])
            case Columns((Derivation() as source,)):
                yield from derivation.pieces(self.pieces(source))
            case Turn((Derivation() as source,)):
                yield derivation.numpy(np.concatenate(list(self.pieces(source))))
            case Reshape((Derivation() as source,)):
                yield from self.pieces(source)
            case Join(sources, 0):
                for source in sources:
                    yield from self.rows(source) if isinstance(source, str) else self.pieces(source)
            case _:
                yield derivation.evaluate(self.read)

    def _rows_below(self, path: str) -> Iterator[Array]:
        """A parameter's numbers as rows, one for each place of its first two axes."""
        return whole_rows(self.rows(path), math.prod(self.shapes[path][2:]))

    def _codes(self, path: str, blocks: Blocks) -> Iterator[Array]:
        kept: dict[str, list[Array]] = {"scales": [], "lows": []}
        *before, width = self.shapes[path]
        keeps = math.prod(before) * blocks.count(width) <= KEPT
        for codes, scales, lows in self._quantise(path, blocks):
            kept["scales"].extend([scales] if keeps else [])
            kept["lows"].extend([] if lows is None or not keeps else [lows])
            yield codes
        if keeps:
            self._kept[path, blocks] = kept

    def _quantise(self, path: str, blocks: Blocks) -> Iterator[Codes]:
        """Those that the source has, or new ones."""
        quantise = partial(quantise_rows, blocks=blocks, importance=self.importance.get(path), hold=self.hold)
        own = self.carried(path, blocks)
        return own or map_ahead(quantise, whole_rows(self.rows(path), self.shapes[path][-1]))

    def _of_blocks(self, path: str, blocks: Blocks, tensor: str) -> Iterator[Array]:
        """Scales or lows, which come to be with the codes."""
        if tensor not in self._kept.get((path, blocks), {}):
            yield from (
                scales if tensor == "scales" or lows is None else lows
                for _, scales, lows in self._quantise(path, blocks)
            )
            return
        kept = self._kept[path, blocks]
        yield from kept.pop(tensor)
        if not any(kept.values()):
            del self._kept[path, blocks]


def take_turns(streams: Sequence[Iterator[Array]]) -> Iterator[Array]:
    """Rows of several streams in turn, as many at a time as all have; their pieces may differ in length."""
    held = [next(stream, None) for stream in streams]
    while all(piece is not None for piece in held):
        now = [piece for piece in held if piece is not None]
        count = min(map(len, now))
        yield np.stack([piece[:count] for piece in now], 1).reshape(-1, *now[0].shape[1:])
        rest = zip(now, streams, strict=True)
        held = [piece[count:] if len(piece) > count else next(stream, None) for piece, stream in rest]
    assert not any(piece is not None for piece in held), "streams of as many rows"


def whole_rows(pieces: Iterator[Array], width: int) -> Iterator[Array]:
    """Pieces of any shape as whole rows (rows, width) in fp32, about `PIECE` numbers at a time."""
    size = max(1, PIECE // width) * width
    held: list[Array] = []
    count = 0
    for piece in pieces:
        held.append(piece.reshape(-1).astype(np.float32, copy=False))
        count += held[-1].size
        while count >= size:
            whole = np.concatenate(held) if len(held) > 1 else held[0]
            yield whole[:size].reshape(-1, width)
            held = [whole[size:]]
            count -= size
    if count:
        yield np.concatenate(held).reshape(-1, width)


def map_ahead(make: Callable[[Array], Codes], pieces: Iterator[Array]) -> Iterator[Codes]:
    """What is made of each piece, in their order, by threads; no more than `AHEAD` pieces are held."""
    with ThreadPoolExecutor(THREADS) as threads:
        held: deque[Future[Codes]] = deque()
        for piece in pieces:
            held.append(threads.submit(make, piece))
            if len(held) == AHEAD:
                yield held.popleft().result()
        while held:
            yield held.popleft().result()


def quantise_rows(
    rows: Array, blocks: Blocks, importance: Array | None, hold: Callable[[Array], Array] = np.asarray
) -> Codes:
    """Packed codes, scales and lows of rows (rows, width). Scales are fitted in 4 bits without lows alone."""
    fit = importance is not None and blocks.bits == 4 and not blocks.lows
    count, step = blocks.count(rows.shape[1]), max(1, PART // rows.shape[1])
    codes = np.empty((len(rows), count, blocks.bytes), np.uint8)
    scales = np.empty((len(rows), count), np.float32)
    lows = np.empty_like(scales) if blocks.lows else None
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        x = blocks.split(rows[part])
        own, low = (fit_scales(x, blocks, importance), None) if importance is not None and fit else blocks.scales(x)
        scales[part] = hold(own)
        if lows is not None and low is not None:
            lows[part] = hold(low)
        codes[part] = blocks.pack(blocks.codes(x, scales[part], None if lows is None else lows[part]))
    return codes, scales, lows


def fit_scales(x: Array, blocks: Blocks, importance: Array) -> Array:
    """Scales for which the sum over a block of h (x - scale u)^2 is least, h the importance, of the codes u tried.

    Codes are made by several scales around the plain one, of either sign. Of each the best scale is that of least
    squares, sum(h x u) / sum(h u u), and what it leaves out is the smaller the larger sum(h x u)^2 / sum(h u u) is. The
    codes that the best of these give are tried once more.
    """
    numbers = blocks.upright(x)
    mean = importance.mean() or 1.0
    h = blocks.split(np.asarray(importance / mean + LEAST, x.dtype))
    search = _Search(numbers, blocks.upright(np.broadcast_to(h, x.shape)), blocks.middle)
    widest = np.abs(numbers).max(0) / blocks.middle
    for factor in FACTORS:
        search.attempt(widest * factor, both=factor < ALIKE)
    search.attempt(search.best.copy(), both=False)
    return search.best.reshape(x.shape[:-1])


class _Search:
    """The best scales so far of blocks that stand in columns, (size, blocks), by their importance h."""

    def __init__(self, x: Array, h: Array, middle: int) -> None:
        self.x, self.h, self.hx, self.middle = x, h, x * h, middle
        self.ratio, self.codes, self.weighted = np.empty_like(x), np.empty_like(x), np.empty_like(x)
        self.best, self.gain = np.zeros_like(x[0]), np.full_like(x[0], -1)

    def attempt(self, scales: Array, both: bool) -> None:
        """Tries these scales, and with `both` their negatives, whose codes end at the other side."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            np.multiply(self.x, np.where(scales == 0, 0, 1 / scales), out=self.ratio)
        np.rint(self.ratio, out=self.ratio)
        self._weigh()
        if both:
            np.negative(self.ratio, out=self.ratio)
            self._weigh()

    def _weigh(self) -> None:
        """Takes the least squares' scale of each block whose codes leave out less than before."""
        np.clip(self.ratio, -self.middle, self.middle - 1, out=self.codes)
        np.multiply(self.codes, self.h, out=self.weighted)
        across = np.einsum("kn,kn->n", self.hx, self.codes)
        within = np.einsum("kn,kn->n", self.weighted, self.codes)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            scale = across / np.where(within, within, 1)
            gain = across * scale
        better = gain > self.gain
        np.copyto(self.gain, gain, where=better)
        np.copyto(self.best, scale, where=better)
