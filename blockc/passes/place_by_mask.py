"""place_by_mask: positions counted from the mask, in a graph that keeps nothing between calls."""

from __future__ import annotations

from dataclasses import replace

from blockc.graph.contract import IDS, MASK, POSITIONS
from blockc.ir import Function, Node, Value, apply, is_past
from blockc.ir.transform import transform_values
from blockc.ops import QueryPositions


def place_by_mask(function: Function) -> Function:
    """position_ids = cumsum(attention_mask) - 1, and no longer an input. Takes an inlined function.

    A row's first real token stands at 0, whichever side the padding is on. A function with a past is left as it is:
    its mask may be longer than what it has read, so positions come with the call.
    """
    given = {n.name: n for n in function.inputs}
    if POSITIONS not in given or any(is_past(n) for n in function.inputs):
        return function
    mask, ids = given[MASK][0], given[IDS][0]
    known = next((n for n in function.nodes if _counts(n, mask, ids)), None)
    places = apply(QueryPositions(), mask, ids, name=known.name if known else "queries_at")
    inputs = tuple(n for n in function.inputs if n.name != POSITIONS)
    new = {n[0]: n[0] for n in inputs} | {given[POSITIONS][0]: places}
    results = transform_values(function, lambda n, _: (places,) if _counts(n, mask, ids) else None, new)
    return replace(function, inputs=inputs, outputs=tuple(zip(function.output_names, results, strict=True)))


def _counts(n: Node, mask: Value, ids: Value) -> bool:
    return isinstance(n.op, QueryPositions) and n.inputs == (mask, ids)
