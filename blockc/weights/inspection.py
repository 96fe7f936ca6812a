"""inspect_codes: whether the codes that were written stand for the weights that they were made from.

    |x - restored| <= |scale| / 2

for every number, but those beyond an end of their block's range, whose code must be that end: they are clipped, and
counted. The file is read as a kernel reads it, by the places that the graph names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from blockc.basics.errors import CheckpointError, shorten
from blockc.basics.floats import format_of
from blockc.basics.progress import Progress, no_progress
from blockc.ir import Array, Blocks
from blockc.ir.columns import Columns
from blockc.ir.derive import Derivation, Join, Quantise, Reshape
from blockc.weights.plan import WeightPlan
from blockc.weights.quantise import whole_rows
from blockc.weights.safetensors import widen

HALF = 0.5001  # of a step: x / scale is rounded too
PART = 1 << 18  # numbers at a time
_EPSILON = 4 * float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Stored:
    """One tensor of a matrix in the data file: its codes, scales or lows."""

    offset: int
    dtype: np.dtype
    word: str

    def rows(self, path: Path, start: int, count: int, width: int) -> Array:
        """Rows of `width` numbers each."""
        at = self.offset + start * width * self.dtype.itemsize
        flat = np.fromfile(path, self.dtype, count * width, offset=at)
        return widen(flat, self.word).reshape(count, width)


@dataclass
class Tally:
    """What was found in one matrix."""

    numbers: int = 0
    clipped: int = 0
    wrong: int = 0
    largest: float = 0.0  # error


@dataclass(frozen=True)
class Matrix:
    """A matrix that is stored in codes, with the places of its tensors."""

    source: str
    blocks: Blocks
    tensors: dict[str, Stored] = field(default_factory=dict[str, Stored])


def inspect_codes(plan: WeightPlan, path: Path, progress: Progress = no_progress) -> tuple[str, ...]:
    """Compares every matrix in codes with its source, and returns a note of it. Raises CheckpointError if one differs.

    `path` is the data file that was written by the plan.
    """
    matrices = matrices_of(plan)
    found: list[Tally] = []
    wrong: list[str] = []
    for i, matrix in enumerate(matrices):
        progress("comparing codes with weights", i, len(matrices))
        found.append(_compare(plan, matrix, path))
        if found[-1].wrong:
            wrong.append(f"{plan.sources[matrix.source].name}: {found[-1].wrong:,} numbers")
    if wrong:
        raise CheckpointError("\n  ".join(["codes are further than half a step from the weights:", *shorten(wrong)]))
    columns = sum(isinstance(each, Columns) for each in plan.result.derived.values())
    skipped = [f"{columns} matrices stand in columns, as any runtime reads them: their codes were not compared"]
    return (*([_note(found)] if found else []), *(skipped if columns else []))


def matrices_of(plan: WeightPlan) -> list[Matrix]:
    """Each matrix that is stored in codes; the rows of one may stand within a joined tensor."""
    known: dict[tuple[str, Blocks], Matrix] = {}
    places = plan.references
    for path, derivation in plan.result.derived.items():
        at = places[path].offset
        for each in derivation.sources if isinstance(derivation, Join) and derivation.axis == 0 else (derivation,):
            made = _quantise_in(each)
            if made is None:
                break
            source = made.leaves[0]
            param = made.param_of(path, plan.params)
            number = format_of(param.dtype, plan.dtype)
            matrix = known.setdefault((source, made.blocks), Matrix(source, made.blocks))
            matrix.tensors.setdefault(made.tensor, Stored(at, np.dtype(number.numpy), number.safetensors))
            at += param.size * number.bytes
    return list(known.values())


def _quantise_in(source: str | Derivation) -> Quantise | None:
    """What quantises a parameter itself, if that is what the source is, also in another shape."""
    while isinstance(source, Reshape):
        (source,) = source.sources
    return source if isinstance(source, Quantise) and isinstance(source.sources[0], str) else None


def _compare(plan: WeightPlan, matrix: Matrix, path: Path) -> Tally:
    width, blocks = plan.params[matrix.source].shape[-1], matrix.blocks
    tally, start, count = Tally(), 0, blocks.count(width)
    for rows in _parts(whole_rows(plan.sources[matrix.source].pieces(), width), width):
        codes = matrix.tensors["codes"].rows(path, start, len(rows), count * blocks.bytes)
        scales, lows = (
            matrix.tensors[tensor].rows(path, start, len(rows), count).astype(np.float32)
            if tensor in matrix.tensors
            else None
            for tensor in ("scales", "lows")
        )
        assert scales is not None
        _add(tally, rows, blocks, codes.reshape(len(rows), count, blocks.bytes), scales, lows)
        start += len(rows)
    return tally


def _parts(pieces: Iterator[Array], width: int) -> Iterator[Array]:
    step = max(1, PART // width)
    return (piece[at : at + step] for piece in pieces for at in range(0, len(piece), step))


def _add(tally: Tally, rows: Array, blocks: Blocks, packed: Array, scales: Array, lows: Array | None) -> None:
    """Counts the numbers of some rows, those that are clipped, and those that are wrong."""
    width = rows.shape[1]
    restored = blocks.restore(packed, scales, lows, width)
    off = rows - restored
    steps = np.repeat(np.abs(scales), blocks.size, axis=-1)[:, :width]
    near = np.abs(off) <= HALF * steps + _EPSILON * np.abs(rows)
    tally.numbers += rows.size
    tally.largest = max(tally.largest, float(np.abs(off).max(initial=0)))
    if near.all():
        return
    codes = blocks.unpack(packed).reshape(len(rows), -1)[:, :width]
    beyond = np.sign(off) * np.sign(np.repeat(scales, blocks.size, axis=-1)[:, :width])
    clipped = ~near & np.where(codes == 0, beyond < 0, (codes == 2 * blocks.middle - 1) & (beyond > 0))
    tally.clipped += int(clipped.sum())
    tally.wrong += int((~near & ~clipped).sum())


def _note(found: list[Tally]) -> str:
    numbers, clipped = (sum(getattr(tally, what) for tally in found) for what in ("numbers", "clipped"))
    exact = sum(tally.largest == 0 for tally in found)
    also = f", {exact} of them exactly" if exact else ""
    share = f"; {clipped / numbers:.2%} of their numbers lie beyond the codes" if clipped else ""
    return f"{len(found)} matrices in codes are within half a step of the weights{also}{share}"
