"""Every peer's model from the same checkpoint, and how all of them run: exports, prefill, decode, load, memory, disk.

python -m benchmarks.peers                       everything: benchmarks/results/cpu-DATE.json and docs/performance.md
python -m benchmarks.peers --quick               SmolLM2-135M alone, in two turns; prints, and writes no file
python -m benchmarks.peers --only blockc,genai   those whose names begin so; prints too
python -m benchmarks.peers --exports             makes what is missing of environments, checkpoints and exports

All of it is kept under build/bench, or the folder that BLOCKC_BENCH names: 6 GB of environments and 45 GB of models.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import blockc
from benchmarks.peers import checkpoint
from benchmarks.peers.candidates import CASES, EXPORTS, LARGE, SMALL, Candidate, Case, chosen, filled, skipped, wanted
from benchmarks.peers.environments import Missing, pins, python
from benchmarks.peers.exporting import exported
from benchmarks.peers.measuring import GREEDY, Command, Machine, apart, figures, together
from benchmarks.peers.render import FORMAT, page, text
from blockc.bench import protocol
from blockc.bench.floors import Work
from blockc.bench.turns import cores
from blockc.language.spec import load
from blockc.pipeline.compiled import compile_spec

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
TURNS, QUICK = {SMALL: 4, LARGE: 3}, 2
THREADS = 2
UNITS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")
ROOM = 45e9  # bytes that the models of 1B take while they are made


class Bench:
    def __init__(self, only: list[str], quick: bool, skip: list[str]) -> None:
        self.cache = Path(os.environ.get("BLOCKC_BENCH", ROOT / "build" / "bench")).absolute()
        self.only, self.quick, self.skip = only, quick, skip
        self.pinned = cores(THREADS)
        self.missing: dict[str, dict[str, str]] = {}

    def paths(self, case: str) -> dict[str, Path | str]:
        """Of the checkpoints, which are made where they are not there."""
        from tests.proof.test_real_weights import downloaded

        held, gguf = self.cache / "checkpoints", downloaded().absolute()
        small = checkpoint.small(held / SMALL, gguf)
        recipes = Path(__file__).parent / "recipes"
        found: dict[str, Path | str] = {"gguf": gguf, "spec": CASES[case].spec, "recipes": recipes}
        if case == SMALL:
            return found | {"checkpoint": small, "bf16": small}
        return found | {
            "checkpoint": checkpoint.large(held / LARGE, "F32", small),
            "bf16": checkpoint.large(held / f"{LARGE}-bf16", "BF16", small),
        }

    def exports(self, case: str, paths: dict[str, Path | str]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        used = {candidate.made for candidate in chosen(case, self.only, self.skip).values()}
        for name, export in wanted(case, self.only, self.skip).items():
            out = self.out(case, name)
            try:
                made[name] = exported(name, export, self.cache, out, paths, self.pinned)
            except Missing as error:
                self.missing.setdefault(case, {})[name] = str(error)
                print(f"{name} is left out: {error}", flush=True)
            if name not in used and name in made and case == LARGE:
                _emptied(out)
        return made

    def out(self, case: str, name: str) -> Path:
        return self.cache / "models" / case / name.replace(" ", "-")

    def commands(self, case: str, paths: dict[str, Path | str]) -> dict[str, tuple[Candidate, Command]]:
        """The workers whose models and environments are there."""
        found: dict[str, tuple[Candidate, Command]] = {}
        missing = self.missing.setdefault(case, {})
        for name, candidate in chosen(case, self.only, self.skip).items():
            if candidate.made in missing:
                continue
            try:
                interpreter = python(self.cache, candidate.environment)
            except Missing as error:
                missing[name] = str(error)
                continue
            out = "" if candidate.made is None else self.out(case, candidate.made)
            found[name] = candidate, [interpreter, *filled(candidate.worker, "workers", paths | {"out": out})]
        return found

    def measured(self, name: str, case: Case) -> dict[str, Any]:
        paths = self.paths(name)
        made = self.exports(name, paths)
        commands = self.commands(name, paths)
        machine = Machine(Work(compile_spec(load(ROOT / "specs" / f"{case.spec}.yaml")), "fp32"), self.pinned)
        turns = QUICK if self.quick else TURNS[name]
        try:
            if case.together:
                times = together(case, commands, machine, turns, self.pinned)
            else:
                files = {n: Path(command[2]) for n, (_, command) in commands.items()}
                times = apart(case, commands, machine, turns, self.pinned, files)
        finally:
            machine.close()
        return {
            "spec": case.spec, "turns": turns, "greedy": GREEDY, "machine": machine.figures(),
            "floor": machine.floor(case), "exports": made, "candidates": figures(times, commands),
            "missing": {n: "left out of this run" for n in EXPORTS if skipped(name, n, self.skip)}
            | self.missing[name] | times.fell,
        }  # fmt: skip


def _emptied(folder: Path) -> None:
    """What was exported for its figures alone leaves its name, and no bytes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def machine_facts(pinned: Sequence[int]) -> dict[str, Any]:
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    said = {name.strip(): value.strip() for name, _, value in lines}
    return {
        "cpu": said.get("model name", "a processor without a name"),
        "units": [unit for unit in UNITS if unit in said.get("flags", "").split()],
        "cores": os.cpu_count(),
        "threads": len(pinned),
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--exports", action="store_true")
    parser.add_argument("--only", default="", metavar="NAME,...")
    parser.add_argument("--skip", default="", metavar="CASE:NAME,...", help="such as 1B:optimum; the results say so")
    said = parser.parse_args()
    bench = Bench(_names(said.only), said.quick, _names(said.skip))
    os.environ |= {"PYTHONPATH": str(_protocol(bench.cache)), "HF_HUB_OFFLINE": "1"}
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # pip compiles what it installs, and blockc runs from its sources
    cases = {name: case for name, case in CASES.items() if name == SMALL or not said.quick}
    fresh = LARGE in cases and not said.only and not (bench.cache / "models" / LARGE).is_dir()
    if fresh and shutil.disk_usage(bench.cache).free < ROOM:
        parser.error(f"{bench.cache}: the models of {LARGE} want {ROOM / 1e9:.0f} GB; --quick does without them")
    if said.exports:
        for name in cases:
            bench.exports(name, paths := bench.paths(name))
            bench.commands(name, paths)
        return
    found = {
        "format": FORMAT, "date": datetime.date.today().isoformat(), "blockc": blockc.__version__,
        "pins": pins(), **machine_facts(bench.pinned),
        "cases": {name: bench.measured(name, case) for name, case in cases.items()},
    }  # fmt: skip
    print(text(found))
    if not (said.quick or said.only):
        (RESULTS / f"cpu-{found['date']}.json").write_text(json.dumps(found, indent=1) + "\n")
        page(found)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _protocol(cache: Path) -> Path:
    """A folder with the protocol alone, which workers in other environments import."""
    folder = cache / "protocol"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(protocol.__file__, folder)
    return folder


if __name__ == "__main__":
    main()
