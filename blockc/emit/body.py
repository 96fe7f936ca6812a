"""The nodes of a function as statements of a forward method, and the name of each value there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count

from blockc.emit.kinds import choice_text
from blockc.emit.plan import ModulePlan
from blockc.emit.statements import Assign, Default, LayerCall, LayerLoop, Statement, fit, is_laid_by_hand, shape_text
from blockc.graph.contract import IDS, LOGITS, MASK, POSITIONS
from blockc.ir import (
    Function,
    Input,
    Loop,
    Node,
    Operand,
    Value,
    callee_of,
    is_call,
    is_past,
    layers_of,
    roll,
)
from blockc.ops import Linear, MergeHeads, QueryPositions, SplitHeads

STREAM = "x"
_AT_ONCE = ((SplitHeads, Linear), (Linear, MergeHeads))


# Names that the text of a method uses itself: no value gets one of them.
_RESERVED = {
    "self", "torch", "nn", "F", "x", "i", "layer", "layers", "past", "pasts", "present", "use_cache", "unmasked",
    "logits", "loss", "batch", "tokens", "labels", "checkpoint_layers", "logits_to_keep", "cached",
}  # fmt: skip


class Body:
    """The statements of a function's forward, and the names of its values."""

    def __init__(self, function: Function, plan: ModulePlan) -> None:
        self.function, self.plan, self.root = function, plan, function is plan.root
        self.names: dict[Value, str] = {n[0]: n.name for n in function.inputs}
        self.taken = {*self.names.values(), *_RESERVED, *plan.helpers}
        self.pasts = dict.fromkeys(n[0] for n in function.inputs if is_past(n))
        self.names |= {value: f"past[{i}]" for i, value in enumerate(self.pasts)}
        self.layers: tuple[Node, ...] = layers_of(function) if self.root else ()
        self.stateful = [n for n in self.layers if any(v in self.pasts for v in n.inputs)]
        self.kept = list(_find_logits_nodes(function)) if self.root else []
        self.streams = self._streams() if self.root else set[Value]()
        switch = plan.kinds.switch_of(function)
        self.switch, self.skipped = (switch.word, switch.skipped[function]) if switch else ("", frozenset[str]())
        self.inlined = _find_inlined(function)
        self.presents: dict[Node, str] = {}
        self.statements = list(self._statements())

    def __getitem__(self, value: Value) -> str:
        return self.names[value]

    def _statements(self) -> Iterator[Statement]:
        if not self.root:
            for n in self.function.nodes:
                if n not in self.inlined.values():
                    yield self._call(n) if is_call(n) else self._assign(n)
            return
        nodes = self.function.nodes
        if self.plan.kinds.uniform:
            end = nodes.index(self.layers[-1])
            yield from self._root_statements(
                [*(n for n in nodes[:end] if not is_call(n)), self.layers, *nodes[end + 1 :]]
            )
        else:
            yield from self._root_statements(
                [item.calls if isinstance(item, Loop) else item for item in roll(self.function)]
            )

    def _root_statements(self, items: Sequence[Node | tuple[Node, ...]]) -> Iterator[Statement]:
        """The root's statements. The new tokens' positions come first, since position_ids default to them."""
        reads = any(v.node.name == POSITIONS for n in self.function.nodes for v in n.inputs)
        at = next((n for n in self.function.nodes if isinstance(n.op, QueryPositions)), None)
        if reads:
            if at is not None:
                yield self._assign(at)
            counted = self[at[0]] if at else f"query_positions({MASK}, {IDS}.shape[1])"
            yield Default(f"{counted}.clamp(min=0)")
        for item in items:
            if isinstance(item, tuple):
                yield self._layer_loop(item)
            elif is_call(item):
                yield self._layer_call(item)
            elif not (reads and item is at):
                yield self._assign(item)

    def _bind(self, value: Value, wish: str) -> str:
        name = next(n for n in chain([wish], (f"{wish}_{i}" for i in count(2))) if n not in self.taken)
        self.taken.add(name)
        self.names[value] = name
        return name

    def _operand(self, value: Value) -> Operand:
        name = self[value]
        return Operand(name, value.type, self.plan.absent.get((self.function, value.node.name), ""))

    def _assign(self, n: Node) -> Assign:
        constant = n.op.constant()
        me = f"self.{n.name}" + (f"_{constant[0]}" if constant else "")
        inner = self.inlined.get(n)
        operands = [] if inner else [self._operand(v) for v in n.inputs]
        if inner:
            text = inner.op.torch(f"self.{inner.name}", *map(self._operand, inner.inputs))
            operands = [Operand(text, inner.types[0])]
        if self.keeps and n is self.kept[0]:
            operands[0] = Operand(f"{operands[0]}[:, -logits_to_keep:]", operands[0].type)
        text = n.op.torch(me, *operands)
        if self.root and (self.function, n.name) in self.plan.absent:
            text = f"None if unmasked else {text}"
        if n.name in self.skipped:
            text = f"{text} if self.{self.switch} else {operands[0]}"
        target, comment = ", ".join(self._name_targets(n)), shape_text(n.types[0])
        return Assign(target, fit(target, text, comment), comment + ("  # fmt: skip" if is_laid_by_hand(text) else ""))

    @property
    def keeps(self) -> bool:
        """Whether a caller may ask for the last logits alone: only of a model with a cache."""
        return bool(self.kept and self.pasts)

    def _name_targets(self, n: Node) -> list[str]:
        """Names a node's outputs: a stream is x, logits are logits, any other value has its node's name."""
        for values, name in ((self.streams, STREAM), ({k[0] for k in self.kept}, LOGITS)):
            if n[0] in values:
                self.names[n[0]] = name
                return [name]
        wishes = [n.name] if len(n.types) == 1 else list(n.op.output_names)
        return [self._bind(n[i], wish) for i, wish in enumerate(wishes)]

    def _streams(self) -> set[Value]:
        """Values named x: the first layer's input, and the last layer's output with each value that follows from it."""
        if not self.layers:
            return set()
        first = self.layers[0]
        readers: dict[Value, list[Node]] = {}
        for n in self.function.nodes:
            for value in n.inputs:
                readers.setdefault(value, []).append(n)
        start = first.inputs[_stream_index(callee_of(first))]
        found = set[Value]() if any(is_call(n) and n is not first for n in readers[start]) else {start}
        value, given = self.layers[-1][0], {value for _, value in self.function.outputs}
        while len(readers.get(value, ())) == 1 and readers[value][0] not in self.kept and value not in given:
            reader = readers[value][0]
            if len(reader.types) != 1 or is_call(reader) or len(reader.types[0].shape) != len(value.type.shape):
                break
            value = reader[0]
            found.add(value)
        return {v for v in found if not isinstance(v.node.op, Input)}

    # calls

    def _call(self, n: Node) -> Assign:
        """The call of a layer's part."""
        function = callee_of(n)
        pasts = [v for v in n.inputs if v in self.pasts]
        arguments = [self[v] for v in n.inputs if v not in pasts]
        if pasts:
            arguments.append(self._past_argument(pasts))
        if self.plan.takes_use_cache(function):
            arguments.append("use_cache")
        targets = [self._bind(n[0], n.name)]
        targets += self._bind_states(
            n, function, "present" if len(self._stateful_parts()) == 1 else f"{n.name}_present"
        )
        target, comment = ", ".join(targets), shape_text(n.types[0])
        return Assign(target, fit(target, f"self.{n.name}({', '.join(arguments)})", comment), comment)

    def _stateful_parts(self) -> list[Node]:
        return [n for n in self.function.nodes if is_call(n) and self.plan.has_past(callee_of(n))]

    def _past_argument(self, pasts: Sequence[Value]) -> str:
        if list(pasts) == list(self.pasts):
            return "past"
        given = _tuple_text([self[value] for value in pasts])
        return given if self.plan.carried else f"past and {given}"

    def _bind_states(self, n: Node, function: Function, name: str) -> list[str]:
        """Names the outputs of a call after the first: its states as a tuple, or each alone where layers lend them."""
        if not self.plan.takes_use_cache(function):
            return [self._bind(n[i], wish) for i, wish in enumerate(function.output_names[1:], 1)]
        self.presents[n] = name
        self.names |= {n[i]: f"{name}[{i - 1}]" for i in range(1, len(n.types))}
        return [name]

    def _layer_call(self, n: Node) -> LayerCall:
        """The call of a layer outside of any loop."""
        function, path = callee_of(n), n.name.replace(".", "_")
        arguments = [self[v] for v in n.inputs if v not in self.pasts]
        present, targets = "", [self._bind(n[0], path)]
        if n in self.stateful:
            arguments.append(f"pasts[{self.stateful.index(n)}]")
        if self.plan.takes_use_cache(function):
            arguments.append("use_cache")
            present = self._bind_states(n, function, f"{path}_present")[0]
            targets.append(present)
        else:
            targets += [self._bind(n[i], f"{path}_{w}") for i, w in enumerate(function.output_names[1:], 1)]
            present = self._present_text(n, targets)
        target, comment = ", ".join(targets), shape_text(n.types[0])
        text = f"layers[{self.layers.index(n)}]({', '.join(arguments)})"
        return LayerCall(target, fit(target, text, comment), present, comment)

    def _present_text(self, n: Node, targets: Sequence[str]) -> str:
        """The tuple of a call's targets that are states; empty where it has none."""
        states = [targets[value.index] for _, value in self.function.outputs[1:] if value.node is n]
        return _tuple_text(states) if states else ""

    def _layer_loop(self, calls: Sequence[Node]) -> LayerLoop:
        first, function = calls[0], callee_of(calls[0])
        wanted = self.plan.kinds.inputs or tuple(n.name for n in function.inputs if not is_past(n))
        stream, arguments, rows = function.stream, list[str](), dict[str, list[str]]()
        for name in wanted:
            column = self._column_of(calls, name)
            if name == stream:
                arguments.append(STREAM)
            elif len(set(column)) == 1:
                arguments.append(column[0])
            else:
                rows[f"layer_{name}"] = column
                arguments.append(f"layer_{name}")
        start = self[first.inputs[_stream_index(function)]]
        self.names[calls[-1][0]] = STREAM
        targets, present, pasts = [STREAM], "", ""
        if first in self.stateful:
            arguments.append("past")
            pasts = f"pasts{_slice_text(calls, self.stateful)}"
        if self.plan.takes_use_cache(function):
            arguments.append("use_cache")
            targets.append("cached")
            present = "cached"
        elif function.output_names[1:]:
            targets += function.output_names[1:]
            present = self._present_text(first, targets)
        chosen = list(zip(*rows.values(), strict=True)) if rows else []
        return LayerLoop(
            start="" if start == STREAM else start,
            layers=f"layers{_slice_text(calls, self.layers)}",
            pasts=pasts,
            names=", ".join(rows),
            chosen=choice_text([each[0] if len(each) == 1 else _tuple_text(each) for each in chosen]) if rows else "",
            target=", ".join(targets),
            arguments=", ".join(arguments),
            present=present,
            shape=shape_text(first.types[0]),
        )

    def _column_of(self, calls: Sequence[Node], name: str) -> list[str]:
        """Each layer's argument for this input; a layer without such an input gets a neighbour's argument."""
        found: list[str | None] = []
        for call in calls:
            own = next((i for i, n in enumerate(callee_of(call).inputs) if n.name == name), None)
            if name == callee_of(call).stream:
                found.append(STREAM)
            else:
                found.append(None if own is None else self[call.inputs[own]])
        last = next(text for text in found if text is not None)
        column: list[str] = []
        for text in found:
            last = last if text is None else text
            column.append(last)
        return column

    # the end

    @property
    def returns(self) -> str:
        first, *states = [self[value] for _, value in self.function.outputs]
        if not self.plan.takes_use_cache(self.function):
            return ", ".join([first, *states])
        parts = self._stateful_parts()
        given = [self.presents[n] for n in parts if n in self.presents]
        ends = [value for _, value in self.function.outputs[1:]]
        if len(parts) == 1 and ends == [parts[0][i] for i in range(1, len(parts[0].types))]:
            return f"{first}, {given[0]}"
        if ends == [n[i] for n in parts for i in range(1, len(n.types))]:
            states = [f"*{each}" for each in given]
        return f"{first}, {_tuple_text(states)} if use_cache else None"


