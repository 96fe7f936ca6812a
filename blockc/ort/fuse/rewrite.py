"""A rewrite of a function: other ops replace some of its nodes, and nodes that stayed are listed with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from blockc.graph.target import Target
from blockc.ir import Function, Input, Node, Type, Value
from blockc.ir.derive import Derivation, PassResult, SkippedNode


class Mismatch(Exception):
    """Why a pattern does not match here."""


class Rewrite:
    """`plans` makes the replacement of a node; nodes in `gone` are dropped, since only a plan reads them."""

    def __init__(self, function: Function, target: Target) -> None:
        self.old, self.target = function, target
        self.users: dict[Value, list[Node]] = {}
        for n in function.nodes:
            for value in n.inputs:
                self.users.setdefault(value, []).append(n)
        self.results = {value for _, value in function.outputs}
        self.inputs = {n.name: n for n in function.inputs}
        self.left: list[SkippedNode] = []
        self.derived: dict[str, Derivation] = {}
        self.plans: dict[Node, Callable[[], None]] = {}
        self.gone: set[Node] = set()
        self.shared: dict[object, tuple[Value, ...]] = {}
        self.new: dict[Value, Value] = {n[0]: n[0] for n in function.inputs}
        self.retyped: dict[Node, Node] = {}

    def only_user(self, value: Value) -> Node | None:
        users = self.users.get(value, [])
        return users[0] if len(users) == 1 and value not in self.results else None

    def make_once(self, key: object, make: Callable[[], Node]) -> tuple[Value, ...]:
        """Makes a node that several plans share, once."""
        if key not in self.shared:
            made = make()
            self.shared[key] = tuple(made[i] for i in range(len(made.types)))
        return self.shared[key]

    def retype(self, given: Value, type_: Type) -> None:
        """Gives an input another type, which only plans read."""
        n = given.node
        assert isinstance(n.op, Input)
        self.retyped[n] = n.remake(op=replace(n.op, type=type_))
        self.new[given] = self.retyped[n][0]

    def map_values(self, *values: Value) -> tuple[Value, ...]:
        return tuple(self.new[value] for value in values)

    def result(self) -> PassResult:
        """The new function. Nodes that nothing reads any more are dropped too."""
        for n in self.old.nodes:
            if n in self.plans:
                self.plans[n]()
            elif n not in self.gone:
                made = n.remake(inputs=self.map_values(*n.inputs))
                self.new.update({n[i]: made[i] for i in range(len(n.types))})
        outputs = tuple((name, self.new[value]) for name, value in self.old.outputs)
        inputs = tuple(self.retyped.get(n, n) for n in self.old.inputs)
        return PassResult(replace(self.old, inputs=inputs, outputs=outputs), self.derived, tuple(self.left))
