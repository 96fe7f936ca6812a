"""Mutation testing: mutants of language/, passes/ and ort/fuse, by chance, and the tests that should see them.

    python -m tests.mutation

BLOCKC_MUTANTS=n draws n of them (60), BLOCKC_SEED=s others. Each is tried in a copy of the tree, by the quick tests of
its room, and what survives these by the wide ones. A survivor that docs/mutation.md does not explain is printed, and
the exit status is 1.
"""

from __future__ import annotations

import difflib
import math
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from functools import cache
from pathlib import Path

from tests.mutants import Mutant, mutants
from tests.paths import ROOT

PAGE = ROOT / "docs" / "mutation.md"
MEMORY = 12 << 30  # bytes: a mutant that fills the memory is killed
FORK = multiprocessing.get_context("fork")
Key = tuple[str, str, str, str]

SPEC = [
    "language/test_spec_keys.py",
    "language/test_spec_words.py",
    "language/test_spec_layers.py",
    "language/test_spec_terms.py",
]
WIDE = [
    "project/test_editors.py", "diagnostics/test_diagnostics.py", "language/test_spec_meaning.py",
    "checks/test_policy.py", "report/test_report.py", "diff/test_diff.py", "ir/test_ir.py", "emit/test_generated.py",
    "importing/test_facts.py", "proof/test_properties.py", "proof/test_cases.py",
    "fuzz/test_found.py", "fuzz/test_almost.py",
]  # fmt: skip
FUSE = ["ort/test_fuse_attention.py", "ort/test_fuse.py"]
GRAPHS = ["proof/test_targets.py", "ort/test_cuda.py"]
# A room: its files, the tests that see most of its mutants within seconds, and the others that speak of it.
ROOMS: dict[str, tuple[str, list[str], list[str]]] = {
    "spec": ("language/spec/*.py", SPEC, WIDE),
    "algebra": (
        "language/algebra.py",
        ["language/test_spec_terms.py", "language/test_spec_layers.py"],
        [*SPEC[:2], *WIDE],
    ),
    "passes": ("passes/*.py", ["passes/test_passes.py", *FUSE], ["ir/test_ir.py", "ort/test_fuse.py", *GRAPHS]),
    "fuse": ("ort/fuse/*.py", FUSE, ["ort/test_fuse.py", *GRAPHS]),
}
# What the quick tests leave to the wide ones.
SLOW = ["the_deepest_model", "called_as_a_helper_is", "fused_is_unfused", "full_size", "legal", "as_it_lies_there"]
HEAVY = ["hypothesis", "numpy", "onnx", "onnxruntime", "pydantic", "pytest", "torch"]


def drawn(root: Path, count: int, seed: int) -> list[tuple[str, Mutant]]:
    """As many of each room, with the room's name."""
    chosen: list[tuple[str, Mutant]] = []
    for i, (room, (files, _, _)) in enumerate(ROOMS.items()):
        every = [
            m for path in sorted((root / "blockc").glob(files)) for m in mutants(path, str(path.relative_to(root)))
        ]
        share = (count + i) // len(ROOMS)
        chosen += [(room, m) for m in random.Random(f"{seed} {room}").sample(every, min(share, len(every)))]
    return chosen


@cache
def explained() -> dict[Key, str]:
    """What the table of the page says of a mutant: (file, function, before, after) -> why no test can tell."""
    rows: dict[Key, str] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 4 and cells[0].startswith("`blockc/"):
            place, before, after = (cell.strip("`").strip() for cell in cells[:3])
            file, _, function = place.partition(" ")
            rows[file, function, before, after] = cells[3]
    return rows


