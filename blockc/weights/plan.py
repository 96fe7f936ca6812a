"""Where each parameter's bytes come from: a checkpoint's own file, or a data file that is written beside the model.

link    the model points into the safetensors file; a tensor that the layout joins, transposes or permutes is packed
pack    every tensor is streamed through the layout into model.onnx.data, in one float type, each at the start of a page

Passes derive parameters. A join of rows needs no bytes of its own: its parts are written side by side. Any other
derived parameter is computed when it is written, in either mode, and a parameter that only such ones read is not
written.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from blockc.basics.errors import CheckpointError, shorten
from blockc.basics.floats import FLOATS, INTEGERS, FloatType, float_of, format_of
from blockc.basics.progress import Progress, no_progress
from blockc.ir import Array, Blocks, Function, Param, parameters_of
from blockc.ir.columns import pack_halves
from blockc.ir.derive import Derivation, Derivations, Join, PassResult, Reshape
from blockc.layouts import Item, Layout, load_layout
from blockc.weights.adapter import Adapter, Delta, deltas_of
from blockc.weights.calibration import calibrate
from blockc.weights.carry import Encoded, carried_blocks, coding_of, row_order
from blockc.weights.checkpoint import Checkpoint, Tensor
from blockc.weights.quantise import Codes, Quantiser
from blockc.weights.rules import (
    Match,
    Rule,
    group_sizes,
    match_tensors,
    misfit_error,
    rules,
    split_tensor,
    untied_fault,
)
from blockc.weights.safetensors import DTYPES, FileFacts, Shape, StoredTensor, widen

Mode = Literal["link", "pack"]
DATA = "model.onnx.data"
PAGE = 4096
PIECE = 1 << 22  # bytes that are read at a time if they are written unchanged
READERS = 4  # threads that read linked tensors
# Why a file cannot be linked where the model is written: another device, or a file system that has no hard links.
_UNLINKED = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)


@dataclass(frozen=True)
class Reference:
    """Bytes of a file beside the model: numbers of the safetensors dtype `word`."""

    location: str
    offset: int
    length: int
    word: str
    shape: Shape


@dataclass(frozen=True)
class ParameterSource:
    """Where a parameter comes from: a part of a checkpoint's tensor, and what adapters add to it."""

    name: str
    tensor: Tensor
    rule: Rule
    part: int
    deltas: tuple[Delta, ...] = ()

    @property
    def linkable(self) -> StoredTensor | None:
        return self.tensor if self.rule.plain and not self.deltas and isinstance(self.tensor, StoredTensor) else None

    def pieces(self) -> Iterator[Array]:
        """The parameter's numbers in order, flat or whole."""
        if self.rule.plain and not self.deltas:
            yield from self.tensor.chunks()
        else:
            own = split_tensor(self.rule, self.tensor.read())[self.part]
            yield sum((delta.read() for delta in self.deltas), own.astype(np.float32) if self.deltas else own)

    def read(self) -> Array:
        shape, done = self.rule.shapes[self.part], 0
        whole: Array | None = None
        for piece in self.pieces():
            if whole is None:
                if piece.size == math.prod(shape):
                    return piece.reshape(shape)
                whole = np.empty(math.prod(shape), piece.dtype)
            whole[done : done + piece.size] = piece.reshape(-1)
            done += piece.size
        assert whole is not None and done == whole.size
        return whole.reshape(shape)

    @property
    def coding(self) -> str:
        """The checkpoint's word for the codes that it has of the parameter; empty for floats."""
        return coding_of(self.tensor)

    @property
    def blocks(self) -> Blocks | None:
        """The blocks in which `codes` gives the checkpoint's own codes; None where there are none, or changed ones."""
        return None if self.deltas else carried_blocks(self.tensor, self.rule)

    def codes(self) -> Iterator[Codes]:
        assert isinstance(self.tensor, Encoded)
        return self.tensor.codes(row_order(self.rule, self.part))


