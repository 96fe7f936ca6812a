"""Walks over nested functions: the layers, the parameters by path, and the flat form that ONNX is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from weakref import WeakKeyDictionary

from blockc.ir.call import callee_of, is_call
from blockc.ir.nodes import Function, Node, Value
from blockc.ir.transform import transform_values
from blockc.ir.types import Param


def layers_of(root: Function) -> tuple[Node, ...]:
    """The calls of a model's layers, first to last: a root calls nothing else."""
    return tuple(n for n in root.nodes if is_call(n))


def ancestors_of(nodes: Iterable[Node]) -> set[Node]:
    """All nodes that these read, directly or not."""
    todo, found = list(nodes), set[Node]()
    while todo:
        for value in todo.pop().inputs:
            if value.node not in found:
                found.add(value.node)
                todo.append(value.node)
    return found


def parameters_of(function: Function) -> dict[str, Param]:
    """Every parameter by its full path, a tied one once, in the order of first use."""
    if function not in _KNOWN:
        _KNOWN[function] = dict(_walk_parameters(function, ""))
    return dict(_KNOWN[function])


_KNOWN: WeakKeyDictionary[Function, dict[str, Param]] = WeakKeyDictionary()


def _walk_parameters(function: Function, prefix: str) -> Iterator[tuple[str, Param]]:
    for n in function.nodes:
        if is_call(n):
            yield from _walk_parameters(callee_of(n), f"{prefix}{n.name}.")
        for param in n.params:
            yield prefix + param.name, param


def inline(function: Function) -> Function:
    """The same function without calls: nodes and parameters are named by their paths."""
    outputs = _inline(function, tuple(n[0] for n in function.inputs), "")
    named = tuple(zip(function.output_names, outputs, strict=True))
    return replace(function, outputs=named)


def _inline(function: Function, arguments: tuple[Value, ...], prefix: str) -> tuple[Value, ...]:
    """As deep as parts nest, which the spec bounds; layers follow each other, they do not nest."""

    def rule(n: Node, inputs: tuple[Value, ...]) -> Node | tuple[Value, ...]:
        if is_call(n):
            return _inline(callee_of(n), inputs, f"{prefix}{n.name}.")
        params = tuple(replace(param, name=prefix + param.name) for param in n.params)
        return Node(n.op, inputs, prefix + n.name, params, n.place)

    return transform_values(function, rule, {n[0]: v for n, v in zip(function.inputs, arguments, strict=True)})
