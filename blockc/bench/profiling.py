"""What onnxruntime's runs take: a clock around them, and its own profile of their nodes."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median, median_low
from typing import Any


@dataclass
class RunClock:
    """How many runs there were, and what they took together."""

    runs: int = 0
    seconds: float = 0.0


class TimedRuns:
    """onnxruntime's session, with a clock around its runs; all else is the session's own.

    The clock costs half a microsecond a run.
    """

    def __init__(self, session: Any, clock: RunClock) -> None:
        self.session, self.clock = session, clock

    def run_with_iobinding(self, *arguments: Any) -> None:
        start = time.perf_counter()
        self.session.run_with_iobinding(*arguments)
        self.clock.seconds += time.perf_counter() - start
        self.clock.runs += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)


@dataclass(frozen=True)
class NodeTime:
    """One node of a run: its operator, when it began and what it took, in microseconds."""

    op: str
    start: int
    taken: int


def read_runs(text: str) -> list[list[NodeTime]]:
    """The nodes of each run, from the text of onnxruntime's profile.

    An event is written when it ends, so the nodes of a run stand before its `model_run`.
    """
    runs: list[list[NodeTime]] = []
    nodes: list[NodeTime] = []
    for event in json.loads(text):
        if event["cat"] == "Session" and event["name"] == "model_run":
            runs.append(nodes)
            nodes = []
        elif event["cat"] == "Node" and event["name"].endswith("_kernel_time"):
            nodes.append(NodeTime(event["args"]["op_name"], event["ts"], event["dur"]))
    return runs


def own_times(run: Sequence[NodeTime]) -> Iterator[tuple[str, int]]:
    """(Operator; microseconds without the nodes inside it) of each node: a branch runs inside its If."""
    nodes = sorted(run, key=lambda node: (node.start, -node.taken))
    own = [node.taken for node in nodes]
    around: list[int] = []  # the nodes that have not ended, the innermost last
    for i, node in enumerate(nodes):
        while around and node.start >= nodes[around[-1]].start + nodes[around[-1]].taken:
            around.pop()
        if around:
            own[around[-1]] -= node.taken
        around.append(i)
    return zip((node.op for node in nodes), own, strict=True)


def cost_by_operator(runs: Sequence[Sequence[NodeTime]]) -> list[tuple[str, int, float]]:
    """(Operator; its nodes in a run; their milliseconds), medians over the runs, the most costly first."""
    counts, sums = [Counter[str]() for _ in runs], [Counter[str]() for _ in runs]
    for run, count, total in zip(runs, counts, sums, strict=True):
        for op, taken in own_times(run):
            count[op] += 1
            total[op] += taken
    ops = sorted({op for count in counts for op in count})
    rows = [(op, median_low(count[op] for count in counts), median(each[op] for each in sums) / 1000) for op in ops]
    return sorted((row for row in rows if row[1]), key=lambda row: -row[2])
