"""Quantised matrices without a provider: standard ONNX, proved like any target, that runtimes fuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from blockc import api
from blockc.graph.quant import Quant, parse_quant
from blockc.graph.target import Target
from blockc.ir import Array, Blocks
from blockc.ir.columns import Columns, pack_halves
from blockc.ops import Linear
from blockc.ops.columns import ColumnEmbed, ColumnLinear
from blockc.ort.kernels import oldest_release
from blockc.pipeline.compiled import Compiled
from blockc.products.manifest import MODEL
from blockc.proof import prove
from tests.checkpoints import save, tensors, twin
from tests.spec_text import made

INT4, INT8 = parse_quant("int4:16"), parse_quant("int8")


def built(name: str, target: Target, out: Path) -> Path:
    save(out / "in" / "model.safetensors", tensors(twin(name)))
    api.build(twin(name), out / (target.provider or "portable"), target=target, proof=False, weights=out / "in")
    return out / (target.provider or "portable")


def test_numbers_of_4_bits_are_packed_as_onnx_reads_them() -> None:
    numbers = np.random.RandomState(0).randint(-8, 8, (5, 7)).astype(np.int8)
    tensor = onnx.TensorProto(data_type=onnx.TensorProto.INT4, dims=(5, 7), raw_data=pack_halves(numbers).tobytes())
    assert np.array_equal(onnx.numpy_helper.to_array(tensor).astype(np.int8), numbers)


@pytest.mark.parametrize("bits", [4, 8])
def test_columns_are_the_codes_turned_and_signed(bits: Any) -> None:
    blocks = Blocks(bits, 16)
    codes = np.random.RandomState(0).randint(0, 1 << bits, (3, 2, 16))
    packed = blocks.pack(codes.astype(np.float64))
    wanted = codes.reshape(3, 32).T - (1 << (bits - 1))
    assert np.array_equal(Columns((), blocks).numpy(packed), wanted)
    assert np.array_equal(np.concatenate(list(Columns((), blocks).pieces([packed[:1], packed[1:]]))), wanted)


# Models: tied and untied heads, biases, widths that are no multiple of a block.
PROVED = [
    pytest.param(twin("llama3-8b"), INT4, "fp32", id="untied"),
    pytest.param(twin("gpt2"), INT8, "fp32", id="tied, biases"),
    pytest.param(
        made("width: 24\nmlp: {type: relu, width: 40}\nattention: {heads: 3}\n"), INT4, "fp32", id="cut blocks"
    ),
    pytest.param(twin("llama3-8b"), INT4, "fp16", id="fp16"),
]


@pytest.mark.parametrize(("model", "quant", "dtype"), PROVED)
def test_the_graph_computes_what_the_oracle_does(model: Compiled, quant: Quant, dtype: Any) -> None:
    target = Target(None, dtype, quant=quant)
    ops = {type(n.op) for n in model.flatten(target).nodes}
    assert {ColumnLinear, ColumnEmbed} <= ops and Linear not in ops
    proof = prove(model, targets=(target,))
    assert proof.holds, proof.table()
    assert {row.backend for row in proof.rows} > {f"onnxruntime, {quant.name}", f"oracle, {quant.name}"}


REFUSED = [
    (Target(quant=Quant("q", (("*", Blocks(4)),))), "a look-up without a provider in a table of 4 bits"),
    (Target(quant=Quant("q", (("head", Blocks(4, 32, True)),))), "without a provider: expected blocks without lows"),
    (Target(quant=INT8, opset=20), "needs opset 21 or later, not opset 20"),
]


@pytest.mark.parametrize(("target", "why"), REFUSED)
def test_what_standard_onnx_lacks_is_refused_in_words(target: Target, why: str) -> None:
    assert why in twin("llama3-8b").refuses(target)


def test_a_build_is_fused_and_holds_the_numbers_of_the_provider_s(tmp_path: Path) -> None:
    quant = parse_quant("int4")
    folder = built("llama3-8b", Target(quant=quant), tmp_path)
    options: Any = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    onnxruntime.InferenceSession(folder / MODEL, options, providers=["CPUExecutionProvider"])
    fused = [node.op_type for node in onnx.load(tmp_path / "fused.onnx", load_external_data=False).graph.node]
    linears = [name for names in twin("llama3-8b").readers.values() for name in names if name != "embedding"]
    assert fused.count("MatMulNBits") == len(linears)
    assert "DequantizeLinear" not in fused
    other = built("llama3-8b", Target("cpu", quant=quant), tmp_path)
    here, there = held(folder), held(other)
    for path in ("layers.0.attention.o", "layers.1.mlp.down", "head"):
        bits = 8 if path == "head" else 4
        blocks = Blocks(bits, 32)
        width = there[f"{path}.codes"].shape[1] * 32
        wanted = blocks.restore(there[f"{path}.codes"], there[f"{path}.scales"], None, width)
        got = here[f"{path}.codes"].astype(np.float32) * np.repeat(here[f"{path}.scales"], 32, axis=0)
        assert np.array_equal(got.T, wanted)


def held(folder: Path) -> dict[str, Array]:
    loaded = onnx.load(folder / MODEL).graph.initializer
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in loaded}


def test_a_build_is_verified(tmp_path: Path) -> None:
    folder = built("gemma2-9b", Target(quant=INT8, logits="last"), tmp_path)
    checked = api.verify(folder)
    assert not checked.changed and not checked.outdated and checked.proof is not None and checked.proof.holds


def test_the_oldest_release_for_blocks_is_one_that_was_tried() -> None:
    assert oldest_release(Target(quant=INT8, opset=21)) == "1.28"
    assert oldest_release(Target(opset=21)) == "1.18"
