"""From logits to a token: the likeliest, or one drawn with temperature, top-k and top-p."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from blockc.basics.errors import UsageError
from blockc.ir import Array
from blockc.weights.safetensors import widen


@dataclass(frozen=True)
class TopLogits:
    """The K highest logits of each row (B, K), largest first, and their tokens (B, K). Ties are in token order."""

    logits: Array
    tokens: Array

    def argmax(self, axis: int = -1) -> Array:
        """The likeliest token of each row (B), as for all logits."""
        return self.tokens[:, 0]


Logits = Array | TopLogits  # (B, V), or the highest of them
Choose = Callable[[Logits], Array]  # a token of each row: (B)


def greedy(logits: Logits) -> Array:
    """The argmax of each row: (B, V) -> (B)"""
    return logits.argmax(axis=-1)


def as_float32(logits: Array, lent: bool = False) -> Array:
    """A copy in fp32, or with `lent` the logits themselves, if they are in fp32. Bits of bf16 are widened."""
    if logits.dtype == np.uint16:
        return widen(logits, "BF16")
    return logits.astype(np.float32, copy=not lent)


def keeps_nothing(sampler: Choose) -> bool:
    """Whether a sampler is known to read its logits at once, so that their memory may be written again."""
    return sampler is greedy or isinstance(sampler, Sampler)


def choose_sampler(
    temperature: float, top_k: int | None = None, top_p: float | None = None, seed: int | None = None
) -> Choose:
    """A sampler for a temperature above 0, else greedy. Raises UsageError for options of sampling at temperature 0."""
    if temperature:
        return Sampler(temperature, top_k, top_p, seed)
    given = {"top_k": top_k, "top_p": top_p, "seed": seed}
    if said := [name for name, value in given.items() if value is not None]:
        raise UsageError("is for drawing: the temperature must be above 0 too", said[0])
    return greedy


class Sampler:
    """t ~ softmax(logits / temperature), among the top_k likeliest, and of these the fewest that sum up to top_p.

    Each row draws from its own random stream, seeded by `seed` and the row's number. So a row gets the same text
    whatever the other rows are, and from the highest logits the same as from all. Raises UsageError for numbers out of
    range, and for fewer logits than top_k.
    """

    def __init__(
        self, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None, seed: int | None = None
    ) -> None:
        if not 0 < temperature < np.inf:
            raise UsageError(f"{temperature}: expected a number above 0", "temperature")
        if top_k is not None and top_k < 1:
            raise UsageError(f"{top_k}: expected 1 or more", "top_k")
        if top_p is not None and not 0 < top_p <= 1:
            raise UsageError(f"{top_p}: expected a number above 0, up to 1", "top_p")
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.seeds = np.random.SeedSequence(seed)
        self.streams: list[np.random.Generator] = []

    def lacks(self, k: int) -> str:
        """Why the k highest logits are too few to draw from; empty if they are enough."""
        if self.top_k is None:
            return f"it gives the {k} highest logits of a token, and without top_k all are needed"
        return f"it gives the {k} highest logits of a token, and top_k is {self.top_k}" if self.top_k > k else ""

    def __call__(self, logits: Logits) -> Array:
        rows = logits.logits if isinstance(logits, TopLogits) else logits
        if isinstance(logits, TopLogits) and (why := self.lacks(rows.shape[-1])):
            raise UsageError(f"the graph cannot be drawn from: {why}")
        self.streams += [np.random.default_rng(s) for s in self.seeds.spawn(len(rows) - len(self.streams))]
        drawn = np.array([self._draw(row, stream) for row, stream in zip(rows, self.streams, strict=False)])
        return logits.tokens[np.arange(len(rows)), drawn] if isinstance(logits, TopLogits) else drawn

    def _draw(self, row: Array, stream: np.random.Generator) -> int:
        tokens, odds = self.probabilities(row)
        summed = np.cumsum(odds)
        return int(tokens[np.searchsorted(summed, stream.random() * summed[-1], side="right")])

    def probabilities(self, row: Array) -> tuple[Array, Array]:
        """(The tokens that may be drawn from a row of logits (V); the probability of each.)"""
        tokens = np.arange(len(row)) if self.top_k is None else highest(row, min(self.top_k, len(row)))
        scaled = row[tokens].astype(np.float64) / self.temperature
        odds = np.exp(scaled - scaled.max())
        odds /= odds.sum()
        if self.top_p is not None:
            order = np.argsort(-odds, kind="stable")
            before = np.cumsum(odds[order]) - odds[order]
            kept = order[before < self.top_p]
            tokens, odds = tokens[kept], odds[kept] / odds[kept].sum()
        return tokens, odds


def highest(row: Array, k: int) -> Array:
    """The indices of the k largest numbers of a row, largest first; equal ones in order."""
    least = np.partition(row, -k)[-k]
    found = np.flatnonzero(row >= least)
    return found[np.argsort(-row[found], kind="stable")][:k]
