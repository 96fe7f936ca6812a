"""blockc bench: what workers answer, in which order they are asked, the arithmetic of floors and tables; no times."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from importlib import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

from blockc import api
from blockc.bench import candidate, machine, tables
from blockc.bench.floors import Work
from blockc.bench.measure import (
    Bench,
    BenchEntry,
    Candidate,
    Measure,
    OpTime,
    Speed,
    StepProfile,
    faster_of,
    find_entries,
    floor_of,
)
from blockc.bench.opening import disk_of, open_session, weights_of
from blockc.bench.protocol import UnableError, draw_tokens, memory
from blockc.bench.turns import (
    Worker,
    WorkerError,
    ask_by_turns,
    cores,
    join_answers,
    order_of_turn,
    start_workers,
    worker_command,
)
from blockc.cli import app, run_guarded
from blockc.graph.target import Target
from blockc.language.spec import from_tree
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.runtime import Session, SessionError
from blockc.source import parse
from tests.checkpoints import save, tensors, twin

NAME = "llama3-8b"
SPEC = """\
blockc: 1
name: counted
vocab: 10
width: 8
depth: 2
context: 64
positions: {type: learned}
attention: {heads: 2, kv_heads: 1, head_dim: 4}
mlp: {type: swiglu, width: 6}
norm: {type: rms, eps: 1e-5, placement: pre}
head: {tied: true}
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two builds of one twin, and each one's graph and weights alone, as another's folder."""
    root = tmp_path_factory.mktemp("bench")
    weights = save(root / "in" / "model.safetensors", tensors(twin(NAME)))
    made = {"portable": Target(), "fused": Target("cpu", logits="last")}
    for name, target in made.items():
        api.build(twin(NAME), root / name, target=target, proof=False, weights=weights)
        (root / f"{name} alone").mkdir()
        for file in ("model.onnx", "model.safetensors"):
            shutil.copy(root / name / file, root / f"{name} alone")
    return {path.name: path for path in root.iterdir()}


def bench(*arguments: str | Path) -> int:
    return run_guarded(lambda: app(["bench", *map(str, arguments)], standalone_mode=False))


# Workers and their parent


def test_a_worker_answers_what_the_protocol_says(folders: dict[str, Path]) -> None:
    command = worker_command("blockc.bench.candidate", str(folders["fused"]))
    worker = Worker("fused", command, cores(1))
    with pytest.raises(WorkerError, match="^fused: nothing is loaded"):
        worker.ask("prefill", tokens=4, repeat=1)
    loaded = worker.ask("load", threads=1)
    assert loaded["seconds"] > 0 and loaded["context"] == twin(NAME).spec.top.context
    assert loaded["weights"] == weights_of(folders["fused"]) > 4 * twin(NAME).parameters
    assert 0 < loaded["memory"]["private"] < loaded["memory"]["rss"] <= loaded["memory"]["peak"]
    assert set(loaded["versions"]) == {"onnxruntime", "onnx"}
    assert len(worker.ask("prefill", tokens=5, repeat=3)["ms"]) == 3
    decoded = worker.ask("decode", context=6, steps=4)
    assert len(decoded["ms"]) == len(decoded["loop_ms"]) == 4
    profiled = worker.ask("ops", context=6, steps=4)
    assert len(profiled["ms"]) == 4 and "GroupQueryAttention" in [op for op, _, _ in profiled["ops"]]
    assert worker.ask("memory").keys() == {"rss", "private", "peak"}
    with pytest.raises(WorkerError, match="^fused: no request is called sing"):
        worker.ask("sing")
    with pytest.raises(WorkerError, match="9999 tokens of one row"):
        worker.ask("prefill", tokens=9999, repeat=1)
    assert worker.ask("quit") == {} and worker.process.wait(30) == 0
    worker.close()


class Counted:
    """A session that remembers what was asked of it."""

    def __init__(self) -> None:
        self.model, self.asked = SimpleNamespace(vocab=9), list[tuple[str, int]]()

    def reset(self) -> None:
        self.asked.append(("reset", 0))

    def prefill(self, rows: list[list[int]], room: int) -> None:
        self.asked.append(("prefill", len(rows[0]) + room))

    def decode(self, tokens: list[int]) -> None:
        self.asked.append(("decode", len(tokens)))


def test_one_call_more_is_made_and_is_not_counted() -> None:
    worker, session = candidate.SessionWorker(Path(), "cpu", False), Counted()
    worker.loaded = session  # type: ignore[assignment]
    assert len(worker.prefill(6, 2)["ms"]) == 2
    assert session.asked == [("reset", 0), ("prefill", 6)] * 3
    session.asked.clear()
    assert len(worker.decode(6, 3)["ms"]) == 3
    assert session.asked == [("reset", 0), ("prefill", 6 + 4), *[("decode", 1)] * 4]


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_what_a_worker_prints_beside_its_answers_is_no_answer() -> None:
    text = """
