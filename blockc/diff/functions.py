"""NUMERIC: where two functions compute differently with the tensors that both have.

Nodes are aligned by name, with B's labels renamed to A's. Aligned nodes must be the same op with the same fields and
inputs. A field that follows from a tensor's shape is not reported if the shape differs; a node whose tensors only one
side has is skipped, since CHECKPOINT reports them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields

from blockc.ir import Function, Node, Op, Type, Value, callee_of, is_call, parameters_of
from blockc.ops import Add

Ref = tuple[object, ...]


@dataclass(frozen=True)
class OfLayer(Op):
    """Keys or values that an earlier layer made."""

    layer: int


@dataclass(frozen=True)
class GivenValue:
    """An argument of a function besides its stream: a mask or table, by the root's op that made it, or lent keys."""

    op: Op
    index: int


@dataclass
class Differences:
    """A's nodes that compute differently, with what differs in them; `wiring`: some node reads other values."""

    nodes: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    wiring: bool = False

    def __bool__(self) -> bool:
        return bool(self.nodes) or self.wiring


@dataclass(frozen=True)
class View:
    """A function to compare: its relevant nodes by their name in A, and what its inputs are."""

    function: Function
    nodes: Mapping[str, Node]
    given: Mapping[Node, GivenValue]
    ends: tuple[Value, ...]

    def given_to(self, n: Node) -> list[tuple[GivenValue, Type]]:
        return [(self.given[v.node], v.type) for v in n.inputs if v.node in self.given]

    def call(self, n: Node, labels: Mapping[str, str]) -> View:
        """The view of the function that a node calls. `labels` gives A's names for B's."""
        function = callee_of(n)
        handed = {
            formal: self.given[value.node]
            for formal, value in zip(function.inputs, n.inputs, strict=True)
            if value.node in self.given
        }
        return view_of(function, handed, labels)


def view_of(function: Function, given: Mapping[Node, GivenValue], labels: Mapping[str, str]) -> View:
    nodes = {labels.get(n.name, n.name): n for n in function.nodes if not isinstance(n.op, Add)}
    return View(
        function, nodes, given, (function.outputs[0][1],)
    )  # states that it lends are compared where they are read


def root_view(function: Function) -> View:
    """The view of everything around the layers, without masks and tables, which belong to the layers."""
    calls = [n for n in function.nodes if is_call(n)]
    shared, todo = set[Node](), [v.node for n in calls for v in n.inputs[1:] if not is_call(v.node)]
    while todo:
        if (n := todo.pop()) not in shared:
            shared.add(n)
            todo.extend(v.node for v in n.inputs)
    around = [n for n in function.nodes if not is_call(n) and n not in shared and not isinstance(n.op, Add)]
    ends = tuple(value for _, value in function.outputs)
    return View(function, {n.name: n for n in around}, {}, (*ends, calls[0].inputs[0]))


def layer_view(call: Node, labels: Mapping[str, str]) -> View:
    function = callee_of(call)
    handed = zip(function.inputs[1:], call.inputs[1:], strict=True)
    return view_of(function, {formal: _given_by(value) for formal, value in handed}, labels)


def _given_by(value: Value) -> GivenValue:
    n = value.node
    return GivenValue(OfLayer(int(n.name.rpartition(".")[2])) if is_call(n) else n.op, value.index)


def compare_views(a: View, b: View) -> Differences:
    return _Comparison(a, b).result()


