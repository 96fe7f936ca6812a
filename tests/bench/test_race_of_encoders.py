"""The race of encoders, without a peer: its texts, its worker, its ratios and tables, and what its files may import."""

from __future__ import annotations

import ast
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks.encoders import __main__ as race
from benchmarks.encoders import texts
from benchmarks.ratios import compare
from blockc import api
from blockc.bench import protocol
from blockc.bench.turns import Worker, WorkerError
from tests.paths import ROOT

VOCAB, WIDTH = 200, 4


def graph(folder: Path, name: str, scale: float = 1.0) -> Path:
    """Hidden states (B, S, 4) out of a table; `pooled` are vectors of the first token, and no means."""
    table = scale * np.random.default_rng(0).standard_normal((VOCAB, WIDTH)).astype(np.float32) + 1
    ids = onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["B", "S"])
    shape = ["B", "S", WIDTH] if name == "last_hidden_state" else ["B", WIDTH]
    made = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
    held = [onnx.numpy_helper.from_array(table, "table"), onnx.numpy_helper.from_array(np.array(0), "first")]
    nodes = [onnx.helper.make_node("Gather", ["table", "input_ids"], ["states"])]
    last = ("Gather", ["states", "first"], {"axis": 1}) if name == "pooled" else ("Identity", ["states"], {})
    nodes.append(onnx.helper.make_node(last[0], last[1], [name], **last[2]))
    model = onnx.helper.make_graph(nodes, "g", [ids], [made], held)
    folder.mkdir()
    opsets = [onnx.helper.make_opsetid("", 21)]
    onnx.save(onnx.helper.make_model(model, opset_imports=opsets, ir_version=10), folder / "model.onnx")
    return folder


def started(name: str, folder: Path, root: Path) -> Worker:
    shutil.copy(race.HERE / "worker.py", root)
    shutil.copy(protocol.__file__, root)
    return Worker(name, [sys.executable, str(root / "worker.py"), "onnx", str(folder)], [])


def test_a_worker_takes_means_of_the_real_tokens_and_counts_no_first_call(tmp_path: Path) -> None:
    worker = started("A", graph(tmp_path / "states", "last_hidden_state"), tmp_path)
    try:
        with pytest.raises(WorkerError, match="^A: "):
            worker.ask("time", batches=[[[1]]], calls=1)
        assert worker.ask("load", threads=1)["seconds"] > 0
        found = np.array(worker.ask("vectors", batches=[[[1, 2, 3], [4]], [[5, 6]]])["vectors"])
        table = np.random.default_rng(0).standard_normal((VOCAB, WIDTH)).astype(np.float32) + 1
        means = np.stack([table[ids].mean(0) for ids in ([1, 2, 3], [4], [5, 6])])
        np.testing.assert_allclose(found, means / np.linalg.norm(means, axis=1, keepdims=True), rtol=1e-5)
        assert len(worker.ask("time", batches=[[[1, 2]], [[3]]], calls=3)["ms"]) == 3
    finally:
        worker.close()


def test_who_gives_other_vectors_is_not_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = texts.Case("2 x 1", [[[1], [2]]])
    roots = {name: tmp_path / f"{i}" for i, name in enumerate((race.OURS, "optimizer", "optimum"))}
    for root in roots.values():
        root.mkdir()
    made = {
        race.OURS: graph(tmp_path / "ours", "pooled"),
        "optimizer": graph(tmp_path / "same", "last_hidden_state"),
        "optimum": graph(tmp_path / "off", "last_hidden_state", 0.9),
    }
    workers = {name: started(name, made[name], root) for name, root in roots.items()}
    try:
        for worker in workers.values():
            worker.ask("load", threads=1)
        assert [*race.agreeing(case, workers)] == [race.OURS, "optimizer"]
        assert "2 x 1: vectors of optimum are off by" in capsys.readouterr().out
        found = race.timed(case, race.agreeing(case, workers), 3)
        assert found["optimizer"].keys() == {"ms", "sentences_s", "ratio", "low", "high"}
        assert found[race.OURS]["sentences_s"] == pytest.approx(2000 / found[race.OURS]["ms"])
        workers["transformers eager"] = workers.pop("optimum")
        with pytest.raises(SystemExit, match="vectors of blockc are not those of transformers eager"):
            race.agreeing(case, workers)
    finally:
        for worker in workers.values():
            worker.close()