import os
from blockc.bench.protocol import serve
def shout():
    print("not JSON")
    os.write(1, b"nor this")
    return {"ms": [1.0]}
serve({"shout": shout})
"""
    with start_workers({"loud": script(text)}, []) as made:
        assert made["loud"].ask("shout") == {"ms": [1.0]}


def test_candidates_have_their_turns_one_after_another(tmp_path: Path) -> None:
    log = tmp_path / "log"
    text = f"""
import sys
from blockc.bench.protocol import serve
def decode(**request):
    with open({str(log)!r}, "a") as out:
        print(sys.argv[1], request, file=out)
    return {{"ms": [float(request["context"])] * request["steps"]}}
serve({{"decode": decode}})
"""
    with start_workers({name: [*script(text), name] for name in "AB"}, []) as workers:
        answers = ask_by_turns(workers, 3, "decode", context=7, steps=2)
    assert log.read_text().splitlines() == [f"{name} {{'context': 7, 'steps': 2}}" for name in "ABBABA"]
    assert {name: join_answers(each, "ms") for name, each in answers.items()} == {"A": [7.0] * 6, "B": [7.0] * 6}
    assert join_answers(answers["A"], "loop_ms") == []


def test_nobody_comes_after_the_same_one_in_all_turns() -> None:
    turns = ["".join(order_of_turn("ABC", turn)) for turn in range(6)]
    assert turns == ["ABC", "CBA", "BCA", "ACB", "CAB", "BAC"] and not order_of_turn((), 3)
    pairs = [order_of_turn("AB", turn) for turn in range(4)]
    assert sum(pair[0] == "A" for pair in pairs) == 2


def test_a_worker_is_on_the_cores_that_it_was_given() -> None:
    core = cores()[-1]
    text = "import json, os\ninput()\nprint(json.dumps({'on': sorted(os.sched_getaffinity(0))}))"
    with start_workers({"pinned": script(text)}, [core]) as workers:
        assert workers["pinned"].ask("where") == {"on": [core]}
    assert core in os.sched_getaffinity(0) and len(set(cores())) == len(cores()) > 0


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (script("input(); raise SystemExit('out of paper')"), "^X: its process ended with exit code 1: out of paper$"),
        (script("import os; input(); os.kill(os.getpid(), 9)"), "^X: its process was ended by signal 9"),
        (script("input(); print('hello')"), "^X: answered 'hello.n', which is not a JSON object"),
        (["/no/such/program"], "^X: /no/such/program: No such file"),
    ],
)
def test_a_worker_that_fails_is_named_with_its_last_words(command: list[str], why: str) -> None:
    with pytest.raises(WorkerError, match=why), start_workers({"X": command}, []) as workers:
        workers["X"].ask("load", threads=1)


def test_tokens_are_those_of_every_candidate_and_inside_the_vocabulary() -> None:
    assert draw_tokens(50, 7) == draw_tokens(50, 7) and set(draw_tokens(200, 7)) == set(range(7))
    assert draw_tokens(20, 7) == draw_tokens(50, 7)[:20]


def test_memory_that_is_a_files_is_not_private(tmp_path: Path) -> None:
    file, size = tmp_path / "file", 1 << 26
    file.write_bytes(bytes(size))
    before = memory()
    mapped = np.memmap(file, np.uint8, "r")
    assert mapped.sum() == 0
    with_file = memory()
    held = np.ones(size, np.uint8)
    after = memory()
    assert before and with_file and after
    assert with_file["rss"] - before["rss"] > 0.9 * size > with_file["private"] - before["private"]
    assert after["private"] - with_file["private"] > 0.9 * held.nbytes


# Folders


@pytest.mark.parametrize(("name", "shared"), [("portable", False), ("fused", False), ("fused", True)])
def test_anothers_graph_computes_what_it_does_in_a_session(name: str, shared: bool, folders: dict[str, Path]) -> None:
    ours, theirs = Session(folders[name], threads=1), open_session(folders[f"{name} alone"], "cpu", 1, shared)
    assert theirs.model.contract.logits_of_every_token == (name != "fused")
    ids = draw_tokens(11, ours.model.vocab)
    logits = [(s.prefill([ids[:7]], 4), *(s.decode([token]) for token in ids[7:])) for s in (ours, theirs)]
    assert theirs.cache is not None and theirs.cache.in_place == shared
    np.testing.assert_array_equal(logits[0], logits[1])
    assert len(np.unique(logits[0])) > 100


def test_a_folder_is_a_candidate_and_where_attention_allows_two(folders: dict[str, Path]) -> None:
    given = [folders[name] for name in ("portable", "fused", "portable alone", "fused alone")]
    found = find_entries(given[0], given[1:])
    assert [(entry.name, entry.shared, entry.work is not None) for entry in found] == [
        ("portable", False, True),
        ("fused", False, True),
        ("portable alone", False, False),
        ("fused alone", False, False),
        ("fused alone, shared cache", True, False),
    ]
    (folders["in"] / "fused").symlink_to(folders["fused"])
    alike = [folders["in"] / "fused", folders["fused"]]
    assert [entry.name for entry in find_entries(alike[0], alike[1:])] == list(map(str, alike))


def test_weights_on_disk_are_the_model_and_what_it_points_into(folders: dict[str, Path]) -> None:
    folder = folders["portable alone"]
    (folder / "unrelated").write_bytes(bytes(1000))
    assert disk_of(folder) == sum((folder / name).stat().st_size for name in ("model.onnx", "model.safetensors"))
    graph = onnx.load(folder / "model.onnx").graph
    assert weights_of(folder) == sum(onnx.numpy_helper.to_array(tensor).nbytes for tensor in graph.initializer)


def foreign(folder: Path, **changed: Any) -> Path:
    """A model of the usual names, where `changed` says nothing else: input or output -> its shape."""
    shapes: dict[str, Any] = {
        "input_ids": ["B", "S"],
        "past_key_values.0.key": ["B", 2, "P", 4],
        "past_key_values.0.value": ["B", 2, "P", 4],
        "logits": ["B", "S", 9],
        "present.0.key": ["B", 2, "T", 4],
        "present.0.value": ["B", 2, "T", 4],
    } | {name.replace("__", "."): shape for name, shape in changed.items()}
    kinds = {name: onnx.TensorProto.INT64 if name == "input_ids" else onnx.TensorProto.FLOAT for name in shapes}
    values = {
        name: onnx.helper.make_tensor_value_info(name, kinds[name], shape)
        for name, shape in shapes.items()
        if shape is not None
    }
    outputs = [name for name in values if name.startswith(("logits", "present"))]
    nodes = [onnx.helper.make_node("Cast", ["input_ids"], ["cast"], to=1)]
    nodes += [onnx.helper.make_node("Identity", ["cast"], [name]) for name in outputs]
    graph = onnx.helper.make_graph(
        nodes, "g", [v for n, v in values.items() if n not in outputs], [values[n] for n in outputs]
    )
    opsets = [onnx.helper.make_opsetid("", 21)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "model.onnx")
    return folder


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"inputs_embeds": ["B", "S", 4]}, "unknown inputs inputs_embeds: input_ids, attention_mask, position_ids and"),
        (
            {f"past_key_values__0__{kv}": None for kv in ("key", "value")},
            "no cache: a decoder has an input called past_key",
        ),
        ({"present__0__value": None}, "no output is called present.0.value"),
        ({"logits": None}, "no output is called logits"),
        ({"logits": ["B", "S", "V"]}, "logits are .*, expected the vocabulary as the third number"),
        ({"past_key_values__0__key": ["B", "K", "P", 4]}, "expected heads and head_dim as numbers"),
    ],
)
def test_a_graph_of_other_names_is_refused_and_says_which(changed: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(SessionError, match=why):
        open_session(foreign(tmp_path, **changed), "cpu", 1, False)


# Floors


def counted(layers: str = "") -> Compiled:
    return compile_spec(from_tree(parse(SPEC + layers, "counted.yaml")))


def test_a_floor_is_what_can_be_counted_by_hand() -> None:
    work = Work(counted("layers: {pattern: [near, far], kinds: {near: {attention: {window: 3}}, far: {}}}\n"), "fp32")
    attention, mlp, norms = 8 * 8 + 4 * 8 + 4 * 8 + 8 * 8, 3 * 6 * 8, 2 * 8
    assert work.weights == 4 * (2 * (attention + mlp + norms) + 8 + 10 * 8)  # final norm, tied head; no positions
    assert work.cache(2) == 4 * 2 * 4 * (2 + 2)
    assert work.cache(5) == 4 * 2 * 4 * (3 + 5)  # keys and values, of 4 numbers; three tokens are in the window
    pair = 2 * (4 + 4) * 2  # heads, a product with a key and one with a value
    near = 2 * 5 * (attention + mlp) + pair * (1 + 2 + 3 + 3 + 3)
    far = 2 * 5 * (4 * 8 + 4 * 8) + 2 * (2 * 8 * 8 + mlp) + pair * 5  # keys and values of all, else of the last token
    assert work.flops(5) == near + far + 2 * 10 * 8
    assert work.products() == [(8, 8), (6, 8), (8, 6), (8, 4)]
    assert work.decode(5, 1000.0) == 1000 * (work.weights + work.cache(5)) / 1000
    assert work.prefill(5, 1e12, 2000.0) == work.flops(5) / 2
    assert work.prefill(5, 1000.0, 1e12) == work.decode(5, 1000.0)
    half = Work(work.model, "fp16")
    assert (half.weights, half.cache(5)) == (work.weights / 2, work.cache(5) / 2)


def test_a_prompt_costs_what_show_says_but_for_the_last_layer() -> None:
    work = Work(counted(), "fp32")
    whole = api.figures(work.model, context=64).flops.prefill
    of_others = 63 * 2 * (2 * 8 * 8 + 3 * 6 * 8 + 10 * 8) + 32 * (63 * 64 // 2)
    assert work.flops(64) == whole - of_others


def test_the_floor_is_of_the_fastest_that_the_machine_was() -> None:
    one, two = Speed(10.0, 7.0, "A"), Speed(12.0, 5.0, "B")
    assert faster_of(one, two) == faster_of(two, one) == Speed(12.0, 7.0, "A")
    work = Work(counted(), "fp32")
    assert floor_of(work, Measure("prefill", 4), one) == work.prefill(4, 10.0, 7.0)
    assert floor_of(work, Measure("decode", 4), Speed(10.0)) == work.decode(4, 10.0)


# The machine


def test_a_reading_reads_all_of_the_buffer() -> None:
    numbers = np.random.default_rng(0).integers(0, 1 << 40, 32 * 999, np.uint64)
    loop = machine.compile_loop()
    assert loop is not None and loop(numbers) == int(numbers.sum())
    floats = np.arange(1000.0)
    assert machine.sum_by_dot(floats.view(np.uint64)) == float((floats**2).sum())


def test_the_machine_says_how_it_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_LEAST", 1 << 22)
    monkeypatch.setattr(machine, "last_cache", lambda: 1 << 20)
    one, other = machine.Machine(), machine.Machine()
    on = os.sched_getaffinity(0)
    said = one.load(1)
    assert (said["how"], said["buffer"]) == (machine.COMPILED, 1 << 23)
    monkeypatch.setattr(machine, "_LOOP", "no C")
    assert other.load(1)["how"] == machine.NUMPY
    for each in (one, other):
        rates = each.read(3)["bytes_s"]
        assert len(rates) == 3 and min(rates) > 0
    best = one.product(4, [(8, 16), (16, 8)], 1)
    assert best["flops_s"] > 0 and best["by"] in ("onnxruntime", "NumPy") and best["shape"] in ([8, 16], [16, 8])
    monkeypatch.setattr(machine, "_LARGEST", 100)
    with pytest.raises(UnableError, match="no matrix is small enough"):
        one.product(4, [(8, 16)], 1)
    assert os.sched_getaffinity(0) == on


# Figures


def made(tmp_path: Path, others: bool = True) -> Bench:
    measures = (Measure("prefill", 4), Measure("decode", 16))
    load = {"seconds": 1.25, "memory": {"rss": 9e6, "private": 5e6, "peak": 10e6}, "weights": 7e6, "versions": {}}
    ours = Candidate(BenchEntry("ours", tmp_path), 8_000_000, load)
    theirs = Candidate(BenchEntry("theirs", tmp_path), 9_000_000, {**load, "memory": None, "weights": None})
    ours.ms = {measures[0]: [9.0, 8.0, 10.0], measures[1]: [2.0, 1.0, 4.0, 3.0]}
    theirs.ms = {measures[0]: [18.0], measures[1]: [5.0]}
    ours.floor = {measures[0]: 4.5, measures[1]: 2.0}
    ours.loop = {measures[0]: [], measures[1]: [0.1, 0.2, 0.4, 0.3]}
    result = Bench("cpu", [0, 1], 2, 3, measures, [ours, theirs] if others else [ours])
    result.machine = {"how": machine.COMPILED, "buffer": 5}
    result.speeds = {measures[0]: Speed(20e9, 100e9, "NumPy"), measures[1]: Speed(30e9)}
    return result


def test_the_table_says_each_figure_and_its_ratios(tmp_path: Path) -> None:
    assert tables.as_text(made(tmp_path)).split("\n") == [
        "cpu, 2 threads, pinned to 2 cores; 3 turns, medians",
        "the machine reads 20 to 30 GB/s by a compiled loop and multiplies 100 GFLOP/s in fp32 by NumPy",
        "",
        "                  prefill 4  decode at 16",
        "ours    ms                9           2.5",
        "        tokens/s      444.4           400",
        "        x floor        2.00          1.25",
        "        x theirs       0.50          0.50",
        "theirs  ms               18             5",
        "        tokens/s      222.2           200",
        "        x theirs       1.00          1.00",
        "",
        "        load s  weights  private  resident   peak  on disk",
        "ours      1.25     7 MB     5 MB      9 MB  10 MB     8 MB",
        "theirs    1.25        -        -         -      -     9 MB",
        "",
        "        ms of a step  p50  p90   p99  loop  of p50",
        "ours    decode at 16  2.5  3.7  3.97  0.25  10.0 %",
        "theirs  decode at 16    5    5     5     -       -",
    ]
    assert "theirs" not in tables.as_text(made(tmp_path, others=False))


def profiled(tmp_path: Path) -> Bench:
    bench = made(tmp_path)
    ops = (OpTime("MatMul", 15, 2.25), OpTime("Mul", 8, 0.75))
    bench.candidates[0].profiles = {bench.measures[1]: StepProfile((3.5, 9.0, 4.0), ops)}
    return bench


def test_the_table_says_what_operators_take_of_a_step(tmp_path: Path) -> None:
    assert tables.as_text(profiled(tmp_path)).removeprefix(tables.as_text(made(tmp_path))).split("\n") == [
        "",
        "",
        "ours, decode at 16  nodes     ms    share",
        "MatMul                 15  2.250   75.0 %",
        "Mul                     8  0.750   25.0 %",
        "all nodes              23  3.000  100.0 %",
        "medians of 3 steps under onnxruntime's profiler, which adds time to each node: "
        "a step took 4 ms with it, 2.5 without",
    ]


def test_json_has_the_loop_and_the_operators(tmp_path: Path) -> None:
    ours, theirs = (each["measures"] for each in tables.as_data(profiled(tmp_path))["candidates"])
    keys = ("loop_ms", "of_loop", "profile")
    for measure in (ours["prefill 4"], theirs["prefill 4"], theirs["decode at 16"]):
        assert [measure[key] for key in keys] == [None] * 3
    loop, share, profile = (ours["decode at 16"][key] for key in keys)
    assert (loop, share) == (pytest.approx(0.25), pytest.approx(0.1))
    ops = [
        {"op": "MatMul", "nodes": 15, "ms": 2.25, "share": 0.75},
        {"op": "Mul", "nodes": 8, "ms": 0.75, "share": 0.25},
    ]
    assert profile == {"step_ms": 4.0, "steps": 3, "nodes": 23, "nodes_ms": 3.0, "ops": ops}


def test_percentiles_lie_between_the_nearest_times() -> None:
    times = np.random.default_rng(3).gamma(9.0, 2.0, 157).tolist()
    one = Candidate(BenchEntry("one", Path()), 0, {}, {Measure("decode", 1): times})
    wanted = statistics.quantiles(times, n=100, method="inclusive")
    for p in (50, 90, 99):
        assert one.percentile(Measure("decode", 1), p) == pytest.approx(wanted[p - 1], rel=1e-12)


# The command


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockc.bench.asked.STEPS", 3)


@pytest.mark.usefixtures("_short")
def test_bench_measures_a_build_and_anothers_folder(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One run: its JSON, its picture, and what it says meanwhile."""
    written, svg = tmp_path / "bench.json", tmp_path / "bench.svg"
    given = (folders["portable"], "--against", folders["fused alone"], "--threads", "1", "--turns", "2")
    files = ("--format", "json", "-o", written, "--plot", svg)
    assert bench(*given, "--prefill", "8", "--decode", "5,9", "--ops", *files) == 0
    out, err = capsys.readouterr()
    assert out == "" and {"blockc: decode at 9, 2 turns", "blockc: decode at 9, by operator"} <= {*err.splitlines()}
    said = json.loads(written.read_text())
    assert said.keys() == {"bench", "provider", "threads", "cores", "turns", "against", "machine", "text", "candidates"}
    assert (said["bench"], said["threads"], len(said["cores"]), said["turns"]) == (1, 1, 1, 2)
    names = ["portable", "fused alone", "fused alone, shared cache"]
    assert [each["name"] for each in said["candidates"]] == names and said["against"] == names[1]
    assert [each["shared_cache"] for each in said["candidates"]] == [False, False, True]
    for each in said["candidates"]:
        assert each["on_disk"] > each["weights"] > 4 * twin(NAME).parameters and each["load_seconds"] > 0
        assert each["measures"].keys() == {"prefill 8", "decode at 5", "decode at 9"}
        for name, figures in each["measures"].items():
            agree(figures, said["machine"]["speeds"][name], said["candidates"][1]["measures"][name])
    texts = ElementTree.parse(svg).getroot().tag
    assert texts.endswith("svg") and all(f"<!-- {name} -->" in svg.read_text() for name in names)


