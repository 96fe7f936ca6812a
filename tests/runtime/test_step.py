"""Graphs that give the highest logits alone, and decode steps whose shapes and addresses stay, as CUDA graphs want.

The sessions here take every way of a captured one but for the capture itself: the CPU's provider passes it over.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from blockc.graph.contract import Contract
from blockc.graph.target import Target
from blockc.ir import Array
from blockc.runtime import ProviderError, Sampler, Session, SessionError, TopLogits, greedy
from blockc.runtime import opening as sessions
from blockc.runtime.cache import DeviceTensor, HostTensor, SessionCache
from blockc.runtime.opening import OpenModel, open_model
from blockc.runtime.sampling import highest
from blockc.runtime.session import ROUND
from blockc.runtime.step import DecodeStep
from tests.runtime.test_session import NEW, build, columns, rows, truth
from tests.runtime.test_session import greedy as oracles

TOPS = {
    "joined": Target(logits=3),
    "buffer": Target(cache="buffer", logits=1),
    "fused": Target("cpu", logits=8),
    "fused by rows": Target("cpu", logits=4, padding="right"),
    "for cuda": Target("cuda", "fp16", 4),
    "for cuda, one": Target("cuda", "fp16", 1),
}
NAME = "llama3-8b"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tops")
    made = {name: build(root / name.replace(" ", "_"), NAME, target) for name, target in TOPS.items()}
    made["all"] = build(root / "all", NAME, Target("cpu", logits="last"))
    made["mixed"] = build(root / "mixed", "mixed", Target("cuda", "fp16", 1))
    return made


class Spy:
    """A session of onnxruntime that writes down the number of each call's capture and what is released."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.calls: list[int] = []
        self.released: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        self.calls.append(int(options.get_run_config_entry("gpu_graph_id")))
        self.session.run_with_iobinding(binding, options)

    def release_captured_graph(self, graph: int) -> None:
        self.released.append(graph)


def captured(folder: Path) -> tuple[Session, Spy]:
    """A session that goes every way of a captured one on the CPU."""
    model = open_model(folder, "cpu", 1, True)
    spy = Spy(model.session)
    return Session.of(replace(model, session=spy, captured=True)), spy


# The highest logits


@pytest.mark.parametrize("target", TOPS)
def test_the_likeliest_token_is_the_oracles_in_a_batch_and_alone(target: str, folders: dict[str, Path]) -> None:
    session, prompts = Session(folders[target], threads=1), rows(NAME)
    assert session.model.contract.top == TOPS[target].top and session.model.vocab == 96
    wanted = [oracles(NAME, tuple(row)) for row in prompts]
    assert columns(session.generate(prompts, NEW)) == wanted
    assert columns(session.generate(prompts[1:2], NEW)) == wanted[1:2]
    session.reset()
    whole = np.stack([truth(NAME, tuple(row))[-1] for row in prompts])
    held = session.prefill(prompts, room=1)
    assert isinstance(held, TopLogits) and held.logits.dtype == np.float32 and held.tokens.dtype == np.int64
    expected = np.argsort(-whole, axis=-1, kind="stable")[:, : session.model.contract.top]
    if TOPS[target].dtype == "fp32":
        np.testing.assert_array_equal(held.tokens, expected)
    np.testing.assert_allclose(held.logits, np.take_along_axis(whole, held.tokens, -1), atol=1e-2 * whole.std())
    kept = held.logits.copy()
    session.decode(held.argmax())
    np.testing.assert_array_equal(held.logits, kept, "what was given is not written over")


@pytest.mark.parametrize(("top_k", "top_p"), [(8, None), (5, 0.9), (1, None)])
def test_what_is_drawn_of_the_highest_is_what_is_drawn_of_all(
    top_k: int, top_p: float | None, folders: dict[str, Path]
) -> None:
    few, every = (Session(folders[name], threads=1) for name in ("fused", "all"))
    for seed in range(4):
        drawn = [
            columns(session.generate(rows(NAME), NEW, sampler=Sampler(1.5, top_k, top_p, seed)))
            for session in (few, every)
        ]
        assert drawn[0] == drawn[1]


def test_equal_logits_are_told_apart_by_their_tokens() -> None:
    """As NumPy's argmax does: the lowest first, also where only some of the equal ones are kept."""
    row = np.array([1, 3, 0, 3, 1, 3, 2, 1], np.float32)
    assert [highest(row, k).tolist() for k in (1, 2, 4, 6, 8)] == [
        [1], [1, 3], [1, 3, 5, 6], [1, 3, 5, 6, 0, 4], [1, 3, 5, 6, 0, 4, 7, 2]
    ]  # fmt: skip
    top = highest(row, 6)[None]
    for seed in range(20):
        every = Sampler(1.0, 5, seed=seed)(row[None])
        assert Sampler(1.0, 5, seed=seed)(TopLogits(row[top], top)) == every
    assert greedy(TopLogits(row[top], top)) == greedy(row[None]) == [1]


