"""blockc bench of models without a cache: worker, foreign graphs, floors by hand, tables, JSON, refusals; no times."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

from blockc import api
from blockc.basics.errors import UsageError
from blockc.bench import encoders, tables
from blockc.bench.asked import Asked, Measure
from blockc.bench.floors import Work
from blockc.bench.measure import Bench, BenchEntry, Candidate, Speed, find_entries, find_vocab, floor_of
from blockc.bench.protocol import draw_tokens
from blockc.bench.turns import Worker, WorkerError, cores, worker_command
from blockc.cli import app, run_guarded
from blockc.graph.target import Target
from blockc.language.spec import from_tree
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.runtime import SessionError
from blockc.source import parse
from blockc.weights.rules import random_parameters
from tests.checkpoints import save

ENCODER = """\
blockc: 1
name: read
vocab: 50
width: 8
depth: 2
context: 64
positions: {type: learned}
embedding: {segments: 2, norm: {type: layer, eps: 1e-5, bias: true}}
attention: {heads: 2, causal: false, bias: [q, k, v, o]}
mlp: {type: gelu, width: 12, bias: [up, down]}
norm: {type: layer, eps: 1e-5, bias: true, placement: post}
"""
POOLED = "head: none\npool: {type: mean, unit: true}\n"
CLASSES = "head: {classes: 3, bias: true}\npool: {type: first}\n"
MASKED = "head: {tied: true}\n"
DECODER = """\
blockc: 1
name: written
vocab: 50
width: 8
depth: 1
context: 64
attention: {heads: 2, rope: {theta: 10000, pairing: half}}
mlp: {type: swiglu, width: 12}
norm: {type: rms, eps: 1e-5, placement: pre}
head: {tied: true}
"""


def compiled(text: str) -> Compiled:
    return compile_spec(from_tree(parse(text, "read.yaml")))


def built(folder: Path, text: str, target: Target) -> Path:
    model = compiled(text)
    held = {path: array.astype(np.float32) for path, array in random_parameters(model.function, 0).items()}
    weights = save(folder.with_name(f"{folder.name}-in") / "model.safetensors", held)
    api.build(model, folder, target=target, proof=False, weights=weights)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Builds of encoders and of a decoder, and one's graph and weights alone, as another tool's folder."""
    root = tmp_path_factory.mktemp("bench")
    texts = {"pooled": POOLED, "classes": CLASSES, "masked": MASKED}
    made = {name: built(root / name, ENCODER + ends, Target("cpu")) for name, ends in texts.items()}
    made["decoder"] = built(root / "decoder", DECODER, Target("cpu"))
    made["other"] = root / "other"
    made["other"].mkdir()
    for file in ("model.onnx", "model.safetensors"):
        shutil.copy(made["pooled"] / file, made["other"])
    config = {"vocab_size": 50, "max_position_embeddings": 64}
    (made["other"] / "config.json").write_text(json.dumps(config))
    return made


def bench(*arguments: str | Path) -> int:
    return run_guarded(lambda: app(["bench", *map(str, arguments)], standalone_mode=False))


# The worker


def test_a_worker_encodes_batches_of_texts(folders: dict[str, Path]) -> None:
    worker = Worker("A", worker_command("blockc.bench.encoders", str(folders["pooled"])), cores(1))
    try:
        with pytest.raises(WorkerError, match="^A: nothing is loaded"):
            worker.ask("encode", tokens=4, rows=1, repeat=1, vocab=50)
        loaded = worker.ask("load", threads=1)
        assert (loaded["vocab"], loaded["context"]) == (50, 64) and loaded["seconds"] > 0
        assert loaded["weights"] > 4 * compiled(ENCODER + POOLED).parameters - 64
        assert 0 < loaded["memory"]["private"] < loaded["memory"]["rss"]
        answer = worker.ask("encode", tokens=7, rows=3, repeat=4, vocab=50)
        assert len(answer["ms"]) == 4 and min(answer["ms"]) > 0
        with pytest.raises(WorkerError, match="^A: "):
            worker.ask("encode", tokens=99, rows=1, repeat=1, vocab=50)
        assert worker.ask("memory").keys() == {"rss", "private", "peak"}
    finally:
        worker.close()


