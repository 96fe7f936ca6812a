"""write_data: reads every parameter of a plan once, and writes the data file beside the model.

Plain tensors pass in pieces, derived ones are computed, matrices in codes a few rows at a time. Every number must be
finite, and within the float type that it is stored in.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from blockc.basics.errors import CheckpointError, shorten
from blockc.basics.floats import FLOATS, INTEGERS, FloatType, float_of
from blockc.basics.progress import Progress, no_progress
from blockc.ir import Array, Blocks, Function, parameters_of
from blockc.ir.columns import pack_halves
from blockc.weights.calibration import calibrate
from blockc.weights.plan import ParameterSource, WeightPlan
from blockc.weights.quantise import Codes, Quantiser
from blockc.weights.safetensors import DTYPES, StoredTensor, widen

PIECE = 1 << 22  # bytes that are read at a time if they are written unchanged
READERS = 4  # threads that read linked tensors


def calibrate_plan(
    plan: WeightPlan, function: Function, texts: Sequence[Array], progress: Progress = no_progress
) -> WeightPlan:
    """The plan with the importance of each matrix's columns, measured on rows of tokens (1, S).

    Raises CheckpointError naming tensors with NaN or Inf, of those that are read.
    """
    bad: dict[str, str] = {}
    read, pieces = partial(_read_source, plan.sources, bad=bad), partial(_read_checked, plan.sources, bad=bad)
    with np.errstate(all="ignore"):  # what is not finite is told below
        found = calibrate(function, pieces, read, texts, progress)
    _refuse_bad(bad)
    usable = {path: each for path, each in found.items() if np.isfinite(each).all()}
    lost = [path for path in found if path not in usable]
    notes = [f"not calibrated, since its inputs overflow: {path}" for path in shorten(lost, 3)]
    return replace(plan, importance=usable, notes=(*plan.notes, *notes))


@dataclass(frozen=True)
class DataFile:
    """The size and digest of model.onnx.data, known without reading it again."""

    size: int
    sha256: str


def write_data(
    plan: WeightPlan, path: Path, digests: dict[str, str] | None = None, progress: Progress = no_progress
) -> DataFile | None:
    """Reads every parameter once, and writes packed ones to the data file at `path`; None where none is packed.

    Memory holds at most one tensor with its parts, or with the sources that it is computed from; of a tensor that is
    written as it is, a few pieces. Linked tensors are read too: `digests`, if given, gets the sha256 of each one by its
    name in the checkpoint. Raises CheckpointError naming all tensors with NaN, Inf or numbers beyond the float type.
    """
    bad: dict[str, str] = {}
    with ThreadPoolExecutor(READERS) as readers:
        looked = readers.map(partial(_inspect, digest=digests is not None), plan.linked.values())
        for count, (param, (peak, digest)) in enumerate(zip(plan.linked, looked, strict=True)):
            progress("reading weights", count, len(plan.linked))
            name, dtype = plan.sources[param].name, plan.params[param].dtype
            if dtype not in INTEGERS:
                _check_range(name, peak, float_of(dtype, plan.dtype), bad)
            if digests is not None:
                digests[name] = digest
    written = _write_packed(plan, path, bad, progress) if plan.packed else None
    _refuse_bad(bad)
    return written


def _inspect(stored: StoredTensor, digest: bool) -> tuple[float, str]:
    """(The largest magnitude; the sha256 of the bytes, computed only with `digest`.)"""
    peak, sha256 = 0, hashlib.sha256()
    for part in stored.stream():
        peak = max(peak, _largest_bits(part))
        if digest:
            sha256.update(part.data)
    bits = np.array([peak], f"u{np.dtype(DTYPES[stored.word]).itemsize}")
    return float(widen(bits.view(DTYPES[stored.word]), stored.word)[0]), sha256.hexdigest()


def _write_packed(plan: WeightPlan, path: Path, bad: dict[str, str], progress: Progress) -> DataFile:
    with path.open("wb", buffering=0) as file, _Ahead(file) as data:
        whole = max(reference.offset + reference.length for reference in plan.packed.values())
        read = partial(_read_source, plan.sources, bad=bad)
        shapes = {path: param.shape for path, param in plan.params.items()}
        rows, hold = partial(_read_checked, plan.sources, bad=bad), partial(round_to, dtype=plan.dtype)
        codes = partial(_read_codes, plan.sources, bad=bad)
        quantiser = Quantiser(rows, read, shapes, plan.importance, hold=hold, carried=codes)
        for param, reference in plan.packed.items():
            data.put(bytes(reference.offset - data.end))
            source, done = None if param in plan.result.derived else plan.sources[param], 0
            if source is None:
                dtype = parameters_of(plan.result.function)[param].dtype
                pieces = quantiser.pieces(plan.result.derived[param])
            else:
                dtype, pieces = plan.params[param].dtype, _read_pieces(source, plan.dtype)
            for piece in pieces:
                if dtype not in INTEGERS:
                    name = source.name_at(done) if source else param
                    _check_range(name, largest(piece), float_of(dtype, plan.dtype), bad)
                done += piece.size
                data.put(_convert(piece, dtype, plan.dtype).reshape(-1).view(np.uint8).data)
                progress("packing weights", data.end, whole)
    return DataFile(data.end, data.digest.hexdigest())


def _read_source(sources: Mapping[str, ParameterSource], path: str, bad: dict[str, str]) -> Array:
    """A source of a computed parameter, in its own float type."""
    source = sources[path]
    whole = source.read()
    if source.rule.dtype not in INTEGERS:
        _check_range(source.name, largest(whole), "fp32", bad)
    return whole


def _read_checked(sources: Mapping[str, ParameterSource], path: str, bad: dict[str, str]) -> Iterator[Array]:
    """The same in pieces."""
    source, done = sources[path], 0
    for piece in source.pieces():
        if source.rule.dtype not in INTEGERS:
            _check_range(source.name_at(done), largest(piece), "fp32", bad)
        done += piece.size
        yield piece


def _read_codes(
    sources: Mapping[str, ParameterSource], path: str, blocks: Blocks, bad: dict[str, str]
) -> Iterator[Codes] | None:
    """The checkpoint's own codes, if they are in these blocks."""
    source = sources[path]
    return _check_codes(source, blocks, bad) if source.blocks == blocks else None