def agree(figures: dict[str, Any], speed: dict[str, Any], other: dict[str, Any]) -> None:
    """One measure of one candidate, with what the machine did beside it."""
    work, whole = Work(twin(NAME), "fp32"), figures["do"] == "prefill"
    assert figures["count"] == (2 if whole else 2 * 3)
    assert 0 < figures["p50_ms"] <= figures["p90_ms"] <= figures["p99_ms"]
    assert figures["tokens_s"] == pytest.approx(1000 * (figures["tokens"] if whole else 1) / figures["p50_ms"])
    wanted = (
        work.prefill(8, speed["bytes_s"], speed["flops_s"])
        if whole
        else work.decode(figures["tokens"], speed["bytes_s"])
    )
    assert figures["floor_ms"] == pytest.approx(wanted)
    assert figures["of_floor"] == pytest.approx(figures["p50_ms"] / wanted)
    assert figures["of_against"] == pytest.approx(figures["p50_ms"] / other["p50_ms"])
    if whole:
        assert figures["loop_ms"] is figures["of_loop"] is figures["profile"] is None
        return
    assert 0 < figures["loop_ms"] < figures["p50_ms"]
    assert figures["of_loop"] == pytest.approx(figures["loop_ms"] / figures["p50_ms"])
    profile = figures["profile"]
    assert profile["steps"] == 3 and profile["step_ms"] > 0
    assert profile["nodes"] == sum(op["nodes"] for op in profile["ops"]) > 20
    assert profile["nodes_ms"] == pytest.approx(sum(op["ms"] for op in profile["ops"]))
    assert sum(op["share"] for op in profile["ops"]) == pytest.approx(1)


