"""with_cache: the states of ops become inputs and outputs, through nested calls.

A state that grows is joined with that of an earlier call; one that is carried is read and returned anew.

Keys and values that a function lends to others are then the whole state, past and new, and also its present.
Prefill and decode are the same cached function: with P past and S new tokens, any S.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from blockc.graph.contract import past_name, present_name
from blockc.ir import (
    Call,
    Carried,
    Function,
    GraphError,
    Grows,
    Input,
    Node,
    P,
    T,
    Type,
    Value,
    apply,
    callee_of,
    is_call,
)
from blockc.ir.transform import transform, transform_values
from blockc.ops import Extend


@dataclass(frozen=True)
class _State:
    """One state of a function: its name, the type of its past, the op that owns it, and the output of its present."""

    name: str
    past: Type
    owner: int
    present: int = -1


def with_cache(root: Function) -> Function:
    """Adds past_key_values.N.key and present.N.key, and so for every state; N counts the stateful ops from below.

    Raises GraphError for a function that is not causal: its earlier tokens would have to be computed anew.
    """
    if not root.causal:
        raise GraphError("a model that looks both ways has no cache: what is past changes with what is new")
    types = tuple(_grow(n) for n in root.inputs)
    cached, held = _Cache().function(root, types, top=True)
    if not held:
        return root  # no op has a state
    order = {owner: i for i, owner in enumerate(dict.fromkeys(h.owner for h in held))}
    number = {id(h): order[h.owner] for h in held}
    state = cached.inputs[len(root.inputs) :]
    renamed = {n: replace(n, name=past_name(number[id(h)], h.name)) for n, h in zip(state, held, strict=True)}
    outputs = cached.outputs[: len(root.outputs)] + tuple(
        (present_name(number[id(h)], h.name), cached.outputs[h.present][1]) for h in held
    )
    return transform(replace(cached, outputs=outputs), lambda n, inputs: None, renamed)


def _grow(n: Node) -> Type:
    assert isinstance(n.op, Input)
    return n.op.type if n.op.grows is None else n.op.type.with_axis(n.op.grows, T)


class _Cache:
    def __init__(self) -> None:
        self.known: dict[tuple[Function, tuple[Type, ...]], tuple[Function, tuple[_State, ...]]] = {}
        self.made: dict[object, tuple[Function, tuple[_State, ...]]] = {}

    def function(
        self, function: Function, types: tuple[Type, ...], top: bool = False
    ) -> tuple[Function, tuple[_State, ...]]:
        """The function with its states added and its inputs retyped; equal calls are one function.

        A function that lends its keys and values and one that does not may become equal.
        """
        if (function, types) not in self.known:
            made = _Rewrite(self, function, types, top).result()
            self.known[function, types] = made if top else self.made.setdefault(made[0].key, made)
        return self.known[function, types]


class _Rewrite:
    """One function being rewritten, node by node."""

    def __init__(self, cache: _Cache, function: Function, types: tuple[Type, ...], top: bool) -> None:
        self.cache, self.old, self.top = cache, function, top
        self.inputs = [
            replace(n, op=replace(n.op, type=type_)) for n, type_ in zip(function.inputs, types, strict=True)
        ]
        self.new: dict[Value, Value] = {old[0]: new[0] for old, new in zip(function.inputs, self.inputs, strict=True)}
        self.taken = {n.name for n in (*function.inputs, *function.nodes)}
        self.held: list[_State] = []
        self.presents: list[tuple[Node, str, Value]] = []
        self.extended: dict[Value, Value] = {}

    def result(self) -> tuple[Function, tuple[_State, ...]]:
        transform_values(self.old, lambda n, inputs: (self.call if is_call(n) else self.stateful)(n, inputs), self.new)
        outputs = [(name, self.extended.get(value, self.new[value])) for name, value in self.old.outputs]
        held: list[_State] = []
        names, at = {name for name, _ in outputs}, {value: i for i, (_, value) in reversed([*enumerate(outputs)])}
        for h, (n, name, value) in zip(self.held, self.presents, strict=True):
            if value not in at:
                at[value] = len(outputs)
                outputs.append((f"{n.name}_{h.name}" if name in names else name, value))
                names.add(outputs[-1][0])
            held.append(replace(h, present=at[value]))
        return replace(self.old, inputs=tuple(self.inputs), outputs=tuple(outputs)), tuple(held)

    def stateful(self, n: Node, inputs: tuple[Value, ...]) -> Node:
        operands, owner = list(inputs), len(self.held)
        states = n.op.state(*(value.type for value in inputs))
        for state in (each for each in states if isinstance(each, Grows)):
            new = operands[state.operand]
            past = self.past(n, _State(state.name, new.type.with_axis(state.axis, P), owner))
            extended = apply(Extend(state.axis), past, new, name=self.name(n, state.name), place=n.place)
            operands[state.operand] = self.extended[n.inputs[state.operand]] = extended
            self.present(n, state.name, extended)
        carried = [state for state in states if isinstance(state, Carried)]
        if not carried:
            return n.remake(inputs=tuple(operands))
        pasts = [self.past(n, _State(state.name, state.type, owner)) for state in carried]
        made = n.remake(op=n.op.continue_states(), inputs=(*operands, *pasts))
        for i, state in enumerate(carried, len(n.types)):
            self.present(n, state.name, made[i])
        return made

    def call(self, n: Node, inputs: tuple[Value, ...]) -> Node:
        inner, states = self.cache.function(callee_of(n), tuple(value.type for value in inputs))
        base = len(self.held)
        pasts = [self.past(n, replace(h, owner=base + h.owner)) for h in states]
        made = n.remake(op=Call(inner), inputs=(*inputs, *pasts))
        for h in states:
            self.present(n, h.name, made[h.present])
        return made

    def past(self, n: Node, held: _State) -> Value:
        """A new input for what an earlier call returned."""
        made = Node(Input(held.past, past=held.name), (), self.name(n, f"past_{held.name}"))
        self.taken.add(made.name)
        self.inputs.append(made)
        self.held.append(held)
        return made[0]

    def present(self, n: Node, state: str, value: Value) -> None:
        """A new output for what a later call will need."""
        name = self.name(n, state)
        self.taken.add(name)
        self.presents.append((n, name, value))

    def name(self, n: Node, name: str) -> str:
        """The short name where it is free; with the node's name before it at the root, or where it is taken."""
        return f"{n.name}_{name}" if self.top or name in self.taken else name
