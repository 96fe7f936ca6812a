"""The graph itself: exact dims, functions that are shared, loops in text, walks of any length, and rooms in order."""

from __future__ import annotations

import ast
import gc
import re
import weakref
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import blockc
from blockc.graph import interp
from blockc.graph.shrink import shrink
from blockc.ir import (
    B,
    Call,
    Dim,
    Function,
    GraphError,
    Input,
    Interner,
    Loop,
    Node,
    P,
    Param,
    S,
    T,
    Value,
    apply,
    callee_of,
    dim,
    functions_of,
    inline,
    layers_of,
    node,
    parameters_of,
    period_of,
    product,
    render_function,
    roll,
    symbol,
    tensor,
)
from blockc.language.spec import from_tree, load
from blockc.ops import Add, Embed, Linear, Relu, RmsNorm, Scale
from blockc.passes import keep_last_token, verify_graph, with_cache
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.source import parse
from blockc.weights.rules import random_parameters
from tests.paths import ROOT

PACKAGE = Path(blockc.__file__).parent
SPECS = PACKAGE.parent / "specs"
STREAM = tensor("float", B, S, 8)
DEEP = 5_000


def whole(name: str, *changes: str) -> Compiled:
    return compile_spec(load(SPECS / f"{name}.yaml", changes))


# Dims


def test_dims_are_equal_where_their_polynomials_are() -> None:
    assert B * (S + P) == B * S + B * P
    assert hash(B * (S + P)) == hash(P * B + S * B)
    assert S + P == P + S == T
    assert S + P != P + 1
    assert B * S != B + S
    assert (S + 1) * (S - 1) == S * S - 1
    assert dim(0) == S - S
    assert 2 * S + 3 == S + S + 1 + 2
    assert dim(0) == 0 * S
    assert symbol("S") == S != symbol("s")


def test_a_dim_knows_whether_it_is_a_number_or_a_symbol() -> None:
    assert dim(7).value == 7
    assert (S - S).value == 0
    assert (S - S + 4).value == 4
    assert S.value is None
    assert (2 * S).value is None
    assert (S + 1).value is None
    assert S.symbol == "S"
    assert (2 * S).symbol is (S * S).symbol is T.symbol is dim(3).symbol is None


def test_dims_read_as_everyone_writes_them() -> None:
    texts = {T: "P + S", S + 1: "S + 1", 2 * S - 1: "2*S - 1", B * T: "B*P + B*S", S * S: "S*S"}
    texts |= {dim(0): "0", dim(-3): "-3"}
    assert {size: str(size) for size in texts} == texts


def test_a_dim_at_sizes_is_an_integer() -> None:
    sizes = {"B": 2, "S": 3, "P": 5}
    assert (B * (S + P) * 2 - 1).at(sizes) == 31
    assert dim(4).at({}) == 4
    assert product((B, S, 7)).at(sizes) == 42
    assert product(()) == dim(1)
    with pytest.raises(KeyError, match="P"):
        T.at({"S": 1})


def test_the_normal_form_holds_under_any_order_of_operations() -> None:
    random = np.random.RandomState(0)

    def grow(depth: int) -> Dim:
        if depth == 0:
            return (B, S, P, dim(int(random.randint(-3, 4))))[random.randint(4)]
        a, b = grow(depth - 1), grow(depth - 1)
        return (a + b, a * b, a - b)[random.randint(3)]

    sizes = {"B": 3, "S": 11, "P": 17}
    for _ in range(50):
        a, b, c = (grow(2) for _ in range(3))
        assert a * (b + c) == c * a + b * a
        assert (a + b) - b == a
        assert (a * (b + c)).at(sizes) == a.at(sizes) * (b.at(sizes) + c.at(sizes))


def test_types_read_as_dtype_and_shape() -> None:
    assert str(tensor("float", B, 8, T, 64)) == "float[B, 8, P + S, 64]"
    assert STREAM.with_axis(1, T) == tensor("float", B, T, 8)
    assert tensor("int", B, S, 8) != STREAM


# Nodes and functions


def small(name: str = "Small", factor: float = 2.0, inner: str = "scaled", width: int = 8) -> Function:
    x = Node(Input(tensor("float", B, S, width), token_axis=1), (), "x")
    scaled = apply(Scale(factor), x[0], name=inner)
    up = apply(Linear(width, width), scaled, name="up")
    return Function(name, (x,), (("out", apply(Add(), x[0], up, name="after")),), stream="x")


