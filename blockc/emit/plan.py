"""Decisions about a whole model.py that are made before any of its functions is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from blockc.emit.kinds import Kinds, find_kinds
from blockc.ir import Function, Input, Node, Value, callee_of, is_call, is_past


@dataclass
class ModulePlan:
    """What several functions must agree on.

    carried  some states have one size, so there is always a past, which starts as zeros
    lends    some layers read the states of others, which therefore always return them
    absent   the meaning of None for each input that takes a mask or None
    """

    root: Function
    kinds: Kinds
    carried: bool
    lends: bool
    absent: dict[tuple[Function, str], str]
    helpers: Sequence[str]

    def has_past(self, function: Function) -> bool:
        return any(is_past(n) for n in function.inputs)

    def takes_use_cache(self, function: Function) -> bool:
        """Whether its forward has the argument use_cache."""
        return self.has_past(function) and not self.lends


def plan_module(root: Function, helpers: Sequence[str]) -> ModulePlan:
    pasts = [n for n in root.inputs if is_past(n)]
    lends = any(value.index and is_call(value.node) for n in root.nodes for value in n.inputs)
    carried = any(not _grows(n) for n in pasts)
    found, absent = find_kinds(root), _find_absent(root)
    for function, larger in found.classes.items():
        for theirs, ours in _pair_functions(function, larger):
            absent |= {(ours, name): meaning for (f, name), meaning in absent.items() if f is theirs}
    return ModulePlan(root, found, carried, lends, absent, helpers)


def _pair_functions(function: Function, larger: Function) -> Iterator[tuple[Function, Function]]:
    """Pairs of a layer's function with that of its class, and of their parts likewise."""
    yield function, larger
    named = {n.name: n for n in larger.nodes}
    for n in function.nodes:
        if is_call(n):
            yield from _pair_functions(callee_of(n), callee_of(named[n.name]))


def _grows(past: Node) -> bool:
    assert isinstance(past.op, Input)
    return any(size.value is None for size in past.op.type.shape[1:])


def _find_absent(root: Function) -> dict[tuple[Function, str], str]:
    """Masks that may be None, with the meaning of None: every node that reads one can do without it."""
    made = {n[0]: n.op.absent() for n in root.nodes if n.op.absent()}
    if len(set(made.values())) > 1:
        return {}
    found: dict[tuple[Function, str], str] = {}
    for value, meaning in made.items():
        takers = _find_takers(root, value)
        if takers is not None:
            found |= {(root, value.node.name): meaning} | dict.fromkeys(takers, meaning)
    return found


def _find_takers(function: Function, value: Value) -> list[tuple[Function, str]] | None:
    """The inputs of functions that this value reaches; None where some node needs the value."""
    found: list[tuple[Function, str]] = []
    for n in function.nodes:
        for i, operand in enumerate(n.inputs):
            if operand != value:
                continue
            if not is_call(n):
                if i not in n.op.optional_operands():
                    return None
                continue
            formal = callee_of(n).inputs[i]
            inner = _find_takers(callee_of(n), formal[0])
            if inner is None:
                return None
            found += [(callee_of(n), formal.name), *inner]
    return found
