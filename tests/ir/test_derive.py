"""Parameters that a pass makes: what they are derived from, proved, packed and read back. The passes are made up."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from blockc import api
from blockc.basics.errors import CheckpointError
from blockc.emit import loading
from blockc.emit.external import external_tensors
from blockc.graph.target import Target
from blockc.ir import (
    Array,
    Arrays,
    Blocks,
    Function,
    GraphError,
    Input,
    Node,
    OnnxBuilder,
    OnnxValue,
    Op,
    Param,
    S,
    TokenAxes,
    Type,
    Value,
    node,
    parameters_of,
    tensor,
    transform,
)
from blockc.ir.derive import (
    Derivation,
    Interleave,
    Join,
    Pass,
    PassResult,
    Permute,
    Quantise,
    Reshape,
    Slice,
    Transpose,
    add_derived,
    round_params,
)
from blockc.layouts import Item, load_layout
from blockc.ops import Linear
from blockc.pipeline import recipes
from blockc.pipeline.compiled import Compiled
from blockc.proof import prove
from blockc.proof.runners import load_module
from blockc.weights.checkpoint import open_checkpoint
from blockc.weights.data import write_data
from blockc.weights.matching import pack, unpack
from blockc.weights.plan import DATA, link_files, place_joined, place_packed, plan_weights
from blockc.weights.rules import group_sizes, random_parameters, rules
from tests.checkpoints import rules_of, save, tensors, twin

PARAMS: dict[str, NDArray[np.float64]] = {
    "a": np.random.RandomState(0).randn(4, 6),
    "b": np.random.RandomState(1).randn(4, 6),
}
A, B = PARAMS["a"], PARAMS["b"]


# What each derivation is


@pytest.mark.parametrize(
    ("derivation", "wanted"),
    [
        (Join(("a", "b")), np.vstack([A, B])),
        (Join(("a", "b"), axis=1), np.hstack([A, B])),
        (Slice(("a",), 1, 3), A[1:3]),
        (Slice(("a",), 0, 2, axis=1), A[:, :2]),
        (Permute(("a",), (2, 0, 3, 1)), A[[2, 0, 3, 1]]),
        (Permute(("a",), (5, 4, 3, 2, 1, 0), axis=1), A[:, ::-1]),
        (Transpose(("a",)), A.T),
        (Transpose((Join(("a", "b")),)), np.concatenate((A, B)).T),
        (Interleave(("a", "b")), np.array([row for pair in zip(A, B, strict=True) for row in pair])),
        (Interleave(("a", "b"), axis=1), np.array([np.ravel([x, y], "F") for x, y in zip(A, B, strict=True)])),
        (Slice((Join((Permute(("a",), (3, 2, 1, 0)), "b")),), 3, 5), np.array([A[0], B[0]])),
    ],
    ids=str,
)
def test_a_derivation_gives_what_it_says_and_in_the_shape_that_it_says(derivation: Derivation, wanted: Array) -> None:
    got = add_derived(PARAMS, {"made": derivation})
    np.testing.assert_array_equal(got["made"], wanted)
    held = {name: Param(name, array.shape, "matrix") for name, array in PARAMS.items()}
    assert derivation.param_of("made", held) == Param("made", wanted.shape, "matrix")
    assert set(derivation.leaves) <= {"a", "b"}


@pytest.mark.parametrize(
    ("derivation", "shapes"),
    [
        (Join(("a", "b")), ((4, 6), (4, 5))),
        (Interleave(("a", "b")), ((4, 6), (5, 6))),
        (Slice(("a",), 2, 5), ((4, 6),)),
        (Slice(("a",), 2, 2), ((4, 6),)),
        (Permute(("a",), (0, 0, 1, 2)), ((4, 6),)),
        (Reshape(("a",), (5, 5)), ((4, 6),)),
        (Transpose(("a",)), ((4, 6, 2),)),
    ],
    ids=str,
)
def test_what_does_not_fit_is_no_source(derivation: Derivation, shapes: Sequence[tuple[int, ...]]) -> None:
    sources = [Param(name, shape, "matrix") for name, shape in zip("ab", shapes, strict=False)]
    with pytest.raises(GraphError, match="^made: "):
        derivation.param("made", *sources)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("width", [64, 40], ids=["whole blocks", "a block cut short"])
def test_a_quantised_matrix_is_what_onnxruntime_takes_it_for(bits: Literal[4, 8], width: int) -> None:
    """Its kernel multiplies by what stands for the matrix: within half a step, at the range's short end within one."""
    w = np.random.RandomState(bits).randn(6, width)
    w[1] += 3  # a row without a number below 0
    w[2] = 0
    blocks = Blocks(bits, 16)
    made = {part: Quantise(("w",), part, blocks) for part in ("codes", "scales")}
    held = {part: each.evaluate({"w": w}.__getitem__) for part, each in made.items()}
    for part, each in made.items():
        param = each.param(part, Param("w", w.shape, "matrix"))
        assert (param.shape, param.dtype) == (held[part].shape, {"scales": "float"}.get(part, "uint8"))
    operator = helper.make_node(
        "MatMulNBits", ["x", *held], ["y"], domain="com.microsoft", K=width, N=6, bits=bits, block_size=16
    )
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (width, width))]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, (width, 6))]
    held_as = {p: a if a.dtype == np.uint8 else a.astype(np.float32) for p, a in held.items()}
    model = helper.make_model(
        helper.make_graph(
            [operator], "nbits", inputs, outputs, [numpy_helper.from_array(a, p) for p, a in held_as.items()]
        ),
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)],
        ir_version=10,
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (kernel,) = session.run(None, {"x": np.eye(width, dtype=np.float32)})
    np.testing.assert_allclose(restored(held["codes"], held["scales"], bits, width), kernel.T, rtol=1e-6, atol=1e-6)
    steps = np.repeat(np.abs(held["scales"]), 16, axis=-1)[:, :width]
    off = np.abs(kernel.T - w) / np.where(steps, steps, 1)
    assert off.max() <= (1.0001 if bits == 4 else 0.5001)
    assert np.mean(off > 0.5001) < 0.06  # in 4 bits, where one end reaches a step less
    assert (kernel.T[2] == 0).all()


