"""Blocks whose codes are numbers of their own, column by column: how standard ONNX stores a matrix in blocks.

A matrix x (outputs, inputs) in blocks along its rows becomes codes (inputs, outputs), signed, of 4 or 8 bits, and
scales (blocks, outputs): what DequantizeLinear takes along axis 0 and MatMul multiplies with. Inputs are filled up to
whole blocks with codes that stand for 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from blockc.basics.blocks import Blocks
from blockc.ir.derive import Derivation
from blockc.ir.op import Array
from blockc.ir.types import Param


@dataclass(frozen=True)
class Columns(Derivation):
    """y = codes - 2^(bits - 1), turned: packed codes (outputs, blocks, bytes) -> (inputs, outputs)"""

    blocks: Blocks

    def param(self, name: str, *sources: Param) -> Param:
        outputs, count, _ = sources[0].shape
        dtype = "int4" if self.blocks.bits == 4 else "int8"
        return replace(sources[0], name=name, shape=(count * self.blocks.size, outputs), dtype=dtype)

    def numpy(self, *sources: Array) -> Array:
        return np.concatenate(list(self.pieces(sources)))

    def pieces(self, parts: Iterable[Array]) -> Iterator[Array]:
        """The rows of y, block by block, of packed codes in parts; all of these are held."""
        packed = np.concatenate(list(parts))
        for i in range(packed.shape[1]):
            codes = self.blocks.unpack(packed[:, i]).astype(np.int16) - self.blocks.middle
            yield np.ascontiguousarray(codes.T.astype(np.int8))


@dataclass(frozen=True)
class Turn(Derivation):
    """y = x^T"""

    def param(self, name: str, *sources: Param) -> Param:
        rows, columns = sources[0].shape
        return replace(sources[0], name=name, shape=(columns, rows))

    def numpy(self, *sources: Array) -> Array:
        return np.ascontiguousarray(sources[0].T)


def restore_columns(codes: Array, scales: Array, size: int) -> Array:
    """The numbers that codes (inputs, n) and scales (blocks, n) stand for, in the scales' dtype."""
    return codes.astype(scales.dtype) * np.repeat(scales, size, axis=0)


def pack_halves(numbers: Array) -> Array:
    """Signed numbers of 4 bits as bytes, of two the first in the low half; an odd last one is alone."""
    flat = numbers.reshape(-1).astype(np.uint8) & 15
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    return flat[::2] | flat[1::2] << 4
