"""roll: calls that form a chain become one loop, so that the text is as long for 126 layers as for 12."""

from __future__ import annotations

from dataclasses import dataclass

from blockc.ir.call import callee_of, is_call
from blockc.ir.nodes import Function, Node, Value


@dataclass(frozen=True)
class Loop:
    """for i: chain = calls[i](..., chain, ...).

    `chain` is the operand fed by the previous call's first output; each other operand is either the same value for all
    calls (`fixed`) or one value a call (`varying`), keyed by its position.
    """

    prefix: str
    calls: tuple[Node, ...]
    chain: int
    fixed: dict[int, Value]
    varying: dict[int, tuple[Value, ...]]

    @property
    def functions(self) -> tuple[Function, ...]:
        return tuple(callee_of(call) for call in self.calls)


def period_of(items: tuple[object, ...]) -> int:
    """The smallest n for which items[i] == items[i % n]."""
    for n in range(1, len(items)):
        if all(item == items[i % n] for i, item in enumerate(items)):
            return n
    return len(items)


def _signature(call: Node) -> object:
    function = callee_of(call)
    return (
        call.name.rpartition(".")[0],
        tuple((n.name, n.types) for n in function.inputs),
        tuple((name, value.type) for name, value in function.outputs),
    )


def roll(function: Function) -> list[Node | Loop]:
    """The function's nodes in order, with each chain of two or more alike calls folded into a Loop.

    A call with more outputs in use than the stream stands by itself: a loop gives only its last call's output.
    """
    items: list[Node | Loop] = []
    run: list[Node] = []
    lends = {value.node for n in function.nodes for value in n.inputs if value.index and is_call(value.node)}
    for current in (*function.nodes, None):
        if current is not None and run and not lends & {run[-1], current} and _continues(run[-1], current):
            run.append(current)
            continue
        items.extend([_fold(run)] if len(run) > 1 else run)
        run = [current] if current is not None else []
    return items


def _continues(previous: Node, current: Node) -> bool:
    if not (is_call(previous) and is_call(current)):
        return False
    fed = [i for i, value in enumerate(current.inputs) if value == previous[0]]
    return len(fed) == 1 and "." in current.name and _signature(previous) == _signature(current)


def _fold(calls: list[Node]) -> Loop:
    chain = next(i for i, value in enumerate(calls[1].inputs) if value == calls[0][0])
    fixed: dict[int, Value] = {}
    varying: dict[int, tuple[Value, ...]] = {}
    for i, first in enumerate(calls[0].inputs):
        column = tuple(call.inputs[i] for call in calls)
        if i == chain:
            continue
        if all(value == first for value in column):
            fixed[i] = first
        else:
            varying[i] = column
    return Loop(calls[0].name.rpartition(".")[0], tuple(calls), chain, fixed, varying)