def test_fewer_logits_than_are_drawn_from_are_refused(folders: dict[str, Path]) -> None:
    session = Session(folders["joined"], threads=1)
    for sampler, why in ((Sampler(top_k=4), "top_k is 4"), (Sampler(), "without top_k all are needed")):
        with pytest.raises(
            SessionError, match=f"gives the 3 highest logits of a token, and {why}: give a top_k of 3 or"
        ):
            list(session.generate([[1]], 2, sampler=sampler))
        with pytest.raises(ValueError, match=why):
            sampler(session.prefill([[1]]))
        session.reset()


# Steps that are bound once


def addresses(session: Session) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Of all that a decode step reads and writes: where it lies, and its shape."""
    step = session.step
    assert step is not None
    tensors = step.inputs | step.outputs
    found = {name: (tensor.value.data_ptr(), tuple(tensor.value.shape())) for name, tensor in tensors.items()}
    for value, output in zip(step.binding.get_outputs(), session.model.session.get_outputs(), strict=True):
        assert found.setdefault(output.name, (value.data_ptr(), tuple(value.shape())))[0] == value.data_ptr()
    for held in session.model.contract.held:
        assert found[held.present][0] == step.cache.buffers[held.past].data_ptr()
    return found


@pytest.mark.parametrize("target", ["for cuda", "for cuda, one", "fused by rows", "buffer"])
def test_every_step_has_the_same_shapes_and_addresses(target: str, folders: dict[str, Path]) -> None:
    (session, spy), prompts = captured(folders[target]), rows(NAME)
    wanted = [oracles(NAME, tuple(row)) for row in prompts]
    got: list[list[int | None]] = []
    seen: list[dict[str, tuple[int, tuple[int, ...]]]] = []
    for step in session.generate(prompts, NEW):
        got.append(step)
        if len(got) > 1:
            seen.append(addresses(session))
    assert columns(got) == wanted
    assert spy.calls == [-1] + [1] * (NEW - 1), "the prompt is not captured, and each step is the same capture"
    assert all(found == seen[0] for found in seen)
    assert seen[0]["attention_mask"][1] == (3, 128), "the context, where that is shorter than what is rounded to"
    assert seen[0]["input_ids"][1] == (3, 1)
    assert session.step is not None
    assert all(isinstance(t, DeviceTensor) for t in (*session.step.inputs.values(), *session.step.outputs.values()))


@pytest.mark.parametrize("target", ["for cuda, one", "fused by rows", "buffer"])
def test_a_bound_step_that_is_not_captured_is_a_call_too(
    target: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, prompts = Session(folders[target], threads=1), rows(NAME)
    wanted = [oracles(NAME, tuple(row)) for row in prompts]
    assert columns(session.generate(prompts, NEW)) == wanted and session.step is None
    monkeypatch.setattr(OpenModel, "binds_steps", property(lambda model: model.contract.fixed))
    assert columns(session.generate(prompts, NEW)) == wanted and session.step is not None
    assert session.step.options is None and session.step.inputs["attention_mask"].array.shape == (3, 7 + NEW - 1)


def test_a_capture_serves_as_long_as_its_memory_does(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockc.runtime.session.ROUND", 16)
    (session, spy), prompts = captured(folders["for cuda"]), rows(NAME)
    wanted = [oracles(NAME, tuple(row)) for row in prompts]
    for _ in range(2):  # the second time in the same memory, which holds the first time's keys
        assert columns(session.generate(prompts, NEW)) == wanted
    assert spy.calls == ([-1] + [1] * (NEW - 1)) * 2 and not spy.released
    assert columns(session.generate(prompts[:1], NEW)) == wanted[:1]
    assert spy.calls[-NEW:] == [-1] + [2] * (NEW - 1) and spy.released == [1]
    session.reset()
    del spy.calls[:]
    logits, tokens = session.prefill(prompts[:1]), list[int]()
    for _ in range(20):
        tokens.append(int(logits.argmax()[0]))
        logits = session.decode(tokens[-1:])
    assert tokens[:NEW] == wanted[0]
    assert spy.calls == [-1] + [2] * 9 + [3] * 11, "16 tokens, then 32: the buffers are others, and so is the capture"
    assert spy.released == [1, 2]
    alone = Session(folders["for cuda"], threads=1)
    assert columns(alone.generate(prompts[:1], 20)) == [tokens]


def test_a_prompt_and_a_second_turn_are_not_captured(folders: dict[str, Path]) -> None:
    (session, spy), (first, second, _) = captured(folders["for cuda"]), rows(NAME)
    session.prefill([first], room=20)
    session.decode([5])
    session.prefill([second])
    likeliest = int(session.decode([9]).argmax()[0])
    assert spy.calls == [-1, 1, -1, 1]
    session.reset()
    session.prefill([[7]])
    assert spy.calls[4:] == [-1], "of one token too: its mask says that nothing was there before"
    assert likeliest == truth(NAME, (*first, 5, *second, 9))[-1].argmax()


def test_a_first_call_may_be_run_several_times(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime does so before it captures. Nothing that a step reads is changed by it."""
    (session, spy), prompts = captured(folders["for cuda"]), rows(NAME)
    once = spy.run_with_iobinding

    def several(binding: Any, options: Any) -> None:
        for _ in range(3):
            once(binding, options)

    monkeypatch.setattr(spy, "run_with_iobinding", several)
    assert columns(session.generate(prompts, NEW)) == [oracles(NAME, tuple(row)) for row in prompts]