@dataclass(frozen=True)
class WeightPlan:
    """The source of every parameter, by path, in the function's order. `result` is the target's graph, after passes."""

    params: Mapping[str, Param]  # the model's own
    sources: Mapping[str, ParameterSource]
    checkpoint: Checkpoint
    mode: Mode
    dtype: FloatType
    result: PassResult
    notes: tuple[str, ...] = ()
    copied: frozenset[str] = frozenset()  # packed although they could be linked
    importance: Mapping[str, Array] = field(default_factory=dict[str, Array])  # of a matrix's columns, by its path

    @cached_property
    def linked(self) -> Mapping[str, StoredTensor]:
        if self.mode == "pack":
            return {}
        apart = {
            *self.copied,
            *_find_unread(self.result),
            *(part for parts in _parts_of_joins(self.result).values() for part in parts),
        }
        sources = {path: source.linkable for path, source in self.sources.items() if path not in apart}
        return {path: stored for path, stored in sources.items() if stored is not None}

    @cached_property
    def packed(self) -> Mapping[str, Reference]:
        packed = {path: param for path, param in self.params.items() if path not in self.linked}
        return place_packed(packed, self.dtype, self.result)

    @property
    def references(self) -> dict[str, Reference]:
        into = {path: Reference(s.path.name, s.offset, s.length, s.word, s.shape) for path, s in self.linked.items()}
        return into | dict(self.packed) | place_joined(self.packed, self.result)

    def calibrated(self, function: Function, texts: Sequence[Array], progress: Progress = no_progress) -> WeightPlan:
        """The plan with the importance of each matrix's columns, measured on rows of tokens (1, S).

        Raises CheckpointError naming tensors with NaN or Inf, of those that are read.
        """
        bad: dict[str, str] = {}
        read, pieces = partial(_read_source, self.sources, bad=bad), partial(_read_checked, self.sources, bad=bad)
        with np.errstate(all="ignore"):  # what is not finite is told below
            found = calibrate(function, pieces, read, texts, progress)
        _refuse_bad(bad)
        usable = {path: each for path, each in found.items() if np.isfinite(each).all()}
        lost = [path for path in found if path not in usable]
        notes = [f"not calibrated, since its inputs overflow: {path}" for path in shorten(lost, 3)]
        return replace(self, importance=usable, notes=(*self.notes, *notes))

    @property
    def links(self) -> tuple[FileFacts, ...]:
        """Every file of the checkpoint, even if packed in part: `verify` works out the plan again from them."""
        return self.checkpoint.files if self.mode == "link" else ()


def place_packed(params: Mapping[str, Param], dtype: FloatType, made: PassResult) -> dict[str, Reference]:
    """Places parameters in the data file, each at the start of a page; the parts of a join follow one another closely.

    `params` are the model's own parameters to pack; those that the graph does not read are left out. Computed
    parameters come last.
    """
    held, laid, unread = parameters_of(made.function), _parts_of_joins(made), _find_unread(made)
    views = _find_views(made)
    leads = {parts[0]: parts for parts in laid.values()}
    inner = {path for parts in laid.values() for path in parts[1:]}
    left_out = {*inner, *unread, *made.derived}
    runs = [leads.get(path, (path,)) for path in params if path not in left_out]
    sizes = {**params, **{path: held[path] for path in made.derived}}
    placed: dict[str, Reference] = {}
    end = 0
    for run in (*runs, *((path,) for path in made.derived if path not in laid and path not in views)):
        for path in run:
            shape, number = sizes[path].shape, format_of(sizes[path].dtype, dtype)
            length = number.size(math.prod(shape))
            placed[path] = Reference(DATA, end, length, number.safetensors, shape)
            end += length
        end += -end % PAGE
    return placed


def place_joined(placed: Mapping[str, Reference], made: PassResult) -> dict[str, Reference]:
    """The bytes of each joined parameter, those of its parts, which follow one another; and of each reshaped one."""
    held = parameters_of(made.function)
    into = {path: replace(placed[owner], shape=held[path].shape) for path, owner in _find_views(made).items()}
    for path, parts in _parts_of_joins(made).items():
        first, rows = placed[parts[0]], sum(placed[part].shape[0] for part in parts)
        length = sum(placed[part].length for part in parts)
        into[path] = Reference(first.location, first.offset, length, first.word, (rows, *first.shape[1:]))
    return into


