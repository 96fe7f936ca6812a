"""Two graphs of one build: model.onnx for prompts and short rows, step.onnx for one new token of long ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockc import api, cli
from blockc.graph.quant import parse_quant
from blockc.graph.target import Padding, Target
from blockc.pipeline.compiled import Compiled
from blockc.products.folder import FolderError
from blockc.products.manifest import MODEL, STEP, graphs_of
from blockc.proof.comparison import TOLERANCE
from blockc.runtime import Sampler, Session, SessionError
from blockc.runtime.binding import BoundGraph
from blockc.runtime.sampling import greedy
from tests.checkpoints import save
from tests.paths import ROOT
from tests.runtime.test_session import NEW, model, off_by, params, rows
from tests.runtime.test_session import greedy as oracles

NAMES = ("llama3-8b", "gpt2", "gemma2-9b")
TARGETS = {
    "any": Target("cpu"),
    "any, last": Target("cpu", logits="last"),
    "right, last 6": Target("cpu", logits="last", last=6, padding="right"),
    "top": Target("cpu", logits=3, padding="right"),
}
LONG = 9  # tokens; a prompt of the tests has 7, 4 or 2


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are long soon, and buffers grow often."""
    for name in ("LONG_FLOATS", "LONG_CODES"):
        monkeypatch.setattr(f"blockc.runtime.opening.{name}", LONG)
    monkeypatch.setattr("blockc.runtime.session.LONG_ROUND", 4)


def unnamed(name: str) -> Compiled:
    """The model with the layout of a spec that names none: weights under the parameters' own names."""
    own = model(name)
    return replace(own, spec=replace(own.spec, top=own.spec.top.model_copy(update={"checkpoint": None})))


