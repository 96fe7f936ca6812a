"""Sessions on twins against the float64 oracle, in every way of feeding, and what they refuse.

The sampler's distribution is compared with that of transformers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from transformers.generation import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from blockc import api
from blockc.graph import interp
from blockc.graph.target import Target
from blockc.ir import Array
from blockc.language.spec import from_tree
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.proof.comparison import TOLERANCE
from blockc.proof.matrix import RUN_AS
from blockc.runtime import ProviderError, Sampler, Session, SessionError
from blockc.runtime.cache import HostTensor
from blockc.source import parse
from blockc.weights.rules import random_parameters
from tests.checkpoints import save, twin

NAMES = ("llama3-8b", "gpt2", "gemma2-9b", "olmo2-7b", "block-4x4", "mixed")
TARGETS = {
    "joined": Target(),
    "buffer": Target(cache="buffer"),
    "fused": Target("cpu"),
    "fused fp16": Target("cpu", "fp16"),
    "rows": Target("cuda", "fp16"),
    "joined, last": Target(logits="last"),
    "buffer, last": Target(cache="buffer", logits="last"),
    "fused, last": Target("cpu", logits="last"),
    "fused by rows": Target("cpu", padding="right"),
    "rows, last": Target("cuda", "fp16", logits="last"),
}
FIRST, LAST = tuple(TARGETS)[:5], tuple(TARGETS)[5:]
NEW = 8
# Beside a layer whose heads a kernel takes, one whose heads it does not.
MIXED = """\
blockc: 1
name: mixed
vocab: 96
width: 32
depth: 2
context: 64
attention: {heads: 2, kv_heads: 1, head_dim: 16, rope: {theta: 1e4, pairing: half}}
mlp: {type: swiglu, width: 24}
norm: {type: rms, eps: 1e-5, placement: pre}
head: {tied: true}
layers: {pattern: [wide, odd], kinds: {wide: {}, odd: {attention: {head_dim: 12}}}}
"""


def model(name: str) -> Compiled:
    return compile_spec(from_tree(parse(MIXED, "mixed.yaml"))) if name == "mixed" else twin(name)


def rows(name: str) -> list[list[int]]:
    vocab = model(name).spec.top.vocab
    return [[t % vocab for t in row] for row in ([3, 14, 15, 9, 26, 5, 35], [2, 7], [8, 9, 79, 32])]


@cache
def params(name: str) -> dict[str, Array]:
    """Of eleven bits, so that fp16 holds them."""
    held = random_parameters(model(name).function, 3)
    return {path: array.astype(np.float16).astype(np.float64) for path, array in held.items()}


@cache
def truth(name: str, row: tuple[int, ...]) -> Array:
    """The oracle's logits (S, V) of a row, whole, without a cache."""
    ids = np.array([row])
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(len(row))[None]}
    return interp.interpret(model(name).function, feeds, params(name))["logits"][0]


@cache
def greedy(name: str, row: tuple[int, ...]) -> list[int]:
    tokens = list(row)
    for _ in range(NEW):
        tokens.append(int(truth(name, tuple(tokens))[-1].argmax()))
    return tokens[len(row) :]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Builds by spec and target, as they are asked for."""
    root = tmp_path_factory.mktemp("builds")

    class Builds(dict[tuple[str, str], Path]):
        def __missing__(self, key: tuple[str, str]) -> Path:
            name, target = key
            self[key] = build(root / name / target.replace(" ", "_"), name, TARGETS[target])
            return self[key]

    return Builds()


def build(out: Path, name: str, target: Target = TARGETS["joined"], pack: bool = False) -> Path:
    """Weights under the parameters' own names, which is the layout of a spec that names none."""
    own = model(name)
    own = replace(own, spec=replace(own.spec, top=own.spec.top.model_copy(update={"checkpoint": None})))
    weights = save(out / "in" / "model.safetensors", {k: v.astype(np.float32) for k, v in params(name).items()})
    mode = "pack" if pack else "link"
    api.build(own, out / "out", target=target, proof=False, weights=weights, mode=mode, step=False)
    return out / "out"


def off_by(name: str, logits: Array, seen: Sequence[Sequence[int]]) -> float:
    """The largest difference from the oracle's logits of each row's last token, of their spread."""
    wanted = np.stack([truth(name, tuple(row))[-1] for row in seen])
    return float(np.abs(logits - wanted).max() / truth(name, tuple(rows(name)[0])).std())


def tolerance(target: str) -> float:
    return TOLERANCE[RUN_AS[TARGETS[target].dtype]]


def feeding(name: str, target: str) -> str:
    """Where a kernel takes no layer, a graph by rows is fed like any other."""
    word = "rows" if target.endswith("by rows") else target.split()[0].strip(",")
    return "joined" if word == "fused" or (word == "rows" and name in ("block-4x4", "mixed")) else word


