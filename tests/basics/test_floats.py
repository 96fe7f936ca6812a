"""The table of float types: its facts as ONNX, NumPy and safetensors have them, and that it is the only one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import get_args

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from blockc.basics.floats import BYTES, FLOATS, FloatType, StorageType
from blockc.diagnostics.advice import FUSED_HEADS
from blockc.ort.kernels import COMPUTES, HEAD, KERNELS, TURNED
from tests.paths import ROOT

PACKAGE = ROOT / "blockc"
TABLE = PACKAGE / "basics" / "floats.py"
KERNELS_OF = PACKAGE / "ort" / "kernels.py"  # the other table: which of them a kernel takes
# What names a float type, each in its own vocabulary.
NAMES = (
    set(FLOATS),
    {one.safetensors for one in FLOATS.values()},
    {one.onnxruntime for one in FLOATS.values()},
    {f"TensorProto.{helper.tensor_dtype_to_string(one.onnx).rpartition('.')[2]}" for one in FLOATS.values()},
)


def bits(number: float, dtype: FloatType) -> int:
    """Of a number that the float type holds. bf16 is the upper half of fp32."""
    wide = int(np.array(number, np.float32).view(np.uint32))
    if dtype == "bf16":
        assert wide & 0xFFFF == 0
        return wide >> 16
    return wide if dtype == "fp32" else int(np.array(number, np.float16).view(np.uint16))


def test_the_words_are_those_of_the_types() -> None:
    assert get_args(FloatType) == tuple(FLOATS) and get_args(StorageType) == tuple(BYTES)


@pytest.mark.parametrize(("dtype", "name"), [("fp32", "FLOAT"), ("bf16", "BFLOAT16"), ("fp16", "FLOAT16")])
def test_onnx_has_the_type_under_this_number(dtype: FloatType, name: str) -> None:
    one = FLOATS[dtype]
    assert TensorProto.DataType.Name(one.onnx) == name and one.onnxruntime == f"tensor({name.lower()})"
    given = helper.tensor_dtype_to_np_dtype(one.onnx)
    assert given.itemsize == np.dtype(one.numpy).itemsize == one.bytes == BYTES[dtype]
    assert one.as_bits or given == np.dtype(one.numpy)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_numpy_has_these_ends(dtype: FloatType) -> None:
    one, known = FLOATS[dtype], np.finfo(FLOATS[dtype].numpy)
    assert (one.largest, one.smallest) == (float(known.max), float(known.smallest_normal))


@pytest.mark.parametrize(("dtype", "exponent", "fraction"), [("fp32", 8, 23), ("bf16", 8, 7), ("fp16", 5, 10)])
def test_the_ends_are_those_of_the_bits(dtype: FloatType, exponent: int, fraction: int) -> None:
    """The smallest normal number has exponent 1; the largest has the last but one, and every bit of a fraction."""
    one = FLOATS[dtype]
    assert 8 * one.bytes == 1 + exponent + fraction
    assert bits(one.smallest, dtype) == 1 << fraction
    assert bits(one.largest, dtype) == (((1 << exponent) - 1) << fraction) - 1
    assert all(one.holds(x) for x in (0.0, one.smallest, -one.largest))
    assert not one.holds(2 * one.largest) and not one.holds(one.smallest / 2)


@pytest.mark.parametrize("dtype", FLOATS)
def test_safetensors_has_the_type_under_this_name(dtype: FloatType) -> None:
    """As its own library reads it from a file of one number, 1."""
    torch = pytest.importorskip("torch")
    load = pytest.importorskip("safetensors.torch").load
    one = FLOATS[dtype]
    header = f'{{"x":{{"dtype":"{one.safetensors}","shape":[1],"data_offsets":[0,{one.bytes}]}}}}'.encode()
    number = bits(1.0, dtype).to_bytes(one.bytes, "little")
    read = load(len(header).to_bytes(8, "little") + header + number)["x"]
    assert read.item() == 1.0
    assert read.dtype == {4: torch.float32}.get(one.bytes, torch.bfloat16 if dtype == "bf16" else torch.float16)
    assert (torch.finfo(read.dtype).max, torch.finfo(read.dtype).smallest_normal) == (one.largest, one.smallest)


def test_a_kernel_takes_float_types_of_the_table() -> None:
    taken = [dtypes for kernels in KERNELS.values() for dtypes in kernels.values()] + list(COMPUTES.values())
    assert all(dtypes and dtypes <= FLOATS.keys() for dtypes in taken)


def test_the_warning_of_heads_says_what_the_kernels_take() -> None:
    assert [int(number) for number in re.findall(r"multiple of (\d+)", FUSED_HEADS.why)] == [HEAD, TURNED, TURNED]


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_the_cpu_computes_is_what_onnxruntime_opens(dtype: FloatType) -> None:
    """A product, without which there is no model."""
    onnxruntime = pytest.importorskip("onnxruntime")
    x, y, z = (helper.make_tensor_value_info(name, FLOATS[dtype].onnx, [2, 2]) for name in "xyz")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "y"], ["z"])], "product", [x, y], [z])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    onnx.checker.check_model(model)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common base
        assert "NOT_IMPLEMENTED" in str(error) and dtype not in COMPUTES["cpu"]
    else:
        assert dtype in COMPUTES["cpu"]
        assert {value.type for value in session.get_inputs()} == {FLOATS[dtype].onnxruntime}


# No other list


def word(n: ast.AST | None) -> str:
    """What a constant says, or TensorProto.FLOAT; else nothing."""
    if isinstance(n, ast.Constant) and isinstance(n.value, str):
        return n.value
    return ".".join(ast.unparse(n).split(".")[-2:]) if isinstance(n, ast.Attribute) else ""


def listed(tree: ast.AST) -> Iterator[tuple[int, set[str]]]:
    """(Line, words): the keys of a dict, its values, the entries of a list, set, tuple or Literal, an enum's values."""
    for n in ast.walk(tree):
        match n:
            case ast.Dict(keys=keys, values=values):
                yield n.lineno, {word(key) for key in keys}
                yield n.lineno, {word(value) for value in values}
            case ast.List(elts=entries) | ast.Set(elts=entries) | ast.Tuple(elts=entries):
                yield n.lineno, {word(entry) for entry in entries}
            case ast.ClassDef(body=body):
                yield n.lineno, {word(each.value) for each in body if isinstance(each, ast.Assign)}
            case _:
                pass


