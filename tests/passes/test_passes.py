"""Passes: what `verify` refuses, what a cache adds, what the last token needs, and that names stay unique."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from blockc.graph import interp
from blockc.graph.shrink import shrink
from blockc.graph.target import Target
from blockc.ir import (
    Array,
    B,
    Call,
    Function,
    GraphError,
    Input,
    M,
    Node,
    Op,
    P,
    Param,
    S,
    T,
    Type,
    Value,
    apply,
    callee_of,
    dim,
    functions_of,
    inline,
    is_call,
    node,
    tensor,
)
from blockc.ir.reach import Clock, Reach
from blockc.language.parts import Attention as AttentionPart
from blockc.language.spec import from_tree, load
from blockc.ops import (
    Add,
    Attention,
    Extend,
    KeyPositions,
    Linear,
    Mul,
    QueryPositions,
    Relu,
    TakeToken,
    Visible,
    VisibleBothWays,
)
from blockc.passes import keep_last_token, one_token, place_by_mask, verify_graph, with_buffer, with_cache
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.source import parse
from blockc.weights.rules import random_parameters
from tests.paths import ROOT, WRITERS

LAST = Target(logits="last")
SPECS = sorted((ROOT / "specs").glob("*.yaml"))
NAMES = [path.stem for path in SPECS]
STREAM, HEADS = tensor("float", B, S, 8), tensor("float", B, 2, S, 4)
IDS = tensor("int", B, S)
SMALL = """\
blockc: 1
name: small
vocab: 31
width: 16
depth: 3
context: 32
attention: {heads: 4, kv_heads: 2, rope: {theta: 100, pairing: half}}
mlp: {type: swiglu, width: 24}
norm: {type: rms, eps: 1e-5, placement: pre}
head: {tied: false}
"""


@cache
def twin(name: str, *changes: str) -> Compiled:
    return compile_spec(shrink(load(SPECS[NAMES.index(name)], changes)))


def said(text: str) -> Compiled:
    return compile_spec(from_tree(parse(text, "x.yaml")))


# Ops that leak on purpose


@dataclass(frozen=True)
class Ahead(Op):
    """p = q + 1: a query that stands one token later than it does."""

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return args

    def numpy(self, args: tuple[Array, ...], params: tuple[Array, ...]) -> tuple[Array, ...]:
        return (args[0] + 1,)

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        (clock,) = reaches
        return (Clock(1, ahead=clock.ahead + 1) if isinstance(clock, Clock) else clock,)


@dataclass(frozen=True)
class Flip(Op):
    """y[t] = x[S - 1 - t]"""

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return args

    def numpy(self, args: tuple[Array, ...], params: tuple[Array, ...]) -> tuple[Array, ...]:
        return (args[0][:, ::-1],)


@dataclass(frozen=True)
class SumOverTokens(Op):
    """y[t] = sum over all s of x[s]"""

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return args

    def numpy(self, args: tuple[Array, ...], params: tuple[Array, ...]) -> tuple[Array, ...]:
        return (np.broadcast_to(args[0].sum(axis=1, keepdims=True), args[0].shape),)


def inputs() -> tuple[Node, ...]:
    ids = Input(IDS, token_axis=1)
    mask = Node(replace(ids, grows=1), (), "attention_mask")
    return Node(ids, (), "input_ids"), mask, Node(Input(HEADS, token_axis=2), (), "x")


def attending(ahead: int = 0, both_ways: bool = False, causal: bool = True) -> Function:
    """x attends to itself under a mask whose queries stand `ahead` tokens too late."""
    ids, mask, x = inputs()
    queries, keys = apply(QueryPositions(), mask[0], ids[0], name="q"), apply(KeyPositions(), mask[0], name="k")
    for i in range(ahead):
        queries = apply(Ahead(), queries, name=f"ahead{i}")
    seen = apply(VisibleBothWays() if both_ways else Visible(), queries, keys, name="seen")
    mixed = apply(Attention(2, 2, 0.5), x[0], x[0], x[0], seen, name="mixed")
    return Function("F", (ids, mask, x), (("out", mixed),), causal=causal)


def one(op: Op, causal: bool = True) -> Function:
    x = Node(Input(STREAM, token_axis=1), (), "x")
    y = apply(Relu(), apply(op, x[0], name="mixing"), name="after")
    return Function("F", (x,), (("out", y),), causal=causal)


def leaks(function: Function) -> bool:
    """Whether changing the last token changes an earlier output."""
    random, sizes = np.random.RandomState(0), {"B": 1, "S": 5}
    given: dict[str, Array] = {}
    for n in function.inputs:
        shape = [d.at(sizes) for d in n.types[0].shape]
        given[n.name] = random.randn(*shape) if n.types[0].dtype == "float" else np.ones(shape, np.int64)
    x = given["x"]
    axis = next(n.op.token_axis for n in function.inputs if n.name == "x" and isinstance(n.op, Input))
    assert axis is not None
    last = [slice(None)] * x.ndim
    last[axis] = slice(4, 5)
    other = x.copy()
    other[tuple(last)] += 1
    before, after = (interp.interpret(function, given | {"x": a}, {})["out"] for a in (x, other))
    return bool((np.delete(before, 4, axis) != np.delete(after, 4, axis)).any())


# verify: no output sees a later token


def test_a_causal_graph_is_proved() -> None:
    verify_graph(attending())
    assert not leaks(attending())


def test_a_shifted_mask_is_refused() -> None:
    assert leaks(attending(ahead=1))
    with pytest.raises(GraphError, match=r"^out sees later tokens: a mask shifted by 1: .*, at seen$"):
        verify_graph(attending(ahead=1))
    with pytest.raises(GraphError, match="a mask shifted by 2"):
        verify_graph(attending(ahead=2))


def test_a_mask_that_sees_both_ways_is_refused() -> None:
    assert leaks(attending(both_ways=True))
    with pytest.raises(GraphError, match=r"^out sees later tokens: a mask that sees both ways, at seen$"):
        verify_graph(attending(both_ways=True))


@pytest.mark.parametrize("op", [Flip(), SumOverTokens()], ids=["flip", "sum over tokens"])
def test_an_op_that_reads_across_tokens_is_refused(op: Op) -> None:
    assert leaks(one(op))
    with pytest.raises(GraphError, match=rf"^out sees later tokens: {op.name} reads tokens across time, at mixing$"):
        verify_graph(one(op))


def test_a_function_that_does_not_declare_itself_causal_may_look_both_ways() -> None:
    verify_graph(attending(both_ways=True, causal=False))
    verify_graph(one(Flip(), causal=False))


def test_a_leak_is_found_through_calls() -> None:
    leaking = one(Flip())
    x = Node(Input(STREAM, token_axis=1), (), "x")
    y = apply(Call(leaking), x[0], name="layers.0")
    with pytest.raises(GraphError, match=r"^out sees later tokens: flip reads tokens across time, at mixing$"):
        verify_graph(Function("Model", (x,), (("out", y),)))


def test_a_value_computed_from_tokens_is_no_clock() -> None:
    ids, mask, x = inputs()
    keys = apply(KeyPositions(), mask[0], name="k")
    seen = apply(Visible(), ids[0], keys, name="seen")  # positions that a token chooses for itself
    mixed = apply(Attention(2, 2, 0.5), x[0], x[0], x[0], seen, name="mixed")
    with pytest.raises(GraphError, match="a mask that is not made from positions"):
        verify_graph(Function("F", (ids, mask, x), (("out", mixed),)))


def test_the_positions_of_keys_are_no_clock_for_queries() -> None:
    """Padding stands far away as a key, so as a query it sees every token, later ones too."""
    _ids, mask, x = inputs()
    keys = apply(KeyPositions(), mask[0], name="k")
    mixed = apply(Attention(2, 2, 0.5), x[0], x[0], x[0], apply(Visible(), keys, keys, name="seen"), name="mixed")
    function = Function("F", (mask, x), (("out", mixed),))
    (seen,) = Visible().numpy(KeyPositions().numpy((np.array([[1, 0, 1, 1]]),), ()) * 2, ())
    assert seen[0, 0, 1].tolist()[2:] == [True, True]
    with pytest.raises(GraphError):
        verify_graph(function)


# verify: the rest


def test_one_name_for_two_values_is_refused() -> None:
    x = Node(Input(STREAM, token_axis=1), (), "x")
    y = apply(Relu(), apply(Relu(), x[0], name="y"), name="y")
    with pytest.raises(GraphError, match=r"^F: the name y stands for two values$"):
        verify_graph(Function("F", (x,), (("out", y),)))
    z = apply(Relu(), x[0], name="x")
    with pytest.raises(GraphError, match="the name x"):
        verify_graph(Function("F", (x,), (("out", z),)))


def test_a_changed_width_of_the_stream_is_refused() -> None:
    x = Node(Input(STREAM, token_axis=1), (), "x")
    y = apply(Linear(8, 9), x[0], name="wide")
    verify_graph(Function("F", (x,), (("out", y),)))
    with pytest.raises(GraphError, match=r"^F changes the stream$") as caught:
        verify_graph(Function("F", (x,), (("out", y),), stream="x"))
    assert (caught.value.expected, caught.value.got) == ("float[B, S, 8]", "float[B, S, 9]")


@pytest.mark.parametrize(
    "params",
    [
        (),
        (Param("up.weight", (8, 9), "matrix"),),
        (Param("up.weight", (8, 8), "matrix"), Param("up.bias", (8,), "bias")),
    ],
    ids=["none", "another shape", "one too many"],
)
def test_parameters_that_the_op_does_not_own_are_refused(params: tuple[Param, ...]) -> None:
    x = Node(Input(STREAM, token_axis=1), (), "x")
    y = Node(Linear(8, 8), (x[0],), "up", params)
    with pytest.raises(GraphError, match=r"^F.up holds .*, its op owns \[\(\(8, 8\), 'float'\)\]$"):
        verify_graph(Function("F", (x,), (("out", y[0]),)))


def test_one_parameter_name_of_two_shapes_is_refused() -> None:
    x = Node(Input(STREAM, token_axis=1), (), "x")
    up = Node(Linear(8, 8), (x[0],), "up", (Param("w", (8, 8), "matrix"),))
    down = Node(Linear(8, 4), (up[0],), "down", (Param("w", (4, 8), "matrix"),))
    with pytest.raises(GraphError, match=r"^F: the parameter w has two shapes$"):
        verify_graph(Function("F", (x,), (("out", down[0]),)))


def test_faults_inside_called_functions_are_found() -> None:
    x = Node(Input(STREAM, token_axis=1), (), "x")
    inner = Function("Inner", (x,), (("out", apply(Linear(8, 9), x[0], name="wide")),), stream="x")
    outer = Function("Outer", (x,), (("out", apply(Call(inner), x[0], name="call")),))
    with pytest.raises(GraphError, match=r"^Inner changes the stream$"):
        verify_graph(outer)


@pytest.mark.parametrize("name", NAMES)
def test_every_form_of_every_spec_is_verified_at_full_size(name: str) -> None:
    made = compile_spec(load(SPECS[NAMES.index(name)]))
    for function in (made.function, made.served, made.graph, *([made.flatten(LAST)] if made.by_token else [])):
        verify_graph(function)


# with_cache


@pytest.mark.parametrize("name", WRITERS)
def test_a_cache_adds_past_and_present_and_retypes_the_mask(name: str) -> None:
    made = twin(name)
    function, depth = made.served, made.spec.top.depth
    kept = [_kept_shapes(layer.keys.attention, made.spec.top.width) for layer in made.spec.layers]
    states = [f"{i}.{what}" for i in range(depth) for what in kept[i]]
    given = {n.name: n.types[0] for n in function.inputs}
    runtime = ["input_ids", "attention_mask", "position_ids"]
    assert list(given) == runtime + [f"past_key_values.{state}" for state in states]
    assert list(function.output_names) == ["logits"] + [f"present.{state}" for state in states]
    assert given["input_ids"] == given["position_ids"] == tensor("int", B, S)
    assert given["attention_mask"] == tensor("int", B, T)
    outputs = {output: value.type for output, value in function.outputs}
    assert outputs["logits"] == tensor("float", B, S, made.spec.top.vocab)
    for i, shapes in enumerate(kept):
        for what, (*outer, size) in shapes.items():
            assert given[f"past_key_values.{i}.{what}"] == tensor("float", B, *outer, P, size)
            assert outputs[f"present.{i}.{what}"] == tensor("float", B, *outer, T, size)


def _kept_shapes(attention: AttentionPart | None, width: int) -> dict[str, tuple[int, ...]]:
    """The sizes of each state of a layer, around its tokens."""
    assert attention is not None
    a = attention.resolve(width)
    if a.latent:
        return {"latent": (a.latent.kv_rank,), "key": (1, a.latent.rope_dim)}
    return dict.fromkeys(("key", "value"), (a.kv_heads or 0, a.head_dim or 0))


@pytest.mark.parametrize("name", WRITERS)
def test_a_cached_graph_shares_layers_as_the_plain_one_does(name: str) -> None:
    made = twin(name)
    assert len(functions_of(made.served)) == len(functions_of(made.function))
    assert len({id(callee_of(n)) for n in made.served.nodes if is_call(n)}) == len(
        {id(callee_of(n)) for n in made.function.nodes if is_call(n)}
    )
    names = [n.name for n in made.served.inputs if isinstance(n.op, Input) and n.op.past]
    assert len(names) == 2 * made.spec.top.depth


def test_layers_of_unlike_head_dim_keep_caches_of_their_own_shape() -> None:
    text = SMALL.replace("depth: 3", "depth: 3\nlayers: {pattern: [narrow, narrow, wide], kinds: {narrow: {}, wide: "
                         "{attention: {head_dim: 8}}}}")  # fmt: skip
    shapes = {n.name: n.types[0].shape for n in said(text).served.inputs}
    assert [shapes[f"past_key_values.{i}.key"][3].value for i in range(3)] == [4, 4, 8]


def test_two_attentions_in_one_layer_have_a_cache_each() -> None:
    text = SMALL.replace(", placement: pre", "") + (
        "block: [{residual: [attention_norm, attention]}, {residual: [second_norm, second]}]\n"
        "parts: {second: {attention: {window: 3}}}\n"
    )
    text = re.sub("mlp: .*\n", "", text)
    made = said(text)
    assert [n.name for n in made.served.inputs[3:]] == [
        f"past_key_values.{i}.{what}" for i in range(6) for what in ("key", "value")
    ]
    verify_graph(made.flatten(LAST))
    params = random_parameters(made.function, seed=2)
    ids = np.random.RandomState(1).randint(0, 31, (2, 9))
    got, wanted = decode(made.served, ids, params, (4, 1, 4)), full(made.function, ids, params)
    np.testing.assert_allclose(got, wanted, atol=1e-12)


def test_a_model_that_looks_both_ways_has_no_cache() -> None:
    made = twin("block-4x4", "attention.causal=false")
    assert made.served is made.function
    with pytest.raises(GraphError, match="looks both ways"):
        with_cache(made.function)


@pytest.mark.parametrize("name", ["llama3-8b", "gemma2-9b"])
def test_a_buffer_is_of_one_length_and_is_written_where_the_caller_says(name: str) -> None:
    plain = twin(name).graph
    function = with_buffer(plain)
    verify_graph(function)
    assert [n.name for n in function.inputs] == [
        *(n.name for n in plain.inputs[:3]), "write_indices", *(n.name for n in plain.inputs[3:])
    ]  # fmt: skip
    given = {n.name: n.types[0] for n in function.inputs}
    assert given["write_indices"] == tensor("int", B)
    assert given["attention_mask"] == tensor("int", B, M)
    assert given["input_ids"] == given["position_ids"] == tensor("int", B, S)
    pasts = [n for n in plain.inputs if n.name.startswith("past")]
    assert pasts and all(given[n.name] == n.types[0].with_axis(2, M) for n in pasts)
    assert function.output_names == plain.output_names
    for (output, value), n in zip(function.outputs[1:], pasts, strict=True):
        assert output == n.name.replace("past_key_values", "present") and value.type == given[n.name]
    assert {type(n.op) for n in function.nodes} & {Extend, QueryPositions} == set()


@pytest.mark.parametrize("name", ["llama3-8b", "gemma2-9b"])
def test_a_graph_of_one_token_has_no_other_number(name: str) -> None:
    function = one_token(with_buffer(twin(name).graph))
    verify_graph(function)
    given = {n.name: n.types[0] for n in function.inputs}
    assert given["input_ids"] == given["position_ids"] == tensor("int", B, 1)
    assert given["attention_mask"] == tensor("int", B, M) and given["write_indices"] == tensor("int", B)
    assert function.output("logits").type.shape[:2] == (B, dim(1))
    sizes = {size for n in function.nodes for type_ in n.types for size in type_.shape}
    assert not {symbol for size in sizes for term in size.terms for symbol in term[0]} - {"B", "M"}


def test_a_model_without_a_cache_has_no_buffer() -> None:
    with pytest.raises(GraphError, match="remembers nothing has no cache to hold in a buffer"):
        with_buffer(twin("block-4x4", "attention.causal=false").graph)


def full(function: Function, ids: Array, params: dict[str, Array]) -> Array:
    at = np.arange(ids.shape[1])[None].repeat(len(ids), axis=0)
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": at}
    return interp.interpret(function, given, params)["logits"]


def decode(function: Function, ids: Array, params: dict[str, Array], chunks: tuple[int, ...]) -> Array:
    """The logits of a cached function fed in chunks."""
    past = {n.name: np.zeros([d.at({"B": len(ids), "P": 0}) for d in n.types[0].shape]) for n in function.inputs[3:]}
    parts: list[Array] = []
    start = 0
    for chunk in chunks:
        end = start + chunk
        at = np.arange(start, end)[None].repeat(len(ids), axis=0)
        mask = np.ones((len(ids), end), np.int64)
        given = {"input_ids": ids[:, start:end], "attention_mask": mask, "position_ids": at}
        outputs = interp.interpret(function, given | past, params)
        parts.append(outputs["logits"])
        past = {name: outputs[name.replace("past_key_values", "present")] for name in past}
        assert all(a.shape[2] == end for a in past.values())
        start = end
    return np.concatenate(parts, axis=1)


# last_token


def padded(side: str, total: int = 8) -> tuple[dict[str, Array], list[int]]:
    """Sequences of 8, 5 and 1 tokens, and the index at which each one's last token stands."""
    random, lengths = np.random.RandomState(4), (8, 5, 1)
    ids, mask = random.randint(0, 16, (3, total)), np.zeros((3, total), np.int64)
    ends: list[int] = []
    for i, length in enumerate(lengths):
        start = total - length if side == "left" else 0
        mask[i, start : start + length] = 1
        ends.append(start + length - 1)
    at = np.maximum(mask.cumsum(axis=1) - 1, 0)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": at}, ends


