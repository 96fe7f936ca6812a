"""The tensors of a checkpoint, matched with rules, become parameters. NumPy only.

`match_tensors` says by names, shapes and types what does not fit. `unpack` reads a checkpoint through the rules; `pack`
is its inverse.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from blockc.basics.errors import CheckpointError, escape, shorten
from blockc.basics.floats import INTEGERS
from blockc.ir import Array
from blockc.layouts.wrapper import Spelling, load_wrapper
from blockc.weights.rules import Patterns, Rule, Rules, Shape


def pack(rules: Rules, params: Mapping[str, Array]) -> dict[str, Array]:
    """Turns parameters by path into the file's tensors by name: the inverse of `unpack`. Raises CheckpointError."""
    wanted = {to: (shape, rule.dtype) for rule in rules for to, shape in zip(rule.targets, rule.wholes, strict=True)}
    if faults := [*_find_misfits(wanted, params), *_extra_faults(name for name in params if name not in wanted)]:
        raise CheckpointError("\n  ".join(["the parameters do not fit the layout:", *shorten(faults)]))
    return {rule.name: _join(rule, [_slice(params[target], rule) for target in rule.targets]) for rule in rules}


def _slice(whole: Array, rule: Rule) -> Array:
    return whole if rule.expert is None else whole[rule.expert]


def _join(rule: Rule, parts: list[Array]) -> Array:
    whole = parts[0]
    if len(parts) > 1:
        grouped = [_group(part, rule) for part in parts]
        whole = np.concatenate(grouped, axis=rule.axis + 1).reshape(rule.joined)
    if rule.permuted:
        whole = _interleave(whole, rule.permuted, 2)
    if rule.plus:
        whole = whole + np.asarray(rule.plus, whole.dtype)
    return np.swapaxes(whole, -1, -2) if rule.transposed else whole