def columns(steps: Any) -> list[list[int | None]]:
    return [list(row) for row in zip(*steps, strict=True)]


# Prefill and decode


@pytest.mark.parametrize(
    ("name", "target"),
    [*((name, target) for name in NAMES for target in FIRST), *(("llama3-8b", target) for target in LAST)],
)
def test_a_batch_of_unlike_rows_is_what_the_oracle_says_of_each(
    name: str, target: str, folders: dict[tuple[str, str], Path]
) -> None:
    """Greedy tokens and logits are the oracle's, and in a batch they are those of a row alone."""
    session, prompts = Session(folders[name, target], threads=1), rows(name)
    assert session.model.contract.feeding == feeding(name, target)
    wanted = [greedy(name, tuple(row)) for row in prompts]
    assert columns(session.generate(prompts, NEW)) == wanted
    session.reset()
    batch = [session.prefill(prompts)] + [session.decode([row[i] for row in wanted]) for i in range(NEW - 1)]
    assert session.lengths == tuple(len(row) + NEW - 1 for row in prompts)
    for i, logits in enumerate(batch):
        assert logits.dtype == np.float32
        seen = [[*row, *new[:i]] for row, new in zip(prompts, wanted, strict=True)]
        assert off_by(name, logits, seen) < tolerance(target)
    spread = truth(name, tuple(prompts[0])).std()
    for i, row in enumerate(prompts):
        assert columns(session.generate([row], NEW)) == [wanted[i]]
        session.reset()
        alone = [session.prefill([row])] + [session.decode([token]) for token in wanted[i][:-1]]
        difference = max(np.abs(a[0] - b[i]).max() for a, b in zip(alone, batch, strict=True))
        assert difference / spread < (1e-5 if TARGETS[target].dtype == "fp32" else 3e-3)


@pytest.mark.parametrize("target", FIRST[1:])
def test_a_cache_is_one_buffer_and_steps_take_no_memory(target: str, folders: dict[tuple[str, str], Path]) -> None:
    session = Session(folders["llama3-8b", target], threads=1)
    session.prefill(rows("llama3-8b"), room=NEW)
    held = session.cache
    assert held is not None and held.length == 7 + NEW
    assert held.in_place
    session.decode([1, 2, 3])
    assert session.step is None, "bound once, a step reads a mask as long as the buffers, which on the CPU is work"

    def small() -> dict[str, int]:
        tensors = session.graph.inputs | session.graph.outputs
        return {name: tensor.value.data_ptr() for name, tensor in tensors.items() if name != "attention_mask"}

    pasts = {each.present: held.buffers[each.past].data_ptr() for each in session.model.contract.held}
    before = small()
    for _ in range(NEW - 1):
        session.decode([1, 2, 3])
        logits, *presents = session.graph.binding.get_outputs()
        states = zip(session.model.contract.held, presents, strict=True)
        assert {each.present: value.data_ptr() for each, value in states} == pasts
        assert {value.shape()[2] for value in presents} == {7 + NEW}
        assert logits.data_ptr() == session.graph.outputs["logits"].value.data_ptr()
        assert small() == before
        assert session.graph.inputs["attention_mask"].array.base is session.graph.inputs["attention_mask"].flat


def test_in_a_mixed_model_each_layer_keeps_its_cache_as_it_can(folders: dict[tuple[str, str], Path]) -> None:
    session = Session(folders["mixed", "fused"], threads=1)
    assert [(held.past, held.in_place) for held in session.model.contract.held] == [
        (f"past_key_values.{i}.{part}", i == 0) for i in range(2) for part in ("key", "value")
    ]


@pytest.mark.parametrize("name", ["gpt2", "mixed"])
@pytest.mark.parametrize("target", FIRST)
def test_a_buffer_that_is_too_short_grows(name: str, target: str, folders: dict[tuple[str, str], Path]) -> None:
    session, prompts = Session(folders[name, target], threads=1), rows(name)
    logits = session.prefill(prompts)
    lengths = set[int]()
    for i in range(12):
        tokens = logits.argmax(-1)
        prompts = [[*row, int(token)] for row, token in zip(prompts, tokens, strict=True)]
        logits = session.decode(tokens)
        assert off_by(name, logits, prompts) < tolerance(target), i
        assert session.cache is not None
        lengths.add(session.cache.length)
    assert lengths == {14, 28}


