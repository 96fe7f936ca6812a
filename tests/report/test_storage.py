"""The bytes of quantised weights: counted by the recipe, as a build stores them, in every place that prints them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from blockc import api
from blockc.bench.floors import Work
from blockc.bench.measure import find_entries
from blockc.checks.policy import read_policy
from blockc.cli import app, run_guarded
from blockc.graph.quant import parse_quant
from blockc.graph.target import Target
from blockc.ir import parameters_of
from blockc.products.folder import texts
from blockc.products.manifest import MODEL
from blockc.report.show import report_text
from tests.checkpoints import save, tensors, twin
from tests.paths import ROOT

SMOL = api.compile(ROOT / "specs" / "smollm2-135m.yaml")


def build(name: str, word: str, out: Path) -> Path:
    save(out / "in" / "model.safetensors", tensors(twin(name)))
    target = Target("cpu", quant=parse_quant(word))
    api.build(twin(name), out / word, target=target, proof=False, weights=out / "in")
    return out / word


def test_bytes_of_a_known_model_are_those_of_its_shapes() -> None:
    """SmolLM2-135M: 30 layers, width 576, 3 of 9 heads of 64 for keys and values, mlp 1,536, 49,152 tied tokens."""
    q, kv, mlp, table = 576 * 576, 576 * 192, 576 * 1536, 49152 * 576
    narrow, wide = 30 * (2 * q + kv + 3 * mlp), 30 * kv + table
    stored = {each.how: each for each in SMOL.storage(parse_quant("int4"), "fp32").stored}
    assert (stored["int4:32"].numbers, stored["int4:32"].codes) == (narrow, narrow // 2)
    assert (stored["int8:32"].numbers, stored["int8:32"].codes) == (wide, wide)
    assert (stored["int4:32"].scales, stored["int8:32"].scales) == (narrow // 8, wide // 8)
    assert (stored["fp32"].tensors, stored["fp32"].plain) == (61, 61 * 576 * 4)
    assert (stored["int4:32"].tensors, stored["int8:32"].tensors) == (6 * 30, 31)
    whole = SMOL.storage(parse_quant("int4"), "fp32")
    assert whole.read == whole.bytes  # the table is the head's too
    assert SMOL.storage(parse_quant("int4"), "fp16").bytes == whole.bytes - (narrow + wide) // 16 - 61 * 576 * 2


@pytest.mark.parametrize(("name", "word"), [("llama3-8b", "int4"), ("gemma2-9b", "int8"), ("gpt2", "int4:16")])
def test_a_build_holds_as_many_bytes_as_its_report_says(name: str, word: str, tmp_path: Path) -> None:
    folder = build(name, word, tmp_path)
    said = json.loads((folder / "report.json").read_text())["storage"]
    spans: dict[str, int] = {}
    for tensor in onnx.load(folder / MODEL, load_external_data=False).graph.initializer:
        entry = {each.key: each.value for each in tensor.external_data}
        if "location" in entry:
            spans[entry["offset"]] = max(spans.get(entry["offset"], 0), int(entry["length"]))
    assert sum(spans.values()) == said["bytes"] == sum(each["bytes"] for each in said["stored"])
    assert said["recipe"] == word
    assert api.verify(folder).outdated == ()


def test_the_floor_counts_codes_and_scales_but_no_table_that_is_looked_up_in(tmp_path: Path) -> None:
    (entry,) = find_entries(build("llama3-8b", "int8", tmp_path), [])
    assert entry.work is not None
    model = twin("llama3-8b")
    read = 0
    for path, param in parameters_of(model.function).items():
        blocks = int(np.prod(param.shape[:-1])) * -(-param.shape[-1] // 32)
        read += 0 if path == "embedding.weight" else 36 * blocks if path in model.readers else 4 * param.size
    assert entry.work.weights == read
    assert entry.work.weights < Work(model, "fp32").weights


def test_without_a_recipe_report_and_figures_say_nothing_of_storage() -> None:
    assert "storage" not in api.figures(SMOL).json()
    assert "storage" not in json.loads(texts(SMOL)["report.json"])


def test_show_prints_how_matrices_are_stored_and_what_a_step_reads(capsys: pytest.CaptureFixture[str]) -> None:
    report = api.figures(SMOL, dtype="fp32", context=1024, quant="int4")
    assert report.memory.weights == 100_005_120
    shown = report_text(SMOL.spec, SMOL.decoder, report).splitlines()
    rows = [line.split() for line in shown[shown.index("Weights by the recipe int4") + 1 :]]
    assert rows[1] == ["int4:32", "180", "51,425,280", "12,856,320", "0", "64,281,600", "64.28", "MB", "5"]
    assert rows[-1][-6:] == [f"{100_005_120 + 46_080 * 1024:,}", "147.2", "MB", "at", "1,024", "tokens"]
    words = ["show", "smollm2-135m", "--quant", "int4", "--json"]
    assert run_guarded(lambda: app(words, standalone_mode=False)) == 0
    assert json.loads(capsys.readouterr().out)["storage"]["bytes"] == 100_005_120  # as built, in fp32
    with pytest.raises(api.UsageError, match="fp8"):
        api.figures(SMOL, dtype="fp8", quant="int4")


def test_diff_of_builds_says_how_matrices_are_stored_and_the_bytes(tmp_path: Path) -> None:
    four, eight = build("llama3-8b", "int4", tmp_path), build("llama3-8b", "int8", tmp_path)
    found = api.diff(four, eight)
    changes = {change.what: change for change in found.changes}
    assert found.classes == ("CHECKPOINT", "COST")
    down = changes["layers.{i}.mlp.down.weight"]
    assert (down.before, down.after, down.times) == ("int4:32", "int8:32", twin("llama3-8b").spec.top.depth)
    assert "layers.{i}.attention.v.weight" not in changes  # in 8 bits in both
    sizes = [json.loads((folder / "report.json").read_text())["storage"]["bytes"] for folder in (four, eight)]
    assert [changes["bytes of weights"].before, changes["bytes of weights"].after] == [f"{size:,}" for size in sizes]
    assert api.diff(four, four).changes == ()


BOUNDS = [("{max: 101MB, dtype: fp32, quant: int4}", ""), ("{max: 100MB, dtype: fp32, quant: int4}", "100005120"),
          ("{max: 300MB, dtype: fp16}", ""), ("{max: 269MB, dtype: fp16}", "269030016")]  # fmt: skip


@pytest.mark.parametrize(("bound", "got"), BOUNDS)
def test_a_policy_bounds_the_bytes_of_weights(bound: str, got: str) -> None:
    found = read_policy(f"policy: 1\nweights: {bound}\n".encode(), "p.yaml").breaches(SMOL)
    assert [(each.code.name, each.got) for each in found] == ([("BLC316", got)] if got else [])