def test_what_a_step_reads_elsewhere_lies_there(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing is captured: onnxruntime copies an input that lies on the CPU once, when it is bound."""
    model = open_model(folders["for cuda"], "cpu", 1, True)
    cache = SessionCache(model, 2, 16)
    cache.model = replace(model, provider="cuda")
    monkeypatch.setattr(cache, "bind", lambda binding, held: None)
    asked: list[str] = []

    def on_the_cpu(element: int, shape: tuple[int, ...], provider: str) -> DeviceTensor:
        asked.append(provider)
        return DeviceTensor(element, shape, "cpu")

    monkeypatch.setattr("blockc.runtime.step.DeviceTensor", on_the_cpu)
    step = DecodeStep(cache, 1)
    assert all(isinstance(tensor, DeviceTensor) for tensor in step.inputs.values())
    assert asked == ["cuda"] * len(model.contract.inputs)
    assert all(isinstance(tensor, HostTensor) for tensor in step.outputs.values()), (
        "bf16 logits are read there as their bits"
    )
    assert step.options is None


def test_a_tensor_that_is_placed_has_one_shape() -> None:
    placed = DeviceTensor(7, (2, 3), "cpu")
    array: Array = np.arange(6).reshape(2, 3)
    placed.write(array.T.copy().T)
    np.testing.assert_array_equal(placed.read(), array)
    with pytest.raises(ValueError, match=r"an array of \(3, 2\) for a tensor of \(2, 3\)"):
        placed.write(array.reshape(3, 2))
    np.testing.assert_array_equal(placed.read(), array)


def test_what_cannot_be_captured_is_refused(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    both = "needs --ep cuda, both for the build and for the run"
    with pytest.raises(SessionError, match=both):
        Session(folders["for cuda"], capture=True)
    with pytest.raises(SessionError, match=both):
        Session(folders["buffer"], "cuda", capture=True)
    asked: list[Any] = []

    def on_the_cpu(path: Path, provider: Any, threads: Any, prepack: bool, capture: bool) -> Any:
        asked.append((provider, capture))
        return sessions_at(path, "cpu", threads, prepack)

    sessions_at = sessions.session_at
    monkeypatch.setattr(sessions, "session_at", on_the_cpu)
    assert open_model(folders["for cuda"], "cuda", 1, True, True).captured
    with pytest.raises(SessionError, match="a layer's cache is a new tensor at each step"):
        Session(folders["mixed"], "cuda", capture=True)
    assert asked == [("cuda", True)] * 2
    monkeypatch.setattr(onnxruntime, "__version__", "1.30.2")
    with pytest.raises(ProviderError, match=r"is 1\.30\.2, and from 1\.31\.1 on"):
        Session(folders["for cuda"], "cuda", capture=True)
    last = build(folders["mixed"].parent / "last", NAME, Target("cuda", "fp16", "last"))
    with pytest.raises(SessionError, match="gives all logits of a token, .* build it with --logits K"):
        Session(last, "cuda", capture=True)


def test_lengths_are_rounded_so_that_few_are_captured() -> None:
    rounded = partial(Session._round_up, Session.of(replace(_Bare, captured=True)))  # pyright: ignore[reportPrivateUsage]
    assert [rounded(n) for n in (1, ROUND, ROUND + 1, 999, 1001)] == [ROUND, ROUND, 2 * ROUND, 1000, 1001]


_Bare: Any = sessions.OpenModel(
    name="", context=1000, vocab=1, provider="cpu", contract=Contract((), (), (), "rows", True, 1, ()),
    element=1, session=None,
)  # fmt: skip
