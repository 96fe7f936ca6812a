"""contract: what a graph takes, returns and keeps between calls, derived once from the function itself.

The proof, the runtimes, reports and both emitters read it to feed a graph. It is written into a build's manifest, and
`verify` derives it again.

input_ids (B, S), attention_mask (B, T), with states position_ids (B, S), with a buffer write_indices (B), with segments
token_type_ids (B, S)
logits (B, S, V), or (B, 1, V) of the last token alone, or (B, min(S, N), V) of the last N, or top_logits and top_tokens
(B, 1, k)
logits (B, classes) of a pooled text; without a head last_hidden_state (B, S, width), and of a pool
pooled (B, D)
past_key_values.N.<state> and present.N.<state>: what the N-th op that remembers holds
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from blockc.ir import (
    Array,
    B,
    Dtype,
    Function,
    Input,
    M,
    Node,
    P,
    Sides,
    Type,
    Value,
    functions_of,
    is_past,
    parse_at_most,
)

IDS, MASK, POSITIONS, WHERE = "input_ids", "attention_mask", "position_ids", "write_indices"
SEGMENTS = "token_type_ids"
LOGITS, TOP_LOGITS, TOP_TOKENS = "logits", "top_logits", "top_tokens"
HIDDEN, POOLED = "last_hidden_state", "pooled"
_PAST, _PRESENT = "past_key_values", "present"
_NAMED = re.compile(rf"{_PAST}\.([0-9]+)\.(\w+)", re.ASCII)

Feeding = Literal["joined", "buffer", "rows"]
Extent = int | str  # a number, or the symbols of one: B, S, P, P + S, M


def past_name(number: int, state: str) -> str:
    return f"{_PAST}.{number}.{state}"


def present_name(number: int, state: str) -> str:
    return f"{_PRESENT}.{number}.{state}"


def past_of(name: str) -> tuple[int, str] | None:
    """(number, state) of an input that takes a past; None for any other."""
    found = _NAMED.fullmatch(name)
    return (int(found[1]), found[2]) if found else None


@dataclass(frozen=True)
class Port:
    """An input or an output beside the states."""

    name: str
    dtype: Dtype
    shape: tuple[Extent, ...]


@dataclass(frozen=True)
class StatePort:
    """A state: the input that takes it from an earlier call, and the output that passes it to the next.

    It grows along one axis by the tokens of each call, or is of one size and starts as zeros. `in_place`: both may be
    one piece of memory.
    """

    past: str
    present: str
    number: int
    state: str
    dtype: Dtype
    shape: tuple[Extent, ...]  # of the past
    grows: int | None
    in_place: bool

    def shape_for(self, rows: int, length: int) -> tuple[int, ...]:
        """The past's shape for so many rows, and so many tokens where it grows."""
        sizes = (length if i == self.grows else rows if size == str(B) else size for i, size in enumerate(self.shape))
        return tuple(map(int, sizes))


@dataclass(frozen=True)
class Contract:
    """How a graph is fed, and what it returns.

    feeding  joined: attention_mask (B, T) has a column for each call's new tokens, the same for all rows
             buffer: it is as long as the cache, and write_indices say where each row's new tokens go
             rows: each row's tokens stand at the left, in the mask and in the cache
    one_row  several new tokens on a past are taken in one row only
    vocab    how many logits a token has, also where few of them come; none of a graph without logits
    sides    the lengths of calls at which rope turns otherwise: a cache goes with calls of a like length alone
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    held: tuple[StatePort, ...]
    feeding: Feeding
    one_row: bool
    vocab: int | None
    sides: tuple[Sides, ...]

    def output(self, name: str) -> Port | None:
        return next((port for port in self.outputs if port.name == name), None)

    def takes(self, name: str) -> bool:
        """Whether there is an input of this name."""
        return any(port.name == name for port in self.inputs)

    @cached_property
    def top(self) -> int:
        """How many of the highest logits are returned, largest first; 0: all."""
        port = self.output(TOP_TOKENS)
        return port.shape[-1] if port is not None and isinstance(port.shape[-1], int) else 0

    @property
    def logits_of_every_token(self) -> bool:
        """Whether logits of every new token are returned, and not only of the last one."""
        return self.last is None

    @cached_property
    def last(self) -> int | None:
        """Of how many last tokens of a call logits are returned; None: of every one."""
        port = self.output(LOGITS) or self.output(TOP_LOGITS)
        size = port.shape[1] if port is not None and len(port.shape) == 3 else None
        if size is None or isinstance(size, int):
            return size
        found = parse_at_most(size)
        return None if found is None else found[1]

    def rows_of(self, tokens: int) -> int:
        """Of how many tokens a call with so many new ones returns logits."""
        return tokens if self.last is None else min(tokens, self.last)

    @property
    def one_token(self) -> bool:
        """Whether a call has one new token of each row, and never another number of them."""
        return any(port.name == IDS and port.shape[1] == 1 for port in self.inputs)

    @cached_property
    def fixed(self) -> bool:
        """Whether a decode step can be bound once, and run again to the same effect.

        All states then grow in place: the step writes nothing but its token's slot, which it does not read. And the
        mask may be as long as they are.
        """
        return self.feeding != "joined" and self.forgets

    @cached_property
    def forgets(self) -> bool:
        """Whether a row's last tokens can be forgotten: all states grow in place, so later tokens are written there."""
        return all(held.in_place and held.grows is not None for held in self.held)


