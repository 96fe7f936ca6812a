"""A checkpoint's own codes: which parameters can have them as they are, and how their rows are moved."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np

from blockc.ir import Array, Blocks
from blockc.weights.matching import split_tensor
from blockc.weights.quantise import Codes
from blockc.weights.rules import Rule


@runtime_checkable
class Encoded(Protocol):
    """A tensor that a file may hold as codes.

    `coding` is the file's word for them, empty for floats; `blocks` are ours in which they can be had, if any. They lie
    along the last axis of the tensor, or where it is `turned` along the last but one.
    """

    @property
    def coding(self) -> str: ...

    @property
    def blocks(self) -> Blocks | None: ...

    @property
    def turned(self) -> bool: ...

    def codes(self, order: Array) -> Iterator[Codes]:
        """Codes, scales and lows of these rows, counted over all other axes, in that order, a few at a time."""
        ...


def coding_of(tensor: object) -> str:
    """The file's word for a tensor's codes; empty where it holds floats."""
    return tensor.coding if isinstance(tensor, Encoded) else ""


def why_not_carried(tensor: object, rule: Rule) -> str:
    """Why a parameter cannot have a tensor's codes; empty if it can."""
    if not isinstance(tensor, Encoded) or tensor.blocks is None:
        return "codes of this kind are not carried"
    along = len(rule.targets) > 1 and rule.axis == len(rule.joined) - 1
    if rule.transposed != tensor.turned or rule.plus or along:
        return "the layout does more than move their rows"
    return ""


def carried_blocks(tensor: object, rule: Rule) -> Blocks | None:
    """The blocks in which a tensor's codes can be carried: where the rule only moves rows."""
    return tensor.blocks if isinstance(tensor, Encoded) and not why_not_carried(tensor, rule) else None


def row_order(rule: Rule, part: int) -> Array:
    """The rows of codes that a parameter has, in its order: what the rule does to the rows' numbers."""
    numbered = replace(rule, shapes=tuple((*shape[:-1], 1) for shape in rule.shapes), transpose=False)
    numbers = np.arange(math.prod(numbered.joined)).reshape(numbered.joined)
    return split_tensor(numbered, numbers)[part].reshape(-1)
