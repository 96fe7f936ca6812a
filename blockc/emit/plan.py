"""What is decided of a whole model.py before any of its functions is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from blockc.emit.kinds import Kinds, find_kinds
from blockc.ir import Function, Input, Node, Value, called, is_call, is_past


@dataclass
class ModulePlan:
    """The answers to what more than one function must agree on.

    carried  some states are of one size: there is always a past, which begins as zeros
    lends    some layers read what others give: these give it always
    absent   what None means for an input of a function that takes a mask or None
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
        """Whether it is told if its states are wanted."""
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
    """A layer's function and that of its class, and so for their parts."""
    yield function, larger
    named = {n.name: n for n in larger.nodes}
    for n in function.nodes:
        if is_call(n):
            yield from _pair_functions(called(n), called(named[n.name]))


def _grows(past: Node) -> bool:
    assert isinstance(past.op, Input)
    return any(size.value is None for size in past.op.type.shape[1:])


def _find_absent(root: Function) -> dict[tuple[Function, str], str]:
    """Masks that need not be made, in the functions that take them: nobody reads them but who can do without."""
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
    """The inputs of functions that this value reaches; None where anybody needs it."""
    found: list[tuple[Function, str]] = []
    for n in function.nodes:
        for i, operand in enumerate(n.inputs):
            if operand != value:
                continue
            if not is_call(n):
                if i not in n.op.lacks():
                    return None
                continue
            formal = called(n).inputs[i]
            inner = _find_takers(called(n), formal[0])
            if inner is None:
                return None
            found += [(called(n), formal.name), *inner]
    return found
