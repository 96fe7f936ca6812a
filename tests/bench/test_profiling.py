"""blockc bench --ops: the operators of a step are those that onnxruntime runs; the loop is what is outside its run."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from blockc import api
from blockc.bench import candidate
from blockc.bench.candidate import SessionWorker
from blockc.bench.profiling import NodeTime, RunClock, TimedRuns, cost_by_operator, own_times, read_runs
from blockc.bench.protocol import UnableError
from blockc.graph.target import Target
from tests.checkpoints import save, tensors, twin

NAME = "llama3-8b"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two builds of one twin, the graph and the weights of one as another's folder, and a graph with branches."""
    root = tmp_path_factory.mktemp("profiling")
    weights = save(root / "in" / "model.safetensors", tensors(twin(NAME)))
    for name, target in {"portable": Target(), "fused": Target("cpu", logits="last")}.items():
        api.build(twin(NAME), root / name, target=target, proof=False, weights=weights)
    (root / "alone").mkdir()
    for file in ("model.onnx", "model.safetensors"):
        shutil.copy(root / "fused" / file, root / "alone")
    (root / "branches").mkdir()
    onnx.save(branching(), root / "branches" / "model.onnx")
    return {path.name: path for path in root.iterdir()}


def branching() -> onnx.ModelProto:
    """A decoder that negates several tokens, and takes the absolute value of a single one; twice, by an If."""
    state, logits = ["B", 2, "P", 4], ["B", "S", 9]
    past = {f"past_key_values.0.{kv}": f"present.0.{kv}" for kv in ("key", "value")}
    branches = {
        f"{key}_branch": helper.make_graph(
            [helper.make_node(op, ["numbers"], [f"{op} once"]), helper.make_node(op, [f"{op} once"], [op])],
            op,
            [],
            [helper.make_tensor_value_info(op, TensorProto.FLOAT, logits)],
        )
        for key, op in {"then": "Neg", "else": "Abs"}.items()
    }
    nodes = [
        helper.make_node("Shape", ["input_ids"], ["count"], start=1),
        helper.make_node("Squeeze", ["count"], ["tokens"]),
        helper.make_node("Greater", ["tokens", "one"], ["several"]),
        helper.make_node("OneHot", ["input_ids", "depth", "values"], ["numbers"]),
        helper.make_node("If", ["several"], ["logits"], **branches),
        *(helper.make_node("Tanh", [name], [present]) for name, present in past.items()),
    ]
    kinds: dict[str, Any] = {"one": (TensorProto.INT64, [], [1]), "depth": (TensorProto.INT64, [1], [9])}
    kinds["values"] = (TensorProto.FLOAT, [2], [0.0, 1.0])
    graph = helper.make_graph(
        nodes,
        "branching",
        [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["B", "S"]),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["B", "T"]),
            *(helper.make_tensor_value_info(name, TensorProto.FLOAT, state) for name in past),
        ],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, logits),
            *(helper.make_tensor_value_info(name, TensorProto.FLOAT, state) for name in past.values()),
        ],
        [helper.make_tensor(name, *kind) for name, kind in kinds.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def optimised(folder: Path, out: Path) -> Counter[str]:
    """The operators of the graph that onnxruntime makes of the model, and runs."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(out)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(out, load_external_data=False).graph.node)


def loaded(folder: Path, shared: bool = False) -> SessionWorker:
    worker = SessionWorker(folder, "cpu", shared)
    worker.load(1)
    return worker


# Operators


@pytest.mark.parametrize(("name", "shared"), [("portable", False), ("fused", False), ("alone", False), ("alone", True)])
def test_operators_of_a_step_are_those_of_the_graph_that_onnxruntime_runs(
    name: str, shared: bool, folders: dict[str, Path], tmp_path: Path
) -> None:
    answer = json.loads(json.dumps(loaded(folders[name], shared).ops(12, 4)))
    assert {op: nodes for op, nodes, _ in answer["ops"]} == optimised(folders[name], tmp_path / "run.onnx")
    costs = [ms for _, _, ms in answer["ops"]]
    assert costs == sorted(costs, reverse=True) and costs[0] > 0 and len(answer["ms"]) == 4
    if name != "portable":
        assert ["GroupQueryAttention", twin(NAME).spec.top.depth] in [row[:2] for row in answer["ops"]]


def test_nodes_of_the_prompt_are_not_counted_and_those_of_a_branch_are(folders: dict[str, Path]) -> None:
    counts = {op: nodes for op, nodes, _ in loaded(folders["branches"]).ops(5, 3)["ops"]}
    once = dict.fromkeys(("Shape", "Squeeze", "Greater", "OneHot", "If"), 1)
    assert counts == once | {"Abs": 2, "Tanh": 2}  # Neg is of the prompt


def test_the_first_step_is_not_counted(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs are the prompt, the first step, and the counted ones; each run is made to look like another operator."""
    seen: list[int] = []

    def marked(text: str) -> list[list[NodeTime]]:
        seen.append(len(read_runs(text)))
        return [[NodeTime(f"run {i}", 0, 1000)] for i in range(seen[-1])]

    monkeypatch.setattr(candidate, "read_runs", marked)
    monkeypatch.setattr(candidate, "cost_by_operator", lambda runs: [(node.op, 1, 1.0) for run in runs for node in run])
    answer = loaded(folders["fused"]).ops(12, 3)
    assert seen == [1 + 1 + 3] and sorted(op for op, _, _ in answer["ops"]) == ["run 2", "run 3", "run 4"]


def test_a_profile_that_lacks_runs_is_not_used(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate, "read_runs", lambda text: read_runs(text)[1:])
    with pytest.raises(UnableError, match="onnxruntime's profile has 4 of 5 runs, so it was cut short"):
        loaded(folders["fused"]).ops(12, 3)


def test_a_worker_goes_on_after_a_profile_and_leaves_no_file(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    worker = SessionWorker(folders["fused"], "cpu", False)
    with pytest.raises(UnableError, match="nothing is loaded"):
        worker.ops(4, 2)
    worker.load(1)
    first, again = worker.ops(4, 2), worker.ops(9, 2)
    assert sorted(row[:2] for row in first["ops"]) == sorted(row[:2] for row in again["ops"])
    assert len(worker.decode(5, 3)["ms"]) == 3 and len(worker.prefill(5, 2)["ms"]) == 2
    assert list(tmp_path.iterdir()) == []


def event(cat: str, name: str, ts: int = 0, dur: int = 0, **args: str) -> dict[str, Any]:
    return {"cat": cat, "name": name, "ts": ts, "dur": dur, "ph": "X", "args": args}


def test_a_profile_is_read_run_by_run() -> None:
    text = json.dumps(
        [
            event("Session", "session_initialization"),
            event("Node", "a_fence_before", op_name="Mul"),
            event("Node", "a_kernel_time", 3, 5, op_name="Mul", provider="CPUExecutionProvider"),
            event("Session", "SequentialExecutor::Execute", 2, 8),
            event("Session", "model_run", 1, 10),
            event("Node", "a_kernel_time", 13, 4, op_name="Mul"),
            event("Node", "b_kernel_time", 17, 2, op_name="Add"),
            event("Session", "model_run", 12, 9),
            event("Node", "a_kernel_time", 33, 4, op_name="Mul"),  # of a run that did not end
        ]
    )
    assert read_runs(text) == [[NodeTime("Mul", 3, 5)], [NodeTime("Mul", 13, 4), NodeTime("Add", 17, 2)]]
    assert read_runs("[]") == []


def test_a_branch_is_not_counted_in_its_if_too() -> None:
    run = [
        NodeTime("Mul", 0, 4),
        NodeTime("Neg", 5, 2),
        NodeTime("Abs", 8, 1),
        NodeTime("If", 7, 3),
        NodeTime("If", 4, 9),
        NodeTime("Shape", 13, 0),
        NodeTime("Add", 13, 6),
    ]
    wanted = {("Mul", 4), ("If", 9 - 2 - 3), ("Neg", 2), ("If", 3 - 1), ("Abs", 1), ("Shape", 0), ("Add", 6)}
    assert set(own_times(run)) == wanted and sum(taken for _, taken in own_times(run)) == 4 + 9 + 6


def test_costs_are_medians_of_what_an_operator_takes_in_a_run() -> None:
    def run(mul: tuple[int, ...], *others: NodeTime) -> list[NodeTime]:
        return [*(NodeTime("Mul", 100 * i, taken) for i, taken in enumerate(mul)), *others]

    runs = [run((1, 2)), run((30, 4), NodeTime("Add", 300, 50)), run((5, 6), NodeTime("Add", 300, 60))]
    assert cost_by_operator(runs) == [("Add", 1, 0.05), ("Mul", 2, 0.011)]
    assert cost_by_operator([]) == []


# The loop


def test_the_loop_is_what_a_step_takes_outside_onnxruntimes_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def run_with_iobinding(binding: str, options: str) -> None:
        assert (binding, options) == ("bound", "options")
        now[0] += 0.007

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    clock = RunClock()
    runs = TimedRuns(SimpleNamespace(run_with_iobinding=run_with_iobinding, others="its own"), clock)

    def decode(tokens: list[int]) -> None:
        now[0] += 0.001
        runs.run_with_iobinding("bound", "options")
        now[0] += 0.002

    worker = SessionWorker(Path(), "cpu", False)
    model = SimpleNamespace(vocab=9)
    worker.loaded = SimpleNamespace(model=model, reset=lambda: None, prefill=lambda rows, room: None, decode=decode)  # type: ignore[assignment]
    worker.clock = clock
    answer = worker.decode(6, 3)
    assert answer["ms"] == pytest.approx([10.0] * 3) and answer["loop_ms"] == pytest.approx([3.0] * 3)
    assert clock.runs == 4 and clock.seconds == pytest.approx(0.028) and runs.others == "its own"


@pytest.mark.parametrize(("name", "shared"), [("portable", False), ("fused", False), ("alone", True)])
def test_each_step_has_a_loop_and_a_run(name: str, shared: bool, folders: dict[str, Path]) -> None:
    worker = loaded(folders[name], shared)
    before = worker.clock.runs
    answer = worker.decode(6, 4)
    assert worker.clock.runs - before == 1 + 1 + 4
    assert all(0 < loop < ms for loop, ms in zip(answer["loop_ms"], answer["ms"], strict=True))
    assert len(answer["loop_ms"]) == 4


def test_an_operator_that_few_runs_have_is_left_out() -> None:
    """As of the runs before the graph for long pasts took over."""
    runs = [[NodeTime(op, 0, 1000)] for op in ("Mul", "Add", "Add")]
    assert cost_by_operator(runs) == [("Add", 1, 1.0)]
