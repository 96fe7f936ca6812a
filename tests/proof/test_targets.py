"""The golden matrix of every target beside the portable graph in float32: other providers, float types and caches.

On unlike specs: what a target makes of an op, it makes of it in every spec.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from pydantic import TypeAdapter

from blockc import api, cli
from blockc.emit.external import operators_of
from blockc.graph import interp
from blockc.graph.shrink import shrink
from blockc.graph.target import Target
from blockc.ir import Arrays
from blockc.ir.derive import Join
from blockc.language.spec import load
from blockc.ops import LastIndices, Top
from blockc.ort.ops import RowQueryAttention
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.products import folder
from blockc.products.folder import COUNTED, digest
from blockc.products.manifest import read_manifest
from blockc.products.staging import FolderError
from blockc.proof import Proof, Row, prove, targets_of
from blockc.proof.cases import Case, cases
from blockc.proof.comparison import TOLERANCE, Truth, compare_run
from blockc.proof.feeding import empty_states, feeds_of
from blockc.proof.matrix import RUN_AS
from blockc.proof.runners import Onnx, Oracle, Runner
from blockc.weights.rules import random_parameters
from tests.conftest import UNLIKE
from tests.paths import ROOT, WRITERS
from tests.structures import COLUMNS, PROVIDERS, features
from tests.tiers import chosen

SPECS = sorted(path.stem for path in (ROOT / "specs").glob("*.yaml"))
(BUFFER,), (CUDA,), HALVES, (PACKED,), (ROWS,), (OLDEST,) = COLUMNS.values()
unlike_specs = pytest.mark.parametrize("name", chosen(*PROVIDERS))
_proofs: dict[str, Proof] = {}
ALONE = {"full", "padded left", "padded right"}  # of models without a cache
CASES = frozenset(
    {"full", "padded left", "padded right", "chunked, one row", "decode", "padded left, decode", "one token"}
)


def twin(name: str) -> Compiled:
    return compile_spec(shrink(load(ROOT / "specs" / f"{name}.yaml")))


def held(name: str, backend: str, dtype: str, cases: frozenset[str] | set[str] = CASES, last: bool = True) -> None:
    if name not in _proofs:
        _proofs[name] = prove(twin(name), targets=PROVIDERS)
    if name not in WRITERS:
        cases = cases & ALONE
    for named in (backend, f"{backend}, last token") if last and twin(name).by_token else (backend,):
        rows = [row for row in _proofs[name].rows if (row.backend, row.dtype) == (named, dtype)]
        assert {row.variant for row in rows} >= cases, named
        for row in rows:
            assert row.holds, row
            assert row.tolerance == TOLERANCE[dtype]


@pytest.mark.backend("buffer")
@pytest.mark.parametrize("name", [name for name in chosen(*PROVIDERS) if name in WRITERS])
def test_a_buffer_is_a_joined_cache(name: str) -> None:
    """In float64 and in onnxruntime, with any padding and any chunks."""
    held(name, "oracle, buffer", "float64", CASES | {"chunked"}, last=False)
    held(name, "onnxruntime, buffer", "float32", CASES | {"chunked"})


@pytest.mark.backend("cuda graph")
@unlike_specs
def test_the_graph_for_cuda_is_the_oracle(name: str) -> None:
    """In float64; node for node in float32 on the CPU; and as it is, in fp16 within fp16's own error."""
    held(name, "oracle, fused, for cuda", "float64", last=False)
    held(name, "onnxruntime, fused, for cuda", "float32", last=False)
    held(name, "onnxruntime, fused, for cuda", "float16")


@pytest.mark.backend("fp16")
@unlike_specs
def test_fp16_within_its_own_error(name: str) -> None:
    held(name, "onnxruntime", "float16")
    held(name, "onnxruntime, fused", "float16")


@pytest.mark.backend("packed")
@unlike_specs
def test_packed_is_apart(name: str) -> None:
    """Queries, keys and values as one product, where nothing stands between them and their attention."""
    held(name, "oracle, fused, packed", "float64", last=False)
    held(name, "onnxruntime, fused, packed", "float32")


@pytest.mark.backend("by rows")
@unlike_specs
def test_the_cpus_kernel_by_rows_lengths_is_the_oracle(name: str) -> None:
    """Without a mask that is added: rows stand at the left."""
    held(name, "oracle, fused, by rows", "float64", last=False)
    held(name, "onnxruntime, fused, by rows", "float32")