def weights(folder: Path, name: str) -> Path:
    held = {path: array.astype(np.float32) for path, array in params(name).items()}
    return save(folder / "in" / "model.safetensors", held)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    root = tmp_path_factory.mktemp("two graphs")

    @cache
    def build(name: str, target: str) -> Path:
        out = root / f"{name} {target}".replace(" ", "_").replace(",", "")
        api.build(unnamed(name), out / "out", target=TARGETS[target], proof=False, weights=weights(out, name))
        return out / "out"

    return build


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many runs each graph had."""
    counts, run = {MODEL: 0, STEP: 0}, BoundGraph.run

    def counted(graph: BoundGraph, *rest: Any) -> Any:
        counts[STEP if graph.model.contract.one_token else MODEL] += 1
        return run(graph, *rest)

    monkeypatch.setattr(BoundGraph, "run", counted)
    return counts


def columns(steps: Sequence[Sequence[int | None]]) -> list[list[int | None]]:
    return [list(column) for column in zip(*steps, strict=True)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_texts_across_the_two_graphs_are_the_oracles(
    name: str, target: str, folders: Callable[[str, str], Path], runs: dict[str, int]
) -> None:
    session = Session(folders(name, target), threads=1)
    assert session.long is None, "step.onnx is opened when a row is long"
    prompts = rows(name)
    wanted = [oracles(name, tuple(row)) for row in prompts]
    assert columns([*session.generate(prompts, NEW)]) == wanted
    assert runs == {MODEL: 1 + LONG - 7, STEP: NEW - 1 - (LONG - 7)}
    assert columns([*session.generate(prompts[1:2], NEW)]) == wanted[1:2]
    assert runs[MODEL] == 3 + 1 + NEW - 1, "a row of two tokens is not long after seven more"


@pytest.mark.parametrize("target", ["any", "any, last", "right, last 6"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_of_both_graphs_are_the_oracles(name: str, target: str, folders: Callable[[str, str], Path]) -> None:
    """Of rows of unlike lengths, while the buffers follow the text."""
    session, prompts = Session(folders(name, target), threads=1), rows(name)
    logits, lengths = session.prefill(prompts, room=30), list[int]()
    for _ in range(14):
        assert isinstance(logits, np.ndarray)
        assert off_by(name, logits, prompts) < TOLERANCE["float32"]
        assert session.cache is not None
        lengths.append(session.cache.length)
        tokens = greedy(logits)
        prompts = [[*row, int(token)] for row, token in zip(prompts, tokens, strict=True)]
        logits = session.decode(tokens)
    assert sorted(set(lengths)) == [8, 12, 16, 20]
    assert session.long is not None


def test_a_second_turn_a_rewind_and_a_new_text_go_on_in_the_same_buffers(
    folders: Callable[[str, str], Path],
) -> None:
    session, (row, then, _) = Session(folders("llama3-8b", "right, last 6"), threads=1), rows("llama3-8b")
    text = list(row)
    session.prefill([row])
    for token in (4, 44, 5, 55, 9):
        session.decode([token])
        text.append(token)
    assert session.long is not None
    text += then
    assert off_by("llama3-8b", session.prefill([then]), [text]) < TOLERANCE["float32"]
    text.append(6)
    assert off_by("llama3-8b", session.decode([6]), [text]) < TOLERANCE["float32"]
    session.rewind(10)
    text = [*text[:10], 8]
    assert off_by("llama3-8b", session.decode([8]), [text]) < TOLERANCE["float32"]
    assert session.cache is not None and session.cache.length == 16
    session.reset()
    assert off_by("llama3-8b", session.prefill([then]), [then]) < TOLERANCE["float32"]
    assert session.cache.length == 4, "a buffer that is longer than the text would be read whole"


@pytest.mark.parametrize("sampler", [greedy, Sampler(0.1, seed=4)], ids=["greedy", "drawn"])
def test_drafts_and_single_tokens_take_turns(
    sampler: Any, folders: Callable[[str, str], Path], runs: dict[str, int]
) -> None:
    session = Session(folders("llama3-8b", "right, last 6"), threads=1)
    prompt = [3, 1, 4, 1, 5, 9, 3, 1, 4, 1, 5]

    def text(lookup: int) -> list[list[int | None]]:
        again = Sampler(0.1, seed=4) if isinstance(sampler, Sampler) else sampler
        return [*session.generate([prompt], 40, sampler=again, lookup=lookup)]

    plain = text(0)
    assert runs == {MODEL: 1, STEP: 39}
    assert text(5) == plain
    assert runs[MODEL] > 2 and runs[STEP] > 39


def test_codes_are_shared_too(tmp_path: Path) -> None:
    """Both graphs read one data file, whose codes are joined in the same order."""
    out = tmp_path / "out"
    target, held = Target("cpu", quant=parse_quant("int8")), weights(tmp_path, "llama3-8b")
    api.build(unnamed("llama3-8b"), out, target=target, proof=False, weights=held)
    session = Session(out, threads=1)
    alone = Session.of(replace(session.model, step=None))
    row, spread = rows("llama3-8b")[0], 0.0
    got, wanted = session.prefill([row]), alone.prefill([row])
    for token in range(20, 28):
        assert isinstance(got, np.ndarray) and isinstance(wanted, np.ndarray)
        spread = max(spread, float(np.abs(got - wanted).max() / wanted.std()))
        got, wanted = session.decode([token]), alone.decode([token])
    assert session.long is not None and alone.long is None
    assert spread < 0.02, "what is rounded to codes of 8 bits differs in its last bits"
    assert api.verify(out).proof is not None


# The folder


def test_verify_and_run_read_step_onnx_as_it_was_built(tmp_path: Path) -> None:
    out = tmp_path / "out"
    built = api.build(unnamed("gpt2"), out, target=Target("cpu"), weights=weights(tmp_path, "gpt2"))
    assert out / STEP in built.files
    assert built.proof is not None and {r.backend for r in built.proof.rows if "one token" in r.backend} == {
        "oracle, fused, one token", "onnxruntime, fused, one token",
    }  # fmt: skip
    checked = api.verify(out)
    assert not checked.changed and not checked.outdated and checked.proof is not None and checked.proof.holds
    assert any("one token" in row.backend for row in checked.proof.rows)
    whole = (out / STEP).read_bytes()
    (out / STEP).write_bytes(whole[:-1] + b"!")
    assert api.verify(out).changed == (STEP,)
    with pytest.raises(SessionError, match=r"step\.onnx: changed since it was built"):
        Session(out)
    (out / STEP).unlink()
    with pytest.raises(SessionError, match=r"step\.onnx: changed since it was built"):
        Session(out)
    (out / STEP).write_bytes((out / MODEL).read_bytes())
    said = json.loads((out / "manifest.json").read_text())
    said["files"][STEP] = said["files"][MODEL]
    (out / "manifest.json").write_text(json.dumps(said, indent=2) + "\n")
    assert api.verify(out).outdated == (STEP,), "another graph under its name"


def test_a_build_has_the_graph_where_it_can(tmp_path: Path) -> None:
    """By default; asked for, it is refused with the reason where it cannot be."""

    def names(target: Target, **said: Any) -> set[str]:
        made = api.build(
            unnamed("gpt2"),
            tmp_path / "out",
            target=target,
            proof=False,
            weights=weights(tmp_path, "gpt2"),
            force=True,
            **said,
        )
        return {path.name for path in made.files}

    assert STEP in names(Target("cpu")) and STEP in names(Target("cpu", logits=2))
    assert STEP not in names(Target("cpu"), step=False), "nor does the file of the build before stay"
    assert not (tmp_path / "out" / STEP).exists()
    for target in (Target(), Target("cpu", "fp16"), Target("cuda", "fp16")):
        assert STEP not in names(target)
        with pytest.raises(FolderError, match=r"step: a graph of one new token is for the CPU's own operators in fp32"):
            names(target, step=True)
    bare = api.build(unnamed("gpt2"), tmp_path / "bare", target=Target("cpu"), proof=False)
    assert STEP not in {path.name for path in bare.files}
    assert graphs_of(Target("cpu", logits="last", last=4, padding="right"), True)[STEP] == Target(
        "cpu", padding="right", step=True
    )


@pytest.mark.parametrize("padding", ["any", "right"])
def test_both_graphs_hold_the_same_cache(padding: Padding) -> None:
    """In place, under the same names and of the same sizes: of every spec whose model has the second graph."""
    found = 0
    for spec in sorted((ROOT / "specs").glob("*.yaml")):
        made = api.twin(api.compile(spec))
        target = Target("cpu", padding=padding)
        if made.refuses(target.one_token):
            continue
        found += 1
        held = [made.contract(each).held for each in (target, target.one_token)]
        assert all(port.in_place and port.grows is not None for ports in held for port in ports), spec.name
        sizes = [
            [(each.past, each.present, each.dtype, [n for n in each.shape_for(3, 40) if n > 1]) for each in ports]
            for ports in held
        ]
        assert sizes[0] == sizes[1], spec.name
    assert found > 50


def test_a_model_with_a_layer_of_another_kind_has_none(tmp_path: Path) -> None:
    """One attention that has no such form leaves the model without the graph, and the refusal says which."""

    def build(**said: Any) -> api.Built:
        return api.build(
            unnamed("mixed"),
            tmp_path / "out",
            target=Target("cpu"),
            proof=False,
            weights=weights(tmp_path, "mixed"),
            force=True,
            **said,
        )

    assert STEP not in {path.name for path in build().files}
    with pytest.raises(FolderError, match=r"step: .*head_dim 12"):
        build(step=True)


def test_the_command_says_what_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.run_guarded(
        lambda: cli.app(["build", "gpt2", "--step-graph", "--out", str(tmp_path / "out")], standalone_mode=False)
    )
    assert code == 2 and "--step-graph is for weights" in capsys.readouterr().err
