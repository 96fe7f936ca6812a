"""Graphs for CUDA, as far as they can be judged without a GPU: every node has a kernel there, none falls back, and what
half precision changes is the type alone.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnxruntime.capi import build_and_package_info

from benchmarks.gpu import main
from benchmarks.gpu_loop import Truth
from benchmarks.gpu_matrix import matrix
from benchmarks.gpu_session import opened, shape_arithmetic, split
from blockc.emit.onnx import emit_onnx, serialise
from blockc.graph import interp
from blockc.graph.target import FloatType, Logits, Target
from blockc.ir import GraphError, Op, Sample
from blockc.language.spec import load
from blockc.ops import (
    ALL,
    FAR,
    DynamicScaling,
    Experts,
    KeyPositions,
    LastIndex,
    Linear,
    Longest,
    Pool,
    RotaryTable,
    Route,
    Silu,
    Sinusoidal,
    Unit,
    Xielu,
)
from blockc.ort.lowering import swaps_for
from blockc.ort.ops import (
    FUSED,
    BlockExperts,
    ChoiceLogits,
    GroupBias,
    GroupQueryAttention,
    Lengths,
    RotaryRows,
    RoutedExperts,
    Slots,
    StepAttention,
    StepRows,
    WeightSum,
)
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.runtime.opening import _CUDA  # pyright: ignore[reportPrivateUsage]
from blockc.weights.rules import random_parameters
from tests.cuda_kernels import lacks, placed, value_types
from tests.ort.test_fuse import one_node
from tests.paths import ROOT

SPECS = sorted(path.stem for path in (ROOT / "specs").glob("*.yaml"))
CUDA = Target("cuda", "fp16")
FORMS: tuple[Logits, ...] = ("all", "last", 50)
# What the fusion pass makes for the CPU alone.
CPU_ONLY = {
    Slots, Lengths, GroupQueryAttention, StepRows, GroupBias, StepAttention,
    ChoiceLogits, WeightSum, RoutedExperts, BlockExperts,
}  # fmt: skip


@cache
def full(name: str) -> Compiled:
    return compile_spec(load(ROOT / "specs" / f"{name}.yaml"))


@cache
def graph(name: str, dtype: FloatType = "fp16", logits: Logits = "all") -> onnx.ModelProto:
    return onnx.load_from_string(full(name).onnx(Target("cuda", dtype, logits)))


def forms(name: str) -> tuple[Logits, ...]:
    """Which logits a graph can return: those of some tokens, only where the model has them of each."""
    return FORMS if full(name).by_token else ("all",)


def ops(name: str) -> Counter[str]:
    return Counter(n.op_type for n in graph(name).graph.node)


# No node falls back


def loops(model: onnx.ModelProto) -> set[str]:
    """What is said of each Loop."""
    return {f"{n.name}: no Loop of opset 23" for n in model.graph.node if n.op_type == "Loop"}


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("name", SPECS)
def test_every_node_has_a_kernel(name: str, dtype: FloatType) -> None:
    """On the host runs arithmetic on shapes alone, once a graph, and nothing goes between host and device for it.

    But for the Loop over experts, whose kernel is that of opset 19: the host counts its rounds.
    """
    for logits in forms(name):
        model = graph(name, dtype, logits)
        found = placed(model)
        assert found.missing == loops(model)
        assert not found.copies
        tables = sum(n.name.startswith("/rotary_rows") and n.op_type == "Squeeze" for n in model.graph.node)
        assert len(found.host) <= 3 + max(tables, 1)  # each table asks how long it is
        for node in (*found.host, *(n for n in model.graph.node if n.op_type == "Shape")):
            assert not node.name.startswith("/layers/") or "/experts/" in node.name, node.name
        assert [n.name for n in found.host] == [n.name for n in shape_arithmetic(model.graph)]


@pytest.mark.parametrize("name", ["gemma2-9b", "gpt-j-6b", "gpt2", "llama3-8b", "transformer2017"])
def test_a_decode_step_is_one_that_onnxruntime_captures(name: str) -> None:
    """No subgraph, no node on the host but on shapes, no copy; and what the host computes is the same at each step."""
    model = graph(name, "fp16", 50)
    assert not [n.name for n in model.graph.node for a in n.attribute if a.type in (a.GRAPH, a.GRAPHS)]
    found = placed(model)
    assert (found.missing, found.copies) == (set(), set())
    shapes = {name for n in model.graph.node if n.op_type == "Shape" for name in n.output}
    constant = {t.name for t in model.graph.initializer}
    for node in found.host:  # in the order of the graph
        assert shapes | constant >= set(node.input)
        shapes |= set(node.output)
    host = opened(split(model.SerializeToString())[0], "cpu")
    asked = {value.name for value in host.get_inputs()}

    def computed(length: int, real: int) -> list[np.ndarray]:
        mask = (np.arange(length) < real).astype(np.int64)[None].repeat(2, axis=0)
        given = {"attention_mask": mask, "input_ids": np.full((2, 1), real), "position_ids": np.full((2, 1), real - 1)}
        return host.run(None, {name: array for name, array in given.items() if name in asked})

    first, later, longer = computed(16, 3), computed(16, 11), computed(32, 11)
    assert all(np.array_equal(a, b) for a, b in zip(first, later, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, longer, strict=True))


@pytest.mark.parametrize("name", ["block-4x4", "gemma2-9b", "gpt-j-6b", "gpt2", "pythia-410m", "qwen3-0.6b"])
def test_every_node_has_a_kernel_where_weights_are_packed(name: str) -> None:
    found = placed(onnx.load_from_string(full(name).onnx(Target("cuda", "fp16", "last", packed=True))))
    assert (found.missing, found.copies) == (set(), set())


def test_a_kernel_is_found_by_opset_and_types() -> None:
    """What the table has to notice: an operator that changed after its kernel, a type, a value that is copied."""
    values = {name: onnx.helper.make_tensor_value_info(name, 1, ["n"]) for name in ("x", "y")}

    def model(*nodes: onnx.NodeProto, x: int = 1, opset: int = 23) -> onnx.ModelProto:
        given = onnx.helper.make_tensor_value_info("x", x, ["n"])
        made = onnx.helper.make_graph(list(nodes), "g", [given], [values["y"]])
        return onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", opset)])

    cos = onnx.helper.make_node("Cos", ["x"], ["y"], name="c")
    assert placed(model(cos)).missing == {"c: no Cos of opset 22"}
    assert not placed(model(cos, opset=21)).missing
    asked = onnx.helper.make_node("ArgMax", ["x"], ["i"], name="a")
    assert placed(model(asked, x=7)).missing == {"a: no ArgMax of int64 as input 0"}
    shape = onnx.helper.make_node("Shape", ["x"], ["s"], name="s")
    cast = onnx.helper.make_node("Cast", ["s"], ["f"], name="f", to=1)
    added = onnx.helper.make_node("Add", ["z", "f"], ["y"], name="d")
    relu = onnx.helper.make_node("Relu", ["x"], ["z"], name="r")
    found = placed(model(shape, cast, relu, added))
    assert [n.name for n in found.host] == ["f"]
    assert found.copies == {"f"}


OURS = [op for op in (*ALL, *FUSED) if op not in CPU_ONLY]


def grows(op: Op) -> bool:
    table = op.table if isinstance(op, RotaryRows) else op
    return isinstance(table, RotaryTable) and isinstance(table.scaling, DynamicScaling)


def samples(op: type[Op]) -> list[Sample]:
    """But those of angles that grow with the length of a call, which a graph for CUDA does not have."""
    return [sample for sample in op.samples() if not grows(sample.op)]


@pytest.mark.parametrize("op", OURS, ids=lambda op: op.__name__)
def test_every_op_has_kernels(op: type[Op]) -> None:
    """Also those that no bundled spec has."""
    for sample in samples(op):
        for dtype in ("fp16", "bf16"):
            target = Target("cuda", dtype)
            model = onnx.load_from_string(
                serialise(emit_onnx(one_node(sample), {}, dtype=dtype, swaps=swaps_for(target)))
            )
            opset = next(i.version for i in model.opset_import if not i.domain)
            types = value_types(model.graph)
            lacking = [why for n in model.graph.node if (why := lacks(n, opset, types))]
            assert lacking == ["no Loop of opset 23"] * (op is Experts)


# What is lowered otherwise for the sake of CUDA's kernels


@pytest.mark.parametrize("op", [Linear, Silu, LastIndex, KeyPositions, Longest, RotaryTable, RotaryRows, Sinusoidal])
def test_a_swap_is_its_op(op: type[Op]) -> None:
    for sample in samples(op):
        agrees(sample)


def test_angles_that_no_table_holds_are_refused() -> None:
    refused = [sample for op in (RotaryTable, RotaryRows) for sample in op.samples() if grows(sample.op)]
    assert len(refused) == 4
    for sample in refused:
        with pytest.raises(GraphError, match="dynamic"):
            agrees(sample)


def test_a_rotary_table_is_exact_far_out() -> None:
    """An angle that is a product in fp32 is off by 4e-3 at a position of 131,071."""
    positions = np.array([[0, 1, 1023, 1024], [131_071, 131_072, 2**20 - 2, 2**20 - 1]])
    agrees(Sample(RotaryTable(500_000.0, 32, 64), (positions,)))


def agrees(sample: Sample) -> None:
    function = one_node(sample)
    params = random_parameters(function, 3)
    inputs = {f"a{k}": array for k, array in enumerate(sample.args)}
    wanted = interp.interpret(function, inputs, params)
    model = serialise(emit_onnx(function, {}, dtype="fp32", swaps=swaps_for(CUDA)))
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    known = {value.name for value in session.get_inputs()}
    cast = {k: a.astype(np.float32) if a.dtype.kind == "f" else a for k, a in {**inputs, **params}.items()}
    names = [value.name for value in session.get_outputs()]
    for name, got in zip(names, session.run(names, {k: a for k, a in cast.items() if k in known}), strict=True):
        np.testing.assert_allclose(got, wanted[name], rtol=1e-6, atol=1e-6)


def test_no_context_is_longer_than_the_tables_reach() -> None:
    assert max(full(name).spec.top.context or 0 for name in SPECS) < 2**20 < FAR


# What the graphs are


@pytest.mark.parametrize("name", SPECS)
def test_a_bf16_graph_is_the_fp16_graph_but_for_the_type(name: str) -> None:
    for logits in forms(name):
        half, brain = onnx.ModelProto(), onnx.ModelProto()
        half.CopyFrom(graph(name, "fp16", logits))
        brain.CopyFrom(graph(name, "bf16", logits))
        constants = [dict(constants_of(model)) for model in (half, brain)]
        assert constants[0].keys() == constants[1].keys()
        for key, array in constants[0].items():  # both are roundings of one number: 3 bits apart
            np.testing.assert_allclose(constants[1][key], array, rtol=2**-8 if array.dtype != np.int64 else 0)
        for value in (*brain.graph.input, *brain.graph.output, *brain.graph.value_info):
            if value.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16:
                value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
        for node in brain.graph.node:
            for attribute in node.attribute:
                if attribute.name == "to" and attribute.i == onnx.TensorProto.BFLOAT16:
                    attribute.i = onnx.TensorProto.FLOAT16
        for model in (half, brain):
            del model.graph.initializer[:]
        assert brain.SerializeToString(deterministic=True) == half.SerializeToString(deterministic=True)


def constants_of(model: onnx.ModelProto) -> list[tuple[tuple[str, str], np.ndarray]]:
    """Those in the model's type as fp32 under that word, the others under their own."""
    found: list[tuple[tuple[str, str], np.ndarray]] = []
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        real = tensor.data_type in (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
        found.append(((tensor.name, "real" if real else str(array.dtype)), array.astype(np.float32) if real else array))
    return found


def test_llama3_8b_has_32_attentions_and_nothing_else_for_them() -> None:
    counted = ops("llama3-8b")
    assert counted["GroupQueryAttention"] == 32
    for gone in ("Softmax", "Attention", "Transpose", "MatMul", "RotaryEmbedding", "Concat", "Where", "CumSum"):
        assert counted[gone] == 0, gone
    attentions = [n for n in graph("llama3-8b").graph.node if n.op_type == "GroupQueryAttention"]
    for node in attentions:
        assert len(node.input) == 9  # neither positions nor a bias: CUDA's fast kernels take none
        assert node.input[5:7] == ["lengths.last", "lengths.total"]


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        ("llama3-8b", [-1] * 32),
        ("mistral-7b", [4096] * 32),
        ("gemma2-9b", [4096, -1] * 21),
    ],
)
def test_windows_are_given_layer_by_layer(name: str, windows: list[int]) -> None:
    nodes = [n for n in graph(name).graph.node if n.op_type == "GroupQueryAttention"]
    assert [next(a.i for a in n.attribute if a.name == "local_window_size") for n in nodes] == windows
    assert [n.name.split("/")[2] for n in nodes] == [str(i) for i in range(len(windows))]


