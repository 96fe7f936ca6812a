"""positions: what is added to the embedding, where the place of a token is not said by rope."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from blockc.ir import Value, apply
from blockc.ops import Embed, Op, Sinusoidal
from blockc.parts.base import Model


class Learned(Model):
    """A table of `context` rows."""

    type: Literal["learned"]

    def op(self, context: int, width: int) -> Op:
        return Embed(context, width)


class Sine(Model):
    """Sines at even, cosines at odd coordinates, wavelengths from 2 pi to 10000 * 2 pi."""

    type: Literal["sinusoidal"]

    def op(self, context: int, width: int) -> Op:
        return Sinusoidal(width)


Positions = Annotated[Learned | Sine, Field(discriminator="type")]


def positioned(positions: Learned | Sine, ids: Value, context: int, width: int) -> Value:
    return apply(positions.op(context, width), ids, name="positions")
