"""The table of specs and backends that a run ends with, and what of the tests --quick keeps.

A test marked `backend("torch")` that has a spec's name among its parameters fills that cell when it passes. With
--table a cell that no test filled fails the run, unless tests/expected_gaps.txt lists it with its reason, or others
that hold all its features filled theirs: nothing that was skipped reads as passed, and what ran a part of its cases
reads `sampled`. With BLOCKC_MATRIX=1 there is no such excuse: every cell is filled in full.

--quick keeps the files that import no backend, and of these what is not marked `costly` and starts no process.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT

# Before numpy and torch are loaded: the models are too small for threads, which wait for each other at four times the
# cost where other work has the cores.
for _threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")

SPECS = sorted(path.stem for path in (ROOT / "specs").glob("*.yaml"))
GAPS = ROOT / "tests" / "expected_gaps.txt"
ALWAYS = "always: "
BACKENDS = (
    "oracle",
    "torch",
    "onnxruntime",
    "fused",
    "packed",
    "by rows",
    "buffer",
    "oldest opset",
    "cuda graph",
    "fp16",
    "reference",
    "golden",
    "aot_eager",
    "inductor",
    "export",
    "onnx export",
    "meta",
    "full-size onnx",
)


# Costly columns, and what a spec has to be told from others by to stand in one: see tests/structures.py.
UNLIKE = {
    "aot_eager": "kinds", "export": "model", "buffer": "graphs", "by rows": "graphs", "cuda graph": "graphs",
    "fp16": "graphs", "oldest opset": "graphs", "packed": "graphs",
}  # fmt: skip
LEGEND = {
    "sampled": "six kinds of run of the twin; `make matrix` runs all",
    "like": "each of its features is in a spec of the column that is ok",
    "kin": "each kind of its ops is in a spec of the column that is ok; `make matrix` runs it",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--table", action="store_true", help="print specs x backends and fail on a hole that is not expected"
    )
    parser.addoption("--quick", action="store_true", help="the front end, and the proof of three specs")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where a file imports a backend, --quick does not even load it."""
    from tests.tiers import backends

    named = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if named and config.getoption("--quick") and backends(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What fills the table goes one way for all specs: branches are counted in the other tests, at half the cost."""
    if os.environ.get("BLOCKC_CLIENTS") != "1":
        left = [item for item in items if next(item.iter_markers("client"), None)]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
    if config.getoption("--quick"):
        from tests.tiers import costly

        left = [
            item
            for item in items
            if next(item.iter_markers("costly"), None) or item.name.partition("[")[0] in costly(item.path)
        ]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
    from tests.tiers import whole

    for item in items:
        if next(item.iter_markers("backend"), None) or item.path.name == "test_real_weights.py":
            item.add_marker(pytest.mark.no_cover)
        for marker in item.iter_markers("backend"):
            for cell in marker.args:
                assert cell in BACKENDS, f"{item.nodeid}: {cell} is no column of the table"
                spec = _spec(item)
                assert spec is not None, f"{item.nodeid} is marked {cell} and has no spec among its parameters"
                item.user_properties.append(("cell", f"{spec} | {cell}"))
                if marker.kwargs.get("sampled") and not whole(spec):
                    item.user_properties.append(("sampled", f"{spec} | {cell}"))


def _spec(item: pytest.Item) -> str | None:
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return next((value for value in parameters.values() if isinstance(value, str) and value in SPECS), None)


def cells(reporter: Any) -> tuple[set[str], set[str], set[str]]:
    """(what passed in every test that speaks of it, what any such test did not pass, of what a sample was run)"""
    good: set[str] = set()
    bad: set[str] = set()
    sampled: set[str] = set()
    for outcome, reports in reporter.stats.items():
        for report in reports:
            for key, cell in getattr(report, "user_properties", ()):
                if key == "sampled":
                    sampled.add(cell)
                if key == "cell" and outcome != "":  # which is how pytest files a set-up that went well
                    (good if outcome == "passed" and report.when == "call" else bad).add(cell)
    return good - bad, bad, sampled


def expected_gaps() -> dict[str, str]:
    """spec | backend -> reason; at full width only those that no test could fill, whose reason begins with `always`."""
    from tests.tiers import WIDE

    gaps: dict[str, str] = {}
    for line in GAPS.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            named, backend, reason = (part.strip() for part in line.split("|", 2))
            specs = named.split()
            assert set(specs) <= {*SPECS, "all", "but"} and backend in BACKENDS and reason, f"{GAPS.name}: {line}"
            if WIDE and not reason.startswith(ALWAYS):
                continue
            absent = [spec for spec in SPECS if spec not in specs] if specs[:2] == ["all", "but"] else specs
            gaps.update({f"{spec} | {backend}": reason for spec in absent})
    return gaps


def like_others() -> dict[str, str]:
    """The cells of specs whose every feature, or every kind of op, some other spec of the column has."""
    from tests.structures import PROVIDERS
    from tests.tiers import chosen, traced

    specs = {"kinds": traced(), "model": chosen(), "graphs": chosen(*PROVIDERS)}
    return {
        f"{spec} | {backend}": "kin" if by == "kinds" else "like"
        for backend, by in UNLIKE.items()
        for spec in SPECS
        if spec not in specs[by]
    }


def problems(good: set[str], gaps: dict[str, str]) -> list[str]:
    """Holes that nobody expected, and expected ones that are none."""
    every = {f"{spec} | {backend}" for spec in SPECS for backend in BACKENDS}
    holes = [f"hole: {cell}" for cell in sorted(every - good - set(gaps) - set(like_others()))]
    return holes + [f"listed in {GAPS.name} and yet filled: {cell}" for cell in sorted(good & set(gaps))]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """On the controller alone: workers know only their own tests."""
    if not session.config.getoption("--table") or hasattr(session.config, "workerinput"):
        return
    good, _, _ = cells(session.config.pluginmanager.get_plugin("terminalreporter"))
    if problems(good, expected_gaps()) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not config.getoption("--table"):
        return
    from tests.tiers import WIDE

    good, bad, sampled = cells(terminalreporter)
    gaps, like = expected_gaps(), like_others()
    wide = max(map(len, SPECS))
    terminalreporter.section("specs and backends")
    sizes = [max(len(backend), len("sampled")) for backend in BACKENDS]
    heads = (backend.ljust(size) for backend, size in zip(BACKENDS, sizes, strict=True))
    terminalreporter.line((" " * wide + "  " + "  ".join(heads)).rstrip())
    for spec in SPECS:
        marks = [_mark(f"{spec} | {backend}", good, bad, gaps, like, sampled) for backend in BACKENDS]
        line = "  ".join(mark.ljust(size) for mark, size in zip(marks, sizes, strict=True))
        terminalreporter.line(f"{spec:{wide}}  {line}".rstrip())
    for reason in dict.fromkeys(gaps.values()):
        listed = sorted({cell.partition(" | ")[2] for cell, why in gaps.items() if why == reason})
        terminalreporter.line(f"gap in {', '.join(listed)}: {reason}")
    for mark in [] if WIDE else LEGEND:
        terminalreporter.line(f"{mark}: {LEGEND[mark]}")
    for problem in problems(good, gaps):
        terminalreporter.line(problem)


def _mark(
    cell: str, good: set[str], bad: set[str], gaps: dict[str, str], like: dict[str, str], sampled: set[str]
) -> str:
    if cell in bad:
        return "FAILED"
    if cell in good:
        return "sampled" if cell in sampled else "ok"
    return "gap" if cell in gaps else like.get(cell, "HOLE")