@pytest.mark.parametrize("name", SPECS)
def test_no_layer_casts(name: str) -> None:
    """But in an activation with an exponential in fp32 by its own rule, and where experts or tokens are summed."""
    own = (Xielu, Route, Experts, Pool, Unit)
    wide = tuple(f"/{n.name.replace('.', '/')}/" for n in full(name).graph.nodes if isinstance(n.op, own))
    casts = [n.name for n in graph(name).graph.node if n.op_type == "Cast" and not n.name.startswith(wide)]
    assert not [cast for cast in casts if cast.startswith("/layers/")]
    assert len(casts) <= 5  # lengths to int32, the last position, a table or two of rope


@pytest.mark.parametrize("name", SPECS)
def test_the_full_size_graph_opens_in_a_session(name: str) -> None:
    """On the CPU, so in fp16: its kernels take no bf16, and those graphs are not opened here.

    The graph of the last token's logits is the other with two nodes more.
    """
    every, *some = (Counter(n.op_type for n in graph(name, "fp16", logits).graph.node) for logits in forms(name))
    if some:
        last, few = some
        assert every <= last or not full(name).function.causal  # of the last layer's queries only some are wanted
        assert few - last == Counter(TopK=1, Cast=1)
    data = graph(name, "fp16", forms(name)[1 if some else 0]).SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    types = {value.name: value.type for value in session.get_inputs()}
    held = {types[n] for n in types if n.startswith("past_key_values.")}
    assert held == ({"tensor(float16)"} if full(name).function.causal else set())


