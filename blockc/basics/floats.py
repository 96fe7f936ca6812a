"""The float types of models: one line each, from which every other list of them is made. No NumPy, so that it is light.

Beside them stand the integers that a graph's own parameters may be of.

A new one is a word of `Dtype` and a line of `FLOATS`; `ort/kernels.py` says which kernels take it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Dtype = Literal["fp32", "bf16", "fp16"]
Counted = Literal[Dtype, "fp8", "int8"]  # what figures count in, too: no model is built in the others


@dataclass(frozen=True)
class Number:
    """A type of stored numbers, and what it is called elsewhere."""

    bytes: int
    safetensors: str
    numpy: str  # the dtype of stored numbers, little-endian; of bits, where NumPy has no such float
    onnx: int  # TensorProto's number
    onnxruntime: str  # the type of a session's input or output


@dataclass(frozen=True)
class Float(Number):
    """One that a model may compute in."""

    largest: float
    smallest: float  # normal: below, digits are lost

    @property
    def as_bits(self) -> bool:
        """NumPy has no such float: its numbers lie in arrays as unsigned integers."""
        return "u" in self.numpy

    def holds(self, number: float) -> bool:
        """Whether it is 0, or within the range in which the type keeps all its digits."""
        return number == 0 or self.smallest <= abs(number) <= self.largest


FLOATS: Mapping[Dtype, Float] = {
    "fp32": Float(4, "F32", "<f4", 1, "tensor(float)", 3.4028234663852886e38, 1.1754943508222875e-38),
    "bf16": Float(2, "BF16", "<u2", 16, "tensor(bfloat16)", 3.3895313892515355e38, 1.1754943508222875e-38),
    "fp16": Float(2, "F16", "<f2", 10, "tensor(float16)", 65504.0, 6.103515625e-05),
}
INTEGERS: Mapping[str, Number] = {  # by the graph's own words
    "int": Number(8, "I64", "<i8", 7, "tensor(int64)"),
    "int32": Number(4, "I32", "<i4", 6, "tensor(int32)"),
    "int8": Number(1, "I8", "|i1", 3, "tensor(int8)"),
    "uint8": Number(1, "U8", "|u1", 2, "tensor(uint8)"),
    "bool": Number(1, "BOOL", "|b1", 9, "tensor(bool)"),
}


def float_of(dtype: str, own: Dtype) -> Dtype:
    """Which float type a graph's float dtype is, in a model that computes in `own`."""
    return "fp32" if dtype == "float32" else own


def stored_as(dtype: str, own: Dtype) -> Number:
    """What a graph's dtype is stored as, in a model that computes in `own`."""
    return INTEGERS[dtype] if dtype in INTEGERS else FLOATS[float_of(dtype, own)]


# Bytes of one number.
BYTES: Mapping[str, int] = {word: one.bytes for word, one in FLOATS.items()} | {"fp8": 1, "int8": 1}
