"""The schedule of a model: which values live at once. Equal layers are walked once, however many there are.

A value lives from its node to its last reader. Views count as copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from blockc.graph.contract import LOGITS
from blockc.ir import Function, Node, Value, inline, is_call
from blockc.report.graph import Bytes

Values = frozenset[Value]


@dataclass
class Live:
    """Bytes that are live at this point of the schedule, and the largest so far."""

    now: int = 0
    peak: int = 0
    peak_at: str = ""
    materialised: int = 0  # at most, where attention writes its scores out
    scores: int = 0  # of the largest attention

    def through(self, name: str, made: int, scores: int, ended: int) -> None:
        """One node: what it makes, the scores that it would write out, and what nobody reads after it."""
        self.now += made
        if self.now > self.peak:
            self.peak, self.peak_at = self.now, name
        self.materialised, self.scores = max(self.materialised, self.now + scores), max(self.scores, scores)
        self.now -= ended

    def through_layer(self, name: str, layer: Live) -> None:
        """All nodes of a layer, which was walked as if nothing lived before it."""
        if self.now + layer.peak > self.peak:
            self.peak, self.peak_at = self.now + layer.peak, f"{name}.{layer.peak_at}"
        self.materialised = max(self.materialised, self.now + layer.materialised)
        self.scores = max(self.scores, layer.scores)
        self.now += layer.now


@dataclass(frozen=True)
class Ends:
    """What a caller tells a walk through a function about its values."""

    inputs: Values = frozenset()  # those that nobody reads after this call
    kept: Values = frozenset()  # outputs that somebody reads after it
    apart: Values = frozenset()  # values that have a line of their own, and are not counted here


@dataclass
class Schedule:
    """Walks a root function, and in the place of each call the layer with its cache: `layers`, by the call."""

    root: Function
    layers: Mapping[str, tuple[Function, frozenset[int]]]  # with a cache, and which outputs have a line of their own
    size: Bytes
    _flat: dict[Function, Function] = field(default_factory=dict[Function, Function], init=False)
    _walked: dict[tuple[Function, Ends], Live] = field(default_factory=dict[tuple[Function, Ends], Live], init=False)

    def live(self) -> Live:
        """The live bytes of the whole model, with the caller's inputs."""
        before = sum(self.size(n.types[0]) for n in self.root.inputs)
        last, live = _find_last_readers(self.root), Live(before, before, "", before)
        apart = self._find_apart()
        for n in self.root.nodes:
            if is_call(n):
                layer, ends = self._call(n, last, apart)
                live.through_layer(n.name, self._through(layer, ends))
            else:
                self._step(n, live, last, Ends(apart=apart))
        return live

    def _find_apart(self) -> Values:
        """Logits, also before what is done to them entry by entry, such as a softcap; and what layers keep."""
        given = dict(self.root.outputs)
        found, value = set(given.values()), given.get(LOGITS)
        while value and not value.node.params and len(value.node.inputs) == 1:
            value = value.node.inputs[0]
            found.add(value)
        calls = ((n, self.layers[n.name][1]) for n in self.root.nodes if is_call(n))
        return frozenset(found | {n[i] for n, apart in calls for i in apart if i < len(n.types)})

    def _call(self, n: Node, last: Mapping[Value, Node], apart: Values) -> tuple[Function, Ends]:
        """The layer that a call stands for, and what of its values ends with it."""
        layer, own = self.layers[n.name]
        if layer not in self._flat:
            self._flat[layer] = inline(layer)
        flat = self._flat[layer]
        given = dict(zip((each[0] for each in flat.inputs), n.inputs, strict=False))  # what is past comes last
        outputs = [value for _, value in flat.outputs]
        return flat, Ends(
            inputs=frozenset(inner for inner, value in given.items() if last[value] is n and value.node.inputs),
            kept=frozenset(outputs[i] for i in range(len(n.types)) if n[i] in last),
            apart=frozenset({outputs[i] for i in own} | {inner for inner, value in given.items() if value in apart}),
        )

    def _through(self, layer: Function, ends: Ends) -> Live:
        if (layer, ends) not in self._walked:
            live, last = Live(), _find_last_readers(layer)
            for n in layer.nodes:
                self._step(n, live, last, ends)
            self._walked[layer, ends] = live
        return self._walked[layer, ends]

    def _step(self, n: Node, live: Live, last: Mapping[Value, Node], ends: Ends) -> None:
        made = [n[i] for i in range(len(n.types))]
        read = {v for v in n.inputs if last[v] is n and v not in ends.kept and (v.node.inputs or v in ends.inputs)}
        ended = read | {value for value in made if value not in last and value not in ends.kept}
        scores = n.op.scratch(*(value.type for value in n.inputs)).at(self.size.sizes) * self.size.number
        live.through(n.name, self._weigh(made, ends), scores, self._weigh(ended, ends))

    def _weigh(self, values: list[Value] | set[Value], ends: Ends) -> int:
        return sum(self.size(value.type) for value in values if value not in ends.apart)


def _find_last_readers(function: Function) -> dict[Value, Node]:
    return {value: n for n in function.nodes for value in n.inputs}
