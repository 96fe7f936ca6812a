"""Where each parameter's bytes come from: a checkpoint's own file, or a data file that is written beside the model.

link    the model points into the safetensors file; where the layout joins, turns or permutes, the tensor is packed
pack    every tensor is streamed through the layout into model.onnx.data, each from a page's start, in one float type
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from blockc.checkpoint import Checkpoint, Tensor
from blockc.facts import misfits
from blockc.ir import Function, parameters
from blockc.layouts import Item, Layout, layout
from blockc.ops import Array
from blockc.passes import Parts
from blockc.safetensors import CheckpointError, FileFacts, Shape, Stored, widened
from blockc.target import Dtype
from blockc.weights import Matched, Rule, group_sizes, matched, misfit, parted, rules, untied

Mode = Literal["link", "pack"]
DATA = "model.onnx.data"
PAGE = 4096
WORDS: dict[Dtype, str] = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}  # as safetensors has them
_LARGEST: dict[Dtype, float] = {"fp32": 3.4028235e38, "fp16": 65504.0, "bf16": 3.3895314e38}
_BYTES: dict[Dtype, int] = {"fp32": 4, "fp16": 2, "bf16": 2}
# Why a file cannot be linked where the model is written: another device, or a file system that has no hard links.
_UNLINKED = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)


@dataclass(frozen=True)
class Reference:
    """Bytes in a file beside the model, as numbers of the dtype `word`."""

    location: str
    offset: int
    length: int
    word: str
    shape: Shape


@dataclass(frozen=True)
class Source:
    """A parameter as a part of a tensor of the checkpoint."""

    name: str
    tensor: Tensor
    rule: Rule
    part: int

    @property
    def linkable(self) -> Stored | None:
        return self.tensor if self.rule.plain and isinstance(self.tensor, Stored) else None

    def pieces(self) -> Iterator[Array]:
        """The parameter's numbers in their order."""
        if self.rule.plain:
            yield from self.tensor.chunks()
        else:
            yield parted(self.rule, self.tensor.read())[self.part]


@dataclass(frozen=True)
class Plan:
    """Where every parameter comes from, by path, in the order of the function."""

    sources: Mapping[str, Source]
    checkpoint: Checkpoint
    mode: Mode
    dtype: Dtype
    notes: tuple[str, ...] = ()
    joined: Parts = field(default_factory=dict[str, tuple[str, ...]])  # one parameter of the graph: the rows of these

    @cached_property
    def linked(self) -> Mapping[str, Stored]:
        if self.mode == "pack":
            return {}
        return {path: stored for path, source in self.sources.items() if (stored := source.linkable) is not None}

    @cached_property
    def packed(self) -> Mapping[str, Reference]:
        shapes = {path: s.rule.shapes[s.part] for path, s in self.sources.items() if path not in self.linked}
        return packed_references(shapes, self.dtype, self.joined)

    @property
    def references(self) -> dict[str, Reference]:
        into = {path: Reference(s.path.name, s.offset, s.length, s.word, s.shape) for path, s in self.linked.items()}
        return into | dict(self.packed) | joined_references(self.packed, self.joined)

    @property
    def links(self) -> tuple[FileFacts, ...]:
        """Every file of the checkpoint, whatever is packed of it: what is linked says the plan again."""
        return self.checkpoint.files if self.mode == "link" else ()


def packed_references(shapes: Mapping[str, Shape], dtype: Dtype, joined: Parts) -> dict[str, Reference]:
    """One after another in the data file, each from a page's start; the parts of a joined one close together."""
    leads = {parts[0]: parts for parts in joined.values()}
    inner = {path for parts in joined.values() for path in parts[1:]}
    made: dict[str, Reference] = {}
    end = 0
    for first in (path for path in shapes if path not in inner):
        for path in leads.get(first, (first,)):
            length = math.prod(shapes[path]) * _BYTES[dtype]
            made[path] = Reference(DATA, end, length, WORDS[dtype], shapes[path])
            end += length
        end += -end % PAGE
    return made


def joined_references(made: Mapping[str, Reference], joined: Parts) -> dict[str, Reference]:
    """Each joined parameter as the bytes of its parts, which follow one another."""
    into: dict[str, Reference] = {}
    for path, parts in joined.items():
        first, rows = made[parts[0]], sum(made[part].shape[0] for part in parts)
        length = sum(made[part].length for part in parts)
        into[path] = Reference(first.location, first.offset, length, first.word, (rows, *first.shape[1:]))
    return into


def plan(
    function: Function,
    checkpoint: Checkpoint,
    family: str | None,
    mode: Mode,
    dtype: Dtype,
    context: int | None = None,
) -> Plan:
    """Names, shapes, ties, and what the checkpoint says of itself, compared before anything is written.

    Raises CheckpointError listing all that is wrong. `context` is the spec's: no longer than the checkpoint's.

    `family` names the layout; a file that says its own goes by that, and without either the names are the parameters'.
    A GGUF file's numbers are encoded, so that nothing can point at them: it is packed.
    """
    chosen = checkpoint.layout or (layout(family) if family else _own(function))
    match = matched(rules(chosen, function, group_sizes(function)), checkpoint.tensors)
    found = {
        target: Source(name, checkpoint.tensors[name], rule, part)
        for name, rule in match.named.items()
        if name in checkpoint.tensors and checkpoint.tensors[name].shape == rule.shape
        for part, target in enumerate(rule.targets)
    }
    tied, unlike = _compared(match, checkpoint, found)
    if faults := [*misfits(checkpoint.says, function, context), *match.faults, *unlike]:
        raise misfit(faults)
    sources = {path: found[path] for path in parameters(function)}
    notes = [f"{name} equals {target}, which the spec ties it to: stored once" for name, target in tied]
    if mode == "link" and not checkpoint.files:
        mode, notes = "pack", [*notes, "encoded weights cannot be linked: packed"]
    return Plan(sources, checkpoint, mode, dtype, tuple(notes))


