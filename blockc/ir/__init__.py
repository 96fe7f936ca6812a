"""The intermediate representation: dims, ops, typed nodes, functions, the loop view of them, and their text."""

from blockc.basics.blocks import Blocks
from blockc.ir.call import Call, Input, callee_of, is_call, is_past
from blockc.ir.dims import B, Dim, M, P, S, T, at_most, dim, parse_at_most, product, symbol
from blockc.ir.nodes import Function, Interner, Node, Value, apply, node
from blockc.ir.op import (
    Array,
    Arrays,
    Carried,
    Fact,
    Grows,
    OnnxBranch,
    OnnxBuilder,
    OnnxLoopBody,
    OnnxValue,
    Op,
    Operand,
    Sample,
    State,
    TokenAxes,
    expect,
)
from blockc.ir.printer import functions_of, render_function
from blockc.ir.reach import Sides
from blockc.ir.roll import Loop, period_of, roll
from blockc.ir.transform import transform
from blockc.ir.types import Dtype, GraphError, Param, Type, tensor
from blockc.ir.walk import ancestors_of, inline, layers_of, parameters_of

__all__ = [
    "Array", "Arrays", "B", "Blocks", "Call", "Carried", "Dim", "Dtype", "Fact", "Function", "GraphError", "Grows",
    "Input", "Interner", "Loop", "M", "Node", "OnnxBranch", "OnnxBuilder",
    "OnnxLoopBody", "OnnxValue", "Op", "Operand", "P", "Param", "S",
    "Sample", "Sides", "State", "T", "TokenAxes", "Type", "Value", "ancestors_of", "apply", "at_most", "callee_of",
    "dim", "expect", "functions_of", "inline", "is_call", "is_past", "layers_of", "node", "parameters_of",
    "parse_at_most", "period_of", "product", "render_function", "roll", "symbol", "tensor", "transform",
]  # fmt: skip
