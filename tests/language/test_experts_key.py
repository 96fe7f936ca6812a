"""mlp.experts: its findings with their places, its counts, its twin, and what it is the same as."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockc.api import figures
from blockc.graph import interp
from blockc.graph.shrink import shrink
from blockc.ir import parameters_of
from blockc.language.parts.mlp import TYPES
from blockc.language.spec import Spec, from_tree
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.proof.matrix import prove
from blockc.source import SpecError, parse, to_plain
from blockc.weights.rules import random_parameters

SPEC = """\
blockc: 1
name: sparse
vocab: 512
width: 64
depth: 2
context: 256
attention: {{heads: 4, rope: {{theta: 10000, pairing: half}}}}
mlp: {mlp}
norm: {{type: rms, eps: 1e-5, placement: pre}}
head: {{tied: true}}
"""
ROUTER = "router: {scores: softmax, normalise: true}"
GROUPED = (
    "router: {scores: sigmoid, normalise: true, selection_bias: true, groups: {count: 8, active: 3, score: top2_sum}}"
)


def read(experts: str, mlp: str = "type: swiglu, width: 48") -> Spec:
    return from_tree(parse(SPEC.format(mlp=f"{{{mlp}, experts: {{{experts}}}}}"), "s.yaml"))


def compiled(experts: str, mlp: str = "type: swiglu, width: 48") -> Compiled:
    return compile_spec(read(experts, mlp))


@pytest.mark.parametrize(
    ("experts", "code", "at", "said"),
    [
        (f"count: 8, {ROUTER}", "BLC110", "experts", "active"),
        (f"count: 8, active: 9, {ROUTER}", "BLC242", "9", "9 of 8 experts"),
        ("count: 8, active: 2, router: {scores: softmax}", "BLC110", "router", "normalise"),
        ("count: 8, active: 2, router: {normalise: true}", "BLC110", "router", "scores"),
        (
            "count: 10, active: 2, router: {scores: sigmoid, normalise: true, "
            "groups: {count: 4, active: 1, score: max}}",
            "BLC243", "4", "4 groups do not divide 10 experts",
        ),
        (
            "count: 8, active: 3, router: {scores: sigmoid, normalise: true, "
            "groups: {count: 4, active: 1, score: max}}",
            "BLC243", "1", "a token takes 3 experts, of 1 group of 2",
        ),
        (
            "count: 8, active: 3, router: {scores: sigmoid, normalise: true, "
            "groups: {count: 4, active: 5, score: max}}",
            "BLC243", "5", "5 of 4 groups",
        ),
        (
            "count: 8, active: 3, "
            "router: {scores: sigmoid, normalise: true, groups: {count: 8, active: 3, score: top2_sum}}",
            "BLC243", "top2_sum", "of a group of one expert",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_found_at_its_place(experts: str, code: str, at: str, said: str) -> None:
    with pytest.raises(SpecError) as error:
        compiled(experts)
    (finding,) = error.value.findings
    line = SPEC.format(mlp=f"{{type: swiglu, width: 48, experts: {{{experts}}}}}").splitlines()[finding.place.line - 1]
    assert finding.code.name == code
    assert said in finding.message
    assert line[finding.place.column - 1 :].startswith(at)


@pytest.mark.parametrize("key", ["type: xielu, width: 48", "type: swiglu, width: 48, sub_norm: {weight: true}"])
def test_an_expert_has_no_numbers_and_no_norm_of_its_own(key: str) -> None:
    with pytest.raises(SpecError) as error:
        compiled(f"count: 4, active: 2, {ROUTER}", key)
    assert [finding.code.name for finding in error.value.findings] == ["BLC242"]


@pytest.mark.parametrize(
    ("mlp", "experts", "idle", "buffers"),
    [
        # of each layer: experts that a token does not take, of 2 or 3 matrices and their biases
        ("type: swiglu, width: 48", f"count: 8, active: 2, {ROUTER}", 6 * 3 * 48 * 64, 0),
        ("type: relu, width: 48", f"count: 8, active: 2, {ROUTER}", 6 * 2 * 48 * 64, 0),
        ("type: swiglu, width: 48", f"count: 8, active: 8, {ROUTER}", 0, 0),
        ("type: swiglu, width: 48, bias: [gate, up, down]", f"count: 8, active: 3, {ROUTER}",
         5 * (3 * 48 * 64 + 2 * 48 + 64), 0),
        ("type: swiglu, width: 48", f"count: 16, active: 2, {GROUPED}, shared: {{width: 96, gate: sigmoid}}",
         14 * 3 * 48 * 64, 16),
    ],
)  # fmt: skip
def test_idle_parameters_and_buffers(mlp: str, experts: str, idle: int, buffers: int) -> None:
    model = compiled(experts, mlp)
    counted = figures(model).parameters
    params = parameters_of(model.function)
    assert counted.total == sum(param.size for param in params.values() if not param.buffer)
    assert counted.total - counted.active == 2 * idle
    assert counted.buffers == 2 * buffers


def test_flops_are_those_of_the_experts_that_a_token_takes() -> None:
    """4 more of the 16 experts: 4 times 3 matrices of 2 FLOPs an entry, in 2 layers."""
    two, six = (figures(compiled(f"count: 16, active: {n}, {ROUTER}")).flops.matmul_per_token for n in (2, 6))
    assert six - two == 2 * 4 * 3 * 2 * 48 * 64


def twin_of(experts: str) -> Any:
    return to_plain(shrink(read(experts)).tree)["mlp"]["experts"]


@pytest.mark.parametrize(
    ("experts", "count", "active", "groups"),
    [
        (f"count: 128, active: 8, {ROUTER}", 8, 2, None),
        (f"count: 60, active: 4, {ROUTER}", 8, 2, None),
        (f"count: 3, active: 2, {ROUTER}", 3, 2, None),
        (f"count: 256, active: 8, {GROUPED}", 8, 2, (4, 3)),
        (f"count: 16, active: 2, {GROUPED}", 8, 2, (4, 3)),
        ("count: 12, active: 4, router: {scores: softmax, normalise: false, groups: {count: 3, active: 2, score: max}}",
         8, 3, (2, 1)),
    ],
)  # fmt: skip
def test_a_twin_has_fewer_experts_and_leaves_some_idle(
    experts: str, count: int, active: int, groups: tuple[int, int] | None
) -> None:
    few = twin_of(experts)
    assert (few["count"], few["active"]) == (count, active)
    assert active < count
    if groups:
        assert (few["router"]["groups"]["count"], few["router"]["groups"]["active"]) == groups
        assert groups[1] < groups[0]


@pytest.mark.parametrize("name", [name for name in TYPES if name != "xielu"])
def test_one_expert_of_one_is_the_mlp(name: str) -> None:
    """With one expert, whose weight is 1, a mixture is the plain MLP of its type."""
    sparse = compiled(f"count: 1, active: 1, {ROUTER}", f"type: {name}, width: 48")
    dense = compile_spec(from_tree(parse(SPEC.format(mlp=f"{{type: {name}, width: 48}}"), "s.yaml")))
    params = random_parameters(sparse.function, 5)
    plain = {path: params[path] for path in parameters_of(dense.function) if path in params}
    for path in parameters_of(dense.function).keys() - plain.keys():
        layer, _, matrix = path.removesuffix(".weight").rpartition(".")
        plain[path] = params[f"{layer}.experts.{matrix}"][0]
    ids = np.arange(10).reshape(2, 5)
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(5)[None].repeat(2, 0)}
    one, other = (interp.interpret(m.function, given, p)["logits"] for m, p in ((sparse, params), (dense, plain)))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("mlp", "experts"),
    [
        ("type: relu2, width: 48", f"count: 6, active: 2, {ROUTER}"),
        ("type: gelu_tanh, width: 50, bias: [up, down]", f"count: 5, active: 3, {ROUTER}"),
        ("type: geglu, width: 48, bias: [down]", f"count: 6, active: 1, {ROUTER}"),
        ("type: swiglu, width: 48", f"count: 12, active: 2, {GROUPED.replace('count: 8', 'count: 4')}"),
        ("type: quick_gelu, width: 48",
         "count: 6, active: 2, router: {scores: sigmoid, normalise: false, scale: 1.3, bias: true}"),
    ],
)  # fmt: skip
def test_every_form_is_proved(mlp: str, experts: str) -> None:
    proof = prove(compiled(experts, mlp), only=("full", "decode", "padded left"))
    assert proof.complete, proof.table()
    assert proof.routes is not None
    assert proof.routes.margin >= 0.02
    assert proof.routes.choices == 2 * (13 + 13 + 7)
