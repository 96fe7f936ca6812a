"""Experts in standard ONNX: calls of no token, half precision, counts of nodes, and how few experts are run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from blockc.basics.floats import FloatType
from blockc.emit.onnx import count_operators, emit_onnx, serialise
from blockc.graph import interp
from blockc.ir import Array, Function, Sample
from blockc.ops import Silu
from blockc.ops.experts import Experts, Groups, Route
from blockc.weights.rules import random_parameters
from tests.ops.test_ops import alone, assert_same, types

MOST = 40  # operators of the experts of a layer, bodies included
SAMPLES = [pytest.param(s, id=f"{s.op.name}-{i}") for op in (Route, Experts) for i, s in enumerate(op.samples())]


def run(function: Function, inputs: dict[str, Array], dtype: FloatType = "fp32") -> tuple[list[Any], list[Array]]:
    """(What onnxruntime gives, what the oracle gives), both of numbers of this float type."""
    own = np.float32 if dtype == "fp32" else np.float16
    drawn = random_parameters(function, seed=3)
    given = {n: a.astype(own) if a.dtype.kind == "f" else a for n, a in inputs.items()}
    params = {n: a.astype(np.float32 if n.endswith("selection_bias") else own) for n, a in drawn.items()}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    model = serialise(emit_onnx(function, {}, dtype=dtype))
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = {i.name for i in session.get_inputs()}
    got = session.run(list(function.output_names), {n: a for n, a in (given | params).items() if n in names})
    wide = ({n: _widen(a) for n, a in each.items()} for each in (given, params))
    return list(got), list(interp.interpret(function, next(wide), next(wide)).values())


def _widen(a: Array) -> Array:
    return a.astype(np.float64) if a.dtype.kind == "f" else a


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("axis", [0, 1])
def test_a_call_may_have_no_token(sample: Sample, axis: int) -> None:
    inputs = {f"x{i}": a.take(range(0), axis) for i, a in enumerate(sample.args)}
    got, wanted = run(alone(sample.op, *types(tuple(inputs.values()))), inputs)
    assert [y.shape for y in got] == [y.shape for y in wanted]
    assert all(y.shape[axis] == 0 for y in got)


@pytest.mark.parametrize("sample", SAMPLES)
def test_experts_in_half_precision(sample: Sample) -> None:
    inputs = {f"x{i}": a for i, a in enumerate(sample.args)}
    got, wanted = run(alone(sample.op, *types(sample.args)), inputs, "fp16")
    for y, w in zip(got, wanted, strict=True):
        assert y.dtype == (np.int64 if w.dtype.kind == "i" else np.float16)
        np.testing.assert_allclose(y, w, atol=4e-3 * (w.std() + 1e-9), rtol=2e-3)


@pytest.mark.parametrize("tokens", [1, 2, 9])
def test_experts_of_any_count_are_summed(tokens: int) -> None:
    """Every expert chosen by some token or by none, one by all, and each token with all of them."""
    random = np.random.RandomState(tokens)
    for count, active in ((64, 8), (3, 3), (5, 1), (1, 1)):
        op = Experts(count, 8, 5, Silu())
        chosen = np.stack([random.permutation(count)[:active] for _ in range(2 * tokens)]).reshape(2, tokens, active)
        x, weights = random.randn(2, tokens, 8), random.rand(2, tokens, active)
        inputs = {"x0": x, "x1": chosen.astype(np.int64), "x2": weights}
        assert_same(*run(alone(op, *types(tuple(inputs.values()))), inputs))


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_routes_of_many_groups_choose_as_the_oracle(scores: str) -> None:
    random = np.random.RandomState(5)
    logits = random.randn(3, 16, 64) * 2
    for score in ("max", "top2_sum"):
        for bias in (False, True):
            op = Route(64, 6, scores, True, 2.5, bias, Groups(8, 3, score))  # type: ignore[arg-type]
            assert_same(*run(alone(op, *types((logits,))), {"x0": logits}))


def test_a_layer_of_experts_has_few_nodes_at_any_count() -> None:
    for sample in Experts.samples():
        for dtype in ("fp32", "fp16"):
            functions = [alone(replace(sample.op, count=n), *types(sample.args)) for n in (6, 256)]
            few, many = (count_operators(f, dtype, {}).total() for f in functions)
            assert few == many < MOST
    logits = types((np.zeros((2, 3, 8)),))
    assert max(count_operators(alone(s.op, *logits), "fp32", {}).total() for s in Route.samples()) == 16


def test_an_expert_that_no_token_chose_is_not_run() -> None:
    """Its numbers are NaN here: a product with them would show."""
    op = Experts(6, 8, 5, Silu())
    sample = Experts.samples()[0]
    function = alone(op, *types(sample.args))
    model = serialise(emit_onnx(function, {}))
    params = {n: a.astype(np.float32) for n, a in random_parameters(function, seed=3).items()}
    idle = sorted({*range(6)} - {*sample.args[1].reshape(-1).tolist()})
    assert idle == [2, 4]
    for each in params.values():
        each[idle] = np.nan
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    x, chosen, weights = sample.args
    feeds = {"x0": x.astype(np.float32), "x1": chosen, "x2": weights.astype(np.float32)}
    assert np.isfinite(session.run(None, feeds | params)[0]).all()  # type: ignore[arg-type]