def test_a_node_that_does_not_fit_is_refused_by_name() -> None:
    x, ids = Node(Input(STREAM), (), "x"), Node(Input(tensor("int", B, S)), (), "ids")
    with pytest.raises(GraphError, match=r"up: .*expected 16, got 8") as caught:
        apply(Linear(16, 4), x[0], name="up")
    assert (caught.value.expected, caught.value.got) == ("16", "8")
    with pytest.raises(GraphError, match="sum: add of unlike tensors"):
        apply(Add(), x[0], ids[0], name="sum")
    with pytest.raises(GraphError, match="Small takes 1 inputs, got 2"):
        apply(Call(small()), x[0], x[0], name="call")
    with pytest.raises(GraphError, match=r"Small\.x"):
        apply(Call(small(width=4)), x[0], name="call")


def test_a_body_is_what_the_outputs_reach_operands_first() -> None:
    x = Node(Input(STREAM), (), "x")
    a = apply(Relu(), x[0], name="a")
    apply(Linear(8, 8), a, name="dead")
    b = apply(Add(), a, x[0], name="b")
    function = Function("F", (x,), (("one", b), ("two", a)))
    assert [n.name for n in function.nodes] == ["a", "b"]
    assert function.own_params == ()
    assert function.output_names == ("one", "two")


def test_parameters_go_by_path_and_a_shared_one_counts_once() -> None:
    ids = Node(Input(tensor("int", B, S), token_axis=1), (), "input_ids")
    table = node(Embed(9, 8), ids[0], name="embedding")
    x = apply(Call(small()), table[0], name="layers.0")
    x = apply(Call(small()), x, name="layers.1")
    logits = apply(Linear(8, 9), x, name="head", params=table.params)
    root = Function("Model", (ids,), (("logits", logits),))
    assert {path: p.shape for path, p in parameters_of(root).items()} == {
        "embedding.weight": (9, 8), "layers.0.up.weight": (8, 8), "layers.1.up.weight": (8, 8),
    }  # fmt: skip
    assert parameters_of(inline(root)).keys() == parameters_of(root).keys()
    assert logits.node.params[0] is table.params[0]


@pytest.mark.parametrize(("name", "tied"), [("gpt2", True), ("gemma2-9b", True), ("llama3-8b", False)])
def test_a_tied_head_holds_the_embeddings_own_parameter(name: str, tied: bool) -> None:
    made = whole(name)
    named = {n.name: n for n in made.graph.nodes}
    assert (named["head"].params == named["embedding"].params) is tied
    assert ("head.weight" in parameters_of(made.graph)) is not tied


def test_equal_functions_are_one_object_and_unlike_ones_are_named_apart() -> None:
    intern = Interner()
    first = intern(small(), "layer")
    assert intern(small(), "layer") is first
    assert intern(small(), "global") is first
    assert first.name == "Small"
    assert intern(small(factor=3.0), "global").name == "GlobalSmall"
    assert intern(small(factor=4.0), "global").name == "GlobalSmall2"
    assert intern(small(factor=3.0), "local").name == "GlobalSmall"
    assert intern(small(inner="other"), "layer") is not first, "a value's name is part of what is emitted"


def test_a_key_sees_wiring_parameters_outputs_and_declarations() -> None:
    base = small()
    assert base.key == small().key
    assert replace(base, name="Other").key == base.key
    assert replace(base, causal=False).key != base.key
    assert replace(base, stream=None).key != base.key
    assert replace(base, outputs=(("other", base.outputs[0][1]),)).key != base.key
    end = base.outputs[0][1].node
    swapped = end.remake(inputs=end.inputs[::-1])
    assert replace(base, outputs=(("out", swapped[0]),)).key != base.key
    up = end.inputs[1].node
    renamed = Node(up.op, up.inputs, up.name, (Param("elsewhere.weight", (8, 8), "matrix"),))
    other = end.remake(inputs=(end.inputs[0], renamed[0]))
    assert replace(base, outputs=(("out", other[0]),)).key != base.key


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.yaml")), ids=lambda p: p.stem)
def test_equal_layers_are_one_function_with_and_without_a_cache(path: Path) -> None:
    made = compile_spec(load(path))
    for function in (made.function, made.served):
        assert [n.name for n in layers_of(function)] == [f"layers.{i}" for i in range(made.spec.top.depth)]
        unlike = {
            (
                bool(layer.keys.attention and layer.keys.attention.rope),
                layer.keys.mlp and layer.keys.mlp.experts,
                repr(layer.keys.block),
            )
            for layer in made.spec.layers
        }
        assert len(set(map(callee_of, layers_of(function)))) == len(unlike), "what else differs is passed in"
        assert len({f.name for f in functions_of(function)}) == len(functions_of(function))


