"""benchmarks/torch.py on one small layer: what it compares, what it refuses, what it writes. No time is judged."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import torch as bench
from benchmarks.ratios import outside


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bench.Side]:
    return bench.sides(bench.reduced("smollm2-135m", 1, 64), tmp_path_factory.mktemp("beside"))


def ids() -> torch.Tensor:
    return torch.randint(64, (2, 7), generator=torch.Generator().manual_seed(3))


def test_both_say_the_same(made: dict[str, bench.Side]) -> None:
    found = bench.differences(made, ids())
    assert found.keys() == bench.CLOSENESS.keys() and max(found.values()) < 1e-4


@pytest.mark.parametrize(("name", "change"), [("final_norm.weight", 1.001), ("layers.0.attention.k.weight", 1.1)])
def test_other_weights_are_not_measured(name: str, change: float, made: dict[str, bench.Side]) -> None:
    weight = made[bench.OURS].model.get_parameter(name)
    before = weight.detach().clone()
    try:
        with torch.no_grad():
            weight *= change
        with pytest.raises(SystemExit, match="differ by .* not measured"):
            bench.differences(made, ids())
    finally:
        with torch.no_grad():
            weight.copy_(before)


def test_a_step_of_training_changes_the_weights_of_both_alike(made: dict[str, bench.Side]) -> None:
    first = [float(made[name].train(ids()).detach()) for name in made]
    then = [float(made[name].train(ids()).detach()) for name in made]
    assert first[0] == pytest.approx(first[1], rel=1e-5) and then[0] == pytest.approx(then[1], rel=1e-5)
    assert then[0] < first[0]


def test_ratios_are_those_of_a_turn() -> None:
    """A machine that is ten times slower in one turn changes no ratio."""
    theirs = [1.0, 10.0, 2.0, 1.0, 5.0]
    found = bench.compared([each * 0.5 for each in theirs], theirs)
    assert (found["ratio"], found["low"], found["high"]) == (0.5, 0.5, 0.5)
    assert bench.compared([1.0, 2.0, 9.0], [1.0, 1.0, 1.0])["ratio"] == 2.0


@pytest.mark.parametrize("count", [6, 8, 10, 16, 31])
def test_the_interval_misses_the_median_once_in_twenty_and_no_shorter_one_does(count: int) -> None:
    def missed(out: int) -> float:
        return 2 * sum(math.comb(count, i) for i in range(out + 1)) / 2**count

    out = outside(count)
    assert missed(out) <= 0.05 < missed(out + 1)


def test_a_run_is_written_between_the_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PROMPT": 6, "PASTS": (4,), "TRAINED": 5, "STEPS": 2, "VOCAB": 64}.items():
        monkeypatch.setattr(bench, name, value)
    found: dict[str, Any] = bench.run(["smollm2-135m"], layers=1, turns=2, threads=torch.get_num_threads())
    case = found["cases"]["smollm2-135m"]
    assert case["measures"].keys() == {"prefill 6", "decode at 4", "training step 5"}
    assert case["class"] == "LlamaForCausalLM" and case["layers"] == 1
    shutil.copy(bench.DOCS / "performance.md", tmp_path)
    bench.page(found, tmp_path)
    written = (tmp_path / "performance.md").read_text(encoding="utf-8")
    assert "smollm2-135m, 1 layers, beside `LlamaForCausalLM`" in written and "\n| decode at 4 | " in written
    assert written.count("<!-- results: model.py -->") == 1 and "<!-- results: 135M -->" in written