def test_lows_are_added_to_each_block() -> None:
    """Both ends of the range are used, and a block of one number is that number."""
    w = np.random.RandomState(3).randn(4, 48) + 2
    w[1] = 5
    blocks = Blocks(4, 16, lows=True)
    codes, scales, lows = (Quantise(("w",), t, blocks).numpy(w) for t in ("codes", "scales", "lows"))
    wanted = restored(codes, scales, 4, 48) + np.repeat(lows, 16, axis=-1)
    np.testing.assert_array_equal(Quantise(("w",), "codes", blocks).round_sources(w)[0], wanted)
    assert np.abs(wanted - w).max() <= 0.5001 * scales.max() and (wanted[1] == 5).all()


def restored(codes: Array, scales: Array, bits: int, width: int) -> Array:
    """scale * (code - middle), by the definition."""
    whole = codes
    if bits == 4:
        whole = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)
    numbers = scales[..., None] * (whole.astype(np.float64) - 2 ** (bits - 1))
    return numbers.reshape(*numbers.shape[:-2], -1)[..., :width]


def test_what_a_rounded_matrix_stands_for_goes_back_to_what_it_was_made_from() -> None:
    """Through every other derivation, and no other parameter changes; the numbers derived of it are then the same."""
    joined = Join((Permute(("a",), (3, 2, 0, 1)), Slice(("b",), 1, 3)))
    whole = Interleave((joined, joined), axis=1)
    rounded = Quantise((whole,), "codes", Blocks(8, 4))
    held = round_params({**PARAMS, "c": A}, [rounded])
    stands = rounded.round_sources(whole.evaluate(PARAMS.__getitem__))[0]
    np.testing.assert_array_equal(whole.evaluate(held.__getitem__), stands)
    assert 0 < np.abs(held["a"] - A).max() < 0.02 and held["c"] is A
    np.testing.assert_array_equal(held["b"][[0, 3]], B[[0, 3]])
    assert (held["b"][1:3] != B[1:3]).any()
    assert rounded.is_lossy and not whole.is_lossy and Slice((rounded,), 0, 1).is_lossy


# Two passes that make parameters


@dataclass(frozen=True)
class HalvedLinear(Op):
    """y = [upper x; lower x]"""

    inputs: int
    outputs: int

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (args[0].with_axis(2, self.outputs),)

    def params(self) -> tuple[Param, ...]:
        half = self.outputs // 2
        return (
            Param("upper", (half, self.inputs), "matrix"),
            Param("lower", (self.outputs - half, self.inputs), "matrix"),
        )

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (np.concatenate([args[0] @ half.T for half in params], -1),)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        halves = [g.op("MatMul", args[0], g.op("Transpose", half, perm=[1, 0])) for half in params]
        return [g.op("Concat", *halves, axis=-1)]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1,), (1,))