def _parts_of_joins(made: PassResult) -> dict[str, tuple[str, ...]]:
    """The parts of each join that can be written side by side; all other joins are computed.

    A part is written once and under its own name, so it belongs to one join only and is not derived itself.
    """
    found: dict[str, tuple[str, ...]] = {}
    taken: set[str] = set()
    for path, derivation in made.derived.items():
        parts = derivation.byte_sources if isinstance(derivation, Join) else ()
        apart = taken.isdisjoint(parts) and made.derived.keys().isdisjoint(parts)
        if parts and apart and len(set(parts)) == len(parts):
            found[path] = parts
            taken.update(parts)
    return found


def _find_views(made: PassResult) -> dict[str, str]:
    """Each parameter that is another one in another shape, with that one."""
    owners = {derivation: path for path, derivation in made.derived.items() if not isinstance(derivation, Reshape)}
    views = {path: each.sources[0] for path, each in made.derived.items() if isinstance(each, Reshape)}
    return {path: owners[x] for path, x in views.items() if isinstance(x, Derivation) and x in owners}


def _find_unread(made: PassResult) -> set[str]:
    """The model's own parameters that are read only to compute derived ones."""
    laid = _parts_of_joins(made)
    computed: Derivations = {path: each for path, each in made.derived.items() if path not in laid}
    kept = {path for path in parameters_of(made.function) if path not in made.derived}
    kept.update(part for parts in laid.values() for part in parts)
    return {leaf for each in computed.values() for leaf in each.leaves if leaf not in kept}


def plan_weights(
    function: Function,
    checkpoint: Checkpoint,
    family: str | None,
    mode: Mode | None,
    dtype: FloatType,
    context: int | None = None,
    adapters: Sequence[Adapter] = (),
) -> WeightPlan:
    """Compares names, shapes, ties and figures of the checkpoint with the function, before anything is written.

    Raises CheckpointError listing everything that does not fit. `context` is the spec's, which may not be longer than
    the checkpoint's.

    `family` names the layout. A file that names its own layout uses that; without either, tensors have the names of
    parameters. GGUF files are packed, because no model can point at their encoded numbers. Without a mode, weights
    mostly in another float type are packed too: a cast at load would hold them twice and take time at every load.
    Whatever an adapter changes is always packed.
    """
    chosen = checkpoint.layout or (load_layout(family) if family else _own_layout(function))
    match = match_tensors(rules(chosen, function, group_sizes(function)), checkpoint.tensors)
    found = {
        target: ParameterSource(name, checkpoint.tensors[name], rule, part)
        for name, rule in match.rules.items()
        if name in checkpoint.tensors and checkpoint.tensors[name].shape == rule.shape
        for part, target in enumerate(rule.targets)
    }
    tied, unlike = _compare_ties(match, checkpoint, found)
    if faults := [*checkpoint.find_misfits(function, context), *match.faults, *unlike]:
        raise misfit_error(faults)
    added = _deltas_by_path(function, family, adapters)
    params = parameters_of(function)
    sources = {path: _add_deltas(found[path], added.get(path, ())) for path in params}
    notes = [*checkpoint.notes, *_note_dropped(match.dropped, checkpoint)]
    notes += [f"{name} equals {target}, which the spec ties it to: stored once" for name, target in tied]
    if mode != "pack" and not checkpoint.files:
        mode, notes = "pack", [*notes, "encoded weights cannot be linked: packed"]
    if mode is None and (stranger := _find_foreign_type(sources.values(), dtype)):
        mode, notes = "pack", [*notes, f"the checkpoint is in {stranger}, and the model computes in {dtype}: packed"]
    return WeightPlan(params, sources, checkpoint, mode or "link", dtype, PassResult(function), tuple(notes))


def _note_dropped(dropped: Mapping[str, str], checkpoint: Checkpoint) -> list[str]:
    """A note on the tensors of a larger model that are not of its language model."""
    if not dropped:
        return []
    towers = " and ".join(dict.fromkeys(dropped.values()))
    size = sum(_size_of(checkpoint.tensors[name]) for name in dropped)
    return [f"only the language model is taken: {len(dropped)} tensors of {towers}, {size:,} bytes, are left out"]