def lists_of_floats(tree: ast.AST) -> list[int]:
    return [line for line, words in listed(tree) if any(len(words & names) > 1 for names in NAMES)]


@pytest.mark.parametrize(
    "code",
    [
        'SIZES = {"fp32": 4, "fp16": 2}',
        'WORDS = {4: "F32", 2: "BF16"}',
        'Dtype = Literal["bf16", "fp16"]',
        'TYPES = {"tensor(float)": 1, "tensor(float16)": 10}',
        "TYPES = (TensorProto.FLOAT, onnx.TensorProto.BFLOAT16)",
        'class Float(StrEnum):\n    fp32 = "fp32"\n    bf16 = "bf16"',
    ],
)
def test_a_list_of_float_types_is_seen(code: str) -> None:
    assert len(lists_of_floats(ast.parse(code))) == 1


def test_no_other_module_holds_a_list_of_float_types() -> None:
    """`target.DEFAULT` says which one a provider has by default, and is keyed by providers."""
    found: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        lines = lists_of_floats(ast.parse(path.read_text(encoding="utf-8")))
        if path in (TABLE, KERNELS_OF):
            assert lines
        else:
            found += [f"{path.relative_to(PACKAGE)}:{line}" for line in lines]
    assert found == ["graph/target.py:" + str(_line("graph/target.py", "DEFAULT"))]


def _line(path: str, name: str) -> int:
    lines = (PACKAGE / path).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.startswith(name))
