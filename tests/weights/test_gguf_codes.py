"""A GGUF file's own codes: told apart as gguf-py dequantises them, and carried into a build for a provider."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from blockc import api
from blockc.basics.errors import CheckpointError, UsageError
from blockc.cli.common import app
from blockc.graph.carried import carried_quant
from blockc.graph.quant import Quant, parse_quant
from blockc.graph.target import Target
from blockc.ir import Array, Blocks, parameters_of
from blockc.layouts import load_gguf_layout
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.weights.carry import carried_blocks, row_order, why_not_carried
from blockc.weights.gguf import read_gguf, reader
from blockc.weights.gguf.codes import ENCODINGS
from blockc.weights.matching import pack, split_tensor, unpack
from blockc.weights.rules import Rule, group_sizes, random_parameters, rules
from tests.checkpoints import off_by, save, twin
from tests.spec_text import spec
from tests.weights.test_gguf import gguf_name, uninterleaved

library: Any = gguf
Kind: Any = library.GGMLQuantizationType
ADDED = ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K")  # kinds that add a number to each block
CPU = Target("cpu")


def encoded(kind: str, shape: tuple[int, int], seed: int) -> Array:
    """Rows of bytes of a kind whose numbers are about as large as weights, without gguf-py's quantising.

    Integers and small scales are any; d and dmin are chosen so that the numbers lie around 0, some scales below.
    """
    random, fields = np.random.default_rng(seed), ENCODINGS[kind].stored
    count = shape[1] // library.GGML_QUANT_SIZES[Kind[kind]][0]
    rows = random.integers(0, 256, (shape[0], count * fields.itemsize), dtype=np.uint8)
    blocks = rows.view(fields)
    if "e" in fields.fields:
        blocks["e"] = random.integers(118, 124, blocks.shape)
        return rows
    d = random.uniform(0.5, 1.5, blocks.shape)
    if kind not in ADDED:
        d *= random.choice([-1, 1], blocks.shape)
    blocks["d"] = d
    for name in ("m", "dmin"):
        if name in fields.fields:
            blocks[name] = 0
    unit = library.quants.dequantize(rows, Kind[kind])
    blocks["d"] = d / (unit.std() * np.sqrt(shape[1]))
    for name, sign in (("m", -1), ("dmin", 1)):
        if name in fields.fields:
            blocks[name] = sign * blocks["d"].astype(np.float64) * ENCODINGS[kind].centre
    return rows


def dequantised(kind: str, rows: Array) -> Array:
    return np.asarray(library.quants.dequantize(rows, Kind[kind]), np.float32)


@pytest.mark.parametrize("kind", ENCODINGS)
def test_codes_stand_for_what_gguf_py_makes_of_the_blocks(kind: str) -> None:
    """Exactly; where a number is added to each block, to the last bit of the block's largest number."""
    encoding = ENCODINGS[kind]
    numbers, size = library.GGML_QUANT_SIZES[Kind[kind]]
    assert encoding.stored.itemsize == size
    rows = encoded(kind, (32, 4 * numbers), 5)
    truth = dequantised(kind, rows)
    assert 0.3 < truth.std() * np.sqrt(4 * numbers) < 3 and (truth < 0).mean() > 0.2, "numbers like those of weights"
    codes, scales, lows = encoding.codes(rows)
    assert (codes.dtype, scales.dtype) == (np.uint8, np.float32) and (lows is not None) == (kind in ADDED)
    found = encoding.blocks.restore(codes, scales, lows, truth.shape[1])
    blocks = encoding.blocks.split(truth)
    last = np.spacing(np.abs(blocks).max(-1, keepdims=True)) * (kind in ADDED)
    assert found.dtype == np.float32 and (np.abs(encoding.blocks.split(found) - blocks) <= last).all()
    assert (found != truth).mean() < 0.02


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_codes_of_tensors_that_gguf_py_quantised_are_exact(kind: str) -> None:
    x = (np.random.default_rng(1).standard_normal((64, 256)) * 0.05).astype(np.float32)
    rows = library.quants.quantize(x, Kind[kind])
    codes, scales, lows = ENCODINGS[kind].codes(rows)
    assert np.array_equal(ENCODINGS[kind].blocks.restore(codes, scales, lows, 256), dequantised(kind, rows))


