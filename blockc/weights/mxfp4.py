"""Matrices of experts in MXFP4 (Open Compute Project 2023): read as float32, or as codes of 8 bits.

    w[e, j, i] = code[e, i, j] * 2 ^ (scale[e, i, j // 32] - 127)        code in E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and -

A checkpoint has NAME [experts, inputs, outputs] as NAME_blocks [experts, outputs, inputs / 32, 16], two codes a byte,
the first of them low, and NAME_scales [experts, outputs, inputs / 32]. All are bytes. Twice a code is an integer, so
blocks of 8 bits with half the scale, 2 ^ (scale - 128), stand for exactly the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blockc.basics.errors import CheckpointError, escape
from blockc.ir import Array, Blocks
from blockc.weights.quantise import PIECE, Codes
from blockc.weights.safetensors import Shape, StoredTensor

BLOCKS, SCALES = "_blocks", "_scales"
SIZE = 32  # numbers of a scale
_HALF = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
_E2M1 = np.array([*_HALF, *(-x for x in _HALF)], np.float32)
_PAIRS = np.stack([_E2M1[np.arange(256) & 15], _E2M1[np.arange(256) >> 4]], -1)  # the two numbers of each byte
CODED = Blocks(8, SIZE)
_CODES = (2 * _PAIRS + CODED.middle).astype(np.uint8)


@dataclass(frozen=True)
class Mxfp4Tensor:
    """Codes and their scales."""

    halves: StoredTensor
    scales: StoredTensor
    coding = "MXFP4"
    blocks = CODED
    turned = True

    @property
    def shape(self) -> Shape:
        experts, outputs, count, _ = self.halves.shape
        return experts, count * SIZE, outputs

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)

    def chunks(self) -> Iterator[Array]:
        """An expert at a time."""
        _, inputs, outputs = self.shape
        parts = zip(
            self.halves.read_raw(math.prod(self.halves.shape[1:])),
            self.scales.read_raw(math.prod(self.scales.shape[1:])),
            strict=True,
        )
        for halves, scales in parts:
            numbers = _PAIRS[halves].reshape(outputs, -1, SIZE)
            with np.errstate(over="ignore"):  # what is not finite is told by those who read it
                np.ldexp(numbers, scales.astype(np.int32).reshape(outputs, -1, 1) - 127, out=numbers)
            yield np.ascontiguousarray(numbers.reshape(outputs, inputs).T).reshape(-1)

    def read(self) -> Array:
        return np.concatenate([*self.chunks()]).reshape(self.shape)

    def codes(self, order: Array) -> Iterator[Codes]:
        """Codes and scales of these rows (experts * outputs), in that order. A piece is read with the rows between."""
        _, inputs, _ = self.shape
        step = max(1, PIECE // inputs)
        for start in range(0, len(order), step):
            part = order[start : start + step]
            first, last = int(part.min()), int(part.max())
            halves, scales = (_read_rows(each, first, last + 1)[part - first] for each in (self.halves, self.scales))
            yield (
                _CODES[halves].reshape(len(part), -1, SIZE),
                np.ldexp(np.float32(1), scales.astype(np.int32) - 128),
                None,
            )


def split_mxfp4(
    tensors: Mapping[str, StoredTensor],
) -> tuple[dict[str, Mxfp4Tensor], dict[str, StoredTensor], tuple[str, ...]]:
    """(The tensors in MXFP4, by their names without a suffix; all others; a note if there are any.)

    Raises CheckpointError where codes and scales do not fit.
    """
    found: dict[str, Mxfp4Tensor] = {}
    for name, codes in tensors.items():
        bare = name.removesuffix(BLOCKS)
        scales = tensors.get(bare + SCALES)
        if bare != name and scales is not None and codes.word == scales.word == "U8":
            found[bare] = _join(name, codes, scales)
    taken = {bare + suffix for bare in found for suffix in (BLOCKS, SCALES)}
    others = {name: tensor for name, tensor in tensors.items() if name not in taken}
    return found, others, (f"{len(found)} tensors are in MXFP4",) if found else ()


def _read_rows(stored: StoredTensor, start: int, stop: int) -> Array:
    """Rows of bytes (stop - start, bytes), counted over experts and outputs."""
    width = math.prod(stored.shape[2:])
    rows = (stop - start, width)
    return replace(stored, offset=stored.offset + start * width, length=math.prod(rows), shape=rows).read()


def _join(name: str, codes: StoredTensor, scales: StoredTensor) -> Mxfp4Tensor:
    if len(codes.shape) != 4 or codes.shape[-1] * 2 != SIZE or scales.shape != codes.shape[:-1]:
        what = f"{escape(name)} is {codes.shape}, and its scales are {scales.shape}"
        raise CheckpointError(f"{what}: expected (experts, outputs, blocks, {SIZE // 2}), and a scale for each block")
    return Mxfp4Tensor(codes, scales)