# The packages


def test_the_onnxruntime_that_is_meant() -> None:
    """BLOCKC_EXPECT_ORT names it. onnxruntime-gpu without CUDA's libraries runs on the CPU in silence."""
    assert build_and_package_info.package_name == os.environ.get("BLOCKC_EXPECT_ORT", "onnxruntime")
    if build_and_package_info.package_name == "onnxruntime-gpu":
        assert "CUDAExecutionProvider" in onnxruntime.get_available_providers()
        library = Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for option in (*_CUDA, "enable_cuda_graph"):
                assert data.find(option.encode()) >= 0, option
        with pytest.raises(RuntimeError, match="did not load CUDA and would run on the CPU"):
            opened(full("gpt2").onnx(CUDA), "cuda")


# The benchmark on a GPU


def test_the_rest_of_a_split_graph_has_nothing_for_the_host() -> None:
    host, device = (onnx.load_from_string(part) for part in split(full("llama3-8b").onnx(CUDA)))
    assert not placed(device).host
    assert not placed(device).missing
    assert [n.op_type for n in host.graph.node if n.op_type != "Shape"] == ["Squeeze", "Cast", "Squeeze"]
    assert [v.name for v in host.graph.output] == ["/rotary_rows_0/Squeeze_output", "lengths.total"]


