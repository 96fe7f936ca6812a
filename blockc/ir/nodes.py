"""The graph: typed values, nodes, and functions that call each other.

A Function is a directed acyclic graph of Nodes. A Node is a frozen op, the values it reads, its parameters and a name;
its output types are computed once, when it is made. A value is (node, index), since a call or a cache has several
outputs. A Param is named relative to the function that holds it: a layer that is called 126 times is one Function, and
the path of a weight is the path of the calls followed by its own name.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from blockc.ir.op import Op
from blockc.ir.types import GraphError, Param, Type
from blockc.source import Place

_serial = itertools.count()


@dataclass(frozen=True)
class Value:
    node: Node
    index: int = 0

    @property
    def type(self) -> Type:
        return self.node.types[self.index]

    @property
    def name(self) -> str:
        """embedding; rotary.cos where an op has several outputs; a call's first output is called like the call."""
        names = self.node.op.output_names
        return (
            self.node.name
            if len(names) == 1 or (self.index == 0 and names[0] == "out")
            else (f"{self.node.name}.{names[self.index]}")
        )


@dataclass(frozen=True, eq=False, repr=False)
class Node:
    """op(inputs; params), named; `types` are its outputs' types, checked at construction."""

    op: Op
    inputs: tuple[Value, ...]
    name: str
    params: tuple[Param, ...] = ()
    place: Place | None = None
    serial: int = field(default_factory=lambda: next(_serial))

    @cached_property
    def types(self) -> tuple[Type, ...]:
        try:
            return self.op.infer_cached(*(value.type for value in self.inputs))
        except GraphError as error:
            raise GraphError(
                f"{self.name}: {error}", error.place or self.place, expected=error.expected, got=error.got
            ) from None

    def __post_init__(self) -> None:
        _ = self.types  # a node that exists is a node whose shapes agree

    def __getitem__(self, index: int) -> Value:
        return Value(self, index)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.op.name}>"

    def remake(self, *, op: Op | None = None, inputs: tuple[Value, ...] | None = None, name: str | None = None) -> Node:
        """A copy of this node with these changes. It is made now, so it stands after every earlier node."""
        return Node(
            op or self.op, self.inputs if inputs is None else inputs, name or self.name, self.params, self.place
        )


def node(op: Op, *inputs: Value, name: str, params: Sequence[Param] | None = None, place: Place | None = None) -> Node:
    """A node whose parameters are its own (name.weight, ...) unless others are given, which ties it to them."""
    own = tuple(replace(p, name=f"{name}.{p.name}") for p in op.params())
    return Node(op, inputs, name, own if params is None else tuple(params), place)


def apply(
    op: Op, *inputs: Value, name: str, params: Sequence[Param] | None = None, place: Place | None = None
) -> Value:
    """The first output of a new node."""
    return node(op, *inputs, name=name, params=params, place=place)[0]


@dataclass(frozen=True, eq=False, repr=False)
class Function:
    """inputs -> outputs. The body is what the outputs reach, in the order in which it was built.

    `causal` declares whether no output may depend on a later token; `verify` proves it.
    `stream` names the input that the residual stream comes in by: the first output has its type.
    """

    name: str
    inputs: tuple[Node, ...]
    outputs: tuple[tuple[str, Value], ...]
    causal: bool = True
    doc: str = ""
    stream: str | None = None

    def __repr__(self) -> str:
        return f"<function {self.name}>"

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every reached node but the inputs; operands stand before their users."""
        seen: dict[Node, None] = {}
        todo = [value.node for _, value in self.outputs]
        while todo:
            current = todo.pop()
            if current not in seen:
                seen[current] = None
                todo.extend(value.node for value in current.inputs)
        inputs = set(self.inputs)
        return tuple(sorted((n for n in seen if n not in inputs), key=lambda n: n.serial))

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.outputs)

    def output(self, name: str) -> Value:
        """The value that goes out by this name."""
        return dict(self.outputs)[name]

    @cached_property
    def own_params(self) -> tuple[Param, ...]:
        """The parameters held by this function's own nodes, each once."""
        return tuple(dict.fromkeys(param for n in self.nodes for param in n.params))

    @cached_property
    def key(self) -> object:
        """Equal keys mean equal functions: same ops, wiring, parameters and value names, wherever written."""
        position: dict[Node, int] = {n: i for i, n in enumerate((*self.inputs, *self.nodes))}

        def wires(values: Iterable[Value]) -> tuple[tuple[int, int], ...]:
            return tuple((position[value.node], value.index) for value in values)

        body = tuple((n.op, wires(n.inputs), n.name, n.params) for n in self.nodes)
        ends = tuple((name, *wires([value])) for name, value in self.outputs)
        return (tuple((n.op, n.name) for n in self.inputs), body, ends, self.causal, self.stream)


class Interner:
    """Returns the first function of all equal ones, so that equal layers are one object.

    Functions that differ get different names: Layer, then GlobalLayer for the layer kind `global`, then GlobalLayer2.
    """

    def __init__(self) -> None:
        self._known: dict[object, Function] = {}
        self._names: set[str] = set()

    def __call__(self, function: Function, kind: str) -> Function:
        if function.key in self._known:
            return self._known[function.key]
        special = "".join(word.capitalize() for word in re.split(r"[_+]", kind)) + function.name
        candidates = itertools.chain([function.name, special], (f"{special}{i}" for i in itertools.count(2)))
        name = next(candidate for candidate in candidates if candidate not in self._names)
        self._names.add(name)
        self._known[function.key] = replace(function, name=name)
        return self._known[function.key]
