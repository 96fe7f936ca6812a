"""The comparison with peers, without a peer: tables, pictures, the workers' loop, and what their files may import."""

from __future__ import annotations

import ast
import shutil
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import onnx
import pytest

from benchmarks.peers import checkpoint, render
from benchmarks.peers.candidates import CANDIDATES, CASES, COPY, EXPORTS, chosen, filled, wanted
from benchmarks.peers.environments import HERE, OWN, llama_flags, pins
from benchmarks.peers.exporting import nodes, size
from benchmarks.peers.measuring import Times, figures, spread
from blockc import api
from blockc.bench import protocol
from blockc.bench.turns import Worker, WorkerError
from tests.checkpoints import ROOT, rules_of

# Of each environment, what a worker or an export may import beside the standard library: what its requirements bring.
MODULES = {
    OWN: {"blockc", "onnxruntime", "numpy"},
    "genai": {"onnxruntime_genai", "numpy"},
    "mobius": set[str](),
    "optimum": {"optimum"},
    "transformers": {"transformers", "torch"},
    "llamacpp": {"llama_cpp", "gguf", "numpy", "safetensors"},
}
FAKE = """
import loop

class Model:
    vocab, weights, versions = 50, 7, {"fake": "1"}
    def __init__(self, threads): self.calls = [f"{threads} threads"]
    def prefill(self, ids, room): print("chatter"); return self.said(f"{ids[0]} and {len(ids) - 1} more, room {room}")
    def step(self, token): return self.said(f"step {token}")
    def said(self, call):
        self.calls.append(call)
        return Answer(len(self.calls))

class Answer(int):
    def argmax(self): return int(self)

held = []
def opened(threads):
    held.append(Model(threads))
    return held[0]

inner = loop.serve
loop.serve = lambda handlers: inner(handlers | {"calls": lambda: {"calls": held[0].calls}})
loop.run(opened)
"""


def candidate(**changes: Any) -> dict[str, Any]:
    spread_ = {"median": 40.0, "low": 39.0, "high": 44.0}
    return {
        "load": 0.25, "memory": {"rss": 700e6, "private": 600e6, "peak": 800e6}, "weights": 538e6,
        "versions": {"onnxruntime": "1.32.0"}, "agrees": 24, "prefill": {"128": spread_}, "decode": {"128": spread_},
    } | changes  # fmt: skip


FOUND: dict[str, Any] = {
    "format": render.FORMAT, "date": "2026-01-02", "blockc": "0.1.0", "cpu": "A & B", "units": ["avx2"], "cores": 2,
    "threads": 2, "python": "3.11.7", "pins": {"genai": {"onnxruntime-genai": "0.18.0"}},
    "cases": {
        "135M": {
            "spec": "smollm2-135m", "turns": 2, "greedy": 24,
            "machine": {
                "bytes_s": 2e10, "read by": "a compiled loop", "flops_s": {"128": 3e11},
                "multiplied by": {"128": "NumPy"},
            },
            "floor": {"prefill": {"128": 20.0}, "decode": {"128": 25.0}},
            "exports": {
                COPY: {"seconds": 0.1, "peak": 1.0, "disk": 1.0},
                "blockc link": {"seconds": 0.5, "peak": 100e6, "disk": 4e6, "nodes": 12},
                "genai fp32": {"seconds": 10.0, "peak": 1.2e9, "disk": 540e6},
                "genai int4": {"seconds": 1.0, "peak": 1.0, "disk": 1.0},
                "torch.onnx": {"seconds": 100.0, "peak": 1.1e9, "disk": 540e6},
            },
            "candidates": {
                "blockc link": candidate(decode={"128": {"median": 30.0, "low": 1.0, "high": 1.0}}),
                "genai fp32": candidate(agrees=3),
                "genai int4": candidate(agrees=5, decode={"128": {"median": 10.0, "low": 1.0, "high": 1.0}}),
                "transformers fp32": candidate(),
            },
            "missing": {"mobius": "No matching distribution"},
        }
    },
}  # fmt: skip


def row(table: list[list[str]], name: str) -> dict[str, str]:
    (found,) = [line for line in table if line[0] == name]
    return dict(zip(table[0], found, strict=True))


def test_a_row_holds_the_figures_and_how_far_they_are_from_the_floor() -> None:
    table = list(render.rows(FOUND["cases"]["135M"]))
    ours = row(table, "blockc link")
    assert ours["decode at 128, ms"] == "30.0 (1.20)" and ours["prefill 128, ms"] == "40.0 (2.00)"
    assert ours["export, s"] == "0.50" and ours["on disk, MB"] == "4.00" and ours["resident, MB"] == "700"
    assert ours["nodes, a layer"] == "12"
    assert row(table, render.FLOOR)["decode at 128, ms"] == "25.0"
    assert row(table, "transformers fp32")["export, s"] == "" and row(table, "torch.onnx")["load, s"] == ""