def _find_logits_nodes(root: Function) -> Iterator[Node]:
    """The nodes that make the logits: the head's matrix and whatever follows it."""
    value, found = dict(root.outputs).get(LOGITS), list[Node]()
    while value is not None:
        found.insert(0, value.node)
        if isinstance(value.node.op, Linear):
            return iter(found)
        if len(value.node.inputs) != 1 or is_call(value.node):
            break
        value = value.node.inputs[0]
    return iter(())


def _find_inlined(function: Function) -> dict[Node, Node]:
    """Nodes whose operand is written inside their expression: a linear split into heads, merged heads in a linear."""
    readers: dict[Value, list[Node]] = {}
    for n in function.nodes:
        for value in n.inputs:
            readers.setdefault(value, []).append(n)
    given = {value for _, value in function.outputs}
    return {
        n: n.inputs[0].node
        for n in function.nodes
        for outer, inner in _AT_ONCE
        if isinstance(n.op, outer) and isinstance(n.inputs[0].node.op, inner)
        if readers[n.inputs[0]] == [n] and n.inputs[0] not in given
    }


def _stream_index(function: Function) -> int:
    return next(i for i, n in enumerate(function.inputs) if n.name == function.stream)


def _slice_text(calls: Sequence[Node], every: Sequence[Node]) -> str:
    """The slice of `every` that the calls are; empty where they are all."""
    start = list(every).index(calls[0])
    return "" if len(calls) == len(every) else f"[{start}:{start + len(calls)}]"


def _tuple_text(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
