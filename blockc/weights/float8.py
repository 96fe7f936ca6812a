"""Matrices in fp8 with scales: read as float32.

    w[i, j] = code[i, j] * scale[i // rows, j // columns]        code in E4M3, without infinities

A checkpoint has the codes of NAME as F8_E4M3, and their scales as NAME_scale_inv: one for each block of rows and
columns, or one for the whole matrix. The block is the config's `weight_block_size`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blockc.basics.errors import CheckpointError, escape
from blockc.basics.jsonfile import FileError, read_json_object
from blockc.ir import Array
from blockc.weights.safetensors import CHUNK, F8, Shape, StoredTensor

SUFFIX = "_scale_inv"
BLOCK = (128, 128)  # where no config says another


@dataclass(frozen=True)
class ScaledTensor:
    """Codes and their scales; without scales, each is 1."""

    codes: StoredTensor
    scales: StoredTensor | None
    block: tuple[int, int]

    @property
    def shape(self) -> Shape:
        return self.codes.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)

    def chunks(self) -> Iterator[Array]:
        """Whole rows of blocks, about `CHUNK` numbers at a time."""
        if self.scales is None:
            yield from self.codes.chunks()
            return
        scales, columns = self.scales.read().astype(np.float32), self.shape[-1]
        if scales.size == 1:
            yield from (part * scales.reshape(()) for part in self.codes.chunks())
            return
        step = max(1, CHUNK // (self.block[0] * columns))  # rows of blocks
        for i, part in enumerate(self.codes.chunks(step * self.block[0] * columns)):
            rows = part.reshape(-1, columns)
            own = scales[i * step : (i + 1) * step].repeat(self.block[0], 0)[: len(rows)]
            yield (rows * own.repeat(self.block[1], 1)[:, :columns]).reshape(-1)

    def read(self) -> Array:
        return np.concatenate([*self.chunks()]).reshape(self.shape)


def join_scales(
    tensors: Mapping[str, StoredTensor], folder: Path
) -> tuple[dict[str, StoredTensor | ScaledTensor], tuple[str, ...]]:
    """(Tensors by name, those in fp8 with their scales; a note if there are any.) Raises CheckpointError."""
    coded = {name for name, tensor in tensors.items() if tensor.word == F8}
    if not coded:
        return dict(tensors), ()
    block, found = _block_size(folder), dict[str, StoredTensor | ScaledTensor]()
    scales = {name: name + SUFFIX for name in coded if name + SUFFIX in tensors}
    for name, tensor in tensors.items():
        if name in coded:
            scale = tensors.get(scales.get(name, ""))
            _check_fit(name, tensor, scale, block)
            found[name] = ScaledTensor(tensor, scale, block)
        elif name not in scales.values():
            found[name] = tensor
    return found, (f"{len(coded)} tensors in fp8, {len(scales)} of them with scales, are read as floats",)


def _check_fit(name: str, codes: StoredTensor, scale: StoredTensor | None, block: tuple[int, int]) -> None:
    if scale is None or math.prod(scale.shape) == 1:
        return
    wanted = tuple(-(-size // of) for size, of in zip(codes.shape, block, strict=False))
    if len(codes.shape) != 2 or scale.shape != wanted:
        blocks = " x ".join(map(str, block))
        raise CheckpointError(
            f"{escape(name + SUFFIX)} is {scale.shape}: expected {wanted}, a scale for each block of {blocks}"
        )


def _block_size(folder: Path) -> tuple[int, int]:
    try:
        config = read_json_object(folder / "config.json")
    except (FileNotFoundError, NotADirectoryError):
        return BLOCK
    except FileError as error:
        raise CheckpointError(str(error)) from None
    said = config.get("quantization_config")
    match said.get("weight_block_size") if isinstance(said, dict) else None:
        case None:
            return BLOCK
        case [int(rows), int(columns)] if 0 < rows <= 1 << 20 and 0 < columns <= 1 << 20:
            return rows, columns
        case other:
            at = f"{folder / 'config.json'}: quantization_config.weight_block_size"
            raise CheckpointError(f"{at} is {escape(str(other))[:80]}: expected two counts")
