"""The table of specs and backends that a full run ends with.

A test marked `backend("torch")` that has a spec's name among its parameters fills that cell when it passes. With
--table a cell that no test filled fails the run, unless tests/expected_gaps.txt lists it with its reason, or others
that hold all its features filled theirs: nothing that was skipped reads as passed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SPECS = sorted(path.stem for path in (ROOT / "specs").glob("*.yaml"))
GAPS = ROOT / "tests" / "expected_gaps.txt"
BACKENDS = (
    "oracle",
    "torch",
    "onnxruntime",
    "fused",
    "packed",
    "by rows",
    "buffer",
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
    "aot_eager": False, "export": False, "buffer": True, "by rows": True, "cuda graph": True, "fp16": True,
    "packed": True,
}  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--table", action="store_true", help="print specs x backends and fail on a hole that is not expected"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "backend(*names): what the test proves of the spec among its parameters")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What fills the table goes one way for all specs: branches are counted in the other tests, at half the cost."""
    for item in items:
        if next(item.iter_markers("backend"), None) or item.path.name == "test_real_weights.py":
            item.add_marker(pytest.mark.no_cover)
        for marker in item.iter_markers("backend"):
            for cell in marker.args:
                assert cell in BACKENDS, f"{item.nodeid}: {cell} is no column of the table"
                spec = _spec(item)
                assert spec is not None, f"{item.nodeid} is marked {cell} and has no spec among its parameters"
                item.user_properties.append(("cell", f"{spec} | {cell}"))


def _spec(item: pytest.Item) -> str | None:
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return next((value for value in parameters.values() if isinstance(value, str) and value in SPECS), None)


def cells(reporter: Any) -> tuple[set[str], set[str]]:
    """(what passed in every test that speaks of it, what any such test did not pass)"""
    good: set[str] = set()
    bad: set[str] = set()
    for outcome, reports in reporter.stats.items():
        for report in reports:
            for key, cell in getattr(report, "user_properties", ()):
                if key == "cell" and outcome != "":  # which is how pytest files a set-up that went well
                    (good if outcome == "passed" and report.when == "call" else bad).add(cell)
    return good - bad, bad


def expected_gaps() -> dict[str, str]:
    """spec | backend -> reason"""
    gaps: dict[str, str] = {}
    for line in GAPS.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            named, backend, reason = (part.strip() for part in line.split("|", 2))
            specs = named.split()
            assert set(specs) <= {*SPECS, "all", "but"} and backend in BACKENDS and reason, f"{GAPS.name}: {line}"
            absent = [spec for spec in SPECS if spec not in specs] if specs[:2] == ["all", "but"] else specs
            gaps.update({f"{spec} | {backend}": reason for spec in absent})
    return gaps


def like_others() -> set[str]:
    """The cells of specs whose every feature some other spec of the column has."""
    from tests.structures import PROVIDERS, unlike

    chosen = {backend: unlike(*PROVIDERS) if graphs else unlike() for backend, graphs in UNLIKE.items()}
    return {f"{spec} | {backend}" for backend, names in chosen.items() for spec in SPECS if spec not in names}


def problems(good: set[str], gaps: dict[str, str]) -> list[str]:
    """Holes that nobody expected, and expected ones that are none."""
    every = {f"{spec} | {backend}" for spec in SPECS for backend in BACKENDS}
    holes = [f"hole: {cell}" for cell in sorted(every - good - set(gaps) - like_others())]
    return holes + [f"listed in {GAPS.name} and yet filled: {cell}" for cell in sorted(good & set(gaps))]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """On the controller alone: workers know only their own tests."""
    if not session.config.getoption("--table") or hasattr(session.config, "workerinput"):
        return
    good, _ = cells(session.config.pluginmanager.get_plugin("terminalreporter"))
    if problems(good, expected_gaps()) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not config.getoption("--table"):
        return
    good, bad = cells(terminalreporter)
    gaps, like = expected_gaps(), like_others()
    wide = max(map(len, SPECS))
    terminalreporter.section("specs and backends")
    terminalreporter.line(" " * wide + "  " + "  ".join(BACKENDS))
    for spec in SPECS:
        marks = [_mark(f"{spec} | {backend}", good, bad, gaps, like).ljust(len(backend)) for backend in BACKENDS]
        terminalreporter.line(f"{spec:{wide}}  {'  '.join(marks)}".rstrip())
    for reason in dict.fromkeys(gaps.values()):
        listed = sorted({cell.partition(" | ")[2] for cell, why in gaps.items() if why == reason})
        terminalreporter.line(f"gap in {', '.join(listed)}: {reason}")
    terminalreporter.line("like: each of its features is in a spec of the column that is ok")
    for problem in problems(good, gaps):
        terminalreporter.line(problem)


def _mark(cell: str, good: set[str], bad: set[str], gaps: dict[str, str], like: set[str]) -> str:
    if cell in bad:
        return "FAILED"
    return "ok" if cell in good else "gap" if cell in gaps else "like" if cell in like else "HOLE"
