"""Parameters of all experts, [experts, rows, columns], read one expert after another.

A file has a tensor for each expert, or one tensor that the layout joins or transposes within each expert. Either may
be far larger than the memory that packing may take.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blockc.ir import Array
from blockc.weights.checkpoint import Tensor
from blockc.weights.matching import split_tensor
from blockc.weights.rules import Rule
from blockc.weights.safetensors import CHUNK, Shape, StoredTensor


@dataclass(frozen=True)
class StackedTensor:
    """Tensors of one shape as the slices of one tensor along axis 0. `names` are theirs in the file."""

    slices: Sequence[Tensor]
    names: Sequence[str]

    @property
    def shape(self) -> Shape:
        return (len(self.slices), *self.slices[0].shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.result_type(*{each.dtype for each in self.slices})

    def chunks(self) -> Iterator[Array]:
        for each in self.slices:
            yield from each.chunks()

    def read(self) -> Array:
        whole = np.empty(self.shape, self.dtype)
        for each, into in zip(self.slices, whole, strict=True):
            into[...] = each.read()
        return whole

    def name_at(self, number: int) -> str:
        """The tensor of the file that has this number of the whole, counted flat."""
        return self.names[number // math.prod(self.slices[0].shape)]


def stack_experts(found: Sequence[tuple[str, Rule, Tensor]]) -> tuple[StackedTensor, Rule]:
    """(The tensors of all of a parameter's experts, in order, as one; the rule by which that one is the parameter.)"""
    names, (one, *_), tensors = zip(*found, strict=True)
    return StackedTensor(tensors, names), replace(one, shapes=one.wholes, expert=None, experts=0)


def is_by_slices(rule: Rule) -> bool:
    """Whether each slice of the file's tensor along axis 0 alone gives that slice of the parameters."""
    return len(rule.joined) > 2 and not rule.permuted and (rule.axis > 0 or len(rule.targets) == 1)


def split_slices(rule: Rule, tensor: Tensor, part: int) -> Iterator[Array]:
    """A parameter of a tensor that `is_by_slices`, a slice at a time."""
    inner = replace(rule, shapes=tuple(shape[1:] for shape in rule.shapes), axis=max(rule.axis - 1, 0))
    for each in slices_of(tensor):
        yield split_tensor(inner, each)[part]


def slices_of(tensor: Tensor) -> Iterator[Array]:
    """The slices of a tensor along axis 0, each in memory of its own."""
    shape = tensor.shape[1:]
    left = size = math.prod(shape)
    parts: list[Array] = []
    for chunk in tensor.chunks(min(size, CHUNK)) if isinstance(tensor, StoredTensor) else tensor.chunks():
        rest = chunk.reshape(-1)
        while rest.size:
            parts.append(rest[:left])
            rest, left = rest[left:], left - parts[-1].size
            if not left:
                yield np.concatenate(parts).reshape(shape)
                parts, left = [], size