def test_the_best_peer_is_one_that_computes_the_same() -> None:
    table = list(render.best(FOUND["cases"]["135M"]))
    assert row(table, "decode at 128, ms") == {
        "": "decode at 128, ms", "blockc link": "30.0 (1.20)", "blockc link as is": "", "blockc pack": "",
        "best peer": "40.0 (1.60)", "whose": "genai fp32", "ratio": "0.750",
    }  # fmt: skip
    assert row(table, "export, s")["ratio"] == "0.050"


def test_who_is_missing_and_whose_text_is_another_are_named() -> None:
    notes = "\n".join(render.notes(FOUND["cases"]["135M"]))
    assert "mobius is missing: No matching distribution" in notes
    assert "genai fp32 parts from them after 3, and it should not" in notes
    assert "genai int4 parts from them after 5" in notes and "after 5, and" not in notes
    assert "come from blockc link, transformers fp32" in notes and notes.count("parts from them") == 2


def test_the_page_holds_the_results_between_its_marks_and_can_be_made_again(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    shutil.copy(ROOT / "docs" / "performance.md", page)
    before = page.read_text(encoding="utf-8")
    render.page(FOUND, tmp_path)
    once = page.read_text(encoding="utf-8")
    assert "| blockc link | 0.50 |" in once and "- genai: onnxruntime-genai 0.18.0" in once
    assert once.startswith(before[: before.index("<!-- results: facts -->")]), "what a person wrote stays"
    for file in (
        line.split("(")[1].rstrip(")") for line in once.splitlines() if line.startswith("![") and "135M" in line
    ):
        assert (tmp_path / file).is_file()
    render.page(FOUND, tmp_path)
    assert page.read_text(encoding="utf-8") == once


def test_a_page_without_its_mark_is_refused_and_left(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text("<!-- results: facts -->\n<!-- end -->\n")
    with pytest.raises(ValueError, match="results: versions"):
        render.page(FOUND, tmp_path)
    assert page.read_text() == "<!-- results: facts -->\n<!-- end -->\n"


def test_a_picture_has_a_bar_for_each_figure_in_order() -> None:
    drawn = ElementTree.fromstring(render.pictures(FOUND)["135M-decode-128.svg"])
    bars = [node for node in drawn.iter() if node.get("class") == "bar"]
    texts = [node.text for node in drawn.iter() if node.tag.endswith("text")]
    assert len(bars) == 4 and texts[1:3] == ["genai int4", "10.0"] and "floor 25.0" in texts
    long = [float(bar.get("width", 0)) for bar in bars]
    assert long == sorted(long) and long[1] / long[0] == pytest.approx(3)


def test_results_of_another_format_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cpu-1.json").write_text('{"format": 0}')
    with pytest.raises(ValueError, match="format 0"):
        render.read(tmp_path / "cpu-1.json")


def test_a_worker_counts_neither_the_first_prompt_nor_the_first_step(tmp_path: Path) -> None:
    shutil.copy(HERE / "workers" / "loop.py", tmp_path)
    shutil.copy(protocol.__file__, tmp_path)
    (tmp_path / "worker_fake.py").write_text(FAKE)
    worker = Worker("fake", [sys.executable, str(tmp_path / "worker_fake.py")], [])
    try:
        with pytest.raises(WorkerError, match="fake: nothing is loaded"):
            worker.ask("prefill", tokens=3, repeat=1)
        loaded = worker.ask("load", threads=3)
        assert loaded["weights"] == 7 and loaded["versions"] == {"fake": "1"} and loaded["memory"]["rss"] > 0
        assert len(worker.ask("prefill", tokens=3, repeat=2)["ms"]) == 2
        assert len(worker.ask("decode", context=5, steps=2)["ms"]) == 2
        ids = protocol.draw_tokens(5, 50)
        prompt = f"{ids[0]} and 2 more, room 0"
        assert worker.ask("calls")["calls"] == [
            "3 threads", "0 and 0 more, room 1", "step 0", *[prompt] * 3,
            f"{ids[0]} and 4 more, room 3", *(f"step {token}" for token in ids[:3]),
        ]  # fmt: skip
        assert worker.ask("greedy", tokens=2, steps=3)["tokens"] == [11, 12, 13]
    finally:
        worker.close()


def test_workers_and_exports_import_their_peer_and_nothing_of_blockc() -> None:
    files = {
        (folder, word): entry.environment
        for folder, entries in (("workers", CANDIDATES), ("exports", EXPORTS))
        for entry in entries.values()
        for word in (entry.worker if folder == "workers" else entry.command).split()
        if word.endswith(".py")
    }
    assert {path.name for path in HERE.glob("*/*.py")} == {name for _, name in files} | {"loop.py", "measured.py"}
    files |= {("workers", "loop.py"): "mobius", ("exports", "measured.py"): "mobius"}  # which any environment runs
    for (folder, name), environment in files.items():
        given = sys.stdlib_module_names | MODULES[environment] | {"loop", "protocol"}
        assert imported(HERE / folder / name) <= given, name
    assert imported(Path(protocol.__file__)) <= sys.stdlib_module_names


def imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def test_every_version_is_pinned_and_torch_is_the_one_of_the_constraints() -> None:
    (torch,) = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch==")]
    used = {entry.environment for entry in [*CANDIDATES.values(), *EXPORTS.values()]} - {OWN}
    assert pins().keys() == used
    assert {f"torch=={found['torch']}" for found in pins().values() if "torch" in found} == {torch}


def test_commands_name_what_is_there() -> None:
    paths: dict[str, Path | str] = dict.fromkeys(("checkpoint", "bf16", "gguf", "out", "cache", "recipes", "spec"), "x")
    for name, case in CASES.items():
        assert case.spec in api.bundled()
        exports = wanted(name, [])
        assert {candidate.made for candidate in chosen(name, []).values()} <= {*exports, None}
        for folder, commands in (
            ("exports", [export.command for export in exports.values()]),
            ("workers", [candidate.worker for candidate in chosen(name, []).values()]),
        ):
            for command in commands:
                assert all(Path(word).is_file() for word in filled(command, folder, paths) if word.endswith(".py"))
    assert chosen("135M", ["mob"]).keys() == wanted("135M", ["mob"]).keys() == {"mobius"}


@pytest.mark.parametrize(("facts", "spec"), [(checkpoint.SMALL, "smollm2-135m"), (checkpoint.LARGE, "llama3.2-1b")])
def test_the_checkpoint_is_the_spec(facts: dict[str, Any], spec: str) -> None:
    model = api.compile(api.bundled()[spec])
    assert dict(checkpoint.shapes(facts)) == {rule.name: rule.shape for rule in rules_of(model)}


def test_llama_cpp_is_told_the_vector_units_and_no_other() -> None:
    flags = "avx avx2 fma f16c bmi2 sse4_2 avx512f avx512cd avx512vl avx512dq avx512bw avx512_vnni amx_tile amx_int8"
    told = llama_flags(f"model name\t: x\nflags\t\t: {flags}\nflags\t\t: {flags}\n").split()
    assert {"-DGGML_NATIVE=OFF", "-DGGML_AVX512=ON", "-DGGML_AVX512_VNNI=ON", "-DGGML_SSE42=ON"} <= set(told)
    assert not any("AMX" in flag or "BF16" in flag for flag in told)
    assert "-DGGML_AVX512=ON" not in llama_flags("flags : avx2 avx512f").split()


def test_what_is_the_checkpoints_own_is_not_counted(tmp_path: Path) -> None:
    held, out = tmp_path / "held", tmp_path / "out"
    held.mkdir(), out.mkdir()
    (held / "weights").write_bytes(b"12345")
    (out / "linked").hardlink_to(held / "weights")
    (out / "model").write_bytes(b"123")
    assert size(out, held) == 3


def test_nodes_of_a_layer_are_those_from_one_attention_to_the_next(tmp_path: Path) -> None:
    assert nodes(tmp_path) == {}
    layer = ["Attention", "MatMul", "Constant", "Add", "Softmax"]
    steps = [onnx.helper.make_node(kind, [], [str(i)]) for i, kind in enumerate(["Gather", *layer * 3, "MatMul"])]
    (tmp_path / "deep").mkdir()
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(steps, "g", [], [])), tmp_path / "deep" / "model.onnx")
    assert nodes(tmp_path) == {"nodes": 4}