def _check_codes(source: ParameterSource, blocks: Blocks, bad: dict[str, str]) -> Iterator[Codes]:
    for codes, scales, lows in source.codes():
        peak = largest(scales) * blocks.middle + (0 if lows is None else largest(lows))
        _check_range(source.name, peak, "fp32", bad)
        yield codes, scales, lows


def _convert(piece: Array, dtype: str, own: FloatType) -> Array:
    """Numbers of a graph's dtype as stored in a model whose float type is `own`."""
    if dtype == "int4":
        return pack_halves(piece)
    if dtype in INTEGERS:
        return np.ascontiguousarray(piece, INTEGERS[dtype].numpy)
    return narrow(piece, float_of(dtype, own))


def _read_pieces(source: ParameterSource, dtype: FloatType) -> Iterator[Array]:
    """The pieces to write. Bytes that need no change are read into buffers that are reused once `_Ahead` is done."""
    stored, own = source.linkable, FLOATS[dtype]
    if stored is not None and stored.word == own.safetensors and not own.as_bits:
        return stored.stream(_Ahead.HELD + 1, PIECE)
    return source.pieces()


class _Ahead:
    """Writes in one thread and hashes in another while the next piece is read. At most `HELD` pieces wait."""

    HELD = 3

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest, self.end = file, hashlib.sha256(), 0
        self.writer, self.hasher = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self.held: deque[tuple[Future[None], Future[None]]] = deque()

    def __enter__(self) -> _Ahead:
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            self._until(0)
        finally:
            self.writer.shutdown()
            self.hasher.shutdown()

    def put(self, data: bytes | memoryview) -> None:
        """Queues bytes to write. Raises the error of an earlier write."""
        view = memoryview(data)
        self.end += len(view)
        self.held.append((self.writer.submit(self._write, view), self.hasher.submit(self.digest.update, view)))
        self._until(self.HELD - 1)

    def _until(self, held: int) -> None:
        while len(self.held) > held:
            for done in self.held.popleft():
                done.result()

    def _write(self, view: memoryview) -> None:
        done = 0
        while done < len(view):  # an unbuffered file may take a part
            done += self.file.write(view[done:])


def _refuse_bad(bad: Mapping[str, str]) -> None:
    if bad:
        raise CheckpointError("\n  ".join(["the checkpoint's numbers are not usable:", *shorten([*bad.values()])]))


def _check_range(name: str, peak: float, dtype: FloatType, bad: dict[str, str]) -> None:
    if not math.isfinite(peak):
        bad[name] = f"not finite: {name} holds NaN or Inf"
    elif peak > FLOATS[dtype].largest:
        bad.setdefault(name, f"too large: {name} holds {peak:.6g}, and {dtype} ends at {FLOATS[dtype].largest:.6g}")


def largest(piece: Array) -> float:
    """The largest magnitude; NaN if there is a NaN."""
    flat = np.ascontiguousarray(piece).reshape(-1)
    return float(np.array([_largest_bits(flat)], f"u{piece.itemsize}").view(piece.dtype)[0])


def _largest_bits(flat: Array) -> int:
    """The bits of the number largest in magnitude, without its sign.

    Magnitudes grow with the bits: Inf is above every number, and NaN above Inf. Read as signed integers, the maximum is
    the largest positive number; read as unsigned ones, it is the largest negative number, if there are any.
    """
    size = flat.itemsize
    below = (1 << (8 * size - 1)) - 1
    return max(int(flat.view(f"i{size}").max()), int(flat.view(f"u{size}").max()) & below)


def narrow(piece: Array, dtype: FloatType) -> Array:
    """Casts to the float type, rounding to nearest even; bf16 comes as its bits. Larger numbers become Inf."""
    with np.errstate(over="ignore"):
        if dtype != "bf16":
            return np.ascontiguousarray(piece, np.dtype(FLOATS[dtype].numpy))
        bits = np.array(piece, np.dtype("<f4"), order="C").view(np.uint32)
    bits += 0x7FFF + ((bits >> 16) & 1)
    return (bits >> 16).astype("<u2")


def round_to(numbers: Array, dtype: FloatType) -> Array:
    """The numbers as the float type holds them, in a type that NumPy has."""
    return widen(narrow(numbers, dtype), FLOATS[dtype].safetensors)