def test_local_and_global_layers_are_one_function_that_gets_different_masks() -> None:
    function = whole("gemma2-9b").function
    masks = [{v.node.name for v in n.inputs if v.node.name.startswith("mask")} for n in layers_of(function)]
    assert masks == [{"mask_4096"}, {"mask"}] * 21


def test_layers_that_differ_in_more_are_two_functions() -> None:
    text = (SPECS / "gemma2-9b.yaml").read_text().replace("global: {}", "global: {mlp: {width: 128}}")
    function = compile_spec(from_tree(parse(text, "x.yaml"))).function
    assert [callee_of(n).name for n in layers_of(function)] == ["Layer", "GlobalLayer"] * 21
    names = [f.name for f in functions_of(function)]
    assert names.count("Attention") == 1
    assert "GlobalMLP" in names


# Rolling and text


def test_period() -> None:
    known = {"": 0, "a": 1, "aaaa": 1, "abab": 2, "ababa": 2, "abac": 4, "aabaab": 3}
    assert {items: period_of(tuple(items)) for items in known} == known


def test_layers_roll_into_one_loop_fed_by_the_stream() -> None:
    items = roll(whole("gemma2-9b").served)
    (loop,) = [item for item in items if isinstance(item, Loop)]
    assert loop.prefix == "layers"
    assert len(loop.calls) == 42
    assert callee_of(loop.calls[0]).inputs[loop.chain].name == "x"
    names = [n.name for n in callee_of(loop.calls[0]).inputs]
    assert {names[i] for i in loop.varying} == {"mask", "past_key", "past_value"}
    assert {names[i] for i in loop.fixed} == {"cos", "sin"}
    assert period_of(loop.varying[names.index("mask")]) == 2


def test_unlike_calls_do_not_roll() -> None:
    x = Node(Input(STREAM), (), "x")
    first = node(Call(small()), x[0], name="layers.0")
    aside = node(Call(small()), x[0], name="layers.1")
    chained = node(Call(small()), aside[0], name="layers.2")
    end = apply(Add(), first[0], chained[0], name="end")
    items = roll(Function("F", (x,), (("out", end),)))
    assert [item.name if isinstance(item, Node) else len(item.calls) for item in items] == ["layers.0", 2, "end"]


def test_text_is_no_longer_for_126_layers_than_for_12() -> None:
    deep, flat = whole("llama3.1-405b"), whole("llama3.1-405b", "depth=12")
    for one, other in ((deep.function, flat.function), (deep.served, flat.served)):
        text, short = render_function(one), render_function(other)
        assert len(text.splitlines()) == len(short.splitlines())
        assert text.replace("0..125", "0..11") == short


def test_text_shows_types_parameters_and_the_fields_of_ops() -> None:
    text = render_function(whole("llama3-8b").served)
    for line in (
        "    q = linear(x) {inputs=4096, outputs=4096} with q.weight[4096, 4096] : float[B, S, 4096]",
        "    key = extend(past_key, k_rotated) : float[B, 8, P + S, 128]",
        "    for N in 0..31:",
        "    return logits = head, present.N.key, present.N.value",
    ):
        assert line in text.splitlines()
    assert text == render_function(whole("llama3-8b").served), "the text is the same each time"


# Walks of any length


def chain(length: int) -> Function:
    x = Node(Input(STREAM, token_axis=1), (), "x")
    value: Value = x[0]
    for i in range(length):
        value = apply(Add(), value, x[0], name=f"sum{i}")
    return Function("Chain", (x,), (("out", value),), stream="x")


def test_a_chain_of_thousands_of_nodes_is_walked_without_recursion() -> None:
    function = chain(DEEP)
    assert len(function.nodes) == DEEP
    verify_graph(function)
    assert len(inline(function).nodes) == DEEP
    assert len(render_function(function).splitlines()) == DEEP + 2
    assert hash(function.key) == hash(chain(DEEP).key)
    x = np.ones((1, 2, 8))
    np.testing.assert_array_equal(interp.interpret(function, {"x": x}, {})["out"], x * (DEEP + 1))


