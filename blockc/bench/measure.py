"""What a benchmark measures, in which order, and its results."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from blockc.bench.asked import Asked, Measure
from blockc.bench.encoders import CONFIG, Sizes, is_encoder, sizes_of
from blockc.bench.floors import Work
from blockc.bench.opening import disk_of, is_build, is_shared
from blockc.bench.turns import (
    Worker,
    WorkerError,
    ask_by_turns,
    cores,
    join_answers,
    start_workers,
    worker_command,
)
from blockc.bench.writing import Prompt, Writing, encode_prompt, prepare_writing, write_by_turns
from blockc.graph.target import Provider
from blockc.language.spec import load
from blockc.pipeline.compiled import compile_spec
from blockc.products.manifest import MODEL
from blockc.runtime import SessionError
from blockc.runtime.opening import manifest_of

_READS, _PRODUCTS = 5, 5
Say = Callable[[str], None]


@dataclass(frozen=True)
class BenchEntry:
    """A folder to measure; another tool's graph may be entered twice. `work` gives a build's floor.

    `sizes` are those of an encoder, which reads whole texts; None: a decoder.
    """

    name: str
    folder: Path
    shared: bool = False
    work: Work | None = None
    sizes: Sizes | None = None

    def command(self, provider: Provider) -> list[str]:
        shared = ["--shared"] if self.shared else []
        worker = "blockc.bench.candidate" if self.sizes is None else "blockc.bench.encoders"
        return worker_command(worker, str(self.folder), "--provider", provider, *shared)


@dataclass(frozen=True)
class Speed:
    """The machine's speed during one measure: the larger of the readings before and after it."""

    bytes_s: float
    flops_s: float | None = None
    by: str | None = None


@dataclass(frozen=True)
class OpTime:
    """The nodes of one operator in a decode step, and the milliseconds that they take together."""

    op: str
    nodes: int
    ms: float


@dataclass(frozen=True)
class StepProfile:
    """Decode steps under onnxruntime's profiler: what each took, in milliseconds, and what operators take of one."""

    ms: tuple[float, ...]
    ops: tuple[OpTime, ...]

    @property
    def median(self) -> float:
        return float(np.median(self.ms))

    @property
    def total(self) -> OpTime:
        """All nodes together."""
        return OpTime("all nodes", sum(op.nodes for op in self.ops), sum(op.ms for op in self.ops))


@dataclass
class Candidate:
    """The results of one entry. `floor` is in milliseconds, where it is known.

    `loop` is what each decode step takes outside onnxruntime's run, in milliseconds. `profiles` is empty, and `writing`
    None, unless asked for.
    """

    entry: BenchEntry
    disk: int
    load: dict[str, Any]
    ms: dict[Measure, list[float]] = field(default_factory=dict[Measure, list[float]])
    floor: dict[Measure, float] = field(default_factory=dict[Measure, float])
    loop: dict[Measure, list[float]] = field(default_factory=dict[Measure, list[float]])
    profiles: dict[Measure, StepProfile] = field(default_factory=dict[Measure, StepProfile])
    writing: Writing | None = None

    def percentile(self, measure: Measure, p: float) -> float:
        """The p-th percentile of the times, interpolated linearly."""
        return float(np.percentile(self.ms[measure], p))

    def median(self, measure: Measure) -> float:
        return self.percentile(measure, 50)

    def loop_median(self, measure: Measure) -> float | None:
        return float(np.median(self.loop[measure])) if self.loop.get(measure) else None


@dataclass
class Bench:
    """All candidates, the command's own folder first; `machine` is None where the machine is not measured.

    `prompt` is the text that they write on from, if there is one.
    """

    provider: Provider
    pinned: list[int]
    threads: int
    turns: int
    measures: tuple[Measure, ...]
    candidates: list[Candidate]
    machine: dict[str, Any] | None = None
    speeds: dict[Measure, Speed] = field(default_factory=dict[Measure, Speed])
    prompt: Prompt | None = None

    def __repr__(self) -> str:
        names = ", ".join(candidate.entry.name for candidate in self.candidates)
        measured = [*map(str, self.measures), *([self.prompt.name] if self.prompt else [])]
        return f"<Bench of {names} on {self.provider}: {', '.join(measured)}>"

    def text(self) -> str:
        """The results as tables."""
        from blockc.bench.tables import as_text

        return as_text(self)

    def data(self) -> dict[str, Any]:
        """The results as JSON has them."""
        from blockc.bench.tables import as_data

        return as_data(self)

    @property
    def other(self) -> Candidate | None:
        """The candidate of which the others' ratios are given: the first one compared with."""
        return self.candidates[1] if len(self.candidates) > 1 else None