@pytest.mark.backend("oldest opset")
@unlike_specs
def test_the_graph_of_the_oldest_opset_is_the_oracle(name: str) -> None:
    held(name, f"onnxruntime, opset {OLDEST.opset}", "float32", CASES | {"chunked"}, last=False)
    if twin(name).by_token:
        held(name, f"onnxruntime, last token, opset {OLDEST.opset}", "float32", last=False)


def test_a_cell_that_is_like_others_holds_nothing_of_its_own() -> None:
    """In what is made for the targets of its column: else a spec would be read as proved that no run speaks of."""
    assert {column for column, by in UNLIKE.items() if by == "graphs"} == set(COLUMNS)
    proved = chosen(*PROVIDERS)
    for column, targets in COLUMNS.items():
        held = {name: features(twin(name), targets) for name in SPECS}
        known = frozenset[object]().union(*(held[name] for name in proved))
        assert not {name for name in SPECS if held[name] - known}, column


TOPS = (Target(logits=5), Target("cpu", logits=1), Target("cuda", "fp16", logits=4), Target(cache="buffer", logits=3))


def rows_of(name: str, target: Target) -> list[Row]:
    """The oracle on a target's function, and its graph in onnxruntime, in fp32 too."""
    model = twin(name)
    truth, function = Truth(model, random_parameters(model.function, 20)), model.flatten(target)
    runners: list[Runner] = [Oracle(function)]
    for dtype in dict.fromkeys((target.dtype, "fp32")):
        runners.append(Onnx(model.onnx(target, dtype=dtype), function, dtype=RUN_AS[dtype]))
    several = [
        case
        for case in cases(model.spec.top.vocab, cached=True)
        if not case.labels and case.masked and case.name != "chunked"
    ]
    return [compare_run(truth, runner, case) for runner in runners for case in several]


LASTS = (
    Target(logits="last", last=3),
    Target(logits="last", last=3, opset=17),
    Target("cpu", logits="last", last=3),
    Target("cpu", logits="last", last=200, padding="right"),
    Target("cuda", "fp16", logits="last", last=2),
    Target(cache="buffer", logits="last", last=3),
)


@pytest.mark.parametrize("name", ["gemma2-9b", "gpt2"])
@pytest.mark.parametrize("target", [*TOPS, *LASTS])
def test_the_highest_logits_and_those_of_the_last_tokens_are_the_oracles(name: str, target: Target) -> None:
    """In every way of feeding. Of the highest: their values, whose they are, and that no other is higher."""
    rows = rows_of(name, target)
    assert {row.dtype for row in rows} == {"float64", "float32", RUN_AS[target.dtype]}
    assert {row.variant for row in rows} == CASES
    for row in rows:
        assert row.holds, row
        assert row.dtype == "float16" or row.agreement == 1