@cache
def wide(tied: bool = True) -> Compiled:
    """As wide as the larger blocks: 256."""
    return compile_spec(
        spec(
            "vocab: 64\ncheckpoint: llama\nwidth: 256\ncontext: 64\n"
            "attention: {heads: 4, kv_heads: 2, rope: {theta: 10000, pairing: half}}\nmlp: {type: swiglu, width: 256}\n"
            f"head: {{tied: {'true' if tied else 'false'}}}\n"
        )
    )


def write(model: Compiled, path: Path, kinds: Mapping[str, str], usual: str) -> dict[str, Array]:
    """A llama of random blocks: `kinds` of some parameters, by their path's end. (What gguf-py reads from it.)"""
    sizes = group_sizes(model.function)
    writer = library.GGUFWriter(path, "llama")
    params: dict[str, Array] = {}
    for number, (name, array) in enumerate(random_parameters(model.function, 4).items()):
        kind = next((kind for end, kind in kinds.items() if name.endswith(end)), usual if array.ndim > 1 else "F32")
        heads = {"q": sizes["heads"], "k": sizes["kv_heads"]}.get(name.split(".")[-2])
        if kind in ENCODINGS:
            data = encoded(kind, (array.shape[0], array.shape[1]), number)
        else:
            data = library.quants.quantize(array.astype(np.float32), Kind[kind])
        back = dequantised(kind, data)
        params[name] = (uninterleaved(back, heads) if heads else back).astype(np.float64)
        writer.add_tensor(gguf_name(name), data, raw_dtype=Kind[kind])
    finish(writer)
    return params


def finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def exact(folder: Path) -> Path:
    """The build's model.onnx with kernels that multiply in fp32: others round what they read to 8 bits."""
    model = onnx.load(str(folder / "model.onnx"), load_external_data=False)
    levels = [a for n in model.graph.node for a in n.attribute if a.name == "accuracy_level"]
    assert levels and {level.i for level in levels} == {4}
    for level in levels:
        level.i = 0
    path = folder / "exact.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("kind", ENCODINGS)
def test_logits_are_the_oracles_on_what_gguf_py_dequantises(kind: str, tmp_path: Path) -> None:
    """Rows of q and k are moved; the tied table serves as embedding and head."""
    params = write(wide(), tmp_path / "model.gguf", {}, kind)
    made = api.build(wide(), tmp_path / "out", target=CPU, proof=False, weights=tmp_path / "model.gguf")
    assert f"carried as the checkpoint encodes them: 15 tensors in {kind}" in made.notes
    assert off_by(wide(), exact(tmp_path / "out"), params) < 3e-5
    assert 1e-4 < off_by(wide(), tmp_path / "out" / "model.onnx", params) < 0.1, "with rounding, and not far off"


def carried_note(notes: tuple[str, ...]) -> str:
    (said,) = (note for note in notes if note.startswith("carried"))
    return said.partition(": ")[2]


def test_each_matrix_keeps_its_own_kind_and_the_folder_verifies(tmp_path: Path) -> None:
    """As in real files: kinds differ by matrix and by layer, and some matrices are floats."""
    kinds = {"embedding.weight": "Q6_K", "head.weight": "Q8_0", ".v.weight": "Q6_K", "0.attention.q.weight": "F32",
             "1.mlp.down.weight": "Q5_0", "1.mlp.up.weight": "F16"}  # fmt: skip
    model = wide(tied=False)
    params = write(model, tmp_path / "model.gguf", kinds, "Q4_K")
    made = api.build(model, tmp_path / "out", target=CPU, proof=False, weights=tmp_path / "model.gguf")
    assert carried_note(made.notes) == "9 tensors in Q4_K, 3 tensors in Q6_K, 1 tensor in Q5_0, 1 tensor in Q8_0"
    assert off_by(model, exact(tmp_path / "out"), params) < 3e-5
    (tmp_path / "out" / "exact.onnx").unlink()
    found = api.verify(tmp_path / "out")
    assert not found.changed and not found.outdated and found.proof is not None and found.proof.holds
    backends = {row.backend for row in found.proof.rows}
    assert "onnxruntime, fused, packed, carried" in backends, backends