def gpu(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu", *arguments])
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    return main()


def test_the_benchmark_runs_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the CPU, with a twin; torch.compile gives back what it is given, to save its time."""
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        code = gpu(monkeypatch, "--provider", "cpu", "--quick", "--spec", "llama3.2-1b", "--out", str(tmp_path))
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    assert code == 0, printed
    (written,) = tmp_path.iterdir()
    assert written.read_text() == printed
    assert written.name.startswith("cpu-ort")
    lines = printed.splitlines()
    assert sum(" runs  largest error " in line for line in lines) == 3
    assert "bf16: not run, onnxruntime's CPU kernels take none" in lines
    for program in ("torch, eager", "onnxruntime ", "torch.compile"):
        assert any(program in line and " ms " in line for line in lines), program
    for program in ("torch, eager", "all logits", "top 50", "top 1", "torch.compile"):
        assert any(program in line and " ms a step" in line for line in lines), program
    for program, why in (("top 1, CUDA graph", "a CUDA graph wants a GPU"), ("onnxruntime-genai, CUDA graph", "")):
        assert any(f"{program}: not run, {why}" in line for line in lines), program
    assert lines[-1] == "right"
    assert str(tmp_path) not in printed


def test_the_benchmark_sees_a_wrong_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A norm that divides by another epsilon."""
    emitted = Compiled.onnx

    def planted(self: Compiled, target: Target) -> bytes:
        proto = onnx.load_from_string(emitted(self, target))
        norm = next(n for n in proto.graph.node if n.op_type == "SkipSimplifiedLayerNormalization")
        next(a for a in norm.attribute if a.name == "epsilon").f = 0.1
        return proto.SerializeToString()

    monkeypatch.setattr(Compiled, "onnx", planted)
    found = list(matrix(["llama3.2-1b"], ["fp16"], "cpu"))
    assert [holds for holds, _ in found] == [False] * 3
    assert all(line.endswith("WRONG") for _, line in found)


def test_the_loop_sees_a_wrong_pick() -> None:
    """One that reads the truth's tokens is held against it at each step, one that reads its own while it agrees."""
    logits = [torch.tensor([[0.0, 1.0, 3.0], [5.0, 1.0, 2.0]]) + i / 8 for i in range(3)]
    truth = Truth([np.array([2, 0])] * 3, logits)
    right, near, far = np.array([2, 0]), np.array([2, 2]), np.array([0, 0])
    gaps = [float((rows[1].max() - rows[1, 2]) / rows[1].std()) for rows in logits]
    for free in (False, True):
        assert truth.worst([right] * 3, free) == 0
        assert truth.worst([right, near, right], free) == pytest.approx(gaps[1])
        assert truth.worst([right, right, far], free) > 1.5
    assert truth.worst([near, far, right], True) == pytest.approx(max(gaps[0], truth.worst([far, right, right], True)))
    assert truth.worst([near, np.array([2, 1]), right], True) == pytest.approx(gaps[0])
    assert truth.worst([near, np.array([2, 1]), right], False) > gaps[0]


def test_the_benchmark_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu(monkeypatch) == 3
    printed = capsys.readouterr()
    assert "missing: a GPU that torch sees" in printed.err
    assert printed.out == ""
