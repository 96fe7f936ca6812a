"""Where each parameter's bytes come from: a checkpoint's own file, or a data file that is written beside the model.

link    the model points into the safetensors file; a tensor that the layout joins, transposes or permutes is packed
pack    every tensor is streamed through the layout into model.onnx.data, in one float type, each at the start of a page

A parameter of all experts is linked where one tensor has it as it is. Else it is packed, one expert after another.

Passes derive parameters. A join of rows needs no bytes of its own: its parts are written side by side. Any other
derived parameter is computed when it is written, in either mode, and a parameter that only such ones read is not
written.
"""

from __future__ import annotations

import errno
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from blockc.basics.errors import CheckpointError
from blockc.basics.floats import FLOATS, FloatType, format_of
from blockc.ir import Array, Blocks, Function, Param, parameters_of
from blockc.ir.derive import Derivation, Derivations, Join, PassResult, Reshape
from blockc.layouts import Item, Layout, load_layout
from blockc.weights.adapter import Adapter, Delta, deltas_of
from blockc.weights.carry import Encoded, carried_blocks, coding_of, row_order
from blockc.weights.checkpoint import Checkpoint, Tensor
from blockc.weights.experts import StackedTensor, is_by_slices, split_slices, stack_experts
from blockc.weights.matching import Match, match_tensors, misfit_error, split_tensor, untied_fault
from blockc.weights.quantise import Codes
from blockc.weights.rules import Rule, group_sizes, rules
from blockc.weights.safetensors import FileFacts, Shape, StoredTensor

Mode = Literal["link", "pack"]
DATA = "model.onnx.data"
PAGE = 4096
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
        elif is_by_slices(self.rule) and not self.deltas:
            yield from split_slices(self.rule, self.tensor, self.part)
        else:
            own = split_tensor(self.rule, self.tensor.read())[self.part]
            yield sum((delta.read() for delta in self.deltas), own.astype(np.float32) if self.deltas else own)

    def name_at(self, number: int) -> str:
        """The tensor of the file that has this number of the parameter, counted flat."""
        return self.tensor.name_at(number) if isinstance(self.tensor, StackedTensor) else self.name

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
    found = _find_sources(match, checkpoint)
    tied, unlike = _compare_ties(match, checkpoint, found)
    if faults := [*checkpoint.find_misfits(function, context), *match.faults, *unlike]:
        raise misfit_error(faults)
    added = _deltas_by_path(function, family, adapters)
    params = parameters_of(function)
    sources = {path: _add_deltas(found[path], added.get(path, ())) for path in params}
    notes = [*checkpoint.notes, *_note_dropped(match, checkpoint)]
    notes += [f"{name} equals {target}, which the spec ties it to: stored once" for name, target in tied]
    if mode != "pack" and not checkpoint.files:
        mode, notes = "pack", [*notes, f"{checkpoint.unlinked} cannot be linked: packed"]
    if mode is None and (stranger := _find_foreign_type(sources.values(), dtype)):
        mode, notes = "pack", [*notes, f"the checkpoint is in {stranger}, and the model computes in {dtype}: packed"]
    if mode is None and any(len(params[path].shape) > 2 and not each.linkable for path, each in sources.items()):
        mode, notes = "pack", [*notes, "the checkpoint does not have all experts of a parameter as one tensor: packed"]
    return WeightPlan(params, sources, checkpoint, mode or "link", dtype, PassResult(function), tuple(notes))


def _find_sources(match: Match, checkpoint: Checkpoint) -> dict[str, ParameterSource]:
    """The source of each parameter whose tensors are there, in their shape."""
    found: dict[str, ParameterSource] = {}
    experts: dict[str, list[tuple[str, Rule, Tensor]]] = {}
    for name, rule in match.rules.items():
        tensor = checkpoint.tensors.get(name)
        if tensor is None or tensor.shape != rule.shape:
            continue
        for part, target in enumerate(rule.targets):
            if rule.expert is None:
                found[target] = ParameterSource(name, tensor, rule, part)
            else:
                experts.setdefault(target, []).append((name, rule, tensor))
    for target, slices in experts.items():
        if len(slices) == slices[0][1].experts:  # else one is missing, which is told
            stacked, rule = stack_experts(slices)
            found[target] = ParameterSource(stacked.names[0], stacked, rule, 0)
    return found


def _note_dropped(match: Match, checkpoint: Checkpoint) -> Iterator[str]:
    """A note on the tensors of a larger model that are not of its language model, and one on layers after the last."""
    for dropped, why in ((match.dropped, "only the language model is taken: "), (match.beyond, "")):
        if dropped:
            whose = " and ".join(dict.fromkeys(dropped.values()))
            size = sum(_size_of(checkpoint.tensors[name]) for name in dropped)
            yield f"{why}{len(dropped)} tensors of {whose}, {size:,} bytes, are left out"


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
    return Layout("own", tuple(Item(path, (path,)) for path in parameters_of(function)), {}, {}, (), {})


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
