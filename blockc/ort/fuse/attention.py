"""Fuses attention with its surroundings into one kernel: splitting and joining heads, their norms, rope, the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

from blockc.graph.contract import IDS, MASK
from blockc.ir import GraphError, Node, Value, node
from blockc.ir.derive import SkippedNode
from blockc.ops import (
    Attention,
    Extend,
    KeyPositions,
    LatentAttention,
    MergeHeads,
    QueryPositions,
    Rotary,
    RotaryTable,
    Visible,
)
from blockc.ops.buffer import PositionsFrom, Write
from blockc.ort.fuse.heads import LATENT, LOW, Heads, flatten_heads, make_bias, match_heads, op_of, require
from blockc.ort.fuse.rewrite import Mismatch, Rewrite
from blockc.ort.kernels import why_no_heads, why_no_kernel, why_no_rope
from blockc.ort.ops import (
    HIDDEN,
    GroupBias,
    GroupQueryAttention,
    Lengths,
    RotaryRows,
    RowLengths,
    RowQueryAttention,
    Slots,
    StepAttention,
    StepRows,
)


@dataclass(frozen=True)
class _Match:
    """The nodes around an attention that one kernel replaces."""

    attention: Node
    q: Heads
    k: Heads
    v: Heads
    key: Node
    value: Node
    join: Node

    @property
    def op(self) -> Attention:
        assert isinstance(self.attention.op, Attention)
        return self.attention.op

    @property
    def sinks(self) -> tuple[Value, ...]:
        return self.attention.inputs[4:]

    @property
    def rotary(self) -> Rotary | None:
        return None if self.q.rotary is None else op_of(Rotary, self.q.rotary)

    @property
    def table(self) -> Node | None:
        """Of a RotaryTable."""
        return None if self.q.rotary is None else self.q.rotary.inputs[1].node


@dataclass(frozen=True)
class _StepKey:
    """Attentions whose rows of rope are one: those of the same heads, scale and table."""

    op: StepRows
    table: tuple[Value, ...]


def fuse_attentions(rewrite: Rewrite) -> None:
    """Fuses each attention that fits. By rows it is all or none, since they share one order of the cache.

    Raises GraphError for a graph of one new token with an attention that does not fit.
    """
    matched: list[_Match] = []
    failed: list[SkippedNode] = []
    for n in rewrite.old.nodes:
        if isinstance(n.op, LatentAttention):
            failed.append(SkippedNode(n.name, LATENT))
        elif isinstance(n.op, Attention):
            try:
                matched.append(_match(rewrite, n))
            except Mismatch as why:
                failed.append(SkippedNode(n.name, str(why)))
    target = rewrite.target
    if target.step and failed:
        raise GraphError(f"{failed[0].node} has no form of one new token: {failed[0].reason}")
    if target.by_rows and failed:
        why = f"{failed[0].node} is not fused, and all must lay out rows alike"
        failed += [SkippedNode(m.attention.name, why) for m in matched]
        matched = []
    rewrite.left += failed
    for m in matched:
        rewrite.gone.update(n for n in _find_replaced(m) if n is not m.join)
        plan = _plan_step if target.step else _plan_by_rows if target.by_rows else _plan_by_mask
        rewrite.plans[m.join] = plan(rewrite, m)


def _find_replaced(m: _Match) -> Iterator[Node]:
    """The nodes that the kernel replaces. Norms of heads are made again on flat heads."""
    yield from (m.attention, m.key, m.value, m.join)
    for heads in (m.q, m.k, m.v):
        yield from (n for n in (heads.norm, heads.gain, heads.rotary) if n is not None)


# Matching


def _match(rewrite: Rewrite, n: Node) -> _Match:
    if isinstance(n.op, Attention) and n.op.borrowed:
        raise Mismatch("its keys and values are another attention's")
    q, k, v, mask, *_ = n.inputs
    join = rewrite.only_user(n[0])
    if join is None or not isinstance(join.op, MergeHeads):
        raise Mismatch("its heads are not joined at once")
    held = Write if rewrite.target.step else Extend
    key, value = require(k, held, "its keys are not cached"), require(v, held, "its values are not cached")
    for extend in (key, value):
        if rewrite.users[extend[0]] != [n]:
            raise Mismatch("another attention reads its cache")
    m = _Match(n, match_heads(q), match_heads(key.inputs[1]), match_heads(value.inputs[1]), key, value, join)
    if m.v.rotary is not None:
        raise Mismatch("its values are rotated")
    if m.q.flat.type.shape[1] != m.k.flat.type.shape[1]:
        raise Mismatch("it has fewer new queries than new keys")
    if (m.q.rotary is None) != (m.k.rotary is None):
        raise Mismatch("only one of queries and keys is rotated")
    if m.q.rotary is not None and m.k.rotary is not None and m.q.rotary.inputs[1:] != m.k.rotary.inputs[1:]:
        raise Mismatch("queries and keys are rotated by different tables")
    if m.q.rotary is not None:
        require(m.q.rotary.inputs[1], RotaryTable, "its rotary table is not made from positions")
    _check_legal(rewrite, m, mask)
    return m


def _check_legal(rewrite: Rewrite, m: _Match, mask: Value) -> None:
    """Raises Mismatch for what the kernel does not take."""
    if why := why_no_kernel(rewrite.target, "GroupQueryAttention"):
        raise Mismatch(why)
    if why := why_no_heads(rewrite.target, m.q.split.head_dim):
        raise Mismatch(why)
    if rewrite.target.by_rows:
        if m.op.biased:
            raise Mismatch("its scores have a bias, and rows are attended by their lengths alone")
        seen, (queries, keys) = require(mask, Visible, "its mask is not made from positions"), mask.node.inputs
        of_mask = (QueryPositions | PositionsFrom, KeyPositions)
        if not all(isinstance(v.node.op, op) for v, op in zip((queries, keys), of_mask, strict=True)):
            raise Mismatch(f"{seen.name} is not made from the attention mask")
    if rewrite.target.step and m.sinks:
        raise Mismatch("its scores have sinks")
    if m.rotary is not None and (why := why_no_rope(m.q.split.head_dim, m.rotary.width)):
        raise Mismatch(why)


# Making


def _plan_by_mask(rewrite: Rewrite, m: _Match) -> Callable[[], None]:
    """Attention with a bias from the visibility mask: padding may be on either side."""

    def make() -> None:
        op = GroupQueryAttention(
            m.op.heads, m.op.kv_heads, m.q.split.head_dim, m.op.scale, m.op.softcap, m.rotary, biased=m.op.biased
        )
        rope = () if m.table is None else (*_make_slots(rewrite), *_make_rows(rewrite, m.table))
        # With a softcap or in half precision, the kernel gives NaN for a row whose every score is -inf.
        plain = op.softcap is None and rewrite.target.dtype == "fp32"
        bias = make_bias(rewrite, m.attention.inputs[3], m.op.biased, -inf if plain else LOW)
        _put(rewrite, m, op, (*bias, *_make_lengths(rewrite, Lengths()), *rope, *rewrite.map_values(*m.sinks)))

    return make


def _plan_by_rows(rewrite: Rewrite, m: _Match) -> Callable[[], None]:
    """Attention by the rows' lengths: padding is on the right, and a row's cache continues where its tokens end."""

    def make() -> None:
        window = op_of(Visible, m.attention.inputs[3].node).window
        op = RowQueryAttention(
            m.op.heads, m.op.kv_heads, m.q.split.head_dim, m.op.scale, m.op.softcap, window, rotary=m.rotary
        )
        rope = () if m.table is None else _make_rows(rewrite, m.table)
        _put(rewrite, m, op, (*_make_lengths(rewrite, RowLengths()), *rope, *rewrite.map_values(*m.sinks)))

    return make


def _plan_step(rewrite: Rewrite, m: _Match) -> Callable[[], None]:
    """Attention of one new token of each row. Rope of whole heads also multiplies q by the scale."""

    def make() -> None:
        head_dim = m.q.split.head_dim
        whole = m.rotary is not None and m.rotary.width == head_dim
        op = StepAttention(
            m.op.heads, m.op.kv_heads, head_dim, 1.0 if whole else m.op.scale, m.op.softcap, m.rotary,
            biased=m.op.biased,
        )  # fmt: skip
        for past in (m.key.inputs[0], m.value.inputs[0]):
            rewrite.retype(past, op.past_type(past.type.shape[0], past.type.shape[2]))
        bias = _make_group_bias(rewrite, m)
        rope = _make_step_rows(rewrite, m, m.op.scale if whole else 1.0)
        _put(rewrite, m, op, (*bias, *rewrite.map_values(m.key.inputs[2]), *rope))

    return make


def _put(
    rewrite: Rewrite,
    m: _Match,
    op: GroupQueryAttention | RowQueryAttention | StepAttention,
    rest: tuple[Value, ...],
) -> None:
    pasts = rewrite.map_values(m.key.inputs[0], m.value.inputs[0])
    q, k, v = (flatten_heads(rewrite, heads) for heads in (m.q, m.k, m.v))
    made = node(op, q, k, v, *pasts, *rest, name=m.attention.name, place=m.attention.place)
    rewrite.new.update({m.join[0]: made[0], m.key[0]: made[1], m.value[0]: made[2]})


# What all attentions share


def _make_group_bias(rewrite: Rewrite, m: _Match) -> tuple[Value, ...]:
    """The bias of an attention of one new token, its heads in groups where they share keys."""
    mask, shared = m.attention.inputs[3], m.op.heads // m.op.kv_heads
    bias = make_bias(rewrite, mask, m.op.biased, HIDDEN)
    if shared == 1:
        return bias
    op = GroupBias(m.op.kv_heads, shared) if m.op.biased else GroupBias()
    name = f"{mask.node.name}.bias_{op.kv_heads}x{op.group}"
    return rewrite.make_once((mask, op), lambda: node(op, *bias, name=name))


def _make_step_rows(rewrite: Rewrite, m: _Match, scale: float) -> tuple[Value, ...]:
    if m.q.rotary is None:
        return ()
    table, op = m.q.rotary.inputs[1:], StepRows(m.op.heads, m.op.kv_heads, scale)
    known = [key for key in rewrite.shared if isinstance(key, _StepKey)]
    name = f"step_rows_{len(known)}"
    return rewrite.make_once(_StepKey(op, table), lambda: node(op, *rewrite.map_values(*table), name=name))


def _make_slots(rewrite: Rewrite) -> tuple[Value, ...]:
    mask, ids = rewrite.inputs[MASK], rewrite.inputs[IDS]
    return rewrite.make_once("slots", lambda: node(Slots(), mask[0], ids[0], name="slots"))


def _make_lengths(rewrite: Rewrite, op: Lengths | RowLengths) -> tuple[Value, ...]:
    return rewrite.make_once("lengths", lambda: node(op, rewrite.inputs[MASK][0], name="lengths"))


def _make_rows(rewrite: Rewrite, made: Node) -> tuple[Value, ...]:
    """cos and sin at the tokens' places in a row; a table by length reads the same length as the original one."""
    table = op_of(RotaryTable, made)
    name = f"rotary_rows_{sum(isinstance(key, RotaryTable) for key in rewrite.shared)}"
    operands = (rewrite.inputs[MASK][0], *rewrite.map_values(*made.inputs[1:]))
    return rewrite.make_once(table, lambda: node(RotaryRows(table), *operands, name=name))