@dataclass(frozen=True)
class CodeLinear(Op):
    """y = x restored(codes, scales)^T, 4 bits in blocks of 16"""

    inputs: int
    outputs: int

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (args[0].with_axis(2, self.outputs),)

    def params(self) -> tuple[Param, ...]:
        weight = Param("weight", (self.outputs, self.inputs), "matrix")
        return tuple(Quantise(("weight",), part, Blocks(4, 16)).param(part, weight) for part in ("codes", "scales"))

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        return (args[0] @ restored(*params, 4, self.inputs).T,)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        sizes = {"K": self.inputs, "N": self.outputs, "bits": 4, "block_size": 16}
        return [g.op("MatMulNBits", args[0], *params, domain="com.microsoft", **sizes)]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1,), (1,))


@dataclass(frozen=True)
class Replace:
    """Each linear without a bias whose name ends so, by another op whose parameters are derived from its matrix."""

    end: str
    op: Callable[[int, int], Op]
    derive: Callable[[Param], dict[str, Derivation]]

    def __call__(self, function: Function, /) -> PassResult:
        derived: dict[str, Derivation] = {}

        def rule(n: Node, inputs: tuple[Value, ...]) -> Node | None:
            if not (isinstance(n.op, Linear) and n.name.endswith(self.end) and not n.op.bias):
                return None
            made = self.derive(n.params[0])
            params = [each.param(f"{n.name}.{name}", n.params[0]) for name, each in made.items()]
            derived.update({f"{n.name}.{name}": each for name, each in made.items()})
            return node(self.op(n.op.inputs, n.op.outputs), *inputs, name=n.name, params=params, place=n.place)

        return PassResult(transform(function, rule), derived)


