"""Numbers stored as codes, in blocks that share a scale: what stands for a matrix whose weights have 4 or 8 bits.

The command line reads recipes of blocks before it knows whether numbers are wanted: NumPy is imported where arrays are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


@dataclass(frozen=True)
class Blocks:
    """Blocks of `size` numbers along the last axis, each a code of `bits` bits:

        x = scale * (code - 2^(bits - 1)) + low        0 <= code < 2^bits

    One scale is stored for each block, and with `lows` one low; without, low is 0. The last block of a row may be cut
    short: it is filled up with codes that stand for 0.
    """

    bits: Literal[4, 8] = 4
    size: int = 32
    lows: bool = False

    def __str__(self) -> str:
        return f"int{self.bits}:{self.size}{' with lows' if self.lows else ''}"

    @property
    def middle(self) -> int:
        """The code of a number that is `low`."""
        return 1 << (self.bits - 1)

    @property
    def bytes(self) -> int:
        """Of the codes of one block."""
        return self.size * self.bits // 8

    def count(self, width: int) -> int:
        """How many blocks hold a row of `width` numbers."""
        return -(-width // self.size)

    def split(self, x: Array) -> Array:
        """(..., width) -> (..., blocks, size), filled up with 0."""
        import numpy as np

        fill = -x.shape[-1] % self.size
        if fill:
            x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, fill)])
        return x.reshape(*x.shape[:-1], -1, self.size)

    def upright(self, x: Array) -> Array:
        """(..., blocks, size) -> (size, all blocks): what is done across a block is then done for many at once."""
        import numpy as np

        return np.ascontiguousarray(x.reshape(-1, self.size).T)

    def scales(self, x: Array) -> tuple[Array, Array | None]:
        """Scales and lows (..., blocks) of numbers (..., blocks, size), by what the codes must reach.

        Without lows the scale takes the number of the largest magnitude to an end of the range: in 4 bits to code 0,
        the end that reaches further, in 8 bits to either. With lows the least and the largest are the ends.
        """
        import numpy as np

        top, numbers = 2 * self.middle - 1, self.upright(x)
        if self.bits == 8 and not self.lows:
            return np.abs(numbers).max(0).reshape(x.shape[:-1]) / (self.middle - 1), None
        least, most = (each.reshape(x.shape[:-1]) for each in (numbers.min(0), numbers.max(0)))
        if self.lows:
            scales = (most - least) / top
            return scales, least + self.middle * scales
        return np.where(-least >= most, least, most) / -self.middle, None

    def codes(self, x: Array, scales: Array, lows: Array | None) -> Array:
        """The nearest codes, of x's dtype: (..., blocks, size). A scale of 0 gives the middle."""
        import numpy as np

        with np.errstate(divide="ignore", invalid="ignore"):  # what is not finite is refused where it is read
            inverse = np.where(scales == 0, 0, 1 / scales)[..., None]
            codes = np.rint((x if lows is None else x - lows[..., None]) * inverse)
        codes += self.middle
        return np.clip(codes, 0, 2 * self.middle - 1, out=codes)

    def pack(self, codes: Array) -> Array:
        """As bytes: (..., blocks, size) -> uint8 (..., blocks, bytes); of two codes the first in the low half."""
        import numpy as np

        with np.errstate(invalid="ignore"):  # what is not finite is refused where it is read
            codes = codes.astype(np.uint8)
        return codes if self.bits == 8 else codes[..., ::2] | codes[..., 1::2] << 4

    def unpack(self, packed: Array) -> Array:
        """The inverse of `pack`."""
        import numpy as np

        if self.bits == 8:
            return packed
        halves = np.stack([packed & 15, packed >> 4], -1)
        return halves.reshape(*packed.shape[:-1], -1)

    def restore(self, packed: Array, scales: Array, lows: Array | None, width: int) -> Array:
        """The numbers that packed codes stand for, in the scales' dtype: (..., width)."""
        x = (self.unpack(packed).astype(scales.dtype) - self.middle) * scales[..., None]
        if lows is not None:
            x += lows[..., None]
        return x.reshape(*x.shape[:-2], -1)[..., :width]