def without_weights(tmp_path: Path) -> Path:
    api.build(counted(), tmp_path / "bare", proof=False)
    return tmp_path / "bare"


def test_a_folder_without_a_model_or_weights_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for folder, why in (
        (
            tmp_path / "empty",
            "empty: not a finished build, for it has no manifest.json, and no model.onnx of another tool",
        ),
        (without_weights(tmp_path), "has no weights: build it with `blockc build "),
    ):
        assert bench(folder, "--threads", "1") == 1
        assert why in capsys.readouterr().err
    assert bench(tmp_path / "nowhere") == 2


def test_requests_that_do_not_fit_are_refused_before_anything_is_measured(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build = folders["portable"]
    for arguments, code, why in (
        (("--prefill", "12,x"), 2, "--prefill x: expected numbers of tokens such as 128,1024"),
        (("--decode", "0"), 2, "--decode 0: expected numbers of tokens"),
        (("--prefill", "", "--decode", ""), 2, "nothing to measure: give --prefill, --decode or --text"),
        (("--decode", "", "--ops"), 2, "--ops is for decode steps: give lengths of decode"),
        (
            ("--ep", "cuda", "--ops"),
            2,
            "--ops is for the CPU: of cuda, onnxruntime's profile has the launches of kernel",
        ),
        (("--plot", tmp_path / "x.jpg"), 2, "expected a name that ends in .svg or .png"),
        (("-o", tmp_path / "no" / "x.json"), 2, "cannot be written, since there is no folder"),
        (("--against", build), 1, f"{build}: is given twice"),
        (("--threads", "999"), 1, "999 threads, but this process has"),
        (("--prefill", "", "--decode", "120"), 1, "portable: 153 tokens are needed, and its context is 128"),
    ):
        assert bench(build, *arguments) == code
        out, err = capsys.readouterr()
        assert why in err and "turns" not in err and out == ""
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    assert bench(build, "--plot", tmp_path / "x.svg") == 3
    said = capsys.readouterr().err
    assert "--plot: the package matplotlib is missing: `pip install '.[bench]'` in a clone of blockc" in said