def halves(weight: Param) -> dict[str, Derivation]:
    rows = weight.shape[0]
    return {"upper": Slice((weight.name,), 0, rows // 2), "lower": Slice((weight.name,), rows // 2, rows)}


def blocks(weight: Param) -> dict[str, Derivation]:
    return {part: Quantise((weight.name,), part, Blocks(4, 16)) for part in ("codes", "scales")}


HALVE = Replace("mlp.up", HalvedLinear, halves)
ROUND = Replace("mlp.down", CodeLinear, blocks)
ROUND_JOINED = Replace("attention.qkv", CodeLinear, blocks)


@pytest.fixture
def also(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Every target's recipe ends with these passes too."""

    def end(*passes: Pass) -> None:
        monkeypatch.setattr(recipes, "STEPS", [*recipes.STEPS, lambda target: passes])

    return end


def made(function: Function, pass_: Pass) -> PassResult:
    return recipes.apply_pass(PassResult(function), pass_)


@pytest.mark.parametrize("target", [Target(), Target("cpu", packed=True)], ids=["portable", "fused, joined"])
def test_a_model_whose_passes_make_parameters_is_proved(target: Target, also: Callable[..., None]) -> None:
    """The halves exactly, the rounded matrices on what they stand for: of queries, keys and values, all three."""
    model = twin("llama3-8b")
    also(HALVE, ROUND, ROUND_JOINED)
    assert any(isinstance(n.op, HalvedLinear) for n in model.flatten(target).nodes)
    rounded = [path for path in model.derivations(target) if path.endswith("codes")]
    assert len(rounded) == (2 if target.packed else 1) * model.spec.top.depth
    proof = prove(model, targets=(target,), only=["full", "decode", "padded left"])
    assert proof.complete
    assert {row.backend.partition(",")[0] for row in proof.rows} == {"oracle", "torch", "onnxruntime"}


@dataclass(frozen=True)
class Wrong:
    """HALVE, with something else in the place of one of its derivations."""

    derivation: Derivation

    def __call__(self, function: Function, /) -> PassResult:
        halved = HALVE(function)
        path = next(iter(halved.derived))
        return PassResult(halved.function, {**halved.derived, path: self.derivation})


def test_a_half_that_is_the_wrong_one_is_seen(also: Callable[..., None]) -> None:
    model = twin("llama3-8b")
    half = HALVE(model.graph).derived["layers.0.mlp.up.upper"]
    assert isinstance(half, Slice)
    also(Wrong(replace(half, start=1, stop=half.stop + 1)))
    proof = prove(model, targets=(Target(),), only=["full"])
    wrong = [row for row in proof.rows if not row.holds]
    assert {row.backend for row in wrong} == {"oracle", "onnxruntime", "onnxruntime, last token"}


UP = "layers.0.mlp.up.weight"


@pytest.mark.parametrize(
    ("derivation", "why"),
    [
        (Slice((UP,), 0, 3), "layers.0.mlp.up.upper is not what it is derived from"),
        (Quantise((UP,), "codes", Blocks()), "layers.0.mlp.up.upper is not what it is derived from"),
        (Slice(("layers.0.mlp.side.weight",), 0, 3), "derived from layers.0.mlp.side.weight, which is no parameter"),
    ],
)
def test_a_derivation_that_is_not_of_its_parameter_is_refused(derivation: Derivation, why: str) -> None:
    with pytest.raises(GraphError, match=why):
        made(twin("llama3-8b").graph, Wrong(derivation))


def test_a_parameter_that_comes_from_nowhere_is_refused() -> None:
    with pytest.raises(GraphError, match="the parameter layers.0.mlp.up.upper comes from nowhere"):
        made(twin("llama3-8b").graph, recipes.Plain(lambda function: HALVE(function).function))


def test_recipes_that_begin_alike_are_run_as_far_once(also: Callable[..., None]) -> None:
    model = api.twin(twin("llama3-8b"))
    runs: list[Function] = []

    def counting(function: Function) -> PassResult:
        runs.append(function)
        return PassResult(function)

    also(counting)
    for target in (Target("cpu"), Target("cpu"), Target("cpu", logits="last"), Target("cpu")):
        model.flatten(target)
    assert len(runs) == 2
    assert model.flatten(Target("cpu")) is model.flatten(Target("cpu"))


# Their weights


def initialisers(folder: Path) -> dict[str, Array]:
    """Every initialiser that lies in a file beside the model, as onnx reads it, which takes no links: of a copy."""
    shutil.copytree(folder, folder.parent / "copy")
    path = folder.parent / "copy" / "model.onnx"
    stored = onnx.load(path, load_external_data=False).graph.initializer
    outside = {each.name for each in stored if each.data_location == TensorProto.EXTERNAL}
    every = {each.name: each for each in onnx.load(path).graph.initializer}
    return {name: numpy_helper.to_array(every[name]) for name in outside}


@pytest.mark.parametrize("mode", ["pack", "link"])
@pytest.mark.parametrize("provider", [None, "cpu"])
def test_what_passes_make_is_packed_and_read_back(
    mode: str, provider: str | None, tmp_path: Path, also: Callable[..., None]
) -> None:
    """Byte by byte what they are derived from, in either mode; what is only derived from is in no data file."""
    model = twin("llama3-8b")
    also(HALVE, ROUND, ROUND_JOINED)
    given = tensors(model)
    weights = save(tmp_path / "in" / "model.safetensors", given)
    target = Target(provider)
    built = api.build(model, tmp_path / "out", target=target, weights=weights, mode=mode)
    assert built.proof is not None and built.proof.complete
    target = replace(target, packed=provider is not None and mode == "pack")
    own = unpack(rules_of(model), given)
    wanted = {path: each.evaluate(own.__getitem__) for path, each in model.derivations(target).items()}
    got = initialisers(tmp_path / "out")
    assert wanted.keys() <= got.keys() == parameters_of(model.flatten(target)).keys()
    assert any(path.endswith("qkv.codes") for path in wanted) == target.packed
    for path, array in {**own, **wanted}.items():
        if path in got:
            kind = np.uint8 if path.endswith("codes") else np.float32
            assert got[path].dtype == kind
            np.testing.assert_array_equal(got[path], array.astype(kind))
    data = (tmp_path / "out" / DATA).stat().st_size
    sizes = [array.nbytes for path, array in got.items() if mode == "pack" or path in wanted]
    assert sum(sizes) <= data < sum(sizes) + 4096 * len(sizes)
    checked = api.verify(tmp_path / "out")
    assert (checked.changed, checked.outdated) == ((), ()) and checked.proof is not None and checked.proof.holds


def test_what_something_is_computed_from_must_be_finite_too(tmp_path: Path, also: Callable[..., None]) -> None:
    model = twin("llama3-8b")
    also(ROUND)
    given = tensors(model)
    name = "model.layers.1.mlp.down_proj.weight"
    given[name][0, 0] = np.nan
    weights = save(tmp_path / "in" / "model.safetensors", given)
    with pytest.raises(CheckpointError, match=f"not finite: {name} holds NaN or Inf"):
        api.build(model, tmp_path / "out", weights=weights, mode="link", proof=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("others", [("b.weight",), ("a.weight", "b.weight")], ids=["of another", "of itself too"])
def test_what_is_derived_may_bear_the_name_of_a_parameter(others: tuple[str, ...]) -> None:
    """It then has that name's place in the data file, as long as it is, and whoever it is made from has none."""
    x = Node(Input(tensor("float", 2, S, 8)), (), "x")
    a, b = (node(Linear(8, 4, False), x[0], name=name) for name in "ab")
    before = Function("Model", (x,), (("a", a[0]), ("b", b[0])))
    join = Join(others)
    weight = join.param("a.weight", *(parameters_of(before)[path] for path in others))
    wide = node(Linear(8, weight.shape[0], False), x[0], name="a", params=[weight])
    after = replace(before, outputs=(("a", wide[0]),))
    passed = made(before, lambda function: PassResult(after, {"a.weight": join}))
    placed = place_packed(parameters_of(before), "fp32", passed)
    found = placed | place_joined(placed, passed)
    assert {path: each.shape for path, each in found.items() if path in parameters_of(after)} == {
        "a.weight": weight.shape
    }
    assert found["a.weight"].length == 4 * weight.size
    ends = sorted((each.offset, each.offset + each.length) for each in placed.values())
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))


# Parameters of other types


@dataclass(frozen=True)
class Whiten(Op):
    """y = (x - mean) / sqrt(variance + 0.01), of numbers that nobody learns; how many were seen is held beside them"""

    width: int

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return args

    def params(self) -> tuple[Param, ...]:
        return (
            Param("running_mean", (self.width,), "bias", buffer=True),
            Param("running_var", (self.width,), "gain", neutral=2.0, buffer=True),
            Param("num_batches_tracked", (), "bias", dtype="int", buffer=True),
        )

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        assert params[2].dtype == np.int64
        return ((args[0] - params[0]) / np.sqrt(params[1] + 0.01),)

    def declares(self) -> str | None:
        return f"nn.BatchNorm1d({self.width}, eps=0.01, affine=False)"

    def torch(self, me: str, *args: str) -> str:
        return f"{me}({args[0]}.transpose(1, 2)).transpose(1, 2)"

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        centred = g.op("Sub", args[0], params[0])
        return [g.op("Div", centred, g.op("Sqrt", g.op("Add", params[1], g.real(0.01))))]

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return TokenAxes((1,), (1,))


@dataclass(frozen=True)
class Exact(Whiten):
    """Whiten, whose numbers are fp32 in a model of any float type."""

    def params(self) -> tuple[Param, ...]:
        return tuple(replace(param, dtype="float32") if param.dtype == "float" else param for param in super().params())


def whitened(name: str = "block-4x4", op: type[Whiten] = Whiten) -> Compiled:
    """A twin with numbers that are not learned before its head."""

    def rule(n: Node, inputs: tuple[Value, ...]) -> Node | None:
        if n.name != "head":
            return None
        width = inputs[0].type.shape[2].value
        assert width is not None
        return n.remake(inputs=(node(op(width), inputs[0], name="whiten")[0],))

    model = twin(name)
    return replace(model, function=transform(model.function, rule))


def test_what_is_not_learned_is_a_buffer_of_its_own_type_everywhere(tmp_path: Path) -> None:
    model = whitened()
    assert model.parameters == twin("block-4x4").parameters
    assert parameters_of(model.function)["whiten.num_batches_tracked"].dtype == "int"
    assert f"{model.parameters:,} parameters" in model.model_py()
    types = {i.name: i.type.tensor_type.elem_type for i in onnx.load_from_string(model.onnx()).graph.input}
    assert types["whiten.running_mean"] == TensorProto.FLOAT
    assert types["whiten.num_batches_tracked"] == TensorProto.INT64
    halved = onnx.load_from_string(model.onnx(Target(dtype="fp16"))).graph.input
    assert {i.name: i.type.tensor_type.elem_type for i in halved}["whiten.num_batches_tracked"] == TensorProto.INT64
    proof = prove(model)
    assert proof.complete
    assert len(proof.rows) == len(prove(twin("block-4x4")).rows)


@pytest.mark.parametrize("name", ["block-4x4", "llama3-8b", "pythia-410m"])
def test_model_py_loads_what_is_not_learned_too(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under its own name or that of a layout, with its prefix; and misses it where the file does not have it."""
    path, model = tmp_path / "model.safetensors", whitened(name)
    family = model.spec.top.checkpoint
    params = random_parameters(model.function, 3)
    given, buffers = params, {f"whiten.{each.name}": f"whiten.{each.name}" for each in Whiten(1).params()}
    if family is not None:
        prefix = next(iter(load_layout(family).prefixes), "")
        buffers = {f"{prefix}{name}": name for name in buffers}
        items = tuple(Item(name, (to,)) for name, to in buffers.items())
        wider = replace(load_layout(family), items=(*load_layout(family).items, *items))
        monkeypatch.setattr(loading, "load_layout", lambda _: wider)
        given = pack(rules(wider, model.function, group_sizes(model.function)), params)
    (tmp_path / "model.py").write_text(model.model_py())
    own = load_module(tmp_path / "model.py").Model
    words = {next(name for name in buffers if name.endswith("tracked")): "I64"}
    loaded = own.load(save(path, given, words=words)).state_dict()
    for name, array in params.items():
        wanted = array if array.dtype.kind == "i" else array.astype(np.float32)
        np.testing.assert_array_equal(loaded[name].numpy(), wanted)
    missing = next(name for name in buffers if name.endswith("var"))
    with pytest.raises(KeyError, match=f"missing.*{missing}"):
        own.load(save(path, {name: array for name, array in given.items() if name != missing}, words=words))


@pytest.mark.parametrize("mode", ["pack", "link"])
def test_a_checkpoint_holds_what_is_not_learned(mode: str, tmp_path: Path) -> None:
    """An integer as it is, in the type that it has; another type is no such tensor."""
    model, path = whitened(), tmp_path / "model.safetensors"
    given = random_parameters(model.function, 3)
    count = "whiten.num_batches_tracked"
    given[count] = np.array(2**53 + 1)
    words = {count: "I64"}
    checkpoint = open_checkpoint(save(path, given, words=words))
    made = plan_weights(model.function, checkpoint, None, mode, "fp16")
    link_files(made, folder_of(tmp_path))
    write_data(made, tmp_path / "out" / DATA)
    (tmp_path / "out" / "model.onnx").write_bytes(model.lower(Target(dtype="fp16"), external_tensors(made.references)))
    got = initialisers(tmp_path / "out")
    assert got[count].dtype == np.int64 and got[count] == 2**53 + 1
    kind = np.float16 if mode == "pack" else np.float32
    np.testing.assert_array_equal(got["whiten.running_var"], given["whiten.running_var"].astype(kind))
    with pytest.raises(CheckpointError, match=f"misshapen: {count} holds float32, expected int"):
        plan_weights(model.function, open_checkpoint(save(path, given)), None, mode, "fp16")


@pytest.mark.parametrize("mode", ["pack", "link"])
def test_a_number_must_fit_the_type_that_it_is_stored_in(mode: str, tmp_path: Path) -> None:
    """Which in a model of halves is fp32 where the graph says so."""
    for op, fits in ((Exact, True), (Whiten, False)):
        model, folder = whitened(op=op), folder_of(tmp_path / op.__name__)
        given = random_parameters(model.function, 3) | {"whiten.num_batches_tracked": np.array(1)}
        given["whiten.running_var"] = np.full_like(given["whiten.running_var"], 1e6)
        path = save(folder / "model.safetensors", given, words={"whiten.num_batches_tracked": "I64"})
        made = plan_weights(model.function, open_checkpoint(path), None, mode, "fp16")
        if not fits:
            with pytest.raises(CheckpointError, match=r"too large: whiten.running_var holds 1e\+06, and fp16 ends"):
                write_data(made, folder / DATA)
            continue
        write_data(made, folder / DATA)
        held = made.references["whiten.running_var"]
        assert held.word == "F32"
        stored = np.fromfile(folder / held.location, "<f4", held.length // 4, offset=held.offset)
        np.testing.assert_array_equal(stored, given["whiten.running_var"])


def folder_of(path: Path) -> Path:
    (path / "out").mkdir(parents=True)
    return path / "out"
