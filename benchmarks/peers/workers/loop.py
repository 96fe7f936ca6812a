"""What the peers' workers have in common: a model that takes a prompt and single tokens, behind blockc's protocol.

A worker's file imports its peer, and this; `protocol` is blockc/bench/protocol.py, which imports the standard library.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from protocol import UnableError, draw_tokens, memory, serve


class Model(Protocol):
    vocab: int
    weights: int | None  # bytes
    versions: dict[str, str]

    def prefill(self, ids: list[int], room: int) -> Any:
        """From an empty cache to the logits of the last token, in host memory; `room` tokens will follow."""

    def step(self, token: int) -> Any:
        """The logits after one more token."""


class Loop:
    def __init__(self, opened: Callable[[int], Model]) -> None:
        self.opened, self.held = opened, list[Model]()

    @property
    def model(self) -> Model:
        if not self.held:
            raise UnableError("nothing is loaded")
        return self.held[0]

    def load(self, threads: int) -> dict[str, Any]:
        start = time.perf_counter()
        model = self.opened(threads)
        seconds = time.perf_counter() - start
        self.held = [model]
        model.prefill([0], 1)
        model.step(0)
        return {
            "seconds": seconds, "memory": memory(), "weights": model.weights, "versions": model.versions,
        }  # fmt: skip

    def prefill(self, tokens: int, repeat: int) -> dict[str, Any]:
        return {"ms": [self._prefill(tokens, 0) for _ in range(repeat + 1)][1:]}

    def decode(self, context: int, steps: int) -> dict[str, Any]:
        self._prefill(context, steps + 1)
        return {"ms": [_taken(partial(self.model.step, token)) for token in self._ids(steps + 1)][1:]}

    def greedy(self, tokens: int, steps: int) -> dict[str, Any]:
        """The likeliest token, `steps` times: what shows that all compute the same."""
        made = [int(self.model.prefill(self._ids(tokens), steps).argmax())]
        while len(made) < steps:
            made.append(int(self.model.step(made[-1]).argmax()))
        return {"tokens": made}

    def _ids(self, count: int) -> list[int]:
        return draw_tokens(count, self.model.vocab)

    def _prefill(self, count: int, room: int) -> float:
        return _taken(partial(self.model.prefill, self._ids(count), room))


def _taken(call: Callable[[], object]) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)


def run(opened: Callable[[int], Model]) -> None:
    """`opened(threads)` is what is timed as the load."""
    loop = Loop(opened)
    serve(
        {"load": loop.load, "prefill": loop.prefill, "decode": loop.decode, "greedy": loop.greedy}
        | {"memory": lambda: memory() or {}}
    )