def find_entries(folder: Path, against: Sequence[Path]) -> list[BenchEntry]:
    """The entries of all folders, all decoders or all encoders, with distinct names. Raises SessionError."""
    folders = [folder, *against]
    plain = [Path(os.path.abspath(path)).name for path in folders]
    names = plain if len(set(plain)) == len(plain) else [str(path) for path in folders]
    if len(set(names)) < len(names):
        raise SessionError(f"{max(names, key=names.count)}: is given twice")
    found: list[BenchEntry] = []
    for name, path in zip(names, folders, strict=True):
        work = _work_of(path) if is_build(path) else None
        if is_encoder(path):
            found.append(BenchEntry(name, path, work=work, sizes=sizes_of(path)))
            continue
        found.append(BenchEntry(name, path, work=work))
        found += [BenchEntry(f"{name}, shared cache", path, shared=True)] if work is None and is_shared(path) else []
    if other := next((each for each in found if (each.sizes is None) != (found[0].sizes is None)), None):
        without, having = (other, found[0]) if found[0].sizes is None else (found[0], other)
        raise SessionError(f"{without.name} has no cache, and {having.name} has one: they are not measured alike")
    return found


def find_vocab(found: Sequence[BenchEntry]) -> int | None:
    """How many tokens all encoders have; None of decoders. Raises SessionError where no file says it."""
    if found[0].sizes is None:
        return None
    said = [entry.sizes.vocab for entry in found if entry.sizes and entry.sizes.vocab]
    if not said:
        folder = found[0].folder
        raise SessionError(f"{folder}: its vocabulary is not known: a {CONFIG} beside {MODEL} says vocab_size")
    return min(said)


def measures_of(found: Sequence[BenchEntry], asked: Asked) -> list[Measure]:
    """What is measured of all entries. Raises UsageError for what does not fit them."""
    sizes = [entry.sizes for entry in found if entry.sizes is not None]
    if not sizes:
        return asked.of_decoders()
    return asked.of_encoders(min((each.context for each in sizes if each.context), default=None))


def _work_of(folder: Path) -> Work:
    target = manifest_of(folder).target
    spec = folder / "spec.resolved.yaml"
    if not spec.is_file():
        raise SessionError(f"{folder}: no {spec.name}, so not a complete build")
    return Work(compile_spec(load(spec)), target.dtype, target.quant)


def run_bench(
    found: Sequence[BenchEntry],
    measures: Sequence[Measure],
    *,
    provider: Provider = "cpu",
    threads: int | None = None,
    turns: int = 5,
    ops: bool = False,
    prompt: Prompt | None = None,
    said: Say = lambda _: None,
) -> Bench:
    """Opens all entries at once, and measures them in turns; with `ops` it then profiles the decode steps of each.

    With `prompt`, all write on from it, too. Raises SessionError and WorkerError.
    """
    pinned = cores(threads)
    if pinned and threads is not None and len(pinned) < threads:
        raise SessionError(f"{threads} threads, but this process has {len(pinned)} cores: each core runs one thread")
    threads = threads or len(pinned) or os.cpu_count() or 1
    with start_workers({entry.name: entry.command(provider) for entry in found}, pinned) as workers:
        candidates = [_load(entry, workers[entry.name], threads, measures, said) for entry in found]
        bench = Bench(provider, pinned, threads, turns, tuple(measures), candidates, prompt=prompt)
        if prompt is not None:
            _write(bench, workers, prompt, said)
        unseen = provider == "cuda" or not measures
        machine = {} if unseen else {"the machine": worker_command("blockc.bench.machine")}
        with start_workers(machine, pinned) as gauges:
            _measure(bench, workers, next(iter(gauges.values()), None), said)
        if ops:
            _profile(bench, workers, said)
    _lay_floors(bench)
    return bench