def _size_of(tensor: Tensor) -> int:
    return tensor.length if isinstance(tensor, StoredTensor) else math.prod(tensor.shape) * tensor.dtype.itemsize


def _find_foreign_type(sources: Iterable[ParameterSource], dtype: FloatType) -> str:
    """The float type of most bytes that can be linked, if it is not the model's; else an empty string."""
    sizes: Counter[str] = Counter()
    for source in sources:
        if (stored := source.linkable) and source.rule.dtype == "float":
            sizes[stored.word] += stored.length
    own = FLOATS[dtype].safetensors
    ((most, _),) = sizes.most_common(1) or [(own, 0)]
    return "" if most == own else most.lower()


def _deltas_by_path(
    function: Function, family: str | None, adapters: Sequence[Adapter]
) -> dict[str, tuple[Delta, ...]]:
    if not adapters:
        return {}
    if family is None:
        raise CheckpointError("an adapter names modules of transformers, and the spec names no checkpoint layout")
    return deltas_of(rules(load_layout(family), function, group_sizes(function)), adapters)


def _add_deltas(source: ParameterSource, added: tuple[Delta, ...]) -> ParameterSource:
    """The source with what adapters add to it; W itself is that of the last adapter that has one."""
    brought = next((delta for delta in reversed(added) if delta.product.base is not None), None)
    if brought is not None and brought.product.base is not None:
        source = ParameterSource(source.name, brought.product.base, brought.rule, brought.part)
    return replace(source, deltas=added)


def _own_layout(function: Function) -> Layout:
    return Layout("own", tuple(Item(path, (path,)) for path in parameters_of(function)), {}, {}, ())


def _compare_ties(
    match: Match, checkpoint: Checkpoint, found: Mapping[str, ParameterSource]
) -> tuple[list[tuple[str, str]], list[str]]:
    """(Tied tensors that are equal; a fault for each that differs from its tie.)"""
    equal: list[tuple[str, str]] = []
    unlike: list[str] = []
    for name, target in match.tied.items():
        if target in found:
            tensor, source = checkpoint.tensors[name], found[target]
            same = tensor.shape == source.rule.shapes[source.part] and _holds_same(tensor, source)
            equal.extend([(name, target)] if same else [])
            unlike.extend([] if same else [untied_fault(name, target)])
    return equal, unlike


def _holds_same(tensor: Tensor, source: ParameterSource) -> bool:
    if not source.rule.plain:
        return np.array_equal(tensor.read(), next(source.pieces()))
    return all(np.array_equal(a, b) for a, b in zip(tensor.chunks(), source.pieces(), strict=True))


def link_files(plan: WeightPlan, folder: Path) -> None:
    """Hard-links the checkpoint's files, symlinks resolved. Raises OSError where the folder cannot have them."""
    for facts in plan.links:
        made = folder / facts.path.name
        os.link(facts.path.resolve(), made)
        status = made.stat()
        if (status.st_size, status.st_mtime_ns) != (facts.size, facts.mtime_ns):
            raise CheckpointError(f"{facts.path} has changed while it was read")


def cannot_link(error: OSError) -> bool:
    return error.errno in _UNLINKED


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
        widths = {path: param.shape[-1] for path, param in plan.params.items() if param.shape}
        rows, hold = partial(_read_checked, plan.sources, bad=bad), partial(round_to, dtype=plan.dtype)
        codes = partial(_read_codes, plan.sources, bad=bad)
        quantiser = Quantiser(rows, read, widths, plan.importance, hold=hold, carried=codes)
        for param, reference in plan.packed.items():
            data.put(bytes(reference.offset - data.end))
            if param in plan.result.derived:
                name, dtype = param, parameters_of(plan.result.function)[param].dtype
                pieces = quantiser.pieces(plan.result.derived[param])
            else:
                name, dtype = plan.sources[param].name, plan.params[param].dtype
                pieces = _read_pieces(plan.sources[param], plan.dtype)
            for piece in pieces:
                if dtype not in INTEGERS:
                    _check_range(name, largest(piece), float_of(dtype, plan.dtype), bad)
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
    source = sources[path]
    for piece in source.pieces():
        if source.rule.dtype not in INTEGERS:
            _check_range(source.name, largest(piece), "fp32", bad)
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
