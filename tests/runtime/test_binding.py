"""What a step binds, and threads that wait beside another session's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from blockc import api
from blockc.graph.target import Target
from blockc.runtime import Session
from blockc.runtime.opening import session_at
from tests.checkpoints import save, tensors, twin

NAME = "llama3-8b"


@pytest.fixture(scope="module", params=["any", "right"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bound")
    weights = save(out / "model.safetensors", tensors(twin(NAME)))
    target = Target("cpu", logits="last", padding=request.param)
    api.build(twin(NAME), out / "build", target=target, weights=weights, proof=False, step=False)
    return out / "build"


class Spy:
    """A binding that notes what is bound."""

    def __init__(self, binding: Any) -> None:
        self.binding, self.bound = binding, list[str]()

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        self.bound.append(name)
        self.binding.bind_ortvalue_input(name, value)

    def bind_ortvalue_output(self, name: str, value: Any) -> None:
        self.bound.append(name)
        self.binding.bind_ortvalue_output(name, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.binding, name)

    @property
    def _iobinding(self) -> Any:
        return self.binding._iobinding


def test_a_step_binds_its_mask_at_most(folder: Path) -> None:
    """All is written where it is bound, for one row and for several, but for a mask that is longer at each step.

    Where rows go by their lengths, the mask may be longer than they are, and so is another one at few steps.
    """
    session = Session(folder, threads=1)
    for rows in ([[3, 1, 4]], [[3, 1, 4], [1, 5, 9]]):
        session.reset()
        session.prefill(rows, room=8)
        session.decode([7] * len(rows))
        session.graph.binding = spy = Spy(session.graph.binding)
        for _ in range(3):
            session.decode([7] * len(rows))
        by_rows = session.model.contract.feeding == "rows"
        assert spy.bound == ([] if by_rows else ["attention_mask"] * 3)


def test_buffers_are_bound_again_when_they_move(folder: Path) -> None:
    session = Session(folder, threads=1)
    session.prefill([[3, 1, 4]])
    first = session.graph.binding
    session.decode([7])
    assert session.graph.binding is not first, "the buffer had no room, and a longer one lies elsewhere"
    second = session.graph.binding
    session.decode([7])
    assert session.graph.binding is second


def _product(path: Path) -> Path:
    """A product that is large enough to be shared out among threads."""
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 1024]), ("y", [1, 4096]))
    )
    weight = numpy_helper.from_array(np.ones((1024, 4096), np.float32), "weight")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "weight"], ["y"])], "product", [x], [y], [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path.write_bytes(made.SerializeToString())
    return path


def _cpu_between_runs(sessions: list[Any]) -> float:
    """CPU seconds that this process uses in the pauses between runs of two sessions side by side."""
    x = {"x": np.ones((1, 1024), np.float32)}
    for session in sessions * 10:
        session.run(None, x)
    used = 0.0
    for session in sessions * 10:
        session.run(None, x)
        start = time.process_time()
        time.sleep(0.01)
        used += time.process_time() - start
    return used


def test_two_sessions_do_not_spin_against_each_other(tmp_path: Path) -> None:
    """CPU time of threads that wait for the next run, which is the other session's to use."""
    path = _product(tmp_path / "product.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    usual = [onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]) for _ in range(2)]
    spinning = _cpu_between_runs(usual)
    del usual
    waiting = _cpu_between_runs([session_at(path, "cpu", 2, True) for _ in range(2)])
    assert spinning > 0.02, "the machine has one core, or onnxruntime does not spin: the test says nothing"
    assert waiting < spinning / 3