@pytest.mark.costly
def test_a_chain_of_thousands_of_calls_too() -> None:
    x = Node(Input(STREAM, token_axis=1), (), "x")
    layer = small(factor=1e-3)
    value: Value = x[0]
    for i in range(DEEP):
        value = apply(Call(layer), value, name=f"layers.{i}")
    root = Function("Model", (x,), (("out", value),), stream="x")
    verify_graph(root)
    flat = inline(root)
    assert len(flat.nodes) == 3 * DEEP
    assert len(parameters_of(root)) == len(parameters_of(flat)) == DEEP
    assert len(render_function(root).splitlines()) < 20
    held = {path: np.zeros((8, 8)) for path in parameters_of(root)}
    np.testing.assert_array_equal(interp.interpret(root, {"x": np.ones((1, 2, 8))}, held)["out"], 1)


@pytest.mark.costly
def test_a_deep_model_is_cached_inlined_and_picked_from() -> None:
    function = whole("block-4x4", "depth=600").function
    flat = inline(with_cache(function))
    verify_graph(flat)
    verify_graph(keep_last_token(flat))


def test_a_call_nested_in_calls_has_the_path_of_all_of_them() -> None:
    inner = small()
    for depth in range(3):
        x = Node(Input(STREAM, token_axis=1), (), "x")
        inner = Function(f"F{depth}", (x,), (("out", apply(Call(inner), x[0], name=f"f{depth}")),))
    assert list(parameters_of(inner)) == ["f2.f1.f0.up.weight"]
    assert [n.name for n in inline(inner).nodes] == [f"f2.f1.f0.{name}" for name in ("scaled", "up", "after")]


# The oracle checks what it is given


def test_the_oracle_refuses_what_does_not_fit() -> None:
    function = small()
    params = random_parameters(function, seed=1)
    with pytest.raises(GraphError, match="input x is missing"):
        interp.interpret(function, {}, params)
    with pytest.raises(GraphError, match=r"x: float\[B, S, 8\] is \(2, 3, 8\) here"):
        interp.interpret(function, {"x": np.ones((2, 3, 7))}, params)
    with pytest.raises(KeyError, match=r"up\.weight"):
        interp.interpret(function, {"x": np.ones((2, 3, 8))}, {})
    y = interp.interpret(function, {"x": np.ones((2, 3, 8), np.float32)}, params)["out"]
    assert y.dtype == np.float64


def test_the_oracle_refuses_an_op_whose_shape_rule_is_wrong() -> None:
    class Wrong(RmsNorm):
        def numpy(self, args: tuple[np.ndarray, ...], params: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
            return (args[0][:, :-1],)

    x = Node(Input(STREAM), (), "x")
    function = Function("F", (x,), (("out", apply(Wrong(8, 0.1), x[0], name="norm")),))
    with pytest.raises(GraphError, match="norm"):
        interp.interpret(function, {"x": np.ones((2, 3, 8))}, random_parameters(function, seed=1))


def test_watching_sees_every_value_by_its_path() -> None:
    made = compile_spec(shrink(load(SPECS / "gemma2-9b.yaml")))
    seen: dict[str, tuple[int, ...]] = {}
    ids = np.array([[3, 1, 4, 1, 5]])
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(5)[None]}
    interp.interpret(
        made.function, inputs, random_parameters(made.function, 1), lambda name, a: seen.update({name: a.shape})
    )
    assert {n[i].name for n in inline(made.function).nodes for i in range(len(n.types))} <= seen.keys()
    assert seen["layers.1.attention.mixed"][2] == 5


def test_a_graph_goes_with_its_model() -> None:
    """What is worked out once for all graphs keeps none of them."""

    def made() -> list[weakref.ref[Function]]:
        model = compile_spec(load(SPECS / "gemma3-1b.yaml"))
        assert parameters_of(model.served) and parameters_of(model.graph)
        return [weakref.ref(each) for root in (model.served, model.function) for each in functions_of(root)]

    kept = made()
    gc.collect()
    assert len(kept) > 4 and not any(each() for each in kept)


# Rooms: each imports only from those before it

