"""last_token: logits of the last token, or of several, picked as early in the last layer as the graph allows.

The last token is the one at the largest position, not at index -1, so padding may stand on either side.
"""

from __future__ import annotations

from dataclasses import replace

from blockc.graph.contract import IDS, LOGITS, MASK
from blockc.ir import Function, Node, Value, ancestors_of, apply
from blockc.ops import LastIndex, LastIndices, QueryPositions, TakeToken


def keep_last_token(function: Function, count: int = 1) -> Function:
    """Logits of the last tokens only: (B, S, V) -> (B, min(S, count), V). Takes an inlined function.

    Ops that work token by token are moved after the pick, back to where keys, values or the cache need all tokens.
    """
    picked = _Pick(function).value(count)
    outputs = ((name, picked if name == LOGITS else value) for name, value in function.outputs)
    return replace(function, outputs=tuple(outputs))


def _with_ancestors(values: list[Value]) -> set[Node]:
    nodes = {value.node for value in values}
    return nodes | ancestors_of(nodes)


class _Pick:
    def __init__(self, function: Function) -> None:
        self.function = function
        self.logits = function.output(LOGITS)
        self.full = _with_ancestors([value for name, value in function.outputs if name != LOGITS])
        while True:  # an operand that is read across tokens is needed whole, and so is what it is made from
            wanted = self._find_wanted()
            whole = _with_ancestors([v for n in wanted for v in self._whole_values(n)])
            if whole <= self.full:
                break
            self.full |= whole
        self.wanted = wanted

    def _axes(self, n: Node) -> tuple[tuple[int | None, ...], tuple[int, ...]]:
        axes = n.op.tokenwise(*(value.type for value in n.inputs))
        return ((), ()) if axes is None else (axes.inputs, axes.outputs)

    def _stops(self, n: Node) -> bool:
        """Whether the pick reads this node's output: all its tokens are computed anyway, or one needs the others."""
        outputs = self._axes(n)[1]
        return not outputs or (n in self.full and all(axis == 1 for axis in outputs))

    def _whole_values(self, n: Node) -> list[Value]:
        """What is needed of all tokens: operands that are read across them, or the output that the pick reads."""
        if self._stops(n):
            return [n[i] for i in range(len(n.types))]
        return [value for value, axis in zip(n.inputs, self._axes(n)[0], strict=True) if axis is None]

    def _find_wanted(self) -> set[Node]:
        """The nodes of which one token is wanted."""
        wanted = {self.logits.node}
        for n in reversed(self.function.nodes):
            if n in wanted and not self._stops(n):
                wanted |= {v.node for v, axis in zip(n.inputs, self._axes(n)[0], strict=True) if axis is not None}
        return wanted

    def value(self, count: int) -> Value:
        positions = self._positions()
        index = apply(LastIndex(), positions, name="last")
        if count > 1:
            index = apply(LastIndices(count), index, positions, name=f"last_{count}")
        new: dict[Value, Value] = {}

        def one(value: Value) -> Value:
            if value not in new:
                suffix = f"{value.index}" if value.index else ""
                new[value] = apply(TakeToken(), value, index, name=f"{value.node.name}.last{suffix}")
            return new[value]

        for n in self.function.nodes:
            if n in self.wanted and not self._stops(n):
                axes = self._axes(n)[0]
                inputs = (v if axis is None else one(v) for v, axis in zip(n.inputs, axes, strict=True))
                name = f"{n.name}.last" if n in self.full else n.name
                made = n.remake(inputs=tuple(inputs), name=name)
                new.update({n[i]: made[i] for i in range(len(n.types))})
        return one(self.logits)

    def _positions(self) -> Value:
        for n in self.function.nodes:
            if isinstance(n.op, QueryPositions):
                return n[0]
        ids, mask = (next(n for n in self.function.inputs if n.name == name) for name in (IDS, MASK))
        return apply(QueryPositions(), mask[0], ids[0], name="queries_at")