def _interleave(array: Array, heads: int, inner: int) -> Array:
    """Transposes the rows of each head, viewed as [inner, n / inner]: 2 interleaves halves, half a head undoes that."""
    return array.reshape(heads, inner, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def _group(array: Array, rule: Rule) -> Array:
    shape = array.shape
    return array.reshape(*shape[: rule.axis], rule.groups, -1, *shape[rule.axis + 1 :])


def unpack(rules: Rules, tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Turns a checkpoint's tensors by name into parameters by path. Every tensor is consumed, tied or ignored.

    Raises CheckpointError listing tensors that are missing, extra, of another shape, or different from their tie.
    """
    match = match_tensors(rules, tensors)
    faults = list(match.faults)
    params: dict[str, Array] = {}
    for name, rule in match.rules.items():
        if name in tensors and tensors[name].shape == rule.shape:
            parts = split_tensor(rule, tensors[name])
            for target, part, whole in zip(rule.targets, parts, rule.wholes, strict=True):
                if rule.expert is None:
                    params[target] = part
                else:
                    params.setdefault(target, np.empty(whole, part.dtype))[rule.expert] = part
    for name, target in match.tied.items():
        if target in params and not np.array_equal(tensors[name], params[target]):
            faults.append(untied_fault(name, target))
    if faults:
        raise misfit_error(faults)
    return params


class Shaped(Protocol):
    """A tensor's shape and dtype, known before it is read."""

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...


@dataclass(frozen=True)
class Match:
    """The rules by a checkpoint's own names, its tensors that are tied to a parameter, and all that does not fit.

    `dropped` has the tensors that are not of the language model, each with the tower that it belongs to; `beyond` those
    of layers after the last one, each with what its layer is.
    """

    rules: Mapping[str, Rule]
    tied: Mapping[str, str]
    faults: tuple[str, ...]
    dropped: Mapping[str, str]
    beyond: Mapping[str, str]


def match_tensors(rules: Rules, tensors: Mapping[str, Shaped]) -> Match:
    """Matches a checkpoint's names, shapes and types with the rules. No tensor is read."""
    held = rules.patterns
    spelled = max(held.spellings, key=lambda spelled: sum(spelled(rule.name) in tensors for rule in rules))
    tied = {spelled(name): target for name, target in held.tied.items()}
    named = _rename_tied({spelled(rule.name): rule for rule in rules}, tied, tensors)
    wanted = {name: (rule.shape, rule.dtype) for name, rule in named.items()}
    left = list(_find_unmatched(tensors, {*named, *tied}, held, spelled))
    dropped = load_wrapper().towers_of(left) if spelled.wrapped else {}
    beyond = dict(_find_beyond(left, held, spelled))
    others = (name for name in left if name not in dropped and name not in beyond)
    faults = [*_find_misfits(wanted, tensors), *_extra_faults(others)]
    ties = {name: target for name, target in tied.items() if name in tensors and name not in named}
    return Match(named, ties, tuple(faults), dropped, beyond)


def _find_beyond(names: Sequence[str], held: Patterns, spelling: Spelling) -> Iterator[tuple[str, str]]:
    """(Tensor, what its layer is) for the layers after the last one that the layout knows by one of their tensors."""
    for mark, what in held.beyond.items():
        before, after = map(re.escape, spelling(mark).split("{i}"))
        found = (re.fullmatch(rf"({before}([0-9]+)\.){after.removeprefix(re.escape('.'))}", name) for name in names)
        layers = tuple(each[1] for each in found if each and int(each[2]) >= held.depth)
        yield from ((name, what) for name in names if name.startswith(layers))


def _rename_tied(named: Mapping[str, Rule], tied: Mapping[str, str], tensors: Mapping[str, Shaped]) -> dict[str, Rule]:
    """The rules, reading a parameter from its tied tensor where the file has only that one."""
    alone = {target: name for name, target in tied.items() if name in tensors}
    return {
        alone[rule.targets[0]] if name not in tensors and rule.plain and rule.targets[0] in alone else name: rule
        for name, rule in named.items()
    }


def untied_fault(name: str, target: str) -> str:
    return f"untied: {name} differs from {target}, which it is tied to"


def misfit_error(faults: Iterable[str]) -> CheckpointError:
    """The error for these faults: the first ones of each kind, so that its length does not grow with the checkpoint."""
    kinds: dict[str, list[str]] = {}
    for fault in faults:
        kinds.setdefault(fault.partition(":")[0], []).append(fault)
    lines = (line for kind in kinds.values() for line in shorten(kind))
    return CheckpointError("\n  ".join(["the checkpoint does not fit the spec:", *lines]))


def split_tensor(rule: Rule, array: Array) -> list[Array]:
    """The parameters that a tensor of the file holds."""
    whole = np.swapaxes(array, -1, -2) if rule.transposed else array
    if rule.permuted:
        return [_interleave(whole, rule.permuted, rule.joined[0] // rule.permuted // 2)]
    if rule.plus:
        return [whole - np.asarray(rule.plus, whole.dtype)]
    if len(rule.targets) == 1:
        return [whole]
    ends = np.cumsum([shape[rule.axis] // rule.groups for shape in rule.shapes])
    parts = np.split(_group(whole, rule), ends[:-1], axis=rule.axis + 1)
    return [part.reshape(shape) for part, shape in zip(parts, rule.shapes, strict=True)]


def _find_unmatched(tensors: Iterable[str], known: set[str], held: Patterns, spelling: Spelling) -> Iterator[str]:
    """The tensors that no rule or tie covers and that the layout does not ignore."""
    spelled = (re.escape(spelling(name)).replace(r"\{i\}", "[0-9]+") for name in held.ignored)
    ignored = re.compile("|".join(spelled) or "(?!)")
    return (name for name in tensors if name not in known and not ignored.fullmatch(name))


def _find_misfits(wanted: Mapping[str, tuple[Shape, str]], got: Mapping[str, Shaped]) -> Iterator[str]:
    """A line for each wrong tensor. Floats of any type fit, for they are cast; integers must have the type."""
    for name, (shape, dtype) in wanted.items():
        if name not in got:
            yield f"missing: {name} {shape}"
        elif got[name].shape != shape:
            yield f"misshapen: {name} is {got[name].shape}, expected {shape}"
        elif dtype in INTEGERS:
            if got[name].dtype != np.dtype(INTEGERS[dtype].numpy):
                yield f"misshapen: {name} holds {got[name].dtype}, expected {dtype}"
        elif got[name].dtype.kind != "f":
            yield f"misshapen: {name} holds {got[name].dtype}, expected floating-point numbers"


def _extra_faults(names: Iterable[str]) -> Iterator[str]:
    return (f"extra: {escape(name)}" for name in names)