def test_a_tied_table_is_stored_once(tmp_path: Path) -> None:
    """One byte for a weight of Q8_0 and four for a scale of 32, of which the table is the largest part."""
    write(wide(), tmp_path / "model.gguf", {}, "Q8_0")
    built = api.build(wide(), tmp_path / "out", target=CPU, proof=False, weights=tmp_path / "model.gguf")
    matrices = sum(p.size for p in parameters_of(wide().function).values() if len(p.shape) == 2)
    (data,) = (path for path in built.files if path.name == "model.onnx.data")
    assert matrices * 36 / 32 <= data.stat().st_size <= matrices * 36 / 32 + 40 * 4096
    graph = onnx.load(str(tmp_path / "out" / "model.onnx"), load_external_data=False).graph
    stored = (t for t in graph.initializer if t.external_data)
    places = {t.name: {each.key: each.value for each in t.external_data}["offset"] for t in stored}
    assert places["embedding.rows"] == places["embedding.codes"] != places["embedding.scales"]


def joined(name: str, architecture: str, path: Path, kind: str) -> dict[str, Array]:
    """A file of another architecture, whose layout joins q, k and v. (Its parameters.)"""
    model = twin(name)
    layout = load_gguf_layout(architecture)
    laid = rules(layout, model.function, group_sizes(model.function))
    writer = library.GGUFWriter(path, architecture)
    held: dict[str, Array] = {}
    for name_, array in pack(laid, random_parameters(model.function, 4)).items():
        word = kind if array.ndim > 1 else "F32"
        data = library.quants.quantize(np.ascontiguousarray(array, np.float32), Kind[word])
        held[name_] = dequantised(word, data).astype(np.float64)
        writer.add_tensor(name_, data, raw_dtype=Kind[word])
    finish(writer)
    return unpack(laid, held)


def test_rows_of_a_joined_matrix_become_those_of_its_parts(tmp_path: Path) -> None:
    model = twin("pythia-410m")
    params = joined("pythia-410m", "gptneox", tmp_path / "model.gguf", "Q4_1")
    made = api.build(model, tmp_path / "out", target=CPU, proof=False, weights=tmp_path / "model.gguf")
    assert carried_note(made.notes) == f"{4 * model.spec.top.depth + 2} tensors in Q4_1"
    assert off_by(model, exact(tmp_path / "out"), params) < 3e-5


def test_a_kind_that_is_not_carried_becomes_floats_and_the_build_says_so(tmp_path: Path) -> None:
    params = write(wide(), tmp_path / "model.gguf", {"0.mlp.up.weight": "TQ2_0"}, "Q4_0")
    made = api.build(wide(), tmp_path / "out", target=CPU, proof=False, weights=tmp_path / "model.gguf")
    assert carried_note(made.notes) == "14 tensors in Q4_0"
    assert "made floats, because codes of this kind are not carried: 1 tensor in TQ2_0" in made.notes
    assert off_by(wide(), exact(tmp_path / "out"), params) < 3e-5


def test_a_rule_that_does_more_than_move_rows_leaves_no_codes(tmp_path: Path) -> None:
    """Blocks lie along the rows of the file, which become columns of a turned matrix, or are cut."""
    write(wide(), tmp_path / "model.gguf", {}, "Q4_0")
    tensor = read_gguf(tmp_path / "model.gguf").tensors["blk.0.ffn_up.weight"]
    plain = Rule("x", ("a",), 1, 0, False, ((256, 256),))
    assert why_not_carried(tensor, plain) == "" and carried_blocks(tensor, plain) == Blocks(4, 32)
    columns = replace(plain, targets=("a", "b"), axis=1, shapes=((256, 128), (256, 128)))
    for other in (replace(plain, transpose=True), replace(plain, plus=1.0), columns):
        assert "layout" in why_not_carried(tensor, other) and carried_blocks(tensor, other) is None


