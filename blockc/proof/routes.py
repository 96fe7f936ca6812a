"""Experts in a proof: parameters with which no choice is a near tie, and which experts a backend has chosen.

A near tie falls one way in float64 and the other in float32, and both are right. So the routers of a twin are drawn
again until each token of the proof is far from another choice; then every backend must choose the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from blockc.graph import interp
from blockc.graph.contract import inputs_of_texts
from blockc.ir import Array, Function, Node, Param, inline
from blockc.ops import Route
from blockc.proof.cases import Case
from blockc.proof.feeding import Arrays
from blockc.weights.rules import draw_parameter

MARGIN = 0.02  # of the spread of choices: the tolerance of fp16
TRIES = 2000  # of one router


@dataclass(frozen=True)
class Routes:
    """The choices of a proof: how many there are, and the smallest margin, in spreads of what experts are chosen by."""

    choices: int
    margin: float

    def __str__(self) -> str:
        return f"{self.choices:,} choices of experts, each at least {self.margin:.1%} of their spread from another"


def routes_of(function: Function) -> dict[str, Route]:
    """Each choice of experts in a flat function, by the path of its node."""
    return {n.name: n.op for n in function.nodes if isinstance(n.op, Route)}


def widen_margins(
    function: Function, params: Mapping[str, Array], sequences: Sequence[tuple[Array, int]], seed: int
) -> tuple[dict[str, Array], Routes | None]:
    """The parameters with other routers, where a choice was a near tie; None for a function without experts.

    `sequences` are the tokens of each row and the position of its first. Routers are settled in the order of
    computation, since the choices of one change what later ones read.
    """
    flat, settled = inline(function), dict(params)
    choices, margins = 0, list[float]()
    for n in (n for n in flat.nodes if isinstance(n.op, Route)):
        read = _values_of(flat, n.inputs[0].node, settled, sequences)
        owned = [*n.inputs[0].node.params, *n.params]
        found = _best_draw(n, read, owned, settled, seed)
        margins.append(found)
        choices += sum(len(rows) for rows in read)
    return settled, Routes(choices, min(margins)) if margins else None


def _best_draw(n: Node, read: list[Array], owned: list[Param], settled: dict[str, Array], seed: int) -> float:
    """Draws the router's parameters until its margin is wide, and keeps the best; the margin."""
    best, kept = -1.0, {param.name: settled[param.name] for param in owned}
    for attempt in range(TRIES):
        drawn = kept if attempt == 0 else {p.name: draw_parameter(p.name, p, seed + attempt) for p in owned}
        margin = _margin(n, read, drawn)
        if margin > best:
            best, chosen = margin, drawn
            settled |= chosen
        if best >= MARGIN:
            break
    return best


def _margin(n: Node, read: list[Array], params: Mapping[str, Array]) -> float:
    """The smallest margin of any token, in spreads of the choices."""
    router, route = n.inputs[0].node, n.op
    assert isinstance(route, Route)
    own = tuple(params[param.name] for param in n.params)
    logits = [router.op.numpy((rows,), tuple(params[param.name] for param in router.params))[0] for rows in read]
    spread = float(np.std(np.concatenate([route.score(each) for each in logits])))
    return min(float(route.margins(each, own).min()) for each in logits) / (spread or 1.0)


def _values_of(
    flat: Function, router: Node, params: Mapping[str, Array], sequences: Sequence[tuple[Array, int]]
) -> list[Array]:
    """What a router reads of each sequence, (S, W)."""
    wanted, found = router.inputs[0].name, list[Array]()
    for tokens, first in sequences:
        seen: Arrays = {}

        def watch(name: str, array: Array, seen: Arrays = seen) -> None:
            if name == wanted:
                seen[name] = array

        interp.interpret(flat, inputs_of_texts(flat, tokens[None], first), params, watch)
        found.append(seen[wanted][0])
    return found


def differing_route(routes: Sequence[str], case: Case, wanted: list[Arrays], got: list[Arrays]) -> str:
    """The first choice of experts in which a backend differs from the oracle on real tokens; empty if none does."""
    return next(
        (
            name
            for name in routes
            for truth, answer, new in zip(wanted, got, case.slices, strict=True)
            if (theirs := find_value(answer, f"{name}.chosen")) is not None
            if not _choose_alike(truth[f"{name}.chosen"], theirs, case.attention_mask[:, new])
        ),
        "",
    )


def find_value(values: Arrays, name: str) -> Array | None:
    """The value of a node, if a backend shows it; in model.py one of several outputs has the output's name alone."""
    node, _, output = name.rpartition(".")
    outer = node.rpartition(".")[0]
    return values.get(name, values.get(f"{outer}.{output}" if outer else output))


def _choose_alike(wanted: Array, got: Array, mask: Array) -> bool:
    """Whether the same experts are chosen, in any order, where there is no padding; of some graphs, by last tokens."""
    alike = np.sort(wanted, axis=-1) == np.sort(got, axis=-1)
    return bool((alike[mask == 1] if mask.shape == alike.shape[:2] else alike).all())
