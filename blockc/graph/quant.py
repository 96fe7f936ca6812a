"""Quant: which of a model's matrices are stored in blocks of codes, and in which."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Literal

from blockc.basics.blocks import Blocks
from blockc.basics.errors import UsageError, escape

BITS = (4, 8)
SIZES = (16, 32, 64, 128, 256)
_SIZES = f"{', '.join(map(str, SIZES[:-1]))} or {SIZES[-1]}"
LONGEST = 200  # characters of a name or a pattern
RULES = 4096  # as many as a manifest may have, and of these with a `*`
STARS = 256
WORDS = "int8, int4 or int4:quality, the first two with a block as in int4:128"


@dataclass(frozen=True)
class Quant:
    """`rules` go from first to last: the first whose pattern matches says how, None that the matrix stays as it is.

    A pattern is the name of what reads the matrix, as `layers.3.mlp.down`, `head` or `embedding`; `*` stands for any
    characters. What no pattern matches stays as it is. `scales` says how a scale is chosen: by the largest number of
    its block, or so that the outputs err least on what the model was calibrated with. `level` is how a kernel
    multiplies: 0 in the model's float type, 4 with what it reads rounded to 8 bits.
    """

    name: str
    rules: tuple[tuple[str, Blocks | None], ...]
    scales: Literal["rounded", "calibrated"] = "rounded"
    level: Literal[0, 4] = 4

    def __post_init__(self) -> None:
        for word in (self.name, *(pattern for pattern, _ in self.rules)):
            if not word.isprintable() or not 0 < len(word) <= LONGEST:
                raise UsageError(f"{escape(word)}: expected 1 to {LONGEST} printable characters", "quant")
        stars = sum("*" in pattern for pattern, _ in self.rules)
        if len(self.rules) > RULES or stars > STARS:
            counts = f"{len(self.rules):,} rules, {stars:,} of them with a *"
            raise UsageError(f"{counts}: expected at most {RULES:,} and {STARS}", "quant")
        for pattern, blocks in self.rules:
            if blocks is not None and (blocks.bits not in BITS or blocks.size not in SIZES):
                expected = f"4 or 8 bits in blocks of {_SIZES}"
                raise UsageError(
                    f"{pattern}: {blocks.bits} bits in blocks of {blocks.size}: expected {expected}", "quant"
                )

    @cached_property
    def _places(self) -> dict[str, int]:
        """The first rule of each name without a `*`."""
        return {word: i for i, (word, _) in reversed([*enumerate(self.rules)]) if "*" not in word}

    @cached_property
    def _patterns(self) -> tuple[tuple[int, re.Pattern[str]], ...]:
        stars = ((i, word) for i, (word, _) in enumerate(self.rules) if "*" in word)
        return tuple((i, re.compile(_any(word))) for i, word in stars)

    @property
    def calibrates(self) -> bool:
        """Whether the model is run to choose scales: those of 4 bits alone are chosen so."""
        return self.scales == "calibrated" and any(blocks and blocks.bits == 4 for _, blocks in self.rules)

    def blocks_for(self, readers: Iterable[str]) -> Blocks | None:
        """How a matrix is stored that these nodes read."""
        places: list[int] = []
        for name in readers:
            places.extend([self._places[name]] if name in self._places else [])
            places.extend(islice((i for i, pattern in self._patterns if pattern.fullmatch(name)), 1))
        return self.rules[min(places)][1] if places else None


def _any(word: str) -> str:
    """A pattern as a regular expression. What stands between two stars is looked for once, and not tried anew."""
    first, *others = map(re.escape, word.split("*"))
    inner = "".join(f"(?>.*?{part})" for part in others[:-1])
    return f"{first}{inner}.*{others[-1]}"


def parse_quant(word: str) -> Quant:
    """The recipe of a word: int8, int4, int4:quality, or one of the first two with a block. Raises UsageError."""
    said = re.fullmatch(r"int([48])(?::(\d{1,3}|quality))?", word, re.ASCII)
    if said is None or (said[1] == "8" and said[2] == "quality"):
        raise UsageError(f"{escape(word) or 'an empty word'}: expected {WORDS}", "quant")
    size = 32 if said[2] in (None, "quality") else int(said[2])
    if size not in SIZES:
        raise UsageError(f"{word}: expected a block of {_SIZES}", "quant")
    wide, kept = Blocks(8, size), (("positions", None), ("segments", None))
    if said[1] == "8":
        return Quant(word, (*kept, ("*", wide)))
    narrow, better = Blocks(4, size), ("embedding", "head", "*.v")
    rules = [*kept, *((name, wide) for name in better), ("*", narrow)]
    if said[2] == "quality":  # experts are stored alike, since the kernel that runs them takes no mixture
        rules[-1:] = [("*.experts.*", narrow), ("*.down", wide), ("*", narrow)]
    return Quant(word, tuple(rules), "calibrated")