@pytest.mark.parametrize("rule", [
    Rule("x", ("a",), 1, 0, False, ((12, 8),)),
    Rule("x", ("a",), 1, 0, False, ((12, 8),), permuted=3),
    Rule("x", ("q", "k", "v"), 1, 0, False, ((12, 8), (4, 8), (4, 8))),
    Rule("x", ("q", "k", "v"), 4, 0, False, ((16, 8), (4, 8), (4, 8))),
])  # fmt: skip
def test_the_order_of_rows_is_the_rules_own(rule: Rule) -> None:
    whole = np.random.default_rng(0).standard_normal(rule.shape)
    for part, held in enumerate(split_tensor(rule, whole)):
        assert np.array_equal(whole[row_order(rule, part)], held)


def test_rows_are_read_in_any_order_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(wide(), tmp_path / "model.gguf", {}, "Q6_K")
    tensor = read_gguf(tmp_path / "model.gguf").tensors["blk.0.ffn_up.weight"]
    order = np.random.default_rng(2).permutation(tensor.shape[0])[:50]
    monkeypatch.setattr(reader, "PIECE", 7 * tensor.rows[-1])
    pieces = list(tensor.codes(order))
    assert [len(codes) for codes, _, _ in pieces] == [7] * 7 + [1]
    found = np.concatenate([Blocks(8, 16).restore(codes, scales, lows, 256) for codes, scales, lows in pieces])
    assert np.array_equal(found, tensor.read()[order])


def test_weights_that_are_quantised_already_are_quantised_anew_only_where_asked(tmp_path: Path) -> None:
    model, weights = wide(), tmp_path / "model.gguf"
    params = write(model, weights, {}, "Q4_K")
    target = Target("cpu", quant=parse_quant("int8"))
    with pytest.raises(UsageError, match=r"int8: the weights are quantised already \(15 tensors in Q4_K\)"):
        api.build(model, tmp_path / "out", target=target, proof=False, weights=weights)
    assert not (tmp_path / "out").exists()
    anew = api.build(model, tmp_path / "out", target=target, proof=False, weights=weights, dequantise=True)
    assert not any("carried" in note for note in anew.notes)
    assert 1e-4 < off_by(model, exact(tmp_path / "out"), params) < 0.2, "int8 is another thing than Q4_K, and close"


@pytest.mark.parametrize("provider", ["cpu", None])
def test_dequantise_makes_floats(provider: Any, tmp_path: Path) -> None:
    """Portable ONNX has them in any case."""
    params = write(wide(), tmp_path / "model.gguf", {}, "Q4_K")
    built = api.build(wide(), tmp_path / "out", target=Target(provider), proof=False,
                      weights=tmp_path / "model.gguf", dequantise=provider is not None)  # fmt: skip
    assert not any("carried" in note for note in built.notes)
    assert off_by(wide(), tmp_path / "out" / "model.onnx", params) < 3e-5


def test_codes_that_the_recipe_wants_as_they_are_stay_so(tmp_path: Path) -> None:
    """Quantised anew by a recipe with the file's own blocks, a matrix keeps its codes: nothing is lost twice."""
    params = write(wide(), tmp_path / "model.gguf", {}, "Q4_0")
    target = Target("cpu", quant=Quant("same", (("*", Blocks(4, 32)),), "calibrated"))
    api.build(wide(), tmp_path / "out", target=target, proof=False, weights=tmp_path / "model.gguf", dequantise=True)
    assert off_by(wide(), exact(tmp_path / "out"), params) < 3e-5