@pytest.mark.parametrize("target", TARGETS)
def test_a_second_turn_goes_on_where_the_first_ended(target: str, folders: dict[tuple[str, str], Path]) -> None:
    session, prompts = Session(folders["llama3-8b", target], threads=1), rows("llama3-8b")
    more = [[4, 44], [5, 55, 65], [6]]
    for row, then in zip(prompts, more, strict=True):
        session.reset()
        session.prefill([row])
        assert off_by("llama3-8b", session.prefill([then]), [row + then]) < tolerance(target)
        assert off_by("llama3-8b", session.decode([9]), [[*row, *then, 9]]) < tolerance(target)
    session.reset()
    session.prefill(prompts)
    whole = [row + then for row, then in zip(prompts, more, strict=True)]
    if TARGETS[target].provider is not None:
        with pytest.raises(
            SessionError, match=r"3 rows are extended by up to 3 tokens, .* in one row only: decode\(\)"
        ):
            session.prefill(more)
        return
    assert off_by("llama3-8b", session.prefill(more), whole) < tolerance(target)
    assert off_by("llama3-8b", session.decode([9, 9, 9]), [[*row, 9] for row in whole]) < tolerance(target)


def test_a_row_ends_with_the_first_token_that_stops(folders: dict[tuple[str, str], Path]) -> None:
    session, prompts = Session(folders["llama3-8b", "fused"], threads=1), rows("llama3-8b")
    wanted = [greedy("llama3-8b", tuple(row)) for row in prompts]
    end = wanted[0][3]
    assert end not in wanted[0][:3] and end not in wanted[1]
    got = columns(session.generate(prompts, NEW, stop={end}))
    assert got[0] == [*wanted[0][:4], *[None] * (NEW - 4)]
    assert got[1] == wanted[1]
    assert columns(session.generate(prompts[:1], NEW, stop={end})) == [wanted[0][:4]], "nothing is run for ended rows"
    assert list(session.generate(prompts, 0)) == []


# What is refused


def test_what_does_not_fit_the_cache_is_refused(folders: dict[tuple[str, str], Path]) -> None:
    session = Session(folders["llama3-8b", "fused"], threads=1)
    with pytest.raises(SessionError, match="a row without a token"):
        session.prefill([[1], []])
    with pytest.raises(SessionError, match="token 96 is outside the vocabulary of 96"):
        session.prefill([[1, 96]])
    with pytest.raises(SessionError, match="129 tokens of one row, and the model's context is 128"):
        session.prefill([[1] * 129])
    with pytest.raises(SessionError, match="130 tokens of one row"):
        list(session.generate([[1] * 120], 10))
    session.prefill([[1], [2]])
    with pytest.raises(SessionError, match="3 rows of tokens for a cache of 2"):
        session.decode([1, 2, 3])
    session.reset()
    session.prefill([[1] * 128])
    with pytest.raises(SessionError, match="129 tokens"):
        session.decode([1])


def test_changed_weights_are_seen(tmp_path: Path) -> None:
    linked = build(tmp_path / "linked", "gpt2")
    Session(linked)
    source = linked / "model.safetensors"
    os.utime(source, ns=(1, 1))
    Session(linked)
    with source.open("ab") as data:
        data.write(b"0")
    with pytest.raises(SessionError, match=r"model\.safetensors: a hole of 1 bytes after the last tensor"):
        Session(linked)
    save(source, {k: v.astype(np.float32) for k, v in random_parameters(twin("llama3-8b").function, 3).items()})
    with pytest.raises(SessionError, match=r"model\.safetensors: changed since the model was built on it"):
        Session(linked)
    source.unlink()
    with pytest.raises(SessionError, match=r"model\.safetensors: no such file"):
        Session(linked)
    packed = build(tmp_path / "packed", "gpt2", pack=True)
    Session(packed)
    with (packed / "model.onnx.data").open("ab") as data:
        data.write(b"0")
    with pytest.raises(SessionError, match=r"model\.onnx\.data: not the weights that were packed"):
        Session(packed)


def test_a_folder_that_cannot_be_run_says_why(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match=r"no manifest\.json, so not a finished build"):
        Session(tmp_path)
    api.build(twin("llama3-8b"), tmp_path / "bare", proof=False)
    with pytest.raises(SessionError) as said:
        Session(tmp_path / "bare")
    spec = tmp_path / "bare" / "spec.resolved.yaml"
    assert f"bare has no weights: build it with `blockc build {spec} --weights PATH" in str(said.value)
    assert str(said.value).endswith("with tensors under the names of the layout llama")
    with pytest.raises(SessionError, match="computes in bf16"):
        Session(build(tmp_path / "bf16", "gpt2", Target("cuda", "bf16")))
    manifest = tmp_path / "bare" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"target": {"provider": "tpu"}}))
    with pytest.raises(SessionError, match="not a manifest"):
        Session(tmp_path / "bare")


