"""The portable graph in the operators of every opset, and what is said of the runtimes that open it."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from blockc import api, cli
from blockc.basics.errors import UsageError
from blockc.basics.opsets import BUFFERED, OPSETS, USUAL
from blockc.emit.onnx import emit_onnx
from blockc.graph.shrink import shrink
from blockc.graph.target import Target
from blockc.ir import Op, Sample
from blockc.language.spec import load
from blockc.ops import ALL, RmsNorm
from blockc.ops.buffer import BUFFER
from blockc.ort.kernels import OLDEST, oldest_release, opset_for, parse_release
from blockc.ort.lowering import swaps_for
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.products.folder import FolderError
from blockc.proof.cases import cases
from blockc.proof.comparison import Truth, compare_run
from blockc.proof.runners import Onnx
from blockc.runtime.opening import SessionError, open_model
from blockc.weights.rules import random_parameters
from tests.checkpoints import save, tensors
from tests.ops.test_ops import assert_same, of
from tests.paths import ROOT

SAMPLES = [sample for op in (*ALL, *BUFFER) for sample in op.samples()]
FEW = frozenset({"full", "padded left", "decode"})


def twin(name: str, *assignments: str) -> Compiled:
    return compile_spec(shrink(load(ROOT / "specs" / f"{name}.yaml", assignments)))


def said(sample: Sample, opset: int, own: bool = False) -> onnx.ModelProto:
    """The op's lowering for an opset, or its own whatever the opset."""
    function = of(sample)[0]
    return emit_onnx(function, {}, swaps={} if own else swaps_for(Target(opset=opset)), opset=opset)


@pytest.mark.parametrize("opset", OPSETS)
def test_every_op_means_in_each_opset_what_it_means(opset: int) -> None:
    for sample in SAMPLES:
        model = said(sample, opset)
        onnx.checker.check_model(model, full_check=True)
        assert model.opset_import[0].version == opset
        function, inputs, params, wanted = of(sample)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        names = {i.name for i in session.get_inputs()}
        given = {n: a.astype(np.float32) if a.dtype.kind == "f" else a for n, a in (inputs | params).items()}
        got = session.run(list(function.output_names), {n: a for n, a in given.items() if n in names})
        assert_same(got, wanted)


def test_an_op_says_the_first_opset_that_has_its_operators() -> None:
    """Of the ops that say a later one than the first, none could say an earlier one; and each has a rule for before."""
    later = {type(sample.op): sample for sample in SAMPLES if sample.op.since > OPSETS.start}
    assert {op.since for op in later} == {20, USUAL, BUFFERED}
    for op, sample in later.items():
        onnx.checker.check_model(said(sample, op.since, own=True), full_check=True)
        with pytest.raises(onnx.checker.ValidationError, match="No Op registered"):
            onnx.checker.check_model(said(sample, op.since - 1, own=True), full_check=True)
        assert op.older is not Op.older, op


@pytest.mark.parametrize("target", [Target(opset=n) for n in OPSETS] + [Target(opset=17, cache="buffer", logits=3)])
def test_the_graph_of_each_opset_is_the_oracles(target: Target) -> None:
    for name, *assignments in (("llama3-8b", "attention.sinks=true"), ("gemma2-9b",), ("gpt-j-6b",), ("bloom-560m",)):
        model = twin(name, *assignments)
        data = model.onnx(target)
        onnx.checker.check_model(data, full_check=True)
        runner = Onnx(data, model.flatten(target))
        truth = Truth(model, random_parameters(model.function, 20))
        for case in cases(model.spec.top.vocab, cached=True, only=FEW):
            row = compare_run(truth, runner, case)
            assert row.holds and row.agreement == 1, (name, row)


def test_the_usual_opset_is_asked_for_or_not() -> None:
    model = twin("llama3-8b")
    for target, opset in ((Target(), USUAL), (Target(cache="buffer"), BUFFERED)):
        asked = Target(cache=target.cache, opset=opset)
        assert model.onnx(asked) == model.onnx(target)
        assert onnx.load_from_string(model.onnx(target)).opset_import[0].version == opset
        assert oldest_release(asked) == oldest_release(target)


def test_an_op_that_an_opset_cannot_say_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RmsNorm, "older", Op.older)
    model = twin("llama3-8b")
    with pytest.raises(FolderError, match=r"layers\.0\.attention_norm: rms_norm needs opset 23 or later"):
        api.build(model, tmp_path / "out", target=Target(opset=22), proof=False)
    assert not (tmp_path / "out").exists()
    assert not model.refuses(Target(opset=23))


