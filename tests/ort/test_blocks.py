"""Matrices in blocks of codes, as onnxruntime multiplies by them: odd blocks, odd widths, and its own rounding."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, Literal

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from blockc.ir import Array, Blocks
from blockc.ort.ops import BlockLinear
from blockc.proof.matrix import run_probe
from blockc.proof.probes import COUNTS, TOLERANCE, Probe, draw_inputs, draw_params, multiply
from blockc.weights.quantise import Codes, quantise_rows

SIZES = (16, 32, 64, 128, 256)
WIDTHS = (16, 48, 576)  # below a block, a block and a half, and no multiple of 128
ROWS = 7


def kernel(x: Array, codes: Codes, blocks: Blocks, level: int) -> Array:
    """x weight^T by a graph written here, with a constant matrix, which is prepacked."""
    packed, scales, _ = codes
    sizes: dict[str, Any] = {"K": x.shape[-1], "N": len(packed), "bits": blocks.bits, "block_size": blocks.size}
    operator = helper.make_node(
        "MatMulNBits", ["x", "codes", "scales"], ["y"], domain="com.microsoft", accuracy_level=level, **sizes
    )
    graph = helper.make_graph(
        [operator],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (*x.shape[:-1], len(packed)))],
        [numpy_helper.from_array(packed, "codes"), numpy_helper.from_array(scales, "scales")],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session: Any = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def rounded(x: Array, codes: Codes, blocks: Blocks) -> Array:
    """The product of integers, block by block and number by number: what level 4 is."""
    packed, scales, _ = codes
    whole = packed if blocks.bits == 8 else np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)
    y = np.zeros((len(x), len(packed)))
    for b in range(scales.shape[1]):
        part = x[:, b * blocks.size : (b + 1) * blocks.size]
        steps = np.abs(part).max(-1, keepdims=True) / np.float32(127)
        a = np.rint(part / np.where(steps == 0, 1, steps).astype(np.float64)).astype(np.int64)
        w = whole[:, b, : part.shape[1]].astype(np.int64) - 2 ** (blocks.bits - 1)
        y += (a @ w.T) * steps.astype(np.float64) * scales[:, b].astype(np.float64)
    return y


def matrix(width: int) -> Array:
    """Rows of which one is 0, one the same number throughout, one has a single number, and one no number below 0."""
    w = np.random.RandomState(width).randn(ROWS, width).astype(np.float32)
    w[0], w[1], w[2, 1:], w[3] = 0, 0.3, 0, np.abs(w[3])
    return w


@pytest.mark.parametrize("fitted", [False, True], ids=["rounded", "fitted"])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_kernel_multiplies_by_what_stands_for_the_matrix(bits: Literal[4, 8], fitted: bool) -> None:
    """Every size of a block by every remainder, exactly; the numbers are within a step of the matrix."""
    for size, width in product(SIZES, WIDTHS):
        w, blocks = matrix(width), Blocks(bits, size)
        codes = quantise_rows(w, blocks, np.random.RandomState(1).rand(width) if fitted else None)
        found = kernel(np.eye(width, dtype=np.float32), codes, blocks, 0).T
        np.testing.assert_allclose(found, blocks.restore(*codes, width), rtol=1e-6, atol=1e-6)
        steps = np.repeat(np.abs(codes[1]), size, axis=-1)[:, :width]
        off = np.abs(found - w)
        assert (found[0] == 0).all(), (size, width)
        np.testing.assert_allclose(found[1:3], w[1:3], atol=float(0.5001 * steps[1:3].max()))
        assert np.mean(off > 0.5001 * steps) < (0 if bits == 8 else 0.12) + 1e-9, (size, width)


@pytest.mark.parametrize("bits", [4, 8])
def test_level_4_is_a_product_of_integers(bits: Literal[4, 8]) -> None:
    """One row and several, with outliers; the probes' own definition is the same."""
    for size, width, count in product(SIZES, WIDTHS, (1, 5)):
        op = BlockLinear(width, ROWS, Blocks(bits, size))
        random = np.random.RandomState(size)
        x, params = draw_inputs(op, count, random), draw_params(op, random)
        wanted = rounded(x[0], (params[0], params[1], None), op.blocks)
        spread = np.sqrt(np.mean(wanted**2))
        np.testing.assert_allclose(multiply(op, x, params)[0], wanted, atol=1e-6 * spread, rtol=0)
        found = kernel(x[0], (params[0], params[1], None), op.blocks, 4)
        np.testing.assert_allclose(found, wanted, atol=TOLERANCE * spread, rtol=0, err_msg=f"{size} {width} {count}")
        exact = x[0].astype(np.float64) @ op.blocks.restore(params[0], params[1], None, width).astype(np.float64).T
        assert np.abs(exact - wanted).max() > 10 * TOLERANCE * spread, "rounding shows"


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("lows", [False, True], ids=["", "lows"])
def test_a_probe_holds_and_a_wrong_kernel_does_not(count: int, lows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong: products that are exact, halves of a byte in the other order, and the bias left out."""
    probe = Probe(BlockLinear(80, 40, Blocks(4, 32, lows), bias=True), count)
    assert run_probe(probe).holds
    emitted = BlockLinear.onnx

    def changed(op: BlockLinear, *given: Any) -> Any:
        return emitted(replace(op, **changes), *given)

    monkeypatch.setattr(BlockLinear, "onnx", changed)
    for changes in ({"level": 0}, {"bias": False}):
        row = run_probe(probe)
        assert not row.holds and 1e-3 < row.error < 10, changes
    monkeypatch.setattr(BlockLinear, "onnx", emitted)
    packed = Blocks.pack
    monkeypatch.setattr(Blocks, "pack", lambda self, codes: np.bitwise_or(*(p := packed(self, codes)) << 4, p >> 4))  # type: ignore[misc]
    assert not run_probe(probe).holds