def inputs_of_texts(function: Function, ids: Array, first: int = 0) -> dict[str, Array]:
    """The inputs of a function without a cache for whole texts (B, S) without padding, all in the first segment.

    `first` is the position of their first token.
    """
    places = np.broadcast_to(first + np.arange(ids.shape[1]), ids.shape)
    every = {IDS: ids, MASK: np.ones_like(ids), POSITIONS: places, SEGMENTS: np.zeros_like(ids)}
    return {n.name: every[n.name] for n in function.inputs}


def contract_of(function: Function) -> Contract:
    """The contract of a root function, with or without states. `in_place` is only found outside called functions."""
    pasts = [n for n in function.inputs if is_past(n)]
    inputs = tuple(_make_port(n.name, n.types[0]) for n in function.inputs if not is_past(n))
    readers: dict[Value, list[Node]] = {n[0]: [] for n in pasts}
    for n in function.nodes:
        for value in n.inputs:
            if value in readers:
                readers[value].append(n)
    given = dict(function.outputs)
    held = tuple(_state_port(n, readers[n[0]], given) for n in pasts)
    presents = {each.present for each in held}
    ops = dict.fromkeys(n.op for each in functions_of(function) for n in each.nodes)
    rows, buffer = any(op.by_rows for op in ops), any(port.name == WHERE for port in inputs)
    return Contract(
        inputs=inputs,
        outputs=tuple(_make_port(name, value.type) for name, value in given.items() if name not in presents),
        held=held,
        feeding="rows" if rows else "buffer" if buffer else "joined",
        one_row=any(op.one_row for op in ops),
        vocab=_vocab_of(given),
        sides=tuple(dict.fromkeys(side for op in ops for side in op.sides())),
    )


def _vocab_of(given: Mapping[str, Value]) -> int | None:
    logits = given.get(LOGITS) or (given[TOP_LOGITS].node.inputs[0] if TOP_LOGITS in given else None)
    return None if logits is None else logits.type.shape[-1].value


def _make_port(name: str, type_: Type) -> Port:
    return Port(name, type_.dtype, _extents_of(type_))


def _extents_of(type_: Type) -> tuple[Extent, ...]:
    return tuple(size.value if size.value is not None else str(size) for size in type_.shape)


def _state_port(n: Node, readers: Sequence[Node], given: Mapping[str, Value]) -> StatePort:
    assert isinstance(n.op, Input) and n.op.past is not None
    type_ = n.op.type
    named = past_of(n.name)
    assert named is not None, n.name  # with_cache calls it so
    number, state = named
    present = present_name(number, state)
    grows = next((axis for axis, size in enumerate(type_.shape) if size in (P, M)), None)
    in_place = _is_in_place(n, readers, given[present])
    return StatePort(n.name, present, number, state, type_.dtype, _extents_of(type_), grows, in_place)


def _is_in_place(past: Node, readers: Sequence[Node], present: Value) -> bool:
    """Whether only the op that makes the present reads the past, and writes into the same memory."""
    if readers != [present.node]:
        return False
    shared = present.node.op.shares()
    return any(present.node.inputs[operand] == past[0] and i == present.index for operand, i in shared.items())
