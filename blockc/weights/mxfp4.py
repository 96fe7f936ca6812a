"""Matrices of experts in MXFP4 (Open Compute Project 2023): read as float32.

    w[e, j, i] = code[e, i, j] * 2 ^ (scale[e, i, j // 32] - 127)        code in E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and -

A checkpoint has NAME [experts, inputs, outputs] as NAME_blocks [experts, outputs, inputs / 32, 16], two codes a byte,
the first of them low, and NAME_scales [experts, outputs, inputs / 32]. All are bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from blockc.basics.errors import CheckpointError, escape
from blockc.ir import Array
from blockc.weights.safetensors import Shape, StoredTensor

BLOCKS, SCALES = "_blocks", "_scales"
SIZE = 32  # numbers of a scale
_HALF = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
_E2M1 = np.array([*_HALF, *(-x for x in _HALF)], np.float32)
_PAIRS = np.stack([_E2M1[np.arange(256) & 15], _E2M1[np.arange(256) >> 4]], -1)  # the two numbers of each byte


@dataclass(frozen=True)
class Mxfp4Tensor:
    """Codes and their scales."""

    codes: StoredTensor
    scales: StoredTensor

    @property
    def shape(self) -> Shape:
        experts, outputs, count, _ = self.codes.shape
        return experts, count * SIZE, outputs

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)

    def chunks(self) -> Iterator[Array]:
        """An expert at a time."""
        _, inputs, outputs = self.shape
        parts = zip(
            self.codes.read_raw(math.prod(self.codes.shape[1:])),
            self.scales.read_raw(math.prod(self.scales.shape[1:])),
            strict=True,
        )
        for codes, scales in parts:
            numbers = _PAIRS[codes].reshape(outputs, -1, SIZE)
            with np.errstate(over="ignore"):  # what is not finite is told by those who read it
                np.ldexp(numbers, scales.astype(np.int32).reshape(outputs, -1, 1) - 127, out=numbers)
            yield np.ascontiguousarray(numbers.reshape(outputs, inputs).T).reshape(-1)

    def read(self) -> Array:
        return np.concatenate([*self.chunks()]).reshape(self.shape)


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
    return found, others, (f"{len(found)} tensors in MXFP4 are read as floats",) if found else ()


def _join(name: str, codes: StoredTensor, scales: StoredTensor) -> Mxfp4Tensor:
    if len(codes.shape) != 4 or codes.shape[-1] * 2 != SIZE or scales.shape != codes.shape[:-1]:
        what = f"{escape(name)} is {codes.shape}, and its scales are {scales.shape}"
        raise CheckpointError(f"{what}: expected (experts, outputs, blocks, {SIZE // 2}), and a scale for each block")
    return Mxfp4Tensor(codes, scales)