def test_a_ratio_is_that_of_the_turns() -> None:
    assert compare([1.0, 2.0, 9.0], [1.0, 1.0, 1.0]) == {"ratio": 2.0, "low": 1.0, "high": 9.0}
    assert compare([1.0, 8.0, 3.0], [2.0, 4.0, 3.0])["ratio"] == 1.0


def test_texts_have_their_lengths_and_real_ones_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"w{i}": i for i in range(3, 90)} | {"[CLS]": 0, "[SEP]": 1, "[UNK]": 2}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 0), ("[SEP]", 1)])
    made.enable_truncation(5)
    made.enable_padding(length=7)
    made.save(str(tmp_path / "tokenizer.json"))
    sentence = " ".join(f"w{3 + i}" for i in range(9))
    book = f"w3 w4. w5! {sentence}. " * 800
    monkeypatch.setattr(texts, "read_text", lambda _: ("book", book))
    cases = {case.name: case for case in texts.read_cases(tmp_path, quick=False)}
    assert [*cases] == ["1 x 8", "32 x 8", "1 x 32", "32 x 32", "1 x 128", "32 x 128", "1 x real", "32 x real"]
    for name, case in list(cases.items())[:6]:
        rows, length = map(int, name.split(" x "))
        (batch,) = case.batches
        assert len(batch) == rows and {len(ids) for ids in batch} == {length}
        assert all((ids[0], ids[-1]) == (0, 1) for ids in batch)
    assert [len(ids) for batch in cases["1 x real"].batches[:3] for ids in batch] == [5, 4, 12]
    assert [len(batch) for batch in cases["32 x real"].batches] == [32, 32] and cases["32 x real"].sentences == 64
    assert (cases["1 x 8"].calls, cases["32 x 32"].calls, cases["32 x 128"].calls) == (16, 4, 1)


def found() -> dict[str, Any]:
    ours, theirs = {"ms": 4.0, "sentences_s": 250.0}, {"ms": 5.0, "ratio": 0.8, "low": 0.75, "high": 0.9}
    export = {"seconds": 1.0, "peak": 8e7, "seconds of optimum": 0.1, "peak of optimum": 0.2, "disk": 2e5}
    return {
        "date": "2026-01-02", "cpu": "A", "threads": 2, "turns": 16, "load": [0.5, 1.0], "blockc": "0.1.0",
        "cases": {"1 x 8": {race.OURS: ours, "optimizer": theirs}, "32 x 8": {race.OURS: ours}},
        "exports": {race.OURS: export},
    }  # fmt: skip


def test_the_tables_have_times_ratios_and_exports() -> None:
    lines = race.text(found()).split("\n")
    assert "load 0.5 before and 1.0 after" in lines[0]
    assert lines[2:6] == [
        "| ms of a call | blockc | optimizer |",
        "| --- | --- | --- |",
        "| 1 x 8 | 4.00 | 5.00 (0.800: 0.750 to 0.900) |",
        "| 32 x 8 | 4.00 | |",
    ]
    assert lines[-1] == "| blockc | 1.00 | 0.100 | 80.0 | 0.200 | 0.20 |"
    assert "peak" not in race.text(found() | {"exports": {}})


def test_the_page_has_a_place_for_them(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    shutil.copy(ROOT / "docs" / "performance.md", page)
    race.laid(page, {"encoders": race.text(found())})
    assert "| 1 x 8 | 4.00 | 5.00 (0.800: 0.750 to 0.900) |" in page.read_text(encoding="utf-8")


def test_exports_and_candidates_name_what_is_there() -> None:
    assert race.SPEC in api.bundled()
    assert {made for _, made in race.CANDIDATES.values()} <= {*race.EXPORTED, ""}
    files = [word for export in race.EXPORTED.values() for word in export.command.split() if word.endswith(".py")]
    assert files and all((race.HERE / word).is_file() for word in files)


def test_the_worker_imports_what_its_environment_pins() -> None:
    pinned = dict(line.split("==") for line in race.REQUIREMENTS.read_text().split())
    (torch,) = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch==")]
    assert f"torch=={pinned['torch']}" == torch
    given = sys.stdlib_module_names | {"protocol"} | {name.replace("-", "_") for name in pinned}
    for name in ("worker.py", "optimize.py"):
        nodes = list(ast.walk(ast.parse((race.HERE / name).read_text(encoding="utf-8"))))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        assert {each.partition(".")[0] for each in names} <= given, name
