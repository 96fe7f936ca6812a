"""join_projections: the matrices of queries, keys and values become one, where the attention takes their product whole.

Their rows then lie one after another in the data file, so that this is for weights that are copied, not linked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from blockc.ir import Function, Node, Param, Value, node
from blockc.ir.derive import Parts
from blockc.ops import Linear
from blockc.ort.ops import GroupQueryAttention, RowQueryAttention


@dataclass(frozen=True)
class Joined:
    """`parts` names the parameters whose rows each joined one holds, in their order."""

    function: Function
    parts: Parts


def join_projections(function: Function) -> Joined:
    """Takes a fused function. What is read by anything else than its attention stays by itself."""
    readers: dict[Value, list[Node]] = {}
    for n in function.nodes:
        for value in n.inputs:
            readers.setdefault(value, []).append(n)
    parts: dict[str, tuple[str, ...]] = {}
    new: dict[Value, Value] = {n[0]: n[0] for n in function.inputs}
    for n in function.nodes:
        linears = _projections(n, readers)
        op, inputs = n.op, tuple(new[value] for value in n.inputs)
        if linears:
            assert isinstance(op, GroupQueryAttention | RowQueryAttention)
            made = _joined(linears, new[linears[0].inputs[0]], parts)
            op, inputs = replace(op, packed=True), (made[0], *inputs[3:])
        remade = n.remade(op=op, inputs=inputs)
        new.update({n[i]: remade[i] for i in range(len(n.types))})
    outputs = tuple((name, new[value]) for name, value in function.outputs)
    return Joined(replace(function, outputs=outputs), parts)


def _projections(n: Node, readers: Mapping[Value, list[Node]]) -> tuple[Node, ...]:
    """The three linears of one value that only this attention reads, or nothing."""
    if not isinstance(n.op, GroupQueryAttention | RowQueryAttention):
        return ()
    linears = tuple(value.node for value in n.inputs[:3])
    ops = [linear.op for linear in linears if isinstance(linear.op, Linear)]
    alike = len(ops) == 3 and len({op.bias for op in ops}) == 1 and len({linear.inputs for linear in linears}) == 1
    return linears if alike and all(readers[linear[0]] == [n] for linear in linears) else ()


def _joined(linears: tuple[Node, ...], x: Value, parts: dict[str, tuple[str, ...]]) -> Node:
    name = linears[0].name.rpartition(".")[0] + ".qkv"
    params: list[Param] = []
    for each in zip(*(linear.params for linear in linears), strict=True):
        rows = sum(param.shape[0] for param in each)
        own = f"{name}.{each[0].name.rpartition('.')[2]}"
        params.append(replace(each[0], name=own, shape=(rows, *each[0].shape[1:])))
        parts[own] = tuple(param.name for param in each)
    weight = params[0]
    op = Linear(weight.shape[1], weight.shape[0], len(params) > 1)
    return node(op, x, name=name, params=params, place=linears[0].place)