class Copy:
    """A copy of the tree, in which the tests run in processes of their own, forked where what is large is imported."""

    def __init__(self, folder: Path, source: Path = ROOT) -> None:
        self.tree, self.log = folder / "tree", folder / "log"
        left_out = shutil.ignore_patterns(
            ".git", ".venv", ".*cache", "build", "dist", "__pycache__", "*.safetensors", "*.onnx*"
        )
        shutil.copytree(source, self.tree, ignore=left_out)
        self.seconds: dict[str, float] = {}

    def passes(self, tests: list[str], limit: float) -> bool:
        """`limit` in seconds of a processor: on a busy machine others pass more quickly."""
        run = FORK.Process(target=self._run, args=(tests, math.ceil(limit)))
        run.start()
        run.join(60 + 20 * limit)
        if run.is_alive() and run.pid is not None:
            os.killpg(run.pid, signal.SIGKILL)
            run.join()
        return run.exitcode == 0

    def _run(self, tests: list[str], limit: int) -> None:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for name in [name for name in sys.modules if name.partition(".")[0] in ("blockc", "tests")]:
            del sys.modules[name]
        os.chdir(self.tree)
        sys.path.insert(0, str(self.tree))
        os.environ |= {"PYTHONPATH": str(self.tree), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        import pytest

        options = ["-x", "-q", "--no-header", "--tb=no", "--disable-warnings", "--assert=plain"]
        if tests in [quick for _, quick, _ in ROOMS.values()]:
            options += ["-k", " and ".join(f"not {name}" for name in SLOW)]
        sys.exit(pytest.main([*options, *(f"tests/{name}" for name in tests)]))

    def killed(self, mutant: Mutant, stages: list[list[str]]) -> str:
        """The test that failed, or nothing."""
        compile(mutant.text, mutant.file, "exec")  # raises SyntaxError: a mutant that is no code would count as killed
        path = self.tree / mutant.file
        whole = path.read_text(encoding="utf-8")
        for tests in stages:
            self.measure(tests)
            path.write_text(mutant.text, encoding="utf-8")
            passed = self.passes(tests, 10 + 4 * self.seconds[str(tests)])
            path.write_text(whole, encoding="utf-8")
            if not passed:
                failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", self.log.read_text("utf-8", "replace"), re.MULTILINE)
                return failed[0] if failed else "no end"
        return ""

    def measure(self, tests: list[str]) -> None:
        """Without a mutant all tests pass, or nothing that they say of one counts."""
        if str(tests) not in self.seconds:
            start = _processor()
            if not self.passes(tests, 900):
                raise SystemExit(f"the tests fail without a mutant:\n{self.log.read_text()}")
            self.seconds[str(tests)] = _processor() - start


def _processor() -> float:
    """Seconds that the processes which have ended have run."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def difference(root: Path, mutant: Mutant) -> str:
    old = (root / mutant.file).read_text(encoding="utf-8").splitlines()
    return "\n".join(difflib.unified_diff(old, mutant.text.splitlines(), mutant.file, mutant.file, lineterm="", n=1))


def prepare() -> None:
    """What is large is imported once, and starts no threads: a process that is forked would wait for them."""
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    for name in HEAVY:
        __import__(name)


def main() -> int:
    prepare()
    count, seed = (int(os.environ.get(name, n)) for name, n in (("BLOCKC_MUTANTS", "60"), ("BLOCKC_SEED", "1")))
    said: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        for room, mutant in drawn(copy.tree, count, seed):  # not of the tree that may change meanwhile
            start = time.monotonic()
            by = "" if mutant.key in explained() else copy.killed(mutant, list(ROOMS[room][1:]))
            verdict = "explained" if mutant.key in explained() else "killed" if by else "SURVIVED"
            said[verdict] += 1
            print(f"{verdict} {mutant.file}:{mutant.line} {mutant.function} [{time.monotonic() - start:.0f} s] {by}")
            print(
                difference(copy.tree, mutant) if verdict == "SURVIVED" else f"    {mutant.before} -> {mutant.after}",
                flush=True,
            )
    print(", ".join(f"{n} {verdict}" for verdict, n in sorted(said.items())))
    return 1 if said["SURVIVED"] else 0


if __name__ == "__main__":
    sys.exit(main())