@pytest.mark.parametrize("wrong", ["unsorted", "others", "twice"])
def test_the_proof_sees_other_logits_than_the_highest(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(self: Top, args: Arrays, params: Arrays) -> Arrays:
        tokens = np.argsort(-args[0], axis=-1, kind="stable")[..., : self.k]
        tokens = tokens[..., {"unsorted": [1, 0, 2, 3, 4], "twice": [0, 0, 1, 2, 3]}.get(wrong, [0, 1, 2, 3, 4])]
        values = np.take_along_axis(args[0], tokens, axis=-1)
        return values, (tokens + 1) % args[0].shape[-1] if wrong == "others" else tokens

    monkeypatch.setattr(Top, "numpy", planted)
    assert not any(row.holds for row in rows_of("gpt2", TOPS[0]) if row.backend == "oracle")


BATCH = (np.array([3, 14, 15, 9, 26, 5, 35]), np.array([2, 7]), np.array([8]))


@pytest.mark.parametrize("starts", [(0, 0, 0), (0, 5, 6)], ids=["padded right", "padded left"])
@pytest.mark.parametrize("target", LASTS[:3])
def test_each_row_of_a_batch_has_its_own_last_tokens(target: Target, starts: tuple[int, ...]) -> None:
    """Three, or all of a shorter row, and those of no other token."""
    model, case = twin("gemma2-9b"), Case("batch", BATCH, starts, (7,))
    params, function = random_parameters(model.function, 20), model.flatten(target)
    for runner in (Oracle(function), Onnx(model.onnx(target), function)):
        got = runner.run(case, params).logits
        assert got.shape == (3, 7, model.spec.top.vocab)
        for i, (row, start) in enumerate(zip(BATCH, starts, strict=True)):
            first = max(len(row) - 3, 0)
            given = ~np.isneginf(got[i]).any(axis=-1)
            assert np.flatnonzero(given).tolist() == list(range(start + first, start + len(row)))
            alone = Oracle(model.function).run(Case("alone", (row,), (0,), (len(row),)), params).logits[0, first:]
            assert np.abs(got[i, given] - alone).max() < TOLERANCE[runner.dtype] * alone.std()


def test_a_row_with_fewer_tokens_has_its_first_one_again() -> None:
    model, case = twin("gpt2"), Case("batch", BATCH, (0, 0, 0), (7,))
    function = model.flatten(LASTS[0])
    contract = model.contract(LASTS[0])
    (feed,) = feeds_of(contract, case)
    given = feed.inputs | empty_states(contract, case, np.float64)
    logits = interp.interpret(function, given, random_parameters(model.function, 20))["logits"]
    assert logits.shape == (3, 3, model.spec.top.vocab)
    again = [[np.allclose(row[i], row[i + 1], atol=1e-9) for i in range(2)] for row in logits]
    assert again == [[False, False], [True, False], [True, True]]


@pytest.mark.parametrize("wrong", ["late", "early", "turned", "one", "none"])
def test_the_proof_sees_other_tokens_than_the_last(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = LastIndices.numpy

    def planted(self: LastIndices, args: Arrays, params: Arrays) -> Arrays:
        (at,) = right(self, args, params)
        made = {"late": at + 1, "early": at - 1, "turned": at[:, ::-1], "one": at[:, -1:] + 0 * at, "none": 0 * at}
        return (np.clip(made[wrong], 0, args[1].shape[1] - 1),)

    monkeypatch.setattr(LastIndices, "numpy", planted)
    rows = [row for row in rows_of("gpt2", LASTS[0]) if row.backend == "oracle"]
    assert not all(row.holds for row in rows if row.variant != "one token") and rows
    assert not next(row for row in rows if row.variant == "full").holds


def test_the_proof_sees_a_token_without_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph whose logits are all -inf is not one that returns none."""
    model, case = twin("gpt2"), Case("one", BATCH[:1], (0,), (7,))
    runner = Oracle(model.flatten(LASTS[0]))
    found = interp.interpret

    def planted(*given: Any) -> dict[str, Any]:
        outputs = found(*given)
        return outputs | {"logits": np.full_like(outputs["logits"], -np.inf)}

    truth = Truth(model, random_parameters(model.function, 20))
    assert compare_run(truth, runner, case).holds
    monkeypatch.setattr("blockc.proof.runners.interp.interpret", planted)
    assert not compare_run(truth, runner, case).holds


def test_a_build_of_the_last_tokens_is_proved_and_verified(tmp_path: Path) -> None:
    target = Target("cpu", logits="last", last=3)
    assert targets_of(target)[-1] == target and len(targets_of(target)) == 3
    built = api.build(twin("gpt2"), tmp_path / "out", target=target)
    assert built.proof is not None and built.proof.complete
    assert any(row.backend == "onnxruntime, fused, last 3 tokens" for row in built.proof.rows)
    proof = api.verify(tmp_path / "out").proof
    assert proof is not None and proof.complete


def test_a_manifest_says_how_many_last_tokens_where_it_is_more_than_one(tmp_path: Path) -> None:
    def said() -> dict[str, Any]:
        return json.loads(path.read_text())

    path = tmp_path / "manifest.json"
    api.build(twin("gpt2"), tmp_path, target=Target(logits="last", last=3), proof=False)
    assert said()["target"]["last"] == 3 and read_manifest(tmp_path).target == Target(logits="last", last=3)
    assert not api.verify(tmp_path).outdated
    api.build(twin("gpt2"), tmp_path, target=Target(logits="last"), proof=False)
    manifest = said()
    assert "last" not in manifest["target"] and read_manifest(tmp_path).target.last == 1
    for wrong in (1, None, 0, -1, 3.0, True, "3"):
        path.write_text(json.dumps(manifest | {"target": manifest["target"] | {"last": wrong}}))
        with pytest.raises(folder.FolderError, match="not a manifest of this version"):
            api.verify(tmp_path)
    path.write_text(json.dumps(manifest | {"target": manifest["target"] | {"last": 4}}))
    assert api.verify(tmp_path).outdated


@pytest.mark.parametrize(
    ("said", "logits", "last"), [("all", "all", 1), ("last", "last", 1), ("last:1", "last", 1), ("last:8", "last", 8),
                                 ("8", 8, 1)]
)  # fmt: skip
def test_which_logits_a_build_is_told_to_return(said: str, logits: Any, last: int, tmp_path: Path) -> None:
    words = ["build", "gpt2", "--set", "depth=1", "--logits", said, "--no-verify", "--out", str(tmp_path / "out")]
    assert cli.run_guarded(lambda: cli.app(words, standalone_mode=False)) == 0
    assert read_manifest(tmp_path / "out").target == Target(logits=logits, last=last)


@pytest.mark.parametrize(
    "said", ["last:0", "last:", "last:x", "last:-1", "last:3:4", "last:²", ":3", "first:3", "0", ""]
)
def test_logits_that_no_build_returns(said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["build", "gpt2", "--logits", said, "--out", str(tmp_path / "out")]
    assert cli.run_guarded(lambda: cli.app(words, standalone_mode=False)) == 2
    why = "expected all, last, last:N for the last N, or how many of the highest"
    assert capsys.readouterr().err == f"blockc: --logits {said}: {why}\n" and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"logits": "last", "last": 0}, "last 0: expected a number of tokens, 1 or more"),
        ({"logits": "last", "last": -2}, "last -2: expected"),
        ({"logits": "last", "last": True}, "last True: expected"),
        ({"logits": "last", "last": 2.0}, "last 2.0: expected"),
        ({"logits": "all", "last": 2}, "last is for logits of the last tokens, and these are all"),
        ({"logits": 5, "last": 2}, "last is for logits of the last tokens, and these are 5"),
    ],
)
def test_how_many_last_tokens_there_cannot_be(given: dict[str, Any], why: str) -> None:
    with pytest.raises(api.UsageError) as said:
        Target(**given)
    assert str(said.value).startswith(why)


def test_a_build_is_proved_in_the_form_that_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in a folder is run as it lies there, whatever its target: that it gives other logits is seen."""

    def own(model: Compiled, path: Path, given: tuple[Target, bytes], targets: tuple[Target, ...], *_: Any) -> Proof:
        assert targets == targets_of(given[0])
        return prove(model, path, given, targets[-1:])

    monkeypatch.setattr(folder, "prove", own)
    forms = (Target(), CUDA, replace(CUDA, logits="last"), replace(CUDA, logits=4))
    assert [len(targets_of(target)) for target in forms] == [2, 3, 3, 4]
    api.build(twin("gpt2"), tmp_path, target=replace(CUDA, logits=4), proof=False)
    path, manifest = tmp_path / "model.onnx", json.loads((tmp_path / "manifest.json").read_text())
    model = onnx.load(path)
    top = next(n for n in model.graph.node if n.op_type == "TopK")
    next(a for a in top.attribute if a.name == "largest").i = 0
    path.write_bytes(model.SerializeToString())
    manifest["files"]["model.onnx"] = digest(path.read_bytes())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    proof = api.verify(tmp_path).proof
    assert proof is not None
    wrong = {(row.backend, row.dtype) for row in proof.rows if not row.holds}
    assert wrong == {("onnxruntime, fused, for cuda, top 4", "float16")}


def test_what_is_packed() -> None:
    for name in WRITERS:
        model = compile_spec(load(ROOT / "specs" / f"{name}.yaml"))
        made = model.derivations(PACKED)
        attentions = [layer.keys.attention for layer in model.spec.distinct]
        normed = any(a and (a.qk_norm or a.clip) for a in attentions)  # something stands between them and the heads
        weights = [path for path in made if path.endswith("qkv.weight")]
        normed = normed or any(a and a.latent for a in attentions)
        assert len(weights) == (0 if normed or name in ("block-4x4", "stablelm-3b") else model.spec.top.depth), name
        if weights:
            assert made[weights[0]] == Join(tuple(f"layers.0.attention.{x}.weight" for x in "qkv"))


def test_rows_are_padded_on_the_right_where_attention_goes_by_their_lengths() -> None:
    """Which is not where four numbers a head, or rope over 20 of them, are nothing for the kernel, nor with alibi."""
    for name in WRITERS:
        model = compile_spec(load(ROOT / "specs" / f"{name}.yaml"))
        said = [layer.keys.attention for layer in model.spec.distinct]
        lowered = any(a and (a.alibi or a.latent) for a in said)  # no kernel goes by rows there
        for each in (model, compile_spec(shrink(model.spec))):
            narrow = name == "block-4x4" or (name == "stablelm-3b" and each is model)
            expected = "joined" if narrow or lowered else "rows"
            assert each.contract(CUDA).feeding == each.contract(ROWS).feeding == expected, name
            assert each.contract(Target("cpu")).feeding == each.contract(Target()).feeding == "joined"
            assert any(isinstance(n.op, RowQueryAttention) for n in each.flatten(CUDA).nodes) == (expected == "rows")


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("target", COUNTED.values(), ids=COUNTED)
def test_nodes_are_counted_as_they_are_emitted(name: str, target: Target) -> None:
    model = compile_spec(load(ROOT / "specs" / f"{name}.yaml"))
    counted = model.count_nodes(target)
    data = model.onnx(target)
    assert counted["all"] == len(operators_of(data))
    graph = onnx.load_from_string(data).graph
    assert counted["outside"] == sum(not n.name.startswith("/layers/") for n in graph.node)


def test_a_target_is_read_back_or_refused() -> None:
    fields = {"provider": "cuda", "dtype": "bf16", "logits": "last", "cache": "joined", "packed": False} | {
        "padding": "any"
    }
    adapter = TypeAdapter(Target)

    def target_of(said: object) -> Target:
        return adapter.validate_json(json.dumps(said), strict=True)

    assert target_of(fields) == Target("cuda", "bf16", "last")
    assert target_of(fields | {"logits": 50}) == Target("cuda", "bf16", 50)
    for wrong in (
        None,
        {**fields, "dtype": "fp8"},
        *({**fields, "logits": logits} for logits in ("first", 0, True, 2.0, None, [])),
        {**fields, "packed": 0},
        {**fields, "cache": "buffer"},
        {**fields, "provider": None, "padding": "right"},
    ):
        with pytest.raises(ValueError):
            target_of(wrong)


def test_what_a_model_has_no_graph_of_is_said_in_one_place() -> None:
    """Whoever asks, be it a build or what reads its manifest."""
    causal = api.compile(ROOT / "specs" / "gpt2.yaml")
    both = api.compile(ROOT / "specs" / "gpt2.yaml", ("attention.causal=false",))
    assert not both.function.causal
    assert both.refuses(BUFFER) == "a model that remembers nothing has no cache to hold in a buffer"
    far = api.compile(ROOT / "specs" / "gpt2.yaml", ("context=1048577",))
    assert far.refuses(CUDA).startswith("context 1048577") and not far.refuses(Target("cpu"))
    for packed, copied in ((PACKED, False), (Target(packed=True), True)):
        assert causal.refuses(packed, copied).startswith("packed is for weights that are copied")
    assert not causal.refuses(PACKED, True) and not causal.refuses(BUFFER) and not causal.refuses(CUDA, False)


def test_a_graph_for_cuda_says_what_it_is_and_is_not(tmp_path: Path) -> None:
    """It was built and not run; and a context beyond what its tables tell apart is refused."""
    model = api.compile(ROOT / "specs" / "smollm2-135m.yaml")
    built = api.build(model, tmp_path / "a", target=CUDA, proof=False)
    assert built.notes[0] == "cuda: built, not run here"
    far = api.compile(ROOT / "specs" / "smollm2-135m.yaml", ("context=1048577",))
    with pytest.raises(FolderError, match="context 1048577: positions in a graph for CUDA are below 1048576"):
        api.build(far, tmp_path / "b", target=CUDA, proof=False)
    assert not (tmp_path / "b").exists()