def test_a_model_that_looks_both_ways_cannot_go_on(tmp_path: Path) -> None:
    text = MIXED.replace("heads: 2", "causal: false, heads: 2").replace("name: mixed", "name: encoder")
    encoder = compile_spec(from_tree(parse(text, "encoder.yaml")))
    held = {k: v.astype(np.float32) for k, v in random_parameters(encoder.function, 3).items()}
    weights = save(tmp_path / "in" / "model.safetensors", held)
    api.build(encoder, tmp_path / "out", proof=False, weights=weights)
    with pytest.raises(SessionError, match="the model has no cache"):
        Session(tmp_path / "out")


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_the_provider_that_was_asked_for_is_the_one_that_runs(
    folders: dict[tuple[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime goes on with the CPU in silence, here because this machine has no CUDA."""
    assert "CUDAExecutionProvider" not in onnxruntime.InferenceSession(
        folders["gpt2", "joined"] / "model.onnx", providers=["CUDAExecutionProvider", "CPUExecutionProvider"]
    ).get_providers()  # fmt: skip
    with pytest.raises(SessionError, match="was built for the CPU: build it with --ep cuda"):
        Session(folders["gpt2", "fused"], "cuda")
    with pytest.raises(ProviderError, match=r"CPUExecutionProvider.*onnxruntime-gpu\[cuda,cudnn\]"):
        Session(folders["gpt2", "rows"], "cuda")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    with pytest.raises(ProviderError, match="would run on CPUExecutionProvider: its CUDA provider did not start"):
        Session(folders["gpt2", "rows"], "cuda")


def test_bf16_is_held_as_its_bits() -> None:
    held = HostTensor(16)
    held.reshape(2, 3)[:] = 0x3FC0
    assert held.value.element_type() == 16 and held.value.shape() == [2, 3]
    assert held.value.data_ptr() == held.array.ctypes.data


# Sampling

LOGITS = np.array([2.0, 0.5, -1.0, 1.5, 0.0, -3.0, 1.0, 0.3, 2.2, -0.5], np.float32)
CUTS = [(1.0, None, None), (0.7, None, None), (1.3, 4, None), (0.9, None, 0.8), (1.5, 6, 0.7), (0.5, None, 0.05)]


def odds(temperature: float, top_k: int | None, top_p: float | None) -> Array:
    """What transformers draws from."""
    scores: Any = TemperatureLogitsWarper(temperature)(None, torch.tensor(LOGITS[None]).double())
    scores = scores if top_k is None else TopKLogitsWarper(top_k)(None, scores)
    scores = scores if top_p is None else TopPLogitsWarper(top_p)(None, scores)
    return scores.softmax(-1)[0].numpy()


@pytest.mark.parametrize("cut", CUTS)
def test_what_is_left_to_draw_from_is_what_transformers_leaves(
    cut: tuple[float, int | None, float | None],
) -> None:
    tokens, kept = Sampler(*cut).probabilities(LOGITS)
    whole = np.zeros(len(LOGITS))
    whole[tokens] = kept
    np.testing.assert_allclose(whole, odds(*cut), atol=1e-12)


@pytest.mark.parametrize("cut", CUTS[1:5:3])
def test_tokens_come_as_often_as_they_should(cut: tuple[float, int | None, float | None]) -> None:
    """Chi-square: with k - 1 degrees of freedom it is above k + 4 sqrt(2 k) in fewer than one of a thousand draws."""
    wanted = odds(*cut)
    draw, number = Sampler(*cut, seed=1), 8000
    counts = np.zeros(len(LOGITS))
    for _ in range(number):
        counts[draw(LOGITS[None])[0]] += 1
    kept = wanted > 0
    assert not counts[~kept].any()

    def far(temperature: float) -> float:
        other = odds(temperature, *cut[1:])[kept] * number
        return float((((counts[kept] - other) ** 2) / other).sum())

    bound = kept.sum() + 4 * np.sqrt(2 * kept.sum())
    assert far(cut[0]) < bound < far(cut[0] * 1.4), "a wrong temperature would be seen"


def test_a_seed_says_what_is_drawn_in_a_batch_as_alone(folders: dict[tuple[str, str], Path]) -> None:
    session, prompts = Session(folders["llama3-8b", "fused"], threads=1), rows("llama3-8b")

    def drawn(prompts: list[list[int]], seed: int) -> list[list[int | None]]:
        return columns(session.generate(prompts, NEW, sampler=Sampler(1.0, seed=seed)))

    once = drawn(prompts, 5)
    assert drawn(prompts, 5) == once != drawn(prompts, 6)
    assert drawn(prompts[:1], 5) == once[:1]
    same = drawn([prompts[0]] * 2, 5)
    assert same[0] == once[0] != same[1], "equal prompts are not the same draw"


@pytest.mark.parametrize(
    "wrong", [{"temperature": 0}, {"top_k": 0}, {"top_p": 0}, {"top_p": 1.1}, {"temperature": np.nan}]
)
def test_numbers_that_are_none_of_a_sampler(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampler(**wrong)