def _write(bench: Bench, workers: Mapping[str, Worker], prompt: Prompt, said: Say) -> None:
    starts = encode_prompt(prompt, (candidate.entry.folder for candidate in bench.candidates))
    texts: dict[str, Writing] = {}
    for each in bench.candidates:
        name, folder = each.entry.name, each.entry.folder
        each.writing = texts[name] = prepare_writing(workers[name], prompt, starts[folder], each.load.get("context"))
    said(f"{prompt.name}, {_turns(bench)}")
    write_by_turns(workers, texts, prompt, bench.turns)


def _measure(bench: Bench, workers: Mapping[str, Worker], gauge: Worker | None, said: Say) -> None:
    """Measures all candidates. `gauge` is the machine's worker, asked before and after each measure."""
    found = [candidate.entry for candidate in bench.candidates]
    vocab = find_vocab(found)
    tokens = {} if vocab is None else {"vocab": vocab}
    bench.machine = gauge and gauge.ask("load", threads=bench.threads)
    for measure in bench.measures:
        said(f"{measure}, {_turns(bench)}")
        before = gauge and _measure_speed(gauge, measure, found)
        answers = ask_by_turns(workers, bench.turns, measure.do, **measure.request, **tokens)
        after = gauge and _measure_speed(gauge, measure, found)
        for candidate in bench.candidates:
            candidate.ms[measure] = join_answers(answers[candidate.entry.name], "ms")
            candidate.loop[measure] = join_answers(answers[candidate.entry.name], "loop_ms")
        if before and after:
            bench.speeds[measure] = faster_of(before, after)


def _turns(bench: Bench) -> str:
    return f"{bench.turns} turn{'' if bench.turns == 1 else 's'}"


def _profile(bench: Bench, workers: Mapping[str, Worker], said: Say) -> None:
    """Profiles decode steps last, since each profile needs a session of its own."""
    for measure in bench.measures:
        if measure.do == "decode":
            said(f"{measure}, by operator")
            for candidate in bench.candidates:
                answer = workers[candidate.entry.name].ask("ops", **measure.request)
                ops = tuple(OpTime(*op) for op in answer["ops"])
                candidate.profiles[measure] = StepProfile(tuple(answer["ms"]), ops)


def _load(entry: BenchEntry, worker: Worker, threads: int, measures: Sequence[Measure], said: Say) -> Candidate:
    answer = worker.ask("load", threads=threads)
    said(f"{entry.name}: opened in {answer['seconds']:.2f} s")
    longest = max((measure.needs for measure in measures), default=0)
    if longest > answer.get("context", longest):
        raise WorkerError(f"{entry.name}: {longest} tokens are needed, and its context is {answer['context']}")
    return Candidate(entry, disk_of(entry.folder), answer)


def _measure_speed(gauge: Worker, measure: Measure, found: Sequence[BenchEntry]) -> Speed:
    bytes_s = max(gauge.ask("read", repeat=_READS)["bytes_s"])
    shapes = {shape: None for entry in found if entry.work for shape in entry.work.products()}
    if not measure.multiplied or not shapes:
        return Speed(bytes_s)
    best = gauge.ask("product", rows=measure.multiplied, shapes=list(shapes), repeat=_PRODUCTS)
    return Speed(bytes_s, best["flops_s"], best["by"])


def faster_of(one: Speed, two: Speed) -> Speed:
    product = max(one, two, key=lambda speed: speed.flops_s or 0)
    return Speed(max(one.bytes_s, two.bytes_s), product.flops_s, product.by)


def _lay_floors(bench: Bench) -> None:
    """Computes each build's floor; another tool's folder, which has no spec, gets the floor of the first entry."""
    for candidate in bench.candidates:
        work = candidate.entry.work or bench.candidates[0].entry.work
        for measure, speed in bench.speeds.items():
            if work is not None:
                candidate.floor[measure] = floor_of(work, measure, speed)


def floor_of(work: Work, measure: Measure, speed: Speed) -> float:
    """Milliseconds."""
    if measure.do == "encode":
        return work.encode(measure.rows, measure.tokens, speed.bytes_s, speed.flops_s)
    if measure.do == "decode" or speed.flops_s is None:
        return work.decode(measure.tokens, speed.bytes_s)
    return work.prefill(measure.tokens, speed.bytes_s, speed.flops_s)
