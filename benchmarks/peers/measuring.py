"""The candidates of a case, asked the same by turns on the same cores, and the machine beside them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.candidates import Candidate, Case
from blockc.bench.floors import Work
from blockc.bench.turns import Worker, WorkerError, order_of_turn, worker_command

STEPS = 8  # of one token, in a turn
PROMPT, GREEDY = 32, 24  # tokens from which, and how many likeliest ones, candidates are compared
Command = list[str]


class Times:
    """Milliseconds by candidate and request, what else a candidate said, and why one fell out."""

    def __init__(self) -> None:
        self.ms: dict[str, dict[tuple[str, int], list[float]]] = {}
        self.said: dict[str, dict[str, Any]] = {}
        self.fell: dict[str, str] = {}

    def loaded(self, name: str, worker: Worker, threads: int) -> None:
        answer = worker.ask("load", threads=threads)
        before = self.said.get(name, {}).get("loads", [])
        self.said[name] = {**answer, "loads": [*before, answer.pop("seconds")]}

    def wrote(self, name: str, worker: Worker) -> None:
        self.said[name] |= worker.ask("greedy", tokens=PROMPT, steps=GREEDY)

    def asked(self, name: str, worker: Worker, do: str, length: int) -> None:
        request = {"tokens": length, "repeat": 1} if do == "prefill" else {"context": length, "steps": STEPS}
        held = self.ms.setdefault(name, {}).setdefault((do, length), [])
        held += worker.ask(do, **request)["ms"]

    def tried(self, name: str, call: Callable[[], None]) -> None:
        """A candidate that fails is out of what follows, and the others go on."""
        if name in self.fell:
            return
        try:
            call()
        except WorkerError as error:
            self.fell[name] = str(error).removeprefix(f"{name}: ")
            print(f"{name} falls out: {self.fell[name]}", flush=True)


def requests(case: Case, candidate: Candidate) -> list[tuple[str, int]]:
    return [("prefill", n) for n in case.prefill] + [("decode", n) for n in case.decode if n <= candidate.longest]


def together(
    case: Case, commands: Mapping[str, tuple[Candidate, Command]], machine: Machine, turns: int, pinned: Sequence[int]
) -> Times:
    """All are open at once; each request goes to one after another, `turns` times, in the order of the turn."""
    times, workers = Times(), dict[str, Worker]()
    try:
        for name, (_, command) in commands.items():
            workers[name] = Worker(name, command, pinned)
            times.tried(name, lambda n=name: times.loaded(n, workers[n], len(pinned)))
            times.tried(name, lambda n=name: times.wrote(n, workers[n]))
        for turn in range(turns):
            print(f"turn {turn + 1} of {turns}", flush=True)
            for request in dict.fromkeys(r for candidate, _ in commands.values() for r in requests(case, candidate)):
                machine.measured(request[1] if request[0] == "prefill" else None)
                for name, (candidate, _) in order_of_turn(commands.items(), turn):
                    if request in requests(case, candidate):
                        times.tried(name, lambda n=name, r=request: times.asked(n, workers[n], *r))
    finally:
        for worker in workers.values():
            worker.close()
    return times


def apart(
    case: Case, commands: Mapping[str, tuple[Candidate, Command]], machine: Machine, turns: int, pinned: Sequence[int],
    files: Mapping[str, Path],
) -> Times:  # fmt: skip
    """One is open at a time, its files read once before, so that they come from the system's cache."""
    times = Times()

    def turn(name: str, candidate: Candidate, command: Command) -> None:
        read(files[name])
        worker = Worker(name, command, pinned)
        try:
            times.loaded(name, worker, len(pinned))
            for do, length in requests(case, candidate):
                times.asked(name, worker, do, length)
        finally:
            worker.close()

    for i in range(turns):
        print(f"turn {i + 1} of {turns}", flush=True)
        for length in (*case.prefill, None):
            machine.measured(length)
        for name, (candidate, command) in order_of_turn(commands.items(), i):
            times.tried(name, lambda n=name, c=candidate, w=command: turn(n, c, w))
    return times


def read(path: Path) -> None:
    """A file, or all files of a folder."""
    for file in [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]:
        with file.open("rb", buffering=0) as data:
            held = bytearray(1 << 24)
            while data.readinto(held):
                pass


class Machine:
    """Its two figures, measured between the candidates."""

    def __init__(self, work: Work, pinned: Sequence[int]) -> None:
        self.work, self.worker = work, Worker("machine", worker_command("blockc.bench.machine"), pinned)
        self.how = self.worker.ask("load", threads=len(pinned))["how"]
        self.bytes_s, self.flops_s = list[float](), dict[int, list[dict[str, Any]]]()

    def measured(self, rows: int | None) -> None:
        self.bytes_s.append(max(self.worker.ask("read", repeat=3)["bytes_s"]))
        if rows is not None:
            self.flops_s.setdefault(rows, []).append(
                self.worker.ask("product", rows=rows, shapes=self.work.products(), repeat=3)
            )

    def close(self) -> None:
        self.worker.close()

    def figures(self) -> dict[str, Any]:
        """Medians of what was best at each time."""
        best = {rows: max(found, key=lambda one: one["flops_s"]) for rows, found in self.flops_s.items()}
        return {
            "read by": self.how,
            "bytes_s": statistics.median(self.bytes_s),
            "flops_s": {str(rows): statistics.median(f["flops_s"] for f in self.flops_s[rows]) for rows in best},
            "multiplied by": {str(rows): found["by"] for rows, found in best.items()},
        }

    def floor(self, case: Case) -> dict[str, dict[str, float]]:
        """Milliseconds that no float32 model of this shape can be under."""
        found = self.figures()
        return {
            "prefill": {str(n): self.work.prefill(n, found["bytes_s"], found["flops_s"][str(n)]) for n in case.prefill},
            "decode": {str(n): self.work.decode(n, found["bytes_s"]) for n in case.decode},
        }


def figures(times: Times, commands: Mapping[str, tuple[Candidate, Command]]) -> dict[str, Any]:
    """What is kept of each candidate that did not fall out."""
    made: dict[str, Any] = {}
    truth = _truth(times, commands)
    for name, said in times.said.items():
        if name in times.fell:
            continue
        made[name] = {
            "load": statistics.median(said["loads"]), "memory": said["memory"], "weights": said["weights"],
            "versions": said["versions"],
        }  # fmt: skip
        if "tokens" in said:
            made[name]["agrees"] = _same(said["tokens"], truth)
        for (do, length), ms in times.ms[name].items():
            made[name].setdefault(do, {})[str(length)] = spread(ms)
    return made


def spread(ms: Sequence[float]) -> dict[str, float]:
    """The median, and a tenth from either end."""
    order = sorted(ms)
    tenth = math.floor(len(order) / 10)
    return {"median": statistics.median(order), "low": order[tenth], "high": order[-1 - tenth]}


def _truth(times: Times, commands: Mapping[str, tuple[Candidate, Command]]) -> list[int]:
    """The text that most of those that compute with the checkpoint's own weights give."""
    texts = [said["tokens"] for name, said in times.said.items() if "tokens" in said and commands[name][0].exact]
    return statistics.mode(map(tuple, texts)) if texts else []


def _same(text: Sequence[int], truth: Sequence[int]) -> int:
    """How many tokens are the same until the first that is not."""
    return next((i for i, (a, b) in enumerate(zip(text, truth, strict=False)) if a != b), len(truth))