def test_what_an_adapter_changes_becomes_floats(tmp_path: Path) -> None:
    model, weights, folder = wide(), tmp_path / "model.gguf", tmp_path / "adapter"
    params = write(model, weights, {}, "Q4_0")
    folder.mkdir()
    random, stem = np.random.default_rng(3), "base_model.model.model.layers.1.mlp.up_proj.lora_"
    a, b = (random.standard_normal(shape).astype(np.float32) / 16 for shape in ((4, 256), (256, 4)))
    save(folder / "adapter_model.safetensors", {f"{stem}A.weight": a, f"{stem}B.weight": b})
    said = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["up_proj"], "layers_to_transform": [1]}
    (folder / "adapter_config.json").write_text(json.dumps(said))
    made = api.build(model, tmp_path / "out", target=CPU, proof=False, weights=weights, adapters=[folder])
    assert "made floats, because an adapter changes them: 1 tensor in Q4_0" in made.notes
    assert off_by(model, exact(tmp_path / "out"), params) > 1e-2, "the adapter does something"
    params["layers.1.mlp.up.weight"] += 2 * (b @ a)
    assert off_by(model, exact(tmp_path / "out"), params) < 3e-5


def test_scales_that_are_not_finite_are_refused_by_the_tensors_name(tmp_path: Path) -> None:
    write(wide(), tmp_path / "model.gguf", {}, "Q4_1")
    tensor = read_gguf(tmp_path / "model.gguf").tensors["blk.1.ffn_gate.weight"]
    with (tmp_path / "model.gguf").open("r+b") as file:
        file.seek(tensor.offset + 40 * tensor.rows[-1])
        file.write(np.float16("inf").tobytes())
    with pytest.raises(CheckpointError, match="not finite: blk.1.ffn_gate.weight holds NaN or Inf"):
        api.build(wide(), tmp_path / "out", target=CPU, proof=False, weights=tmp_path / "model.gguf")
    assert not (tmp_path / "out" / "model.onnx").exists()


def test_a_graph_for_cuda_has_the_codes_too(tmp_path: Path) -> None:
    write(wide(), tmp_path / "model.gguf", {}, "Q4_K")
    target = Target("cuda", "fp16")
    built = api.build(wide(), tmp_path / "out", target=target, proof=False, weights=tmp_path / "model.gguf")
    assert carried_note(built.notes) == "15 tensors in Q4_K"
    half = api.build(wide(), tmp_path / "half", target=Target("cpu", "fp16"), proof=False,
                     weights=tmp_path / "model.gguf")  # fmt: skip
    why = "onnxruntime has no FusedMatMul in fp16 on cpu"
    assert f"made floats, because {why}: 15 tensors in Q4_K" in half.notes


def test_a_rule_for_all_layers_and_one_for_each_that_differs() -> None:
    narrow, broad = Blocks(4, 32, True), Blocks(8, 16)
    readers = {f"{i}.down": [f"layers.{i}.mlp.down"] for i in range(12)} | {"table": ["embedding", "head"]}
    held = dict.fromkeys(readers, narrow) | {"1.down": broad, "table": broad}
    del held["11.down"]
    quant = carried_quant(readers, held)
    assert quant.rules == (
        ("layers.1.mlp.down", broad), ("layers.11.mlp.down", None),
        ("layers.*.mlp.down", narrow), ("embedding", broad), ("head", broad),
    )  # fmt: skip
    assert {path: quant.blocks_for(names) for path, names in readers.items()} == held | {"11.down": None}


def test_rules_that_would_catch_another_name_are_given_one_by_one() -> None:
    """`*` stands for dots too."""
    readers = {"a": ["layers.0.down"], "b": ["layers.0.inner.down"], "c": ["layers.1.down"]}
    quant = carried_quant(readers, {"a": Blocks(), "c": Blocks()})
    assert [quant.blocks_for(names) for names in readers.values()] == [Blocks(), None, Blocks()]


def test_the_flag_is_for_weights() -> None:
    told = CliRunner().invoke(app, ["build", "smollm2-135m", "--dequantise"])
    assert told.exit_code == 2 and "--dequantise is for weights" in told.output
    with pytest.raises(UsageError, match="dequantise is for weights"):
        api.build(wide(), "never", dequantise=True)
