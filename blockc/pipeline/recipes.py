"""recipe_for: the passes of a target in order, starting from the served function.

A new pass is a line of `STEPS`: a function that gives the passes at that place for a target, if any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from blockc.graph.target import Target
from blockc.ir import Function, GraphError, Param, inline, parameters_of
from blockc.ir.derive import Derivations, Pass, PassResult
from blockc.ort.fuse import fuse
from blockc.ort.join import join_projections
from blockc.ort.pack import PackAttentions
from blockc.ort.quantise import QuantiseMatrices
from blockc.passes import keep_last_token, keep_top, one_token, place_by_mask, verify_graph, with_buffer


@dataclass(frozen=True)
class Plain:
    """A pass without derived parameters: rewrite(function, *arguments)."""

    rewrite: Callable[..., Function]
    arguments: tuple[object, ...] = ()

    def __call__(self, function: Function, /) -> PassResult:
        return PassResult(self.rewrite(function, *self.arguments))


@dataclass(frozen=True)
class Fuse:
    """The pass that fuses ops into a provider's own operators, for a float type, weights, a padding and a step."""

    target: Target

    def __call__(self, function: Function, /) -> PassResult:
        return fuse(function, self.target)


def _fuse(target: Target) -> tuple[Pass, ...]:
    return () if target.provider is None else (Fuse(_own(target)),)


def _own(target: Target) -> Target:
    """What of a target fused operators depend on: recipes that are alike in it share their results."""
    return Target(target.provider, target.dtype, packed=target.packed, padding=target.padding, step=target.step)


def _take_last(target: Target) -> tuple[Pass, ...]:
    return () if target.logits == "all" or target.step else (Plain(keep_last_token, (target.last,)),)


def _take_top(target: Target) -> tuple[Pass, ...]:
    return (Plain(keep_top, (target.top,)),) if target.top else ()


def _use_buffer(target: Target) -> tuple[Pass, ...]:
    return (Plain(with_buffer),) if target.cache == "buffer" else ()


def _take_one(target: Target) -> tuple[Pass, ...]:
    """Before fusion, which then meets the cache as it is."""
    return (Plain(with_buffer), Plain(one_token)) if target.step else ()


def _quantise(target: Target) -> tuple[Pass, ...]:
    return (QuantiseMatrices(target.quant, target.provider is None),) if target.quant else ()


def _pack_attentions(target: Target) -> tuple[Pass, ...]:
    return () if target.provider is None else (PackAttentions(_own(target)),)


def _join_matrices(target: Target) -> tuple[Pass, ...]:
    return (join_projections,) if target.packed else ()


def _place_by_mask(target: Target) -> tuple[Pass, ...]:
    return (Plain(place_by_mask),)


FLAT: tuple[Pass, ...] = (Plain(inline),)  # the start of every recipe
STEPS: list[Callable[[Target], tuple[Pass, ...]]] = [
    _take_one,
    _fuse,
    _take_last,
    _take_top,
    _use_buffer,
    _place_by_mask,
    _quantise,
    _pack_attentions,
    _join_matrices,
]


def recipe_for(target: Target) -> tuple[Pass, ...]:
    return (*FLAT, *(each for step in STEPS for each in step(target)))


def apply_pass(before: PassResult, step: Pass) -> PassResult:
    """Applies one more pass. Raises GraphError if the new function is not valid or has parameters from nowhere.

    Derivations always refer to the parameters of the recipe's first function.
    """
    made = step(before.function)
    verify_graph(made.function)
    held = parameters_of(made.function)
    _check_parameters(parameters_of(before.function), held, made.derived)
    derived = {**before.derived, **{path: each.compose(before.derived) for path, each in made.derived.items()}}
    left = (*before.skipped, *made.skipped)
    return PassResult(made.function, {path: each for path, each in derived.items() if path in held}, left)


def _check_parameters(before: Mapping[str, Param], held: Mapping[str, Param], made: Derivations) -> None:
    """Each parameter must exist before the pass, or be derived from such and have that shape and dtype."""
    for path, param in held.items():
        wanted = before.get(path)
        if path in made:
            if absent := [leaf for leaf in made[path].leaves if leaf not in before]:
                raise GraphError(f"{path} is derived from {absent[0]}, which is no parameter")
            wanted = made[path].param_of(path, before)
        if wanted is None:
            raise GraphError(f"the parameter {path} comes from nowhere")
        if (param.shape, param.dtype) != (wanted.shape, wanted.dtype):
            raise GraphError(
                f"{path} is not what it is derived from",
                expected=f"{wanted.dtype} {wanted.shape}",
                got=f"{param.dtype} {param.shape}",
            )
