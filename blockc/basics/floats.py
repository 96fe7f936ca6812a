"""The float types of models: one line each, and every other list of them is made from it. It imports no NumPy.

The integer types that a graph's own parameters may have stand beside them.

A new float type is a word of `FloatType` and a line of `FLOATS`; `ort/kernels.py` says which kernels take it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

FloatType = Literal["fp32", "bf16", "fp16"]
StorageType = Literal[FloatType, "fp8", "int8"]  # sizes are counted in fp8 and int8 too, but no model is built in them


@dataclass(frozen=True)
class NumberFormat:
    """A type of stored numbers, and its name in other formats."""

    bytes: int
    safetensors: str
    numpy: str  # the dtype of stored numbers, little-endian; of bits, where NumPy has no such float
    onnx: int  # TensorProto's number
    onnxruntime: str  # the type of a session's input or output
    packed: int = field(default=1, kw_only=True)  # how many numbers are in `bytes`; NumPy holds each by itself

    def size(self, count: int) -> int:
        """Bytes of so many numbers."""
        return -(-count // self.packed) * self.bytes


@dataclass(frozen=True)
class FloatFormat(NumberFormat):
    """A float type that a model may compute in."""

    largest: float
    smallest: float  # normal: below, digits are lost

    @property
    def as_bits(self) -> bool:
        """Whether NumPy has no such float, so that arrays hold its bits as unsigned integers."""
        return "u" in self.numpy

    def holds(self, number: float) -> bool:
        """Whether the number is 0, or in the range in which the type keeps all its digits."""
        return number == 0 or self.smallest <= abs(number) <= self.largest


FLOATS: Mapping[FloatType, FloatFormat] = {
    "fp32": FloatFormat(4, "F32", "<f4", 1, "tensor(float)", 3.4028234663852886e38, 1.1754943508222875e-38),
    "bf16": FloatFormat(2, "BF16", "<u2", 16, "tensor(bfloat16)", 3.3895313892515355e38, 1.1754943508222875e-38),
    "fp16": FloatFormat(2, "F16", "<f2", 10, "tensor(float16)", 65504.0, 6.103515625e-05),
}
INTEGERS: Mapping[str, NumberFormat] = {  # by the graph's own words
    "int": NumberFormat(8, "I64", "<i8", 7, "tensor(int64)"),
    "int32": NumberFormat(4, "I32", "<i4", 6, "tensor(int32)"),
    "int8": NumberFormat(1, "I8", "|i1", 3, "tensor(int8)"),
    "int4": NumberFormat(1, "I4", "|i1", 22, "tensor(int4)", packed=2),  # signed, of two the first in the low half
    "uint8": NumberFormat(1, "U8", "|u1", 2, "tensor(uint8)"),
    "bool": NumberFormat(1, "BOOL", "|b1", 9, "tensor(bool)"),
}


def float_of(dtype: str, own: FloatType) -> FloatType:
    """Which float type a graph's float dtype is, in a model that computes in `own`."""
    return "fp32" if dtype == "float32" else own


def format_of(dtype: str, own: FloatType) -> NumberFormat:
    """The format in which a graph's dtype is stored, in a model that computes in `own`."""
    return INTEGERS[dtype] if dtype in INTEGERS else FLOATS[float_of(dtype, own)]


# Bytes of one number.
BYTES: Mapping[str, int] = {word: one.bytes for word, one in FLOATS.items()} | {"fp8": 1, "int8": 1}