class _Comparison:
    def __init__(self, a: View, b: View) -> None:
        self.a, self.b = a, b
        self.both = [name for name in a.nodes if name in b.nodes]
        own = [_shapes_of(view, self.both) for view in (a, b)]
        self.resized = any(own[0][path] != own[1][path] for path in own[0].keys() & own[1].keys())
        lone = [Counter(_lone_ops(view, self.both)) for view in (a, b)]
        self.moved = bool(lone[0]) and lone[0] == lone[1]

    def result(self) -> Differences:
        found = Differences()
        left, right = _Wires(self.a, self.both, self.moved), _Wires(self.b, self.both, self.moved)
        for name in self.both:
            n, m = self.a.nodes[name], self.b.nodes[name]
            if said := list(dict.fromkeys(self.node(n, m))):
                found.nodes[name] = said
            found.wiring = found.wiring or left.into(n) != right.into(m)
        ends = [[wires.of(value) for value in wires.view.ends] for wires in (left, right)]
        found.wiring = found.wiring or ends[0] != ends[1]
        return found

    def node(self, n: Node, m: Node) -> Iterator[str]:
        if is_call(n) and is_call(m):
            inner = compare_views(self.a.call(n, {}), self.b.call(m, {}))
            yield from (f"{name}: {said}" for name, each in inner.nodes.items() for said in each)
            if inner.wiring:
                yield "wired differently"
            return
        given = zip(self.a.given_to(n), self.b.given_to(m), strict=False)
        yield from self.op(n.op, m.op, _types_of(n), _types_of(m))
        for (one, type_), (other, other_type) in given:
            yield from self.op(one.op, other.op, (type_,), (other_type,))

    def op(self, a: Op, b: Op, types_a: tuple[Type, ...], types_b: tuple[Type, ...]) -> Iterator[str]:
        if type(a) is not type(b):
            yield f"{a.name} -> {b.name}"
            return
        shapes = [{param.name: param.shape for param in op.params()} for op in (a, b)]
        follows = self.resized and (types_a != types_b or shapes[0] != shapes[1])
        for f in fields(a):
            name, before, after = f.name, getattr(a, f.name), getattr(b, f.name)
            if before == after or (isinstance(before, bool) and shapes[0].keys() != shapes[1].keys()):
                continue
            sized = type(before) is int and type(after) is int and not f.metadata.get("free")
            if follows and (sized or _follows_root(before, after, types_a[0], types_b[0])):
                continue
            yield f"{name} {before} -> {after}"


def _types_of(n: Node) -> tuple[Type, ...]:
    return (*(v.type for v in n.inputs), *n.types)


def _shapes_of(view: View, both: list[str]) -> dict[str, tuple[int, ...]]:
    """The shapes of parameters by path, for the nodes that both sides have."""
    found: dict[str, tuple[int, ...]] = {}
    for name in both:
        n = view.nodes[name]
        if is_call(n):
            found |= {f"{name}.{path}": param.shape for path, param in parameters_of(callee_of(n)).items()}
        found |= {f"{name}.{own.name}": own.shape for own in n.op.params()}
    return found


def _lone_ops(view: View, both: list[str]) -> Iterator[object]:
    """Ops with tensors that only this side has, such as a norm in another place."""
    for name, n in view.nodes.items():
        if name not in both and n.params and not is_call(n):
            yield n.op.name, tuple(param.shape for param in n.params)


def _follows_root(before: object, after: object, a: Type, b: Type) -> bool:
    """Whether two factors differ only as sqrt(width), or as width^-0.5, of two widths."""
    if not (isinstance(before, float) and isinstance(after, float) and before):
        return False
    widths = a.shape[-1].value, b.shape[-1].value
    if not (widths[0] and widths[1]):
        return False
    ratio, root_ = after / before, math.sqrt(widths[1] / widths[0])
    return math.isclose(ratio, root_, rel_tol=1e-9) or math.isclose(ratio, 1 / root_, rel_tol=1e-9)


class _Wires:
    """Describes values in terms of the nodes that both sides have."""

    def __init__(self, view: View, both: list[str], moved: bool) -> None:
        self.view, self.moved = view, moved
        self.name = {view.nodes[name]: name for name in both}
        self.known: dict[Value, Ref | None] = {}

    def into(self, n: Node) -> list[Ref | None]:
        """What a node reads; for a call only the stream, since other arguments are compared where they are read."""
        return [self.of(value) for value in (n.inputs[:1] if is_call(n) else n.inputs)]

    def of(self, value: Value) -> Ref | None:
        """The description of a value; None if it comes only from nodes that the other side lacks."""
        if value not in self.known:
            self.known[value] = self._of(value)
        return self.known[value]

    def _of(self, value: Value) -> Ref | None:
        n = value.node
        if n in self.name:
            return "node", self.name[n], value.index
        if n in self.view.given:
            given = self.view.given[n]
            return "given", value.type.dtype, isinstance(given.op, OfLayer), given.index
        if n in self.view.function.inputs:
            return "input", n.name
        if isinstance(n.op, Add):
            terms = [ref for ref in self.into(n) if ref is not None]
            return ("add", *terms) if len(terms) > 1 else terms[0] if terms else None
        if is_call(n):
            return ("layers",) if n.name.startswith("layers.") else None
        if n.params and not self.moved:
            return self.of(n.inputs[0]) if n.inputs and n.inputs[0].type == n.types[0] else None
        return "op", n.op.name, value.index, *self.into(n)