def test_a_folder_of_an_opset_is_proved_and_verified(tmp_path: Path) -> None:
    built = api.build(twin("gemma2-9b"), tmp_path, target=Target(opset=17))
    assert built.proof is not None and built.proof.complete
    assert any("opset 17" in row.backend for row in built.proof.rows)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["target"]["opset"] == 17
    proof = api.verify(tmp_path).proof
    assert proof is not None and proof.complete
    assert any(row.backend == "onnxruntime, opset 17" for row in proof.rows)


def test_a_manifest_holds_an_opset_where_one_was_asked_for(tmp_path: Path) -> None:
    api.build(twin("gpt2"), tmp_path, proof=False)
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    assert "opset" not in manifest["target"]
    for wrong in (None, 16, 23.0, True, "23"):
        path.write_text(json.dumps(manifest | {"target": manifest["target"] | {"opset": wrong}}))
        with pytest.raises(FolderError, match="not a manifest of this version"):
            api.verify(tmp_path)
    path.write_text(json.dumps(manifest | {"target": manifest["target"] | {"opset": 22}}))
    assert api.verify(tmp_path).outdated


@pytest.mark.parametrize("words", [("--opset", "16"), ("--opset", "99"), ("--opset", "17", "--ep", "cpu")])
def test_no_such_opset(words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["build", "gpt2", *words, "--out", str(tmp_path / "out")]
    assert cli.run_guarded(lambda: cli.app(arguments, standalone_mode=False)) == 2
    assert "opset" in capsys.readouterr().err and not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="opset"):
        Target("cpu" if "cpu" in words else None, opset=int(words[1]))


# What is said of runtimes; tests/ort/test_oldest.py tries it.


def test_the_table_of_the_page_is_the_codes() -> None:
    page = (ROOT / "docs" / "backends.md").read_text()
    rows = re.findall(r"(?m)^\| (portable|`--ep \w+`)(.*?) \| ([\d, ]+) \| ([\d.]+) \|", page)
    told: dict[Target, str] = {}
    for graph, more, opsets, version in rows:
        for opset in map(int, opsets.split(",")):
            if graph != "portable":
                told |= {Target(graph[6:-1]): version}  # type: ignore[arg-type]
                continue
            asked = opset if "--opset" in more else None
            logits = ("last", 5) if "--logits" in more else ("all",)
            dtype, cache = "fp16" if "fp16" in more else "fp32", "buffer" if "buffer" in more else "joined"
            told |= {Target(None, dtype, n, cache, opset=asked): version for n in logits}
            assert asked or opset == (BUFFERED if "buffer" in more else USUAL)
    assert {t.opset for t in told} == {None, *OPSETS} and {t.provider for t in told} == {None, "cpu", "cuda"}
    assert {t.logits for t in told if t.opset} == {"all", "last", 5} and {t.dtype for t in told} == {"fp32", "fp16"}
    assert told == {target: oldest_release(target) for target in told}
    assert OLDEST.keys() == set(OPSETS)


def test_the_project_wants_what_its_usual_graphs_want() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {line.rpartition(">=")[2] for line in (*extras["cpu"], *extras["cuda"])}
    assert wanted == {oldest_release(Target()), oldest_release(Target("cpu")), oldest_release(Target("cuda", "fp16"))}


def test_a_runtime_that_is_too_old_is_named_with_the_one_that_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = twin("gpt2")
    weights = save(tmp_path / "weights.safetensors", tensors(model))
    for name, target in (("usual", Target()), ("old", Target(opset=20)), ("own", Target("cpu"))):
        api.build(model, tmp_path / name, target=target, weights=weights, proof=False)
    monkeypatch.setattr(onnxruntime, "__version__", "1.20.1")
    why = r"this onnxruntime is 1\.20\.1, and its graph needs 1\.28 or later: `pip install -U 'onnxruntime>=1\.28'`"
    with pytest.raises(SessionError, match=why + ", or build it with --opset 21$"):
        open_model(tmp_path / "usual", "cpu", None, True)
    with pytest.raises(SessionError, match=why + "$"):
        open_model(tmp_path / "own", "cpu", None, True)
    assert open_model(tmp_path / "old", "cpu", None, True).session
    monkeypatch.setattr(onnxruntime, "__version__", "1.28.0.dev20260101")
    assert open_model(tmp_path / "usual", "cpu", None, True).session


def test_the_newest_opset_for_a_release() -> None:
    assert opset_for(Target(), "1.14.1") is None and opset_for(Target(), "1.15.0") == 18
    assert opset_for(Target(logits="last"), "1.19.2") is None and opset_for(Target(logits=3), "1.20.0") == 21
    assert opset_for(Target("cpu"), "1.26.0") is None
    assert opset_for(Target(), "1.31.1") == 26
    assert opset_for(Target(cache="buffer"), "1.100") == OPSETS[-1]
    assert parse_release("1.27") == parse_release("1.27.0") < parse_release("1.27.1") < parse_release("1.100")
