"""What `make quick` runs: the front end, without a backend loaded, and the proof of three unlike specs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from blockc import api
from tests.tiers import BACKENDS, ROOT, backends, costly

PROVED = ("gpt2", "gemma3-1b", "llama3-8b")
FRONT = {"source", "spec_words", "spec_keys", "spec_layers", "diagnostics", "fmt", "ir", "report", "passes", "terminal"}


@pytest.mark.parametrize("name", PROVED)
def test_three_specs_are_proved(name: str) -> None:
    proof = api.verify(ROOT / "specs" / f"{name}.yaml").proof
    assert proof is not None and proof.complete, proof and proof.table()
    assert len(proof.rows) >= 57  # all of them: nothing is sampled here


def test_a_file_that_loads_a_backend_is_told_by_its_imports(tmp_path: Path) -> None:
    for text, found in (
        ("import torch\n", {"torch"}),
        ("def test() -> None:\n    from blockc.proof import prove\n", {"blockc.proof"}),
        ("from tests.checkpoints import save\n", backends(ROOT / "tests" / "checkpoints.py")),
        ("from blockc import api\nimport numpy as np\n", set()),
        ("import blockc.runtime.session\n", {"blockc.runtime"}),
    ):
        (tmp_path / "test_a.py").write_text(text)
        (tmp_path / f"test_{abs(hash(text))}.py").write_text(text)
        assert backends(tmp_path / f"test_{abs(hash(text))}.py") == found, text


def test_a_test_that_starts_a_process_is_told_by_what_it_names(tmp_path: Path) -> None:
    text = """import subprocess
def run(): return subprocess.run(["true"])
TABLE = {"a": lambda: run()}
@pytest.fixture
def started(): run()
def test_by_itself(): subprocess.Popen(["true"])
def test_by_a_function(): assert run()
def test_by_a_fixture(started): pass
@pytest.mark.parametrize("key", TABLE)
def test_by_a_table(key): TABLE[key]()
def test_of_a_package(): pytest.importorskip("torch")
def test_in_this_process(capsys): assert "subprocess"
"""
    (tmp_path / "test_a.py").write_text(text)
    assert costly(tmp_path / "test_a.py") == {
        "test_by_itself", "test_by_a_function", "test_by_a_fixture", "test_by_a_table", "test_of_a_package",
    }  # fmt: skip


@pytest.mark.costly
def test_quick_keeps_the_front_end_and_loads_no_backend() -> None:
    command = [sys.executable, "-m", "pytest", "--quick", "--collect-only", "-q"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = {line.split("::")[0].split(":")[0] for line in listed.splitlines() if line.startswith("tests/")}
    kept = {Path(file).stem.removeprefix("test_") for file in files}
    assert kept >= {*FRONT, "quick"}
    assert not {"matrix", "torch", "targets", "session", "weights", "cli"} & kept
    for file in files:
        assert not backends(ROOT / file), file
    assert "test_quick_keeps_the_front_end" not in listed  # it is costly itself
    assert "test_a_closed_stream_is_quiet" not in listed and "test_debug_stands_before" not in listed
    assert "torch" in BACKENDS
