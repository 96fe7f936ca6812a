"""with_buffer: a cache of fixed length M; new keys and values are written where the caller says.

Past and present may then be one piece of memory, so that a new token copies nothing.
"""

from __future__ import annotations

from dataclasses import replace

from blockc.graph.contract import WHERE
from blockc.ir import B, Function, GraphError, Input, M, Node, P, T, Type, Value, is_past
from blockc.ir.transform import transform
from blockc.ops import Extend, QueryPositions
from blockc.ops.buffer import PositionsFrom, Write


def with_buffer(function: Function) -> Function:
    """attention_mask and every past are M long; write_indices (B) is where each row's new tokens go.

    Takes an inlined, cached function. The mask is 1 at every token that has been or is being written, and 0 elsewhere.
    Raises GraphError for a function without a cache.
    """
    if not any(map(is_past, function.inputs)):
        raise GraphError("a model that remembers nothing has no cache to hold in a buffer")
    first = Node(Input(Type("int", (B,))), (), WHERE)

    def rule(n: Node, inputs: tuple[Value, ...]) -> Node | None:
        match n.op:
            case Extend(axis):
                return n.remake(op=Write(axis), inputs=(*inputs, first[0]))
            case QueryPositions():
                return n.remake(op=PositionsFrom(), inputs=(*inputs, first[0]))
            case _:
                return None

    made = transform(function, rule, {n: _fix_length(n) for n in function.inputs})
    plain, pasts = ([n for n in made.inputs if is_past(n) is past] for past in (False, True))
    return replace(made, inputs=(*plain, first, *pasts))


def _fix_length(n: Node) -> Node:
    assert isinstance(n.op, Input)
    shape = tuple(M if size in (P, T) else size for size in n.op.type.shape)
    return n.remake(op=replace(n.op, type=Type(n.op.type.dtype, shape)))
