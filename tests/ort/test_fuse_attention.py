"""One attention changed a place at a time: what a kernel takes, what it leaves and why, and what is joined."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from blockc.graph import interp
from blockc.graph.shrink import shrink
from blockc.graph.target import Target
from blockc.ir import B, Function, Input, Node, P, S, T, Value, apply, node, tensor
from blockc.ir.derive import Join, add_derived
from blockc.language.spec import load
from blockc.ops import (
    Add,
    Attention,
    Extend,
    KeyPositions,
    Linear,
    MergeHeads,
    QueryPositions,
    RmsNorm,
    Rotary,
    RotaryTable,
    Scale,
    SplitHeads,
    Visible,
)
from blockc.ort.fuse import fuse
from blockc.ort.join import join_projections
from blockc.ort.ops import GroupQueryAttention, RowQueryAttention
from blockc.passes import keep_last_token, verify_graph
from blockc.pipeline.compiled import compile_spec
from blockc.weights.rules import random_parameters
from tests.paths import ROOT

CPU, CUDA = Target("cpu"), Target("cuda", "fp16")
IDS, STREAM = tensor("int", B, S), tensor("float", B, S, 32)
Change = Callable[[Value], Value]


def attending(values: str = "v", **at: Change) -> Function:
    """One cached attention, with what `at` makes of a value in the place of it; `values` names their matrix."""

    def here(place: str, value: Value) -> Value:
        return at[place](value) if place in at else value

    ids, x = (Node(Input(type_, token_axis=1), (), name) for name, type_ in (("input_ids", IDS), ("x", STREAM)))
    mask = Node(Input(tensor("int", B, T)), (), "attention_mask")
    pasts = [Node(Input(tensor("float", B, 2, P, 16), past=what), (), f"past_{what}") for what in ("key", "value")]
    queries, keys = apply(QueryPositions(), mask[0], ids[0], name="q_at"), apply(KeyPositions(), mask[0], name="k_at")
    seen = here("mask", apply(Visible(), queries, keys, name="seen"))
    table = node(RotaryTable(100.0, 8, 16), ids[0], name="table")
    cos, sin = here("cos", table[0]), table[1]
    flat = {what: here(f"{what}_flat", node(Linear(32, 32), x[0], name=f"mix.{what}")[0]) for what in "qkv"}
    split = {
        what: here(what, apply(SplitHeads(2, 16), flat[values if what == "v" else what], name=what)) for what in "qkv"
    }
    turned = [here(f"turned_{what}", apply(Rotary(16, 16), split[what], cos, sin, name=f"{what}_t")) for what in "qk"]
    key = here("key", apply(Extend(), pasts[0][0], turned[1], name="key"))
    value = here("value", apply(Extend(), pasts[1][0], split["v"], name="value"))
    mixed = here("mixed", apply(Attention(2, 2, 0.25), turned[0], key, value, seen, name="mixed"))
    joined = here("joined", apply(MergeHeads(), mixed, name="joined"))
    outputs = (("out", joined), ("present_key", key), ("present_value", value))
    return Function("F", (ids, mask, x, *pasts), outputs)


def same(value: Value) -> Value:
    return apply(Scale(1.0), value, name=f"{value.node.name}_same")


def joined_twice(value: Value) -> Value:
    return apply(Add(), value, apply(MergeHeads(), value.node.inputs[0], name="again"), name="twice")


def read_again(which: tuple[int, int, int, int]) -> Change:
    """What a second attention gives that takes these operands of the first."""

    def change(value: Value) -> Value:
        operands = (value.node.inputs[0].node.inputs[i] for i in which)
        other = apply(Attention(2, 2, 0.5), *operands, name="other")
        return apply(Add(), value, apply(MergeHeads(), other, name="again"), name="both")

    return change


def straight(value: Value) -> Value:
    return value.node.inputs[0]


def crossed(value: Value) -> Value:
    x, cos, sin = value.node.inputs
    return apply(Rotary(16, 16), x, sin, cos, name="crossed")


def turned(value: Value) -> Value:
    cos = Node(Input(tensor("float", B, S, 8)), (), "cos")
    return apply(Rotary(16, 16), value, cos[0], cos[0], name="v_t")


def chosen(value: Value) -> Value:
    """Queries that stand where the tokens say."""
    ids = value.node.inputs[0].node.inputs[1]
    return apply(Visible(), ids, value.node.inputs[1], name="chosen")


UNLIKE: list[tuple[dict[str, Change], str]] = [
    ({"mixed": same}, "its heads are not joined at once"),
    ({"joined": joined_twice}, "its heads are not joined at once"),
    ({"key": same}, "its keys are not cached"),
    ({"value": same}, "its values are not cached"),
    ({"joined": read_again((0, 1, 1, 3))}, "another attention reads its cache"),
    ({"joined": read_again((0, 2, 2, 3))}, "another attention reads its cache"),
    ({"v": same}, "scale is between its heads and the kernel"),
    ({"v": turned}, "its values are rotated"),
    ({"q": same}, "scale is between its heads and the kernel"),
    ({"turned_k": same}, "scale is between its heads and the kernel"),
    ({"turned_k": straight}, "only one of queries and keys is rotated"),
    ({"turned_q": straight}, "only one of queries and keys is rotated"),
    ({"turned_k": crossed}, "queries and keys are rotated by different tables"),
    ({"cos": same}, "its rotary table is not made from positions"),
]


@pytest.mark.parametrize(("at", "reason"), UNLIKE)
def test_an_attention_unlike_the_kernels_stays(at: dict[str, Change], reason: str) -> None:
    function = attending(**at)
    fused = fuse(function, CPU)
    assert [left.reason for left in fused.skipped if left.node == "mixed"] == [reason]
    assert not any(isinstance(n.op, GroupQueryAttention) for n in fused.function.nodes)
    assert [n.name for n in fused.function.nodes] == [n.name for n in function.nodes]


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        ({"mask": same}, "its mask is not made from positions"),
        ({"mask": chosen}, "chosen is not made from the attention mask"),
    ],
)
def test_a_mask_that_is_not_by_rows_stays_on_cuda_alone(at: dict[str, Change], reason: str) -> None:
    assert [left.reason for left in fuse(attending(**at), CUDA).skipped] == [reason]
    assert fuse(attending(**at), CPU).skipped == ()


def normed(value: Value) -> Value:
    return node(RmsNorm(16, 1e-5), value, name=f"{value.node.name}_norm")[0]


LIKE: dict[str, tuple[str, dict[str, Change]]] = {
    "plain": ("v", {}),
    "normed": ("v", {"q": normed, "k": normed}),
    "keys normed": ("v", {"k": normed}),
    "values normed": ("v", {"v": normed}),
    "values are keys": ("k", {}),
    "values are keys, each normed": ("k", {"k": normed, "v": normed}),
}


@pytest.mark.parametrize(("values", "at"), LIKE.values(), ids=LIKE)
def test_an_attention_like_the_kernels_is_fused(values: str, at: dict[str, Change]) -> None:
    function = attending(values, **at)
    random, params = np.random.RandomState(0), random_parameters(function, 1)
    given: dict[str, NDArray[np.generic]] = {
        "input_ids": np.array([[2, 3, 4]] * 2),
        "attention_mask": np.ones((2, 5), int),
    }
    given |= {"x": random.randn(2, 3, 32)} | {f"past_{what}": random.randn(2, 2, 2, 16) for what in ("key", "value")}
    wanted = interp.interpret(function, given, params)
    for target, op in ((CPU, GroupQueryAttention), (CUDA, RowQueryAttention)):
        fused = fuse(function, target)
        assert fused.skipped == ()
        assert [type(n.op) for n in fused.function.nodes if n.name == "mixed"] == [op]
        got = interp.interpret(fused.function, given, params)
        for name in wanted:
            np.testing.assert_allclose(got[name], wanted[name], rtol=1e-12, atol=1e-12)


def test_projections_of_one_value_are_joined() -> None:
    function = fuse(attending(), CUDA).function
    joined = join_projections(function)
    assert joined.derived == {"mix.qkv.weight": Join(("mix.q.weight", "mix.k.weight", "mix.v.weight"))}
    verify_graph(joined.function)
    params, ones = random_parameters(function, 1), np.ones((2, 5), int)
    rows = add_derived(params, joined.derived)
    np.testing.assert_array_equal(rows["mix.qkv.weight"][32:64], params["mix.k.weight"])
    given: dict[str, NDArray[np.generic]] = {"attention_mask": ones, "x": np.random.RandomState(0).randn(2, 3, 32)}
    given |= {"input_ids": ones[:, :3]} | {f"past_{what}": np.full((2, 2, 2, 16), 0.3) for what in ("key", "value")}
    wanted, got = interp.interpret(function, given, params), interp.interpret(joined.function, given, rows)
    for name in wanted:
        np.testing.assert_allclose(got[name], wanted[name], rtol=1e-12, atol=1e-12)


def biased(value: Value) -> Value:
    return node(Linear(32, 32, True), value.node.inputs[0], name=value.node.name)[0]


def of_another(value: Value) -> Value:
    return node(Linear(32, 32), same(value.node.inputs[0]), name=value.node.name)[0]


def read_twice(value: Value) -> Value:
    flat = value.node.inputs[0].node.inputs[2].node.inputs[1].node.inputs[0]
    return apply(Add(), value, flat, name="sum")


@pytest.mark.parametrize("what", ["q", "k", "v"])
@pytest.mark.parametrize("change", [biased, of_another, same])
def test_projections_that_are_unlike_stay_apart(what: str, change: Change) -> None:
    function = fuse(attending(**{f"{what}_flat": change}), CUDA).function
    assert any(isinstance(n.op, RowQueryAttention) for n in function.nodes)
    joined = join_projections(function)
    assert joined.derived == {}
    assert [(n.name, n.op) for n in joined.function.nodes] == [(n.name, n.op) for n in function.nodes]


@pytest.mark.parametrize("function", [attending(joined=read_twice), attending("k")], ids=["read again", "keys twice"])
def test_a_projection_that_something_else_reads_stays_apart(function: Function) -> None:
    function = fuse(function, CUDA).function
    assert any(isinstance(n.op, RowQueryAttention) for n in function.nodes)
    assert join_projections(function).derived == {}


def test_biases_are_joined_as_matrices_are() -> None:
    function = fuse(attending(q_flat=biased, k_flat=biased, v_flat=biased), CUDA).function
    joined = join_projections(function)
    assert list(joined.derived) == ["mix.qkv.weight", "mix.qkv.bias"]
    verify_graph(joined.function)
    (made,) = (n for n in joined.function.nodes if n.name == "mix.qkv")
    assert [param.shape for param in made.params] == [(96, 32), (96,)]


def test_what_the_last_token_leaves_is_fused_but_for_the_last_attention() -> None:
    fused = fuse(keep_last_token(compile_spec(shrink(load(ROOT / "specs" / "llama3-8b.yaml"))).graph), CPU)
    left = {each.node: each.reason for each in fused.skipped}
    assert left["layers.1.attention.mixed"] == "it has fewer new queries than new keys"
    assert "layers.0.attention.mixed" not in left