def _own(function: Function) -> Layout:
    return Layout("own", tuple(Item(path, (path,)) for path in parameters(function)), {}, {}, ())


def _compared(
    match: Matched, checkpoint: Checkpoint, found: Mapping[str, Source]
) -> tuple[list[tuple[str, str]], list[str]]:
    """(What is tied and equal; what is unlike that which it is tied to.)"""
    equal: list[tuple[str, str]] = []
    unlike: list[str] = []
    for name, target in match.tied.items():
        if target in found:
            tensor, source = checkpoint.tensors[name], found[target]
            same = tensor.shape == source.rule.shapes[source.part] and _same(tensor, source)
            equal.extend([(name, target)] if same else [])
            unlike.extend([] if same else [untied(name, target)])
    return equal, unlike


def _same(tensor: Tensor, source: Source) -> bool:
    if not source.rule.plain:
        return np.array_equal(tensor.read(), next(source.pieces()))
    return all(np.array_equal(a, b) for a, b in zip(tensor.chunks(), source.pieces(), strict=True))


def link(plan: Plan, folder: Path) -> None:
    """Hard links of the checkpoint's files, symlinks resolved. Raises OSError where the folder cannot have them."""
    for facts in plan.links:
        made = folder / facts.path.name
        os.link(facts.path.resolve(), made)
        status = made.stat()
        if (status.st_size, status.st_mtime_ns) != (facts.size, facts.mtime_ns):
            raise CheckpointError(f"{facts.path} has changed while it was read")


def cannot_link(error: OSError) -> bool:
    return error.errno in _UNLINKED


@dataclass(frozen=True)
class Written:
    """What is known of the data file without reading it again."""

    size: int
    sha256: str


def write(plan: Plan, path: Path, digests: dict[str, str] | None = None) -> Written | None:
    """Reads every parameter once: what is packed goes to the data file at `path`, None where nothing is.

    Never more than one tensor and its parts are in memory, of plain ones a piece. What is linked is read too, at the
    speed of the disk; `digests` gets the sha256 of each linked tensor's bytes by its name in the checkpoint. Raises
    CheckpointError naming all tensors that hold NaN or Inf, or more than the float type can.
    """
    bad: dict[str, str] = {}
    for param, stored in plan.linked.items():
        name, digest = plan.sources[param].name, hashlib.sha256()
        for part in stored.raw():
            digest.update(part.data)
            _check(name, _extreme(part, stored.word), plan.dtype, bad)
        if digests is not None:
            digests[name] = digest.hexdigest()
    written = _write_packed(plan, path, bad) if plan.packed else None
    if bad:
        raise CheckpointError("\n  ".join(["the checkpoint's numbers are not usable:", *bad.values()]))
    return written


def _write_packed(plan: Plan, path: Path, bad: dict[str, str]) -> Written:
    digest, end = hashlib.sha256(), 0
    with path.open("wb", buffering=0) as file:
        for param, reference in plan.packed.items():
            end += _put(file, digest, bytes(reference.offset - end))
            for piece in plan.sources[param].pieces():
                _check(plan.sources[param].name, piece, plan.dtype, bad)
                end += _put(file, digest, narrowed(piece, plan.dtype).reshape(-1).view(np.uint8).data)
    return Written(end, digest.hexdigest())


def _put(file: BinaryIO, digest: Any, data: bytes | memoryview) -> int:
    view = memoryview(data)
    digest.update(view)
    done = 0
    while done < len(view):  # an unbuffered file may take a part
        done += file.write(view[done:])
    return done


def _check(name: str, piece: Array, dtype: Dtype, bad: dict[str, str]) -> None:
    peak = largest(piece)
    if not math.isfinite(peak):
        bad[name] = f"not finite: {name} holds NaN or Inf"
    elif peak > _LARGEST[dtype]:
        bad.setdefault(name, f"too large: {name} holds {peak:.6g}, and {dtype} ends at {_LARGEST[dtype]:.6g}")


def _extreme(part: Array, word: str) -> Array:
    """Of bf16, two bytes a number, the one largest in magnitude: widening them all would take ten times as long."""
    return widened((part & part.dtype.type(0x7FFF)).max(keepdims=True), word) if word == "BF16" else part


def largest(piece: Array) -> float:
    """The largest magnitude, by the bits, which grow with it: Inf stands above every number, and NaN above Inf."""
    bits = np.ascontiguousarray(piece).reshape(-1).view(f"u{piece.itemsize}")
    unsigned = bits & bits.dtype.type((1 << (8 * piece.itemsize - 1)) - 1)
    return float(unsigned.max(keepdims=True).view(piece.dtype)[0])


def narrowed(piece: Array, dtype: Dtype) -> Array:
    """In the float type, rounded to the nearest and to even; bf16 as its bits. What does not fit becomes Inf."""
    with np.errstate(over="ignore"):
        if dtype != "bf16":
            return np.ascontiguousarray(piece, np.dtype("<f2" if dtype == "fp16" else "<f4"))
        bits = np.array(piece, np.dtype("<f4"), order="C").view(np.uint32)
    bits += 0x7FFF + ((bits >> 16) & 1)
    return (bits >> 16).astype("<u2")
