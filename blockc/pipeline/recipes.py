"""recipe: the passes that a target asks for, in order, from the served function on.

A new pass is a line of `STEPS`: which passes stand there for a target, if any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from blockc.graph.target import Target
from blockc.ir import Function, GraphError, Param, inline, parameters
from blockc.ir.derive import Derivations, Pass, Passed
from blockc.ort.fuse import fuse
from blockc.ort.join import join_projections
from blockc.passes import last_token, top, verify, with_buffer


@dataclass(frozen=True)
class Plain:
    """A pass that makes no parameters: rewrite(function, *arguments)."""

    rewrite: Callable[..., Function]
    arguments: tuple[object, ...] = ()

    def __call__(self, function: Function, /) -> Passed:
        return Passed(self.rewrite(function, *self.arguments))


@dataclass(frozen=True)
class Fuse:
    """A provider's own operators, by the target's float type and its padding."""

    target: Target

    def __call__(self, function: Function, /) -> Passed:
        return fuse(function, self.target)


def _fuse(target: Target) -> tuple[Pass, ...]:
    own = Target(target.provider, target.dtype, padding=target.padding)
    return () if target.provider is None else (Fuse(own),)


def _take_last(target: Target) -> tuple[Pass, ...]:
    return () if target.logits == "all" else (Plain(last_token),)


def _take_top(target: Target) -> tuple[Pass, ...]:
    return (Plain(top, (target.top,)),) if target.top else ()


def _use_buffer(target: Target) -> tuple[Pass, ...]:
    return (Plain(with_buffer),) if target.cache == "buffer" else ()


def _join_matrices(target: Target) -> tuple[Pass, ...]:
    return (join_projections,) if target.packed else ()


FLAT: tuple[Pass, ...] = (Plain(inline),)  # how every recipe begins
STEPS: list[Callable[[Target], tuple[Pass, ...]]] = [
    _fuse,
    _take_last,
    _take_top,
    _use_buffer,
    _join_matrices,
]


def recipe_for(target: Target) -> tuple[Pass, ...]:
    return (*FLAT, *(each for step in STEPS for each in step(target)))


def apply_pass(before: Passed, step: Pass) -> Passed:
    """One pass more. Raises GraphError where its function does not hold, or has parameters that come from nowhere.

    What they are derived from is said by the parameters of the recipe's first function.
    """
    made = step(before.function)
    verify(made.function)
    held = parameters(made.function)
    _check_parameters(parameters(before.function), held, made.derived)
    derived = {**before.derived, **{path: each.after(before.derived) for path, each in made.derived.items()}}
    left = (*before.left, *made.left)
    return Passed(made.function, {path: each for path, each in derived.items() if path in held}, left)


def _check_parameters(before: Mapping[str, Param], held: Mapping[str, Param], made: Derivations) -> None:
    """Each parameter is one that was there, or is derived from such and is what that gives."""
    for path, param in held.items():
        wanted = before.get(path)
        if path in made:
            if absent := [leaf for leaf in made[path].leaves if leaf not in before]:
                raise GraphError(f"{path} is derived from {absent[0]}, which is no parameter")
            wanted = made[path].given(path, before)
        if wanted is None:
            raise GraphError(f"the parameter {path} comes from nowhere")
        if (param.shape, param.dtype) != (wanted.shape, wanted.dtype):
            raise GraphError(
                f"{path} is not what it is derived from",
                expected=f"{wanted.dtype} {wanted.shape}",
                got=f"{param.dtype} {param.shape}",
            )