class Remembered:
    """A session that remembers what it was fed."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.fed = inner, list[dict[str, np.ndarray[Any, Any]]]()

    def run(self, wanted: None, feeds: dict[str, Any]) -> None:
        self.fed.append(feeds)
        self.inner.run(wanted, feeds)

    def get_inputs(self) -> Any:
        return self.inner.get_inputs()


def test_texts_have_no_padding_and_one_batch_is_not_counted(folders: dict[str, Path]) -> None:
    worker = encoders.EncoderWorker(folders["pooled"], "cpu")
    worker.load(1)
    session = worker.session = Remembered(worker.session)
    assert len(worker.encode(5, 3, 2, 9)["ms"]) == 2 and len(session.fed) == 3
    fed = session.fed[0]
    assert fed.keys() == {"input_ids", "attention_mask", "token_type_ids"}
    assert fed["input_ids"].tolist() == np.reshape(draw_tokens(15, 9), (3, 5)).tolist()
    assert fed["attention_mask"].all() and not fed["token_type_ids"].any() and fed["attention_mask"].shape == (3, 5)


# Entries


def test_a_folder_without_a_cache_is_an_encoder(folders: dict[str, Path]) -> None:
    found = find_entries(folders["pooled"], [folders["other"], folders["classes"], folders["masked"]])
    assert [entry.name for entry in found] == ["pooled", "other", "classes", "masked"]
    assert [entry.work is None for entry in found] == [False, True, False, False]
    assert all(entry.sizes == encoders.Sizes(50, 64) for entry in found)
    assert "blockc.bench.encoders" in found[1].command("cpu") and find_vocab(found) == 50
    decoder = find_entries(folders["decoder"], [])
    assert decoder[0].sizes is None and find_vocab(decoder) is None
    for pair in (("pooled", "decoder"), ("decoder", "pooled")):
        with pytest.raises(SessionError, match="^pooled has no cache, and decoder has one"):
            find_entries(folders[pair[0]], [folders[pair[1]]])


def foreign(folder: Path, **inputs: int) -> Path:
    """A graph with these inputs, each of a type of ONNX, and no weights."""
    folder.mkdir(exist_ok=True)
    values = [onnx.helper.make_tensor_value_info(name, kind, ["B", "S"]) for name, kind in inputs.items()]
    nodes = [onnx.helper.make_node("Cast", [next(iter(inputs))], ["last_hidden_state"], to=onnx.TensorProto.FLOAT)]
    made = onnx.helper.make_tensor_value_info("last_hidden_state", onnx.TensorProto.FLOAT, ["B", "S"])
    graph = onnx.helper.make_graph(nodes, "g", values, [made])
    opsets = [onnx.helper.make_opsetid("", 21)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "model.onnx")
    return folder


def test_another_tools_graph_is_fed_by_the_names_and_types_of_its_inputs(tmp_path: Path) -> None:
    long, short = onnx.TensorProto.INT64, onnx.TensorProto.INT32
    folder = foreign(tmp_path / "made", input_ids=short, position_ids=long)
    worker = encoders.EncoderWorker(folder, "cpu")
    assert worker.load(1).keys() == {"seconds", "memory", "weights", "versions"}  # nothing says vocabulary and context
    session = worker.session = Remembered(worker.session)
    worker.encode(3, 2, 0, 9)
    assert session.fed[0]["input_ids"].dtype == np.int32
    assert session.fed[0]["position_ids"].tolist() == [[0, 1, 2]] * 2


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({"input_ids": 7, "pixel_values": 7}, "unknown inputs pixel_values: input_ids, attention_mask, token_type_ids"),
        ({"input_ids": 1}, "input_ids is tensor.float., expected int64 or int32"),
        ({"attention_mask": 7}, "no input is called input_ids"),
    ],
)
def test_a_graph_of_other_inputs_is_refused_and_says_which(inputs: dict[str, int], why: str, tmp_path: Path) -> None:
    with pytest.raises(SessionError, match=why):
        encoders.EncoderWorker(foreign(tmp_path / "made", **inputs), "cpu").load(1)


def test_a_vocabulary_that_no_file_says_is_asked_for(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = foreign(tmp_path / "made", input_ids=7)
    with pytest.raises(SessionError, match=r"made: its vocabulary is not known: a config.json beside model.onnx says"):
        find_vocab(find_entries(folder, []))
    assert find_vocab(find_entries(folder, [folders["pooled"]])) == 50
    (folder / "config.json").write_text('{"vocab_size": 12, "max_position_embeddings": true}')
    assert encoders.sizes_of(folder) == encoders.Sizes(12, None)
    assert find_vocab(find_entries(folder, [folders["pooled"]])) == 12
    (folder / "config.json").write_text("{")
    with pytest.raises(SessionError, match="config.json"):
        encoders.sizes_of(folder)


# Floors


def test_a_floor_is_what_can_be_counted_by_hand() -> None:
    work = Work(compiled(ENCODER + POOLED), "fp32")
    attention, mlp = 4 * (8 * 8), 2 * 8 * 12
    biases = 4 * 8 + 12 + 8
    tables_ = 8 * (50 + 2 + 64)
    learned = work.model.parameters
    assert learned == tables_ + 2 * (attention + mlp + biases + 4 * 8) + 2 * 8
    pairs = 2 * (4 + 4) * 2 * 5 * 5  # heads, a product with a key and one with a value, each token with each
    assert work.flops(5) == 2 * (2 * 5 * (attention + mlp) + pairs)
    assert work.encode(3, 5, 1e12, 2000.0) == 1000 * 3 * work.flops(5) / 2000
    assert work.encode(3, 5, 1000.0, 1e12) == work.weights
    assert work.encode(3, 5, 1000.0, None) == work.weights
    assert floor_of(work, Measure("encode", 5, 3), Speed(1e12, 2000.0)) == work.encode(3, 5, 1e12, 2000.0)
    assert work.products() == [(8, 12), (12, 8), (8, 8)]


# What is asked


def test_usual_lengths_are_those_within_the_context() -> None:
    assert Asked().of_encoders(None) == [Measure("encode", n, rows) for n in (16, 128, 512) for rows in (32, 1)]
    assert {each.tokens for each in Asked().of_encoders(128)} == {16, 128}
    assert Asked(batch=[1]).of_encoders(9) == [Measure("encode", 9)]
    assert Asked(encode=[600], batch=[2]).of_encoders(512) == [Measure("encode", 600, 2)]
    assert Asked(prefill=[128, 512]).of_encoders(512)  # what is usual is not said


def test_a_measure_says_what_is_read_in_a_turn() -> None:
    one = Measure("encode", 16, 32)
    assert str(one) == "encode 32 x 16" and one.request == {"tokens": 16, "rows": 32, "repeat": 16}
    assert (one.rate(500.0), one.tokens_s(500.0), one.unit) == (64.0, 1024.0, "sentences/s")
    assert (one.needs, one.multiplied) == (16, 512)
    assert Measure("encode", 16).request["repeat"] == 32 and Measure("encode", 512, 32).request["repeat"] == 1
    assert Measure("encode", 512, 32).multiplied == 2048
    assert (Measure("decode", 8).multiplied, Measure("decode", 8).needs) == (0, 41)


def test_options_of_another_kind_of_model_are_refused() -> None:
    for asked, option in ((Asked(encode=[4]), "encode"), (Asked(batch=[4]), "batch")):
        with pytest.raises(UsageError, match=f"^{option} is for models without a cache, and these have one"):
            asked.of_decoders()
    for asked, option in (
        (Asked(prefill=[4]), "prefill"),
        (Asked(decode=[]), "decode"),
        (Asked(ops=True), "ops"),
        (Asked(text=True), "text"),
    ):
        with pytest.raises(UsageError, match=f"^{option} is for models with a cache, and these have none"):
            asked.of_encoders(64)
    with pytest.raises(UsageError, match="nothing to measure: give lengths to encode"):
        Asked(encode=[]).of_encoders(64)
    with pytest.raises(UsageError, match="^0: expected numbers of tokens and of texts"):
        Asked(batch=[0])


# Tables


def results() -> Bench:
    measure = Measure("encode", 16, 32)
    load = {"seconds": 0.5, "memory": None, "weights": None, "versions": {}}
    ours, theirs = (
        Candidate(BenchEntry(name, Path(name), sizes=encoders.Sizes(50, 64)), 10**6, load, {measure: times})
        for name, times in (("ours", [20.0, 10.0, 16.0]), ("theirs", [32.0, 40.0, 24.0]))
    )
    ours.floor[measure] = 8.0
    return Bench("cpu", [0], 1, 3, (measure,), [ours, theirs])


def test_the_table_has_sentences_per_second() -> None:
    lines = tables.as_text(results()).split("\n")
    assert lines[2:8] == [
        "                     encode 32 x 16",
        "ours    ms                       16",
        "        sentences/s            2000",
        "        x floor                2.00",
        "        x theirs               0.50",
        "theirs  ms                       32",
    ]
    said = tables.as_data(results())["candidates"][0]["measures"]["encode 32 x 16"]
    assert (said["do"], said["tokens"], said["rows"], said["count"]) == ("encode", 16, 32, 3)
    assert (said["sentences_s"], said["tokens_s"], said["of_floor"], said["of_against"]) == (2000, 32000, 2, 0.5)


def test_a_decoders_measures_have_no_rows() -> None:
    made = results()
    made.measures = (Measure("prefill", 16),)
    made.candidates[0].ms = made.candidates[1].ms = {made.measures[0]: [4.0]}
    made.candidates[0].floor = {}
    said = tables.as_data(made)["candidates"][0]["measures"]["prefill 16"]
    assert "rows" not in said and "sentences_s" not in said and said["tokens_s"] == 4000


# The command


def test_bench_measures_encoders_beside_another_tools_graph(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written, svg = tmp_path / "bench.json", tmp_path / "bench.svg"
    given = (folders["pooled"], "--against", folders["other"], "--threads", "1", "--turns", "2", "--encode", "4,9")
    assert bench(*given, "--batch", "2,1", "--format", "json", "-o", written, "--plot", svg) == 0
    out, err = capsys.readouterr()
    assert out == "" and "blockc: encode 2 x 9, 2 turns" in err.splitlines()
    said = json.loads(written.read_text())
    names = ["encode 2 x 4", "encode 1 x 4", "encode 2 x 9", "encode 1 x 9"]
    assert [each["name"] for each in said["candidates"]] == ["pooled", "other"] and said["against"] == "other"
    work = Work(compiled(ENCODER + POOLED), "fp32")
    for each in said["candidates"]:
        assert [*each["measures"]] == names and each["on_disk"] > each["weights"] > 0
        for name, figures in each["measures"].items():
            speed, beside = said["machine"]["speeds"][name], said["candidates"][1]["measures"][name]
            assert figures["count"] == 2 * 32 and 0 < figures["p50_ms"] <= figures["p90_ms"]
            assert figures["sentences_s"] == pytest.approx(1000 * figures["rows"] / figures["p50_ms"])
            wanted = work.encode(figures["rows"], figures["tokens"], speed["bytes_s"], speed["flops_s"])
            assert figures["floor_ms"] == pytest.approx(wanted)
            assert figures["of_against"] == pytest.approx(figures["p50_ms"] / beside["p50_ms"])
            assert figures["loop_ms"] is figures["profile"] is None
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")


@pytest.mark.parametrize("name", ["classes", "masked"])
def test_the_api_measures_models_of_other_outputs(name: str, folders: dict[str, Path]) -> None:
    made = api.bench(folders[name], encode=[5], batch=[2], turns=1, threads=1)
    assert repr(made) == f"<Bench of {name} on cpu: encode 2 x 5>" and "sentences/s" in made.text()


def test_what_cannot_be_measured_is_refused_before_it_is(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.build(compiled(ENCODER + POOLED), tmp_path / "bare", proof=False)
    for name, arguments, code, why in (
        ("pooled", ("--prefill", "8"), 2, "--prefill is for models with a cache, and these have none"),
        ("pooled", ("--ops",), 2, "--ops is for models with a cache, and these have none"),
        ("pooled", ("--encode", ""), 2, "nothing to measure: give lengths to encode"),
        ("pooled", ("--encode", "x"), 2, "--encode x: expected numbers of tokens such as 128,1024"),
        ("pooled", ("--batch", "0"), 2, "--batch 0: expected numbers of texts such as 32,1"),
        ("pooled", ("--encode", "65"), 1, "pooled: 65 tokens are needed, and its context is 64"),
        ("pooled", ("--against", folders["decoder"]), 1, "pooled has no cache, and decoder has one"),
        ("decoder", ("--encode", "8"), 2, "--encode is for models without a cache, and these have one"),
        ("decoder", ("--batch", "8"), 2, "--batch is for models without a cache, and these have one"),
    ):
        assert bench(folders[name], "--threads", "1", *arguments) == code, why
        out, err = capsys.readouterr()
        assert why in err and "turns" not in err and out == ""
    assert bench(tmp_path / "bare", "--threads", "1") == 1
    assert "has no weights: build it with `blockc build " in capsys.readouterr().err
