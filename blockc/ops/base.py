"""Helpers for ops: the op that works entry by entry, the token axis, and operands for samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from blockc.ir import Array, Dim, Fact, Op, TokenAxes, Type, expect


def token_axis(type_: Type) -> int:
    """(B, S, ...) everywhere but in head-split tensors, which are (B, heads, S, head_dim)."""
    return 2 if len(type_.shape) == 4 else 1


def last_axis(type_: Type) -> Dim:
    return type_.shape[-1]


def number_text(value: float) -> str:
    """The number as Python text: 2560**0.5 rather than its digits."""
    root = round(value**2)
    if len(repr(value)) > 8 and root**0.5 == value:
        return f"{root}**0.5"
    power = round(value**-2) if value else 0
    return f"{power}**-0.5" if len(repr(value)) > 8 and power and power**-0.5 == value else repr(value)


def rand(*shape: int, seed: int = 0) -> Array:
    return np.random.RandomState(seed).standard_normal(shape)


@dataclass(frozen=True)
class Elementwise(Op):
    """An op whose output has the type of its operands and whose entries depend on the same entries alone."""

    def infer(self, *args: Type) -> tuple[Type, ...]:
        for other in args[1:]:
            expect(other == args[0], f"{self.name} of unlike tensors", args[0], other)
        return (args[0],)

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        axis = token_axis(args[0])
        return TokenAxes((axis,) * len(args), (axis,))


@dataclass(frozen=True)
class Activation(Elementwise):
    """The function between an MLP's matrices: every MLP has one."""

    def figures(self, *args: Type) -> Iterable[tuple[str, Fact]]:
        return ("activation", self.name), ("mlp.width", args[0].shape[-1].value)
