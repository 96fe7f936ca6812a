"""Layers of several kinds in one loop: which classes they need, and the class of each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from blockc.ir import Function, Node, Value, callee_of, is_call, is_past, layers_of, period_of


@dataclass(frozen=True)
class Switch:
    """A constructor argument of some classes; where it is false, some of their nodes are skipped.

    `skipped` has every function that takes the argument, with the names of its skipped nodes.
    """

    word: str
    skipped: dict[Function, frozenset[str]]


@dataclass
class Kinds:
    """The classes of a root's layers.

    uniform   all layers are in one list and have one signature, so that one loop runs them
    classes   each layer's function -> the function from which its class is made
    off       the functions for which the switch of their class is false
    inputs    the inputs of every layer where they are uniform, the stream first
    """

    uniform: bool = False
    classes: dict[Function, Function] = field(default_factory=dict[Function, Function])
    off: set[Function] = field(default_factory=set[Function])
    switches: dict[Function, Switch] = field(default_factory=dict[Function, Switch])
    inputs: tuple[str, ...] = ()

    def switch_of(self, function: Function) -> Switch | None:
        """The switch that a class takes: a layer's own, or one that a layer hands to its part."""
        return next((switch for switch in self.switches.values() if function in switch.skipped), None)


def find_kinds(root: Function) -> Kinds:
    calls = layers_of(root)
    made = list(dict.fromkeys(callee_of(call) for call in calls))
    if not _is_uniform(root, calls):
        return Kinds(classes={function: function for function in made})
    found = Kinds(uniform=True)
    for function in sorted(made, key=lambda f: (-_size_of(f), made.index(f))):
        _place(found, function)
    found.classes = {function: found.classes[function] for function in made}
    names = dict.fromkeys(n.name for f in found.classes.values() for n in f.inputs if not is_past(n))
    found.inputs = tuple(names)
    return found


def _size_of(function: Function) -> int:
    return sum(1 + (_size_of(callee_of(n)) if is_call(n) else 0) for n in function.nodes)


def _place(found: Kinds, function: Function) -> None:
    """Gives a function a class: a larger one with a switch for the difference, or one of its own."""
    for larger in dict.fromkeys(found.classes.values()):
        skipped = _find_skipped(larger, function)
        known = found.switches.get(larger)
        words = {n.op.switch for f, names in (skipped or {}).items() for n in f.nodes if n.name in names}
        if skipped is None or len(words) != 1 or (known is not None and known.skipped != skipped):
            continue
        found.switches[larger] = Switch(words.pop() or "", skipped)
        found.classes[function] = larger
        found.off.add(function)
        return
    found.classes[function] = function


def _is_uniform(root: Function, calls: Sequence[Node]) -> bool:
    """Whether each layer reads the stream of the one before, lends nothing, and has states of the same kind."""
    if not calls or any("." not in call.name for call in calls):
        return False
    lent = {value.node for n in root.nodes for value in n.inputs if value.index and is_call(value.node)}
    first = callee_of(calls[0])
    chained = all(now.inputs[_stream_index(now)] == before[0] for before, now in pairwise(calls))
    alike = all(
        callee_of(call).stream == first.stream
        and len(_pasts(callee_of(call))) == len(_pasts(first))
        and callee_of(call).output_names[1:] == first.output_names[1:]
        for call in calls
    )
    return chained and alike and not lent


def _stream_index(call: Node) -> int:
    function = callee_of(call)
    return next(i for i, n in enumerate(function.inputs) if n.name == function.stream)


def _pasts(function: Function) -> tuple[str, ...]:
    return tuple(n.name for n in function.inputs if is_past(n))


def _find_skipped(larger: Function, smaller: Function) -> dict[Function, frozenset[str]] | None:
    """The nodes that `larger` must skip to be `smaller`; None where skipping nodes is not enough."""
    if larger is smaller:
        return {}
    inputs = {n.name: n[0] for n in larger.inputs}
    theirs = {n.name: n for n in smaller.nodes}
    if not {n.name for n in smaller.inputs} <= inputs.keys() or not theirs.keys() <= {n.name for n in larger.nodes}:
        return None
    stands = {n[0]: inputs[n.name] for n in smaller.inputs}
    through: dict[Value, Value] = {}
    found: dict[Function, frozenset[str]] = {}
    skipped: set[str] = set()
    for n in larger.nodes:
        other = theirs.get(n.name)
        if other is None:
            if n.op.switch is None:
                return None
            skipped.add(n.name)
            through[n[0]] = through.get(n.inputs[0], n.inputs[0])
            continue
        if not _is_alike(n, other, stands, through, found):
            return None
        stands |= {other[i]: n[i] for i in range(len(other.types))}
    ends = [(name, through.get(value, value)) for name, value in larger.outputs]
    if ends != [(name, stands.get(value)) for name, value in smaller.outputs]:
        return None
    return {**found, larger: frozenset(skipped)}


def _is_alike(
    n: Node,
    other: Node,
    stands: dict[Value, Value],
    through: dict[Value, Value],
    found: dict[Function, frozenset[str]],
) -> bool:
    """Whether two nodes are the same op on the same operands, or call functions that differ only in skipped nodes."""
    if is_call(n) != is_call(other) or n.params != other.params:
        return False
    if not is_call(n):
        operands = [through.get(value, value) for value in n.inputs]
        return n.op == other.op and operands == [stands.get(value) for value in other.inputs]
    inner = _find_skipped(callee_of(n), callee_of(other))
    if inner is None:
        return False
    found.update(inner)
    given = {f.name: through.get(value, value) for f, value in zip(callee_of(n).inputs, n.inputs, strict=True)}
    theirs = zip(callee_of(other).inputs, other.inputs, strict=True)
    return all(given[formal.name] == stands.get(value) for formal, value in theirs)


def choice_text(column: Sequence[str]) -> str:
    """An expression in i for the entry of a column."""
    counts = {text: column.count(text) for text in dict.fromkeys(column)}
    *rare, common = sorted(counts, key=lambda text: counts[text])
    return "".join(f"{text} if {condition_text([each == text for each in column])} else " for text in rare) + common


def condition_text(flags: Sequence[bool]) -> str:
    """A condition on i that is true where the flag is."""
    length = period_of(tuple(flags))
    holds = [i for i in range(length) if flags[i]]
    fails = [i for i in range(length) if not flags[i]]
    index = "i" if length == len(flags) else f"i % {length}"
    if not holds or not fails:
        return str(bool(holds))
    if len(holds) == 1:
        return f"{index} == {holds[0]}"
    if len(fails) == 1:
        return f"{index} != {fails[0]}"
    if index == "i" and fails[-1] < holds[0]:
        return f"i >= {holds[0]}"
    if index == "i" and holds[-1] < fails[0]:
        return f"i < {fails[0]}"
    return f"{index} in ({', '.join(map(str, holds))})"
