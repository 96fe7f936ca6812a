"""The intermediate representation: dims, ops, typed nodes, functions, the loop view of them, and their text."""

from blockc.ir.call import Call, Input, called, is_call, is_past
from blockc.ir.dims import B, Dim, M, P, S, T, dim, product, symbol
from blockc.ir.nodes import Function, Interner, Node, Value, apply, node
from blockc.ir.op import (
    Array,
    Arrays,
    Carried,
    Fact,
    Grows,
    OnnxBuilder,
    OnnxValue,
    Op,
    Operand,
    Sample,
    State,
    TokenAxes,
    expect,
)
from blockc.ir.printer import functions, render
from blockc.ir.reach import Sides
from blockc.ir.roll import Loop, period, roll
from blockc.ir.transform import transform
from blockc.ir.types import Dtype, GraphError, Param, Type, tensor
from blockc.ir.walk import before, inline, layers, parameters

__all__ = [
    "Array", "Arrays", "B", "Call", "Carried", "Dim", "Dtype", "Fact", "Function", "GraphError", "Grows", "Input",
    "Interner", "Loop", "M", "Node", "OnnxBuilder", "OnnxValue", "Op", "Operand", "P", "Param", "S", "Sample", "Sides",
    "State", "T", "TokenAxes", "Type", "Value", "apply", "before", "called", "dim", "expect", "functions", "inline",
    "is_call", "is_past", "layers", "node", "parameters", "period", "product", "render", "roll", "symbol", "tensor",
    "transform",
]  # fmt: skip