def test_a_candidate_that_fails_is_out_and_the_text_of_most_is_the_truth() -> None:
    times = Times()
    for name, tokens in {
        "blockc link": [1, 2, 3],
        "mobius": [1, 2, 3],
        "genai fp32": [1, 4, 3],
        "optimum": [9],
    }.items():
        times.said[name] = {"loads": [3.0, 1.0, 2.0], "memory": None, "weights": 1, "versions": {}, "tokens": tokens}
        times.ms[name] = {("prefill", 8): [4.0, 1.0, 2.0]}

    def fails() -> None:
        raise WorkerError("optimum: too long")

    times.tried("optimum", fails)
    times.tried("optimum", lambda: pytest.fail("what fell out is not asked again"))
    made = figures(times, {name: (CANDIDATES[name], []) for name in times.said})
    assert times.fell == {"optimum": "too long"} and made.keys() == {"blockc link", "mobius", "genai fp32"}
    assert made["mobius"]["agrees"] == 3 and made["genai fp32"]["agrees"] == 1
    assert made["mobius"]["load"] == 2.0 and made["mobius"]["prefill"]["8"]["median"] == 2.0


def test_the_spread_leaves_a_tenth_out_at_either_end() -> None:
    assert spread([float(i) for i in range(20)]) == {"median": 9.5, "low": 2.0, "high": 17.0}
    assert spread([3.0]) == {"median": 3.0, "low": 3.0, "high": 3.0}
