"""From logits to a token: the largest, or one drawn from what temperature, top-k and top-p leave."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from blockc.ops import Array

Choose = Callable[[Array], Array]  # (B, V) -> (B)


def greedy(logits: Array) -> Array:
    """argmax of each row"""
    return logits.argmax(axis=-1)


class Sampler:
    """t ~ softmax(logits / temperature), cut to the top_k likeliest, of these to the fewest that sum up to top_p.

    Each row draws from a stream of its own, seeded by `seed` and its number: a prompt gets the same text in a batch as
    alone in its place. Raises ValueError for what is no such number.
    """

    def __init__(
        self, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None, seed: int | None = None
    ) -> None:
        if not 0 < temperature < np.inf:
            raise ValueError(f"temperature {temperature}: expected a number above 0")
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k {top_k}: expected 1 or more")
        if top_p is not None and not 0 < top_p <= 1:
            raise ValueError(f"top_p {top_p}: expected a number above 0, up to 1")
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.seeds = np.random.SeedSequence(seed)
        self.streams: list[np.random.Generator] = []

    def __call__(self, logits: Array) -> Array:
        self.streams += [np.random.default_rng(s) for s in self.seeds.spawn(len(logits) - len(self.streams))]
        return np.array([self._drawn(row, stream) for row, stream in zip(logits, self.streams, strict=False)])

    def _drawn(self, row: Array, stream: np.random.Generator) -> int:
        tokens, odds = self.left(row)
        summed = np.cumsum(odds)
        return int(tokens[np.searchsorted(summed, stream.random() * summed[-1], side="right")])

    def left(self, row: Array) -> tuple[Array, Array]:
        """What may be drawn of a row of logits (V), and the probability of each."""
        tokens = np.arange(len(row))
        if self.top_k is not None and self.top_k < len(row):
            tokens = np.argpartition(row, -self.top_k)[-self.top_k :]
        scaled = row[tokens].astype(np.float64) / self.temperature
        odds = np.exp(scaled - scaled.max())
        odds /= odds.sum()
        if self.top_p is not None:
            order = np.argsort(-odds, kind="stable")
            before = np.cumsum(odds[order]) - odds[order]
            kept = order[before < self.top_p]
            tokens, odds = tokens[kept], odds[kept] / odds[kept].sum()
        return tokens, odds
