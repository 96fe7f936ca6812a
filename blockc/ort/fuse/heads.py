"""What stands around an attention: its heads, on their way from a flat value to it, and the bias of its mask."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from types import UnionType
from typing import TypeVar

from blockc.ir import Node, Value, node
from blockc.ops import HeadGain, LayerNorm, MergeHeads, RmsNorm, Rotary, SplitHeads
from blockc.ort.fuse.rewrite import Mismatch, Rewrite
from blockc.ort.ops import BoundedBias, HeadNorm, MaskBias

LOW = -3e4  # a bias of keys that are not seen, finite in half precision
LATENT = "its keys and values are made of latents, and the kernel keeps keys and values, of one size"
OpT = TypeVar("OpT")


@dataclass(frozen=True)
class Heads:
    """Queries, keys or values on their way from a flat value to an attention: split, maybe normalised and rotated.

    `behind` are heads that are rotated before their norm, an order that the kernel does not have: it reads them as they
    are, flattened again.
    """

    flat: Value
    split: SplitHeads
    norm: Node | None = None
    gain: Node | None = None
    rotary: Node | None = None
    behind: Value | None = None


def match_heads(value: Value) -> Heads:
    whole = value
    value, rotary = _look_through(value, Rotary)
    value, gain = _look_through(value, HeadGain)
    value, norm = _look_through(value, RmsNorm | LayerNorm)
    value, first = _look_through(value, Rotary) if norm and not rotary else (value, None)
    split = require(value, SplitHeads, f"{value.node.op.name} is between its heads and the kernel")
    if first is not None:
        return Heads(split.inputs[0], op_of(SplitHeads, split), behind=whole)
    return Heads(split.inputs[0], op_of(SplitHeads, split), norm, gain, rotary)


def _look_through(value: Value, op: type | UnionType) -> tuple[Value, Node | None]:
    """(The operand, the node) of a node of this op; else (the value itself, None)."""
    return (value.node.inputs[0], value.node) if isinstance(value.node.op, op) else (value, None)


def require(value: Value, op: type, why: str) -> Node:
    if not isinstance(value.node.op, op):
        raise Mismatch(why)
    return value.node


def op_of(op: type[OpT], n: Node) -> OpT:
    if not isinstance(n.op, op):
        raise Mismatch(f"{n.name} is not a {op.__name__}")
    return n.op


def flatten_heads(rewrite: Rewrite, heads: Heads) -> Value:
    if heads.behind is not None:
        (value,), last = rewrite.map_values(heads.behind), heads.behind.node
        return node(MergeHeads(), value, name=f"{last.name}.flat", place=last.place)[0]
    flat = rewrite.new[heads.flat]
    if heads.norm is None:
        return flat
    assert isinstance(heads.norm.op, RmsNorm | LayerNorm)
    last = heads.gain or heads.norm
    op = HeadNorm(heads.norm.op, heads.split.heads, own=heads.gain is not None)
    return node(op, flat, name=last.name, params=last.params, place=last.place)[0]


def make_bias(rewrite: Rewrite, mask: Value, biased: bool, low: float) -> tuple[Value, ...]:
    """The bias that the kernel adds to the scores. A mask of floats already is one."""
    if biased and low == -inf:
        return rewrite.map_values(mask)
    op = BoundedBias(low) if biased else MaskBias(low)
    return rewrite.make_once((mask, low), lambda: node(op, rewrite.new[mask], name=f"{mask.node.name}.bias"))
