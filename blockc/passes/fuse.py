"""fuse: several ops become one where onnxruntime has a kernel for them. What stays as it is, is listed with the reason.

Takes an inlined, cached function. The fused ops carry their own meaning, so the result is proved like any other graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from blockc.ir import Function, Node, Value, node
from blockc.ops import (
    Add,
    Attention,
    Extend,
    LayerNorm,
    MergeHeads,
    RmsNorm,
    Rotary,
    RotaryTable,
    SplitHeads,
)
from blockc.ops.fused import GroupQueryAttention, Lengths, MaskBias, RotaryRows, SkipNorm, Slots

# The kernel's softcap gives no numbers for a row that sees nothing at all. Still a number in half precision.
LOW = -3e4


@dataclass(frozen=True)
class Unfused:
    """A node that a kernel might have taken, and why it was not."""

    node: str
    reason: str


@dataclass(frozen=True)
class Fused:
    function: Function
    unfused: tuple[Unfused, ...]


def fuse(function: Function) -> Fused:
    """Attention with its rope, cache and heads; the norm after an addition."""
    rewrite = _Rewrite(function)
    return Fused(rewrite.function(), tuple(rewrite.unfused))


@dataclass(frozen=True)
class _Matched:
    """The nodes around an attention that one kernel replaces."""

    attention: Node
    q: Value
    k: Value
    v: Value
    key: Node
    value: Node
    join: Node
    rotary: Node | None
    split: SplitHeads


class _Mismatch(Exception):
    """Why a pattern does not stand here."""


class _Rewrite:
    def __init__(self, function: Function) -> None:
        self.old = function
        self.users: dict[Value, list[Node]] = {}
        for n in function.nodes:
            for value in n.inputs:
                self.users.setdefault(value, []).append(n)
        self.results = {value for _, value in function.outputs}
        self.unfused: list[Unfused] = []
        self.inputs = {n.name: n for n in function.inputs}
        self.shared: dict[object, tuple[Value, ...]] = {}
        self.new: dict[Value, Value] = {n[0]: n[0] for n in function.inputs}
        self.joins = dict(self._attentions())
        self.norms = dict(self._norms())

    def function(self) -> Function:
        """Nodes that nobody reads any more are not reached, and so are gone."""
        fused_norms = set(self.norms.values())
        for n in self.old.nodes:
            if n in self.joins:
                self._attention(self.joins[n])
            elif n in self.norms:
                self._norm(n, self.norms[n])
            elif n not in fused_norms:
                made = n.remade(inputs=tuple(self.new[value] for value in n.inputs))
                self.new.update({n[i]: made[i] for i in range(len(n.types))})
        outputs = tuple((name, self.new[value]) for name, value in self.old.outputs)
        return replace(self.old, outputs=outputs)

    # Attention

    def _attentions(self) -> Iterator[tuple[Node, _Matched]]:
        for n in self.old.nodes:
            if isinstance(n.op, Attention):
                try:
                    matched = self._match(n)
                    _legal(matched)
                    yield matched.join, matched
                except _Mismatch as why:
                    self.unfused.append(Unfused(n.name, str(why)))

    def _match(self, n: Node) -> _Matched:
        q, k, v, _ = n.inputs
        join = self._only(n[0], MergeHeads, "its heads are not joined at once")
        key, value = (
            self._made(k, Extend, "its keys are not cached"),
            self._made(v, Extend, "its values are not cached"),
        )
        for extend in (key, value):
            if self.users[extend[0]] != [n]:
                raise _Mismatch("another attention reads its cache")
        turned = [self._turned(x) for x in (q, key.inputs[1])]
        rotary = turned[0][1]
        if (rotary is None) != (turned[1][1] is None):
            raise _Mismatch("of queries and keys only one is turned")
        if rotary is not None and turned[1][1] is not None and rotary.inputs[1:] != turned[1][1].inputs[1:]:
            raise _Mismatch("queries and keys are turned by unlike tables")
        splits = [self._split(x) for x, _ in turned]
        split = splits[0].op
        assert isinstance(split, SplitHeads)
        values = self._split(value.inputs[1])
        flat = (splits[0].inputs[0], splits[1].inputs[0], values.inputs[0])
        if flat[0].type.shape[1] != flat[1].type.shape[1]:
            raise _Mismatch("it has fewer new queries than new keys")
        return _Matched(n, *flat, key, value, join, rotary, split)

    def _split(self, value: Value) -> Node:
        return self._made(value, SplitHeads, f"{value.node.op.name} stands between its heads and the kernel")

    def _made(self, value: Value, op: type, why: str) -> Node:
        if not isinstance(value.node.op, op):
            raise _Mismatch(why)
        return value.node

    def _only(self, value: Value, op: type, why: str) -> Node:
        users = self.users.get(value, [])
        if len(users) != 1 or not isinstance(users[0].op, op) or value in self.results:
            raise _Mismatch(why)
        return users[0]

    def _turned(self, value: Value) -> tuple[Value, Node | None]:
        if isinstance(value.node.op, Rotary):
            return value.node.inputs[0], value.node
        return value, None

    def _attention(self, m: _Matched) -> None:
        op = m.attention.op
        assert isinstance(op, Attention)
        rotary, rope = None, ()
        if m.rotary is not None:
            assert isinstance(m.rotary.op, Rotary)
            table = m.rotary.inputs[1].node.op
            assert isinstance(table, RotaryTable)
            rotary, rope = m.rotary.op, (self._slots(), *self._rows(table))
        pasts = (self.new[m.key.inputs[0]], self.new[m.value.inputs[0]])
        made = node(
            GroupQueryAttention(op.heads, op.kv_heads, m.split.head_dim, op.scale, op.softcap, rotary),
            *(self.new[value] for value in (m.q, m.k, m.v)),
            *pasts,
            self._bias(m.attention.inputs[3], LOW if op.softcap else -inf),
            *self._lengths(),
            *rope,
            name=m.attention.name,
            place=m.attention.place,
        )
        self.new.update({m.join[0]: made[0], m.key[0]: made[1], m.value[0]: made[2]})

    # What all attentions share

    def _once(self, key: object, made: Node) -> None:
        self.shared[key] = tuple(made[i] for i in range(len(made.types)))

    def _bias(self, mask: Value, low: float) -> Value:
        if (mask, low) not in self.shared:
            self._once((mask, low), node(MaskBias(low), self.new[mask], name=f"{mask.node.name}.bias"))
        return self.shared[mask, low][0]

    def _slots(self) -> Value:
        if "slots" not in self.shared:
            mask, ids = self.inputs["attention_mask"], self.inputs["input_ids"]
            self._once("slots", node(Slots(), mask[0], ids[0], name="slots"))
        return self.shared["slots"][0]

    def _lengths(self) -> tuple[Value, ...]:
        if "lengths" not in self.shared:
            self._once("lengths", node(Lengths(), self.inputs["attention_mask"][0], name="lengths"))
        return self.shared["lengths"]

    def _rows(self, table: RotaryTable) -> tuple[Value, ...]:
        if table not in self.shared:
            name = f"rotary_rows_{sum(isinstance(key, RotaryTable) for key in self.shared)}"
            self._once(table, node(RotaryRows(table), self.inputs["attention_mask"][0], name=name))
        return self.shared[table]

    # Norms

    def _norms(self) -> Iterator[tuple[Node, Node]]:
        """Each addition with the first norm that reads it."""
        taken: set[Node] = set()
        for n in self.old.nodes:
            if not isinstance(n.op, RmsNorm | LayerNorm):
                continue
            added = n.inputs[0].node
            if not isinstance(added.op, Add):
                self.unfused.append(Unfused(n.name, "it reads no sum"))
            elif added in taken:
                self.unfused.append(Unfused(n.name, "another norm of the same sum has the kernel"))
            elif isinstance(n.op, RmsNorm) and n.op.offset:
                self.unfused.append(Unfused(n.name, "the kernel has no (offset + weight)"))
            else:
                taken.add(added)
                yield added, n

    def _norm(self, added: Node, norm: Node) -> None:
        assert isinstance(norm.op, RmsNorm | LayerNorm)
        operands = (self.new[value] for value in added.inputs)
        made = node(SkipNorm(norm.op), *operands, name=norm.name, params=norm.params, place=norm.place)
        self.new.update({norm[0]: made[0], added[0]: made[1]})


def _legal(m: _Matched) -> None:
    """What the kernel takes."""
    if m.split.head_dim % 8:
        raise _Mismatch(f"head_dim {m.split.head_dim} is no multiple of 8")
    if m.rotary is None:
        return
    assert isinstance(m.rotary.op, Rotary)
    if m.split.head_dim % 16 or m.rotary.op.width % 16:
        raise _Mismatch(f"it turns {m.rotary.op.width} of {m.split.head_dim}, and the kernel takes multiples of 16")
    if not isinstance(m.rotary.inputs[1].node.op, RotaryTable):
        raise _Mismatch("its rotary table is not made from positions")
