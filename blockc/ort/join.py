"""join_projections: the matrices of queries, keys and values become one, if the attention takes their joined product.

Their rows must be adjacent in the data file, so this is for weights that are copied, not linked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from blockc.ir import Function, Node, Param, Value, node, transform
from blockc.ir.derive import Join, PassResult
from blockc.ops import Linear
from blockc.ort.ops import BlockLinear, GroupQueryAttention, RowQueryAttention, StepAttention

JOINED = GroupQueryAttention | RowQueryAttention | StepAttention  # what also takes their joined product


def join_projections(function: Function) -> PassResult:
    """Takes a fused function. A projection that anything besides its attention reads is not joined."""
    readers = readers_of(function)
    joins: dict[str, Join] = {}

    def rule(n: Node, inputs: tuple[Value, ...]) -> Node | None:
        linears = find_projections(n, readers) if isinstance(n.op, JOINED) else ()
        if not linears:
            return None
        assert isinstance(n.op, JOINED)
        made = _join(linears, inputs[0].node.inputs, joins)
        return n.remake(op=replace(n.op, packed=True), inputs=(made[0], *inputs[3:]))

    return PassResult(transform(function, rule), joins)


def readers_of(function: Function) -> Mapping[Value, list[Node]]:
    readers: dict[Value, list[Node]] = {}
    for n in function.nodes:
        for value in n.inputs:
            readers.setdefault(value, []).append(n)
    return readers


def find_projections(n: Node, readers: Mapping[Value, list[Node]]) -> tuple[Node, ...]:
    """The three linears of one value that only this attention reads, or nothing."""
    linears = tuple(value.node for value in n.inputs[:3])
    ops = [replace(linear.op, outputs=0) for linear in linears if isinstance(linear.op, Linear | BlockLinear)]
    alike = len(ops) == 3 and len(set(ops)) == 1 and len({linear.inputs for linear in linears}) == 1
    return linears if alike and all(readers[linear[0]] == [n] for linear in linears) else ()


def _join(linears: tuple[Node, ...], x: tuple[Value, ...], joins: dict[str, Join]) -> Node:
    """One linear in place of several of x; `joins` gets the derivations of its parameters."""
    name = linears[0].name.rpartition(".")[0] + ".qkv"
    params: list[Param] = []
    for each in zip(*(linear.params for linear in linears), strict=True):
        own = f"{name}.{each[0].name.rpartition('.')[2]}"
        joins[own] = Join(tuple(param.name for param in each))
        params.append(joins[own].param(own, *each))
    op = linears[0].op
    assert isinstance(op, Linear | BlockLinear)
    return node(replace(op, outputs=params[0].shape[0]), *x, name=name, params=params, place=linears[0].place)
