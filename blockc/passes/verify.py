"""Checks that every graph must pass, after build and after every pass."""

from __future__ import annotations

from collections import Counter

from blockc.graph.contract import POSITIONS
from blockc.ir import Function, GraphError, Input, Node, Op, Type, Value, callee_of, functions_of, is_call
from blockc.ir.reach import Constant, Leaks, Places, Reach, Tokens


def verify_graph(root: Function) -> None:
    """Raises GraphError: types, unique names, the stream's width, parameter accounting, causal reach."""
    for function in functions_of(root):
        _check_types(function)
        _check_names(function)
        _check_stream(function)
        _check_params(function)
    if root.causal:
        _check_causal(root)


def _check_types(function: Function) -> None:
    for n in function.nodes:
        inferred = n.op.infer(*(value.type for value in n.inputs))
        if inferred != n.types:
            raise GraphError(f"{function.name}.{n.name} says {n.types}, its op {inferred}", n.place)


def _check_names(function: Function) -> None:
    counts = Counter(n.name for n in (*function.inputs, *function.nodes))
    if twice := [name for name, count in counts.items() if count > 1]:
        raise GraphError(f"{function.name}: the name {twice[0]} stands for two values")


def _check_stream(function: Function) -> None:
    """Width in equals width out: a block edits the stream and passes it on."""
    if function.stream is None:
        return
    came = next(n for n in function.inputs if n.name == function.stream)
    _, gone = function.outputs[0]
    if came.types[0] != gone.type:
        raise GraphError(
            f"{function.name} changes the stream", gone.node.place, expected=str(came.types[0]), got=str(gone.type)
        )


def _check_params(function: Function) -> None:
    """Each node holds what its op owns, and one name means one tensor."""
    held: dict[str, object] = {}
    for n in function.nodes:
        holds, owns = ([(p.shape, p.dtype) for p in params] for params in (n.params, n.op.params()))
        if holds != owns:
            raise GraphError(f"{function.name}.{n.name} holds {holds}, its op owns {owns}", n.place)
        for param in n.params:
            if held.setdefault(param.name, param) != param:
                raise GraphError(f"{function.name}: the parameter {param.name} has two shapes", n.place)


def _check_causal(root: Function) -> None:
    """No output position depends on a later input: proved by each op's reach rule."""
    given = tuple(_reach_of_input(n) for n in root.inputs)
    for (name, value), reach in zip(root.outputs, _Walk().reaches(root, given), strict=True):
        if isinstance(reach, Leaks):
            raise GraphError(f"{name} sees later tokens: {reach.why}", value.node.place)


def _reach_of_input(n: Node) -> Reach:
    axis = n.op.token_axis if isinstance(n.op, Input) else None
    if axis is None:
        return Constant()
    return Places(axis) if n.name == POSITIONS else Tokens(axis)


class _Walk:
    """The reach of a function's outputs. Each function is walked once for each reach of its inputs."""

    def __init__(self) -> None:
        self.known: dict[tuple[Function, tuple[Reach, ...]], tuple[Reach, ...]] = {}
        self.ruled: dict[tuple[Op, tuple[Type, ...], tuple[Reach, ...]], tuple[Reach, ...]] = {}

    def reaches(self, function: Function, given: tuple[Reach, ...]) -> tuple[Reach, ...]:
        if (function, given) not in self.known:
            self.known[function, given] = self._walk(function, given)
        return self.known[function, given]

    def _walk(self, function: Function, given: tuple[Reach, ...]) -> tuple[Reach, ...]:
        found: dict[Value, Reach] = {n[0]: reach for n, reach in zip(function.inputs, given, strict=True)}
        for n in function.nodes:
            inputs = tuple(found[value] for value in n.inputs)
            if is_call(n):
                results = self.reaches(callee_of(n), inputs)
            else:
                results = _name_leaks(n, self._rule(n.op, tuple(value.type for value in n.inputs), inputs), inputs)
            found.update({n[i]: reach for i, reach in enumerate(results)})
        return tuple(found[value] for _, value in function.outputs)

    def _rule(self, op: Op, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        """The op's reach rule, evaluated once for equal nodes: they are in every layer."""
        key = (op, types, reaches)
        if key not in self.ruled:
            self.ruled[key] = op.reach(types, reaches)
        return self.ruled[key]


def _name_leaks(n: Node, results: tuple[Reach, ...], inputs: tuple[Reach, ...]) -> tuple[Reach, ...]:
    """A leak names the node where it first appears."""
    return tuple(
        Leaks(f"{reach.why}, at {n.name}") if isinstance(reach, Leaks) and reach not in inputs else reach
        for reach in results
    )