@pytest.mark.parametrize("name", [*WRITERS, "modernbert-base", "distilbert-base"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_last_tokens_logits_are_those_of_the_full_run(name: str, side: str) -> None:
    made = twin(name)
    given, ends = padded(side)
    given |= {n.name: np.zeros([d.at({"B": 3, "P": 0}) for d in n.types[0].shape]) for n in made.graph.inputs[3:]}
    params = random_parameters(made.function, seed=6)
    whole, last = interp.interpret(made.graph, given, params), interp.interpret(made.flatten(LAST), given, params)
    assert whole.keys() == last.keys()
    assert last["logits"].shape == (3, 1, made.spec.top.vocab)
    np.testing.assert_allclose(last["logits"][:, 0], whole["logits"][range(3), ends], atol=1e-9)
    for state in whole.keys() - {"logits"}:
        np.testing.assert_array_equal(whole[state], last[state])


@pytest.mark.parametrize("name", WRITERS)
def test_all_that_is_tokenwise_in_the_last_layer_is_behind_the_pick(name: str) -> None:
    made = twin(name)
    nodes = {n.name: n for n in made.flatten(LAST).nodes}
    last, before = made.spec.top.depth - 1, made.spec.top.depth - 2

    def tokens(node_name: str) -> object:
        (type_,) = nodes[node_name].types
        return type_.shape[2 if len(type_.shape) == 4 else 1]

    linears = {n.name for n in made.flatten(LAST).nodes if isinstance(n.op, Linear)}
    cached = ("k", "v", "kv_a")
    all_tokens = {f"layers.{last}.attention.{matrix}" for matrix in cached}  # the cache needs them
    for matrix in linears:
        behind = matrix in ("head", "project_out") or (
            matrix.startswith(f"layers.{last}.") and matrix not in all_tokens
        )
        assert tokens(matrix) == (dim(1) if behind else S), matrix
    assert {matrix for matrix in linears if matrix.startswith(f"layers.{last}.mlp.")}
    assert tokens(f"layers.{last}.attention.mixed") == dim(1)
    assert tokens(f"layers.{last}.after_mlp" if f"layers.{last}.after_mlp" in nodes else "head") == dim(1)
    assert tokens(f"layers.{before}.attention.mixed") == S
    mixed = [n for n in (f"layers.{before}.mlp.down", f"layers.{before}.mlp.experts") if n in nodes]
    assert [tokens(n) for n in mixed] == [S]


@pytest.mark.parametrize("name", WRITERS)
def test_a_pick_stands_only_where_something_needs_all_tokens(name: str) -> None:
    """What is picked from is read whole by someone else too, or is an input."""
    made = twin(name)
    nodes = made.flatten(LAST).nodes
    users: dict[Value, list[Node]] = {}
    for n in nodes:
        for value in n.inputs:
            users.setdefault(value, []).append(n)
    ends = {value for _, value in made.flatten(LAST).outputs}
    for n in nodes:
        if isinstance(n.op, TakeToken):
            picked = n.inputs[0]
            readers = [u for u in users[picked] if not isinstance(u.op, TakeToken)]
            assert readers or picked in ends or picked.node in made.flatten(LAST).inputs, n.name


def test_the_last_token_of_a_model_that_looks_both_ways() -> None:
    made = twin("llama3-8b", "attention.causal=false")
    given, ends = padded("left")
    params = random_parameters(made.function, seed=6)
    whole, last = interp.interpret(made.graph, given, params), interp.interpret(made.flatten(LAST), given, params)
    np.testing.assert_allclose(last["logits"][:, 0], whole["logits"][range(3), ends], atol=1e-9)


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_last_token_of_a_model_without_attention(side: str) -> None:
    """Nothing in it asks where a token stands, and the pick does."""
    text = re.sub("attention: .*\n", "", SMALL.replace(", placement: pre", "")) + (
        "positions: none\nblock: [{residual: [mlp_norm, mlp]}]\n"
    )
    made = said(text)
    given, ends = padded(side)
    params = random_parameters(made.function, seed=6)
    whole, last = interp.interpret(made.graph, given, params), interp.interpret(made.flatten(LAST), given, params)
    np.testing.assert_allclose(last["logits"][:, 0], whole["logits"][range(3), ends], atol=1e-12)


def test_the_last_token_of_later_chunks_with_a_cache() -> None:
    made = twin("gemma2-9b")
    params = random_parameters(made.function, seed=6)
    ids = np.random.RandomState(3).randint(0, 96, (2, 12))
    wanted, got = full(made.function, ids, params), decode(made.flatten(LAST), ids, params, (7, 1, 4))
    np.testing.assert_allclose(got, wanted[:, [6, 7, 11]], atol=1e-9)


# positions by the mask

ENCODERS = {
    "learned": SMALL.replace(", rope: {theta: 100, pairing: half}", ", causal: false") + "positions: {type: learned}\n",
    "offset": SMALL.replace(", rope: {theta: 100, pairing: half}", ", causal: false")
    + "positions: {type: learned, offset: 2}\n",
    "rope": SMALL.replace("heads: 4,", "heads: 4, causal: false, window: {each_side: 2},"),
    "last token": SMALL.replace("head: {tied: false}", "head: none\npool: {type: last}"),
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("text", ENCODERS.values(), ids=ENCODERS)
def test_a_graph_without_a_past_counts_its_positions(text: str, side: str) -> None:
    """As they would be given, for every token that is none of the padding."""
    made = said(text)
    given, _ = padded(side)
    placed = place_by_mask(made.graph)
    verify_graph(placed)
    assert [n.name for n in placed.inputs] == ["input_ids", "attention_mask"]
    params = random_parameters(made.function, seed=6)
    whole = interp.interpret(made.graph, given, params)
    ours = interp.interpret(placed, {name: given[name] for name in ("input_ids", "attention_mask")}, params)
    real = given["attention_mask"] == 1
    for name, wanted in whole.items():
        at = real if wanted.ndim == 3 else np.s_[:]
        np.testing.assert_allclose(ours[name][at], wanted[at], atol=1e-12)


def test_a_graph_with_a_past_takes_its_positions() -> None:
    flat = twin("llama3-8b").graph
    assert place_by_mask(flat) is flat


# inline


@pytest.mark.parametrize("name", NAMES)
def test_inlining_leaves_no_call_and_gives_each_value_a_name_of_its_own(name: str) -> None:
    made = twin(name)
    for function in (inline(made.function), made.graph, *([made.flatten(LAST)] if made.by_token else [])):
        names = [n.name for n in (*function.inputs, *function.nodes)]
        assert len(names) == len(set(names))
        assert not any(is_call(n) for n in function.nodes)
        values = [n[i].name for n in function.nodes for i in range(len(n.types))]
        assert len(values) == len(set(values))
    given, _ = padded("right")
    given |= {"token_type_ids": np.zeros_like(given["input_ids"])}
    given = {n.name: given[n.name] for n in made.function.inputs}
    params = random_parameters(made.function, seed=6)
    whole, flat = (interp.interpret(each, given, params) for each in (made.function, inline(made.function)))
    assert list(whole) == list(flat)
    for name, array in whole.items():
        np.testing.assert_array_equal(array, flat[name])


def test_a_pass_leaves_what_it_was_given_as_it_was() -> None:
    made = twin("gemma2-9b")
    before = made.function.key, made.graph.key
    with_cache(made.function)
    keep_last_token(made.graph)
    inline(made.function)
    assert (made.function.key, made.graph.key) == before


def test_a_dead_node_vanishes_with_what_it_alone_reads() -> None:
    x = Node(Input(STREAM, token_axis=1), (), "x")
    kept = apply(Linear(8, 8), x[0], name="kept")
    apply(Mul(), kept, node(Linear(8, 8), x[0], name="gate")[0], name="dead")
    function = Function("F", (x,), (("out", apply(Add(), kept, x[0], name="sum")),))
    assert [n.name for n in inline(function).nodes] == ["kept", "sum"]