ARCHITECTURE = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
ROOMS = (*re.findall(r"^\| ([a-z]+) \| ", ARCHITECTURE, re.MULTILINE)[1:], "__main__")  # behind the table's head
MODULES = sorted(PACKAGE.rglob("*.py"))
FRAMEWORKS = {"torch", "onnx", "onnxruntime", "onnxscript", "transformers", "safetensors"}


def room(module: str) -> int:
    """Its place on the line; every module stands in one. The package itself comes before all."""
    name = module.split(".")[1]
    return -1 if name == "__init__" else ROOMS.index(name)


def named(path: Path) -> str:
    return ".".join(("blockc", *path.relative_to(PACKAGE).with_suffix("").parts))


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported anywhere below, `from blockc import api` as blockc.api."""
    for n in ast.walk(tree):
        if isinstance(n, ast.Import):
            yield from (alias.name for alias in n.names)
        elif isinstance(n, ast.ImportFrom):
            assert n.level == 0, "imports are absolute"
            module = n.module or ""
            yield from ((f"blockc.{alias.name}" for alias in n.names) if module == "blockc" else (module,))


def at_import(tree: ast.Module) -> Iterator[str]:
    """What runs when the module is imported: nothing inside functions or under TYPE_CHECKING."""
    todo: list[ast.AST] = list(tree.body)
    while todo:
        n = todo.pop()
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or typed_only(n):
            continue
        yield from imports(n) if isinstance(n, ast.Import | ast.ImportFrom) else ()
        todo.extend(ast.iter_child_nodes(n))


def typed_only(n: ast.AST) -> bool:
    return isinstance(n, ast.If) and isinstance(n.test, ast.Name) and n.test.id == "TYPE_CHECKING"


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_module_imports_only_from_rooms_before_its_own(path: Path) -> None:
    module, tree = named(path), ast.parse(path.read_text(encoding="utf-8"))
    if module == "blockc.__init__":
        assert not [name for name in imports(tree) if name.startswith("blockc")]
        return
    ours = [name for name in imports(tree) if name.startswith("blockc.")]
    assert [name for name in ours if room(name) > room(module)] == []


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_frameworks_stay_in_emission_and_proof(path: Path) -> None:
    module, tree = named(path), ast.parse(path.read_text(encoding="utf-8"))
    front = room(module) < ROOMS.index("emit")
    found = imports(tree) if front else at_import(tree)
    if module.split(".")[1] in ("emit", "proof"):
        return
    assert [name for name in found if name.split(".")[0] in FRAMEWORKS] == []


def test_every_room_is_there_and_the_check_sees_imports() -> None:
    assert {room(named(path)) for path in MODULES if path.parent != PACKAGE or path.name != "__init__.py"} >= set(
        range(len(ROOMS))
    )
    assert len(ROOMS) <= 26
    compiled_ = ast.parse((PACKAGE / "pipeline" / "compiled.py").read_text())
    assert "onnx" in set(imports(compiled_))  # for the type checker alone
    assert "onnx" not in set(at_import(compiled_))
    assert "blockc.pipeline.compiled" in set(at_import(ast.parse((PACKAGE / "proof" / "matrix.py").read_text())))
    assert "torch" not in set(at_import(ast.parse((PACKAGE / "proof" / "runners.py").read_text())))


def test_the_folders_of_tests_are_rooms() -> None:
    """Beside two: the project around the compiler, and inputs by chance."""
    folders = {path.parent.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert folders <= {*ROOMS, "project", "fuzz"} and {"language", "ops", "weights"} <= folders


def test_the_page_names_functions_that_are_there() -> None:
    """Its walk from a spec to a folder, function by function."""
    _, _, walk = ARCHITECTURE.partition("## One spec, followed")
    named_ = set(re.findall(rf"`((?:{'|'.join(ROOMS)})\.[A-Za-z_.]+)`", walk))
    assert len(named_) >= 20 and len(ARCHITECTURE.splitlines()) <= 120
    for name in named_:
        module = next(m for m in _prefixes(name) if find_spec(f"blockc.{m}"))
        found: object = import_module(f"blockc.{module}")
        for word in name.removeprefix(module).split(".")[1:]:
            found = getattr(found, word)


def _prefixes(name: str) -> list[str]:
    """a.b.c, a.b, a"""
    words = name.split(".")
    return [".".join(words[:n]) for n in range(len(words), 0, -1)]


def find_spec(module: str) -> bool:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
