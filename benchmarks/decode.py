"""A session on the CPU: each way of holding the cache, turn by turn in one run, medians in milliseconds.

python -m benchmarks.decode [SPEC [THREADS]]        smollm2-135m by default, with random weights; 2, a core each

On one thread its CPU time is taken, in which what else runs on the machine counts little.
`run loop` is the portable graph without IO binding: session.run, its present fed back as the next past.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from blockc import api
from blockc.graph.target import Target
from blockc.layouts import load_layout
from blockc.pipeline.compiled import Compiled
from blockc.runtime import Session
from blockc.weights.matching import pack
from blockc.weights.rules import group_sizes, random_parameters, rules
from blockc.weights.safetensors import write_safetensors

PREFILL, DECODE = (128, 512), (128, 1024)
TURNS, STEPS = 5, 5
TARGETS = {
    "portable joined": Target(logits="last"),
    "portable buffer": Target(logits="last", cache="buffer"),
    "ep cpu": Target("cpu", logits="last"),
}


def built(model: Compiled, folder: Path) -> dict[str, Path]:
    family = model.spec.top.checkpoint
    held = random_parameters(model.function, 0)
    if family is not None:
        held = pack(rules(load_layout(family), model.function, group_sizes(model.function)), held)
    source = folder / "model.safetensors"
    write_safetensors(source, {name: np.ascontiguousarray(a, np.float32) for name, a in held.items()})
    for name, target in TARGETS.items():
        api.build(model, folder / name, target=target, proof=False, weights=source)
    return {name: folder / name for name in TARGETS}


class RunLoop:
    """The model of a session as one would run it by hand."""

    def __init__(self, session: Session) -> None:
        self.model, self.past = session.model, dict[str, Any]()

    def prefill(self, rows: list[list[int]]) -> None:
        self.length = 0
        self.past = {held.past: np.zeros(held.shape_for(1, 0), np.float32) for held in self.model.contract.held}
        self._run(rows[0])

    def decode(self, tokens: list[int]) -> None:
        self._run(tokens)

    def _run(self, tokens: list[int]) -> None:
        positions = np.arange(self.length, self.length + len(tokens))[None]
        self.length += len(tokens)
        mask = np.ones((1, self.length), np.int64)
        feeds = {"input_ids": np.array([tokens]), "attention_mask": mask, "position_ids": positions}
        _, *presents = self.model.session.run(None, feeds | self.past)
        self.past = dict(zip(self.past, presents, strict=True))


def ways(folders: dict[str, Path], threads: int) -> dict[str, Any]:
    """A session each; the fused graph a second time with its presents as new tensors."""
    made: dict[str, Any] = {name: Session(folder, threads=threads) for name, folder in folders.items()}
    made["ep cpu shared"] = made.pop("ep cpu")
    joined = made["ep cpu joined"] = Session(folders["ep cpu"], threads=threads)
    contract = joined.model.contract
    held = tuple(replace(each, in_place=False) for each in contract.held)
    joined.model = replace(joined.model, contract=replace(contract, held=held))
    return made | {"run loop": RunLoop(made["portable joined"])}


def by_turns(steps: dict[str, Callable[[], object]], clock: Callable[[], float]) -> dict[str, float]:
    """A turn is several steps; the first, which finds another's weights in the processor's caches, is not counted."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(TURNS):
        for name, step in steps.items():
            step()
            for _ in range(STEPS):
                start = clock()
                step()
                times[name].append(1000 * (clock() - start))
    return {name: statistics.median(taken) for name, taken in times.items()}


def prefill(way: Any, length: int) -> Callable[[], object]:
    def step() -> None:
        if isinstance(way, Session):
            way.reset()
        way.prefill([list(range(length))])

    return step


def decode(way: Any, length: int) -> Callable[[], object]:
    """One token after `length` others, and then after as many more as there were steps."""
    prefill(way, length)()
    if isinstance(way, Session):
        way.reset()
        way.prefill([list(range(length))], room=TURNS * (STEPS + 1))
    return lambda: way.decode([1])


def main() -> None:
    name, threads = (*sys.argv[1:], *("smollm2-135m", "2")[len(sys.argv) - 1 :])
    threads = int(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    model = api.compile(api.bundled()[name])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    print(f"{name}, onnxruntime {onnxruntime.__version__}, {threads} threads, logits of the last token, ms")
    with tempfile.TemporaryDirectory(prefix="blockc-") as folder:
        made = ways(built(model, Path(folder)), threads)
        print(f"{'':15}" + "".join(f"{way:>17}" for way in made))
        for what, step, lengths in (("prefill", prefill, PREFILL), ("decode at", decode, DECODE)):
            for length in lengths:
                medians = by_turns({way: step(session, length) for way, session in made.items()}, clock)
                print(
                    f"{what} {length:<{14 - len(what)}}" + "".join(f"{medians[way]:17.1f}" for way in made), flush=True
                )


if __name__ == "__main__":
    main()
