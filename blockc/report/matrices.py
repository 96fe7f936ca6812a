"""The table of a block's matrices: what each receives and what it produces, read from the graph.

x, x', x'' are the stream after 0, 1, 2 additions
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, fields

from blockc.ir import Function, Node, Param, Value, callee_of, inline, is_call
from blockc.ops import (
    Add,
    Experts,
    LatentAttention,
    Linear,
    MergeHeads,
    Mul,
    Rotary,
    Route,
    Scale,
    SigmoidGate,
    Span,
    SplitHeads,
)
from blockc.report.drawing import stream_name
from blockc.report.figures import sizes_of_layer
from blockc.report.graph import Graph, holds_scores, is_norm

OPERANDS = ("query", "key", "value")  # of an attention, in this order
LATENT = ("latents and key", "key", "query", "query")  # of a latent one


@dataclass(frozen=True)
class Matrix:
    label: str
    shape: tuple[int, ...]  # out, in
    receives: str
    produces: str
    parameters: int
    share: float  # of the block's matrices


@dataclass(frozen=True)
class Block:
    """One layer function: how many layers of which kinds it is, what its parts are, and its matrices."""

    kinds: dict[str, int]
    parts: dict[str, str]
    matrices: tuple[Matrix, ...]
    parameters: int  # of the matrices
    norms: int
    biases: int
    idle: int = 0  # parameters that one token does not use


def blocks_of(graph: Graph) -> tuple[Block, ...]:
    counts = Counter(graph.kinds)
    found: dict[Function, dict[str, int]] = {}
    for kind, layer in graph.layers.items():
        found.setdefault(layer, {})[kind] = counts[kind]
    return tuple(_make_block(layer, kinds) for layer, kinds in found.items())


def _make_block(layer: Function, kinds: dict[str, int]) -> Block:
    sizes = sizes_of_layer(layer)
    parts, matrices = _describe_parts(layer), matrices_of(layer)
    return Block(kinds, parts, matrices, sizes.matrices, sizes.norms, sizes.biases, sizes.idle)


def _describe_parts(layer: Function) -> dict[str, str]:
    """A text for each label: the docstring of its function, or the fields of its op."""
    said: dict[str, str] = {}
    for n in layer.nodes:
        if is_call(n):
            said[n.name] = callee_of(n).doc.rstrip(".")
        elif n.params:
            said[n.name] = ", ".join((n.op.name, *_field_texts(n)))
    return said


def _field_texts(n: Node) -> list[str]:
    """The fields that no shape shows: eps and the like, as `eps 1e-05`; what is off is left out."""
    widths = {int(size) for param in n.params for size in param.shape}
    named = [(f.name, getattr(n.op, f.name)) for f in fields(n.op)]
    return [k if v is True else f"{k} {v:g}" for k, v in named if v and (v is True or v not in widths)]


def matrices_of(layer: Function) -> tuple[Matrix, ...]:
    reading = _BlockReader(inline(layer))
    rows = [(n, param) for n in reading.function.nodes for param in n.params if param.role == "matrix"]
    whole = sum(param.size for _, param in rows)
    return tuple(
        Matrix(
            label=param.name.removesuffix(".weight"),
            shape=param.shape,
            receives=reading.describe_input(n, param),
            produces=reading.describe_output(n, param),
            parameters=param.size,
            share=param.size / whole,
        )
        for n, param in rows
    )


class _BlockReader:
    """An inlined layer with a short text for each of its values."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.levels: dict[Value, int | None] = {n[0]: None for n in function.inputs}
        self.texts: dict[Value, str] = {n[0]: n.name for n in function.inputs}
        stream = next(n for n in function.inputs if n.name == function.stream)
        self.levels[stream[0]], self.texts[stream[0]] = 0, "x"
        self.users: dict[Value, list[tuple[Node, int]]] = {}
        for n in function.nodes:
            values = [n[i] for i in range(len(n.types))]
            self.levels |= dict.fromkeys(values, self._level(n))
            self.texts |= dict.fromkeys(values, self._text(n))
            for i, value in enumerate(n.inputs):
                self.users.setdefault(value, []).append((n, i))

    def _level(self, n: Node) -> int | None:
        """How many additions the stream has been through, None for what is not the stream."""
        met = [level for value in n.inputs if (level := self.levels[value]) is not None]
        if isinstance(n.op, Add) and met:
            return max(met) + 1
        return self.levels[n.inputs[0]] if is_norm(n) or isinstance(n.op, Scale) else None

    def _text(self, n: Node) -> str:
        level, operands = self.levels[n[0]], [self.texts[value] for value in n.inputs]
        match n.op:
            case Add() if level is not None:
                return stream_name(level)
            case Linear():
                return n.name
            case Add():
                return " + ".join(operands)
            case Mul():
                return " * ".join(operands)
            case Scale(factor):
                return f"{factor:g} * {operands[0]}"
            case MergeHeads():
                return "concatenated heads"
            case SplitHeads() | Rotary() | Span():
                return operands[0]
            case _:
                return f"{'norm' if is_norm(n) else n.op.name}({', '.join(operands)})"

    def describe_input(self, n: Node, param: Param) -> str:
        """Matrices of the same part by their short names: silu(gate) * up."""
        if isinstance(n.op, Experts) and _short_name(param) == "down":
            return n.op.formula
        return re.sub(rf"\b{re.escape(_part_of(n))}\.", "", self.texts[n.inputs[0]])

    def describe_output(self, matrix: Node, param: Param) -> str:
        """What a matrix produces: follows the first reader of each value until one shows what it is for."""
        if isinstance(matrix.op, LatentAttention):
            return _made_text(matrix.op, param)
        if isinstance(matrix.op, Experts) and _short_name(param) != "down":
            return _short_name(param)
        value, heads, bent = matrix[0], None, False
        while users := self.users.get(value):
            user, operand = users[0]
            if holds_scores(user):
                return _heads_text(heads, (LATENT if isinstance(user.op, LatentAttention) else OPERANDS)[operand])
            if isinstance(user.op, Add) and self.levels[user[0]] is not None:
                return "stream edit"
            if isinstance(user.op, Mul):
                return "gate" if bent else "up"
            if isinstance(user.op, Route):
                return f"{user.op.count:,} logits"
            if isinstance(user.op, SigmoidGate) and operand == 1:
                return "gate"
            if any(param.role == "matrix" for param in user.params):
                return "hidden units" if _part_of(user) == _part_of(matrix) else "new stream"
            heads = user.op if isinstance(user.op, SplitHeads) else heads
            bent = bent or (len(user.inputs) == 1 and not user.params and user.types[0] == value.type)
            value = user[0]
        return "new stream"


def _heads_text(split: SplitHeads | None, role: str) -> str:
    if split is None:
        return f"{role}s"
    return f"{split.heads} {role} head{'' if split.heads == 1 else 's'} of {split.head_dim}"


def _made_text(op: LatentAttention, param: Param) -> str:
    """What a matrix makes of the latents, which is never written out where the other order multiplies less."""
    size, role = (op.v_dim, "value") if param.name.endswith("v_up") else (op.nope, "key")
    return _heads_text(SplitHeads(op.heads, size), role)


def _part_of(n: Node) -> str:
    return n.name.rpartition(".")[0]


def _short_name(param: Param) -> str:
    return param.name.rpartition(".")[2]
