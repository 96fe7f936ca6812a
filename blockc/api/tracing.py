"""The residual stream of a model, addition by addition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from blockc.basics.errors import UsageError
from blockc.graph import interp
from blockc.graph.contract import inputs_of_texts
from blockc.ir import Array, Function, Value, callee_of, is_call
from blockc.ops import Add
from blockc.pipeline.compiled import Compiled
from blockc.weights.rules import random_parameters


@dataclass(frozen=True)
class Step:
    """The stream (S, width) after one addition."""

    name: str
    stream: Array

    def __repr__(self) -> str:
        tokens, width = self.stream.shape
        return f"<Step {self.name}: {tokens} tokens, {width} wide, rms of the last {self.rms[-1]:.4f}>"

    @property
    def rms(self) -> Array:
        """sqrt(mean(x^2)) of each token"""
        return np.sqrt(np.mean(self.stream**2, axis=-1))


def trace(model: Compiled, tokens: Sequence[int], seed: int = 0) -> list[Step]:
    """The stream before the first layer and after each addition, in float64, with random parameters from the seed.

    Raises UsageError for a token outside the vocabulary.
    """
    if not tokens:
        raise UsageError("no tokens: the stream of at least one can be traced")
    if bad := [t for t in tokens if not 0 <= t < model.spec.top.vocab]:
        raise UsageError(f"{bad[0]}: outside the vocabulary of {model.spec.top.vocab}", "tokens")
    ids = np.array([tokens], np.int64)
    inputs = inputs_of_texts(model.function, ids)
    wanted = list(_additions(model.function))
    seen: dict[str, Array] = {}
    interp.interpret(model.function, inputs, random_parameters(model.function, seed), seen.__setitem__)
    return [Step(name, seen[name][0]) for name in wanted]


def _additions(root: Function) -> Iterator[str]:
    """The names of the value that enters the first layer, and of every sum on the residual stream."""
    layers = [n for n in root.nodes if is_call(n)]
    if layers:
        yield layers[0].inputs[0].name
    for layer in layers:
        function = callee_of(layer)
        inner = {
            v.node for n in function.nodes if isinstance(n.op, Add) for v in n.inputs if _is_partial_sum(function, v)
        }
        for n in function.nodes:
            if isinstance(n.op, Add) and n not in inner:
                yield f"{layer.name}.{n.name}"


def _is_partial_sum(function: Function, value: Value) -> bool:
    """Whether a value is a sum of branches before the sum with the residual."""
    users = [n for n in function.nodes if value in n.inputs]
    ends = [v for _, v in function.outputs]
    return isinstance(value.node.op, Add) and len(users) == 1 and value not in ends
