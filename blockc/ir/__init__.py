"""The intermediate representation: dims, typed nodes, functions, the loop view of them, and their text."""

from blockc.ir.dims import B, Dim, M, P, S, T, dim, product, symbol
from blockc.ir.nodes import (
    Dtype,
    Function,
    GraphError,
    Interner,
    Node,
    Param,
    Type,
    Value,
    apply,
    node,
    tensor,
)
from blockc.ir.printer import functions, render
from blockc.ir.roll import Loop, called, is_call, period, roll
from blockc.ir.walk import inline, parameters

__all__ = [
    "B", "Dim", "Dtype", "Function", "GraphError", "Interner", "Loop", "M", "Node", "P", "Param", "S", "T", "Type",
    "Value", "apply", "called", "dim", "functions", "inline", "is_call", "node", "parameters", "period", "product",
    "render", "roll", "symbol", "tensor",
]  # fmt: skip
