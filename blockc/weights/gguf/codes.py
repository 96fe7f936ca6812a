"""The kinds of blocks in GGUF files as codes: what a file stores, told apart into codes, scales and lows.

    x = scale * (q - centre) + low        q: the integers that the file holds

A file's own block holds one or more of our blocks. `Encoding.fields` are its bytes in their order; `unpack` gives the
integers of all its numbers, a scale for each of our blocks, and for some kinds what is added, m in x = scale * q + m.
Integers are uint8 and may wrap around. The formats are those of ggml.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from blockc.ir import Array, Blocks
from blockc.weights.quantise import Codes

Fields = tuple[tuple[str, str] | tuple[str, str, int], ...]
Parts = tuple[Array, Array, Array | None]  # integers (..., numbers), scales and what is added (..., blocks)


@dataclass(frozen=True)
class Encoding:
    """A kind: our blocks, the fields of its own block, and how these are read. `centre` becomes the middle code."""

    blocks: Blocks
    fields: Fields
    centre: int
    unpack: Callable[[Any], Parts]

    @property
    def stored(self) -> np.dtype[Any]:
        return np.dtype(list(self.fields))

    def codes(self, rows: Array) -> Codes:
        """Packed codes (rows, blocks, bytes), scales and lows (rows, blocks) in fp32, of rows of bytes."""
        with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is refused where it is read
            q, scales, added = self.unpack(rows.view(self.stored))
            lows = None if added is None else (added + np.float32(self.centre) * scales).reshape(len(rows), -1)
        codes = (q + np.uint8(self.blocks.middle - self.centre)).reshape(len(rows), -1, self.blocks.size)
        return self.blocks.pack(codes), scales.reshape(len(rows), -1), lows


def _wide(field: Array) -> Array:
    """fp16 as fp32, with an axis for the blocks."""
    return field.astype(np.float32)[..., None]


def _halves(q: Array) -> Array:
    """16 bytes hold 32 numbers, the first 16 in their low halves: (..., 16) -> (..., 32)."""
    return np.concatenate([q & 15, q >> 4], -1)


def _pairs(q: Array) -> Array:
    """32 bytes hold two blocks, the first in their low halves: (..., 32 n) -> (..., 2 n, 32)."""
    x = q.reshape(*q.shape[:-1], -1, 1, 32)
    return np.concatenate([x & 15, x >> 4], -2).reshape(*q.shape[:-1], -1, 32)


def _bits(field: Array, width: int, count: int) -> Array:
    """Parts of `width` bits of each byte, from the lowest up: (..., n) -> (..., count, n)."""
    return field[..., None, :] >> np.arange(0, width * count, width, dtype=np.uint8)[:, None] & (1 << width) - 1


def _quarters(q: Array) -> Array:
    """32 bytes hold four rows of 2 bits: (..., 64) -> (..., 8, 32)."""
    return _bits(q.reshape(*q.shape[:-1], 2, 32), 2, 4).reshape(*q.shape[:-1], 8, 32)


def _fifth(b: Any) -> Array:
    """4 bits of each of 32 numbers, and the fifth of all in four bytes."""
    return _halves(b["q"]) | np.unpackbits(b["high"], axis=-1, bitorder="little") << 4


def _six(packed: Array) -> tuple[Array, Array]:
    """Eight scales and eight mins of 6 bits in 12 bytes; the last four of each are in two pieces."""
    scales, mins, last = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    all_scales = np.concatenate([scales & 63, last & 15 | scales >> 6 << 4], -1)
    return all_scales, np.concatenate([mins & 63, last >> 4 | mins >> 6 << 4], -1)


def _signed(field: Array) -> Array:
    return field.view(np.int8).astype(np.float32)


def _q4_0(b: Any) -> Parts:
    return _halves(b["q"]), _wide(b["d"]), None


def _q4_1(b: Any) -> Parts:
    return _halves(b["q"]), _wide(b["d"]), _wide(b["m"])


def _q5_0(b: Any) -> Parts:
    return _fifth(b), _wide(b["d"]), None


def _q5_1(b: Any) -> Parts:
    return _fifth(b), _wide(b["d"]), _wide(b["m"])


def _q8_0(b: Any) -> Parts:
    return b["q"], _wide(b["d"]), None


def _q2_k(b: Any) -> Parts:
    return _quarters(b["q"]), _wide(b["d"]) * (b["scales"] & 15), -_wide(b["dmin"]) * (b["scales"] >> 4)


def _q3_k(b: Any) -> Parts:
    low, high = b["scales"][..., :8], b["scales"][..., 8:]
    scales = np.concatenate([low & 15, low >> 4], -1) | _bits(high, 2, 4).reshape(*low.shape[:-1], 16) << 4
    return _quarters(b["q"]) | _bits(b["high"], 1, 8) << 2, _wide(b["d"]) * (scales.astype(np.float32) - 32), None


def _q4_k(b: Any) -> Parts:
    scales, mins = _six(b["scales"])
    return _pairs(b["q"]), _wide(b["d"]) * scales, -_wide(b["dmin"]) * mins


def _q5_k(b: Any) -> Parts:
    scales, mins = _six(b["scales"])
    return _pairs(b["q"]) | _bits(b["high"], 1, 8) << 4, _wide(b["d"]) * scales, -_wide(b["dmin"]) * mins


def _q6_k(b: Any) -> Parts:
    low = b["low"].reshape(*b["low"].shape[:-1], 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], -2).reshape(*low.shape[:-3], 8, 32)
    return low | _quarters(b["high"]) << 4, _wide(b["d"]) * _signed(b["scales"]), None


UNEVEN = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8).view(np.uint8)
FLOAT4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8).view(np.uint8)  # twice e2m1


def _iq4_nl(b: Any) -> Parts:
    return UNEVEN[_halves(b["q"])], _wide(b["d"]), None


def _iq4_xs(b: Any) -> Parts:
    low = _bits(b["low"], 4, 2).swapaxes(-1, -2).reshape(*b["low"].shape[:-1], 8)
    scales = low | (b["high"][..., None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8) << 4
    q = _halves(b["q"].reshape(*b["q"].shape[:-1], 8, 16))
    return UNEVEN[q], _wide(b["d"]) * (scales.astype(np.float32) - 32), None


def _mxfp4(b: Any) -> Parts:
    """The scale is half of 2^(e - 127), since the integers are doubled."""
    return FLOAT4[_halves(b["q"])], np.ldexp(np.float32(1), b["e"].astype(np.int32) - 128)[..., None], None


_D, _M, _MIN = ("d", "<f2"), ("m", "<f2"), ("dmin", "<f2")
ENCODINGS: Mapping[str, Encoding] = {
    "Q4_0": Encoding(Blocks(4, 32), (_D, ("q", "u1", 16)), 8, _q4_0),
    "Q4_1": Encoding(Blocks(4, 32, True), (_D, _M, ("q", "u1", 16)), 8, _q4_1),
    "Q5_0": Encoding(Blocks(8, 32), (_D, ("high", "u1", 4), ("q", "u1", 16)), 16, _q5_0),
    "Q5_1": Encoding(Blocks(8, 32, True), (_D, _M, ("high", "u1", 4), ("q", "u1", 16)), 16, _q5_1),
    "Q8_0": Encoding(Blocks(8, 32), (_D, ("q", "u1", 32)), 0, _q8_0),
    "Q2_K": Encoding(Blocks(4, 16, True), (("scales", "u1", 16), ("q", "u1", 64), _D, _MIN), 2, _q2_k),
    "Q3_K": Encoding(Blocks(4, 16), (("high", "u1", 32), ("q", "u1", 64), ("scales", "u1", 12), _D), 4, _q3_k),
    "Q4_K": Encoding(Blocks(4, 32, True), (_D, _MIN, ("scales", "u1", 12), ("q", "u1", 128)), 8, _q4_k),
    "Q5_K": Encoding(
        Blocks(8, 32, True), (_D, _MIN, ("scales", "u1", 12), ("high", "u1", 32), ("q", "u1", 128)), 16, _q5_k
    ),
    "Q6_K": Encoding(Blocks(8, 16), (("low", "u1", 128), ("high", "u1", 64), ("scales", "u1", 16), _D), 32, _q6_k),
    "IQ4_NL": Encoding(Blocks(8, 32), (_D, ("q", "u1", 16)), 0, _iq4_nl),
    "IQ4_XS": Encoding(Blocks(8, 32), (_D, ("high", "<u2"), ("low", "u1", 4), ("q", "u1", 128)), 0, _iq4_xs),
    "MXFP4": Encoding(Blocks(8, 32), (("e", "u1"), ("q", "u1", 16)), 0, _mxfp4),
}
