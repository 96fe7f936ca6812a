"""positions: what is added to the embedding, where the place of a token is not said by rope."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from blockc.ir import Value, apply
from blockc.language.parts.base import Model, OrNone
from blockc.language.parts.numbers import Positive
from blockc.ops import Add, Embed, Shift, Sinusoidal


class Learned(Model):
    """A table of `context` rows, and before them `offset` rows that no token reads."""

    type: Literal["learned"] = Field(description="learned: a table of context rows of width numbers.")
    offset: OrNone[Positive] = Field(
        default=None,
        description="Rows of the table before that of the first token; no token reads them. An integer above 0. "
        "Absent or none: 0.",
    )

    def add(self, x: Value, ids: Value, context: int) -> Value:
        width, first = x.type.shape[-1].value or 0, self.offset or 0
        rows = apply(Shift(first), ids, name="rows") if first else ids
        return apply(Add(), x, apply(Embed(context + first, width), rows, name="positions"), name="stream")


class Sine(Model):
    """Sines at even, cosines at odd coordinates, wavelengths from 2 pi to 10000 * 2 pi."""

    type: Literal["sinusoidal"] = Field(
        description="sinusoidal: sines and cosines of wavelengths from 2 pi to 10000 * 2 pi tokens."
    )

    def add(self, x: Value, ids: Value, context: int) -> Value:
        width = x.type.shape[-1].value or 0
        return apply(Add(), x, apply(Sinusoidal(width), ids, x, name="positions"), name="stream")


Positions = Annotated[Learned | Sine, Field(discriminator="type")]
