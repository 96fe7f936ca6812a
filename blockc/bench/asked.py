"""What is asked to be measured: lengths of prompts and pasts of decoders, of texts and batches of encoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, cast

from blockc.basics.errors import UsageError

STEPS = 32  # of decode in each turn
PREFILL, DECODE, ENCODE, BATCH = (128, 512), (128, 1024), (16, 128, 512), (32, 1)
_TURN = 8192  # tokens that an encoder reads in a turn, where it reads several batches
_BATCHES = 32  # in a turn, at most
_ROWS = 2048  # of a matrix product from which on its rate is the same


@dataclass(frozen=True)
class Measure:
    """Prefill of a prompt with this many tokens, decode steps after this many, or batches of texts with so many each.

    `rows`: texts of a batch.
    """

    do: Literal["prefill", "decode", "encode"]
    tokens: int
    rows: int = 1

    def __str__(self) -> str:
        if self.do == "encode":
            return f"encode {self.rows} x {self.tokens}"
        return f"{self.do} {'at ' if self.do == 'decode' else ''}{self.tokens}"

    @property
    def request(self) -> dict[str, int]:
        if self.do == "prefill":
            return {"tokens": self.tokens, "repeat": 1}
        if self.do == "decode":
            return {"context": self.tokens, "steps": STEPS}
        repeat = min(max(_TURN // (self.rows * self.tokens), 1), _BATCHES)
        return {"tokens": self.tokens, "rows": self.rows, "repeat": repeat}

    @property
    def needs(self) -> int:
        """Tokens of a row that are read in all."""
        return self.tokens + (STEPS + 1) * (self.do == "decode")

    @property
    def multiplied(self) -> int:
        """Rows of the matrix products whose rate is a part of the floor; 0 for a step, which is bound by reading."""
        return 0 if self.do == "decode" else min(self.rows * self.tokens, _ROWS) if self.do == "encode" else self.tokens

    @property
    def unit(self) -> str:
        return "sentences/s" if self.do == "encode" else "tokens/s"

    def rate(self, ms: float) -> float:
        """Tokens per second; sentences per second of an encoder."""
        return 1000 * {"prefill": self.tokens, "decode": 1, "encode": self.rows}[self.do] / ms

    def tokens_s(self, ms: float) -> float:
        """Tokens per second."""
        return self.rate(ms) * (self.tokens if self.do == "encode" else 1)


@dataclass(frozen=True)
class Asked:
    """Lengths and batches as the caller gives them, and whether operators and a text are measured, too.

    `encode`: None for the usual lengths, as far as they are within the context.
    """

    prefill: Sequence[int] = PREFILL
    decode: Sequence[int] = DECODE
    encode: Sequence[int] | None = None
    batch: Sequence[int] = BATCH
    ops: bool = False
    text: bool = False

    def __post_init__(self) -> None:
        """Raises UsageError for what fits no model."""
        if bad := [n for n in (*self.prefill, *self.decode, *(self.encode or ()), *self.batch) if n < 1]:
            raise UsageError(f"{bad[0]}: expected numbers of tokens and of texts, 1 or more")
        if not self._said("encode", "batch"):
            self.of_decoders()
        if self.ops and not self.decode:
            raise UsageError("is for decode steps: give lengths of decode", "ops")

    def of_decoders(self) -> list[Measure]:
        """Raises UsageError for what is asked of encoders alone, and if nothing is left."""
        if found := self._said("encode", "batch"):
            raise UsageError("is for models without a cache, and these have one: give prefill or decode", found)
        made = [*(Measure("prefill", n) for n in self.prefill), *(Measure("decode", n) for n in self.decode)]
        if not made and not self.text:
            raise UsageError("nothing to measure: give lengths of prefill or decode, or a text")
        return made

    def of_encoders(self, context: int | None) -> list[Measure]:
        """Each batch at each length. Raises UsageError."""
        if found := self._said("prefill", "decode", "ops", "text"):
            raise UsageError("is for models with a cache, and these have none: give lengths to encode", found)
        lengths = self.encode
        if lengths is None:
            lengths = [n for n in ENCODE if context is None or n <= context] or [context or 1]
        made = [Measure("encode", n, rows) for n in lengths for rows in self.batch]
        if not made:
            raise UsageError("nothing to measure: give lengths to encode, and batches")
        return made

    def _said(self, *options: str) -> str:
        """The first of these that is not as usual; empty if there is none."""
        usual = {each.name: each.default for each in fields(self)}
        return next((name for name in options if _plain(getattr(self, name)) != usual[name]), "")


def _plain(value: object) -> object:
    return tuple(cast("list[int]", value)) if isinstance(value, list) else value
