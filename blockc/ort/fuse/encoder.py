"""Fuses attention that has no cache with its heads: the kernel splits and joins them, and they are rotated flat.

Encoders have such, which see both ways, and causal models whose hidden states are asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from blockc.ir import Node, Value, node
from blockc.ir.derive import SkippedNode
from blockc.ops import Attention, LatentAttention, MergeHeads, Rotary
from blockc.ort.fuse.heads import LATENT, LOW, Heads, flatten_heads, make_bias, match_heads, op_of
from blockc.ort.fuse.rewrite import Mismatch, Rewrite
from blockc.ort.ops import HIDDEN, FlatAttention, FlatRotary


def fuse_uncached(rewrite: Rewrite) -> None:
    """Fuses each attention of a function that holds no states."""
    for n in rewrite.old.nodes:
        if isinstance(n.op, LatentAttention):
            rewrite.left.append(SkippedNode(n.name, LATENT))
        elif isinstance(n.op, Attention):
            try:
                _fuse(rewrite, n, n.op)
            except Mismatch as why:
                rewrite.left.append(SkippedNode(n.name, str(why)))


def _fuse(rewrite: Rewrite, n: Node, op: Attention) -> None:
    """Raises Mismatch for what the kernel does not take."""
    if op.borrowed:
        raise Mismatch("its keys and values are another attention's")
    if len(n.inputs) > 4:
        raise Mismatch("its scores have sinks")
    join = rewrite.only_user(n[0])
    if join is None or not isinstance(join.op, MergeHeads):
        raise Mismatch("its heads are not joined at once")
    heads = tuple(map(match_heads, n.inputs[:3]))
    replaced = [step for each in heads for step in (each.norm, each.gain, each.rotary) if step is not None]
    if any(rewrite.only_user(value) is None for value in (*n.inputs[:3], *(step[0] for step in replaced))):
        raise Mismatch("something else reads its heads")
    rewrite.gone.update((n, *replaced))
    rewrite.plans[join] = _plan(rewrite, n, op, heads, join)


def _plan(rewrite: Rewrite, n: Node, op: Attention, heads: tuple[Heads, ...], join: Node) -> Callable[[], None]:
    def make() -> None:
        fused = FlatAttention(op.heads, op.kv_heads, heads[0].split.head_dim, op.scale, op.softcap)
        flat = (_rotate(rewrite, each) for each in heads)
        low = HIDDEN if rewrite.target.dtype == "fp32" else LOW
        bias = make_bias(rewrite, n.inputs[3], op.biased, low)
        rewrite.new[join[0]] = node(fused, *flat, *bias, name=n.name, place=n.place)[0]

    return make


def _rotate(rewrite: Rewrite, heads: Heads) -> Value:
    """The flat heads, rotated where they are."""
    flat, turn = flatten_heads(rewrite, heads), heads.rotary
    if turn is None:
        return flat
    op = FlatRotary(op_of(Rotary, turn), heads.split.heads)
    return node(op, flat, *rewrite.map_values(*turn.inputs[1:]), name=turn.name, place=turn.place)[0]
