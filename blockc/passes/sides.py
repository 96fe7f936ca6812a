"""sides: whether a function depends on how long its calls are, which no cache, no chunk and no padding may change else.

A rope whose scaling goes by length turns a token by the length of the whole call. Calls are then causal, and a cache is
what it would be without one, among lengths of one side.
"""

from __future__ import annotations

from blockc.ir import Function
from blockc.ops import RotaryTable, Sides


def sides(root: Function) -> tuple[Sides, ...]:
    """Of the tables that the root makes; none where no length changes anything."""
    tables = (n.op for n in root.nodes if isinstance(n.op, RotaryTable))
    return tuple(dict.fromkeys(table.by_length.sides for table in tables if table.by_length is not None))
