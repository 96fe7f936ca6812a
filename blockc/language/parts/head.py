"""head: the map from the stream, or from what `pool` makes of it, to logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Discriminator, Field, Tag

from blockc.language.parts.base import Model, OrNone, Problem
from blockc.language.parts.dense import Dense
from blockc.language.parts.numbers import Positive, PositiveFloat
from blockc.language.parts.twin import SCALES, SOFTCAP, AtMost, Within

CLASSES = 5  # the most of a twin


_BIAS = "Whether a number is added to each logit, before the softcap. Absent: false."
_TRANSFORM = "A matrix with an activation and a norm between the stream and the head. Absent or none: none."


class _AnyHead(Model):
    """What both heads share."""

    @classmethod
    def key_order(cls) -> tuple[str, ...]:
        """One order for both."""
        return ("tied", "classes", "bias", "scale", "softcap", "transform")

    def problems(self) -> Iterator[Problem]:
        transform: Dense | None = getattr(self, "transform", None)
        for problem in transform.problems() if transform else ():
            yield problem.under("transform")


class Head(_AnyHead):
    """Logits of the vocabulary. Order: transform, linear, bias, scale, softcap.

    A tied head is the embedding's own matrix; the bias is the head's.
    """

    tied: bool = Field(
        description="Whether the head is the embedding's own matrix. true or false; there is no default."
    )
    bias: bool | None = Field(default=None, description=_BIAS, json_schema_extra={"default": False})
    scale: Annotated[OrNone[PositiveFloat], Within(*SCALES)] = Field(
        default=None,
        description="Number that the logits are multiplied by, before the softcap. A number above 0. Absent or "
        "none: 1.",
    )
    softcap: Annotated[OrNone[PositiveFloat], AtMost(SOFTCAP)] = Field(
        default=None, description="Logits become cap * tanh(logits / cap). A number above 0. Absent or none: no cap."
    )
    transform: OrNone[Dense] = Field(default=None, description=_TRANSFORM)


class Classifier(_AnyHead):
    """Logits of classes: of the pooled vector where there is a `pool`, else of each token."""

    classes: Annotated[Positive, AtMost(CLASSES)] = Field(
        description="Logits, one for each class or label; 1 for a score. An integer above 0."
    )
    bias: bool | None = Field(default=None, description=_BIAS, json_schema_extra={"default": False})
    transform: OrNone[Dense] = Field(default=None, description=_TRANSFORM)


def _says_classes(value: object) -> str:
    says = "classes" in value if isinstance(value, dict) else isinstance(value, Classifier)
    return "of classes" if says else "of the vocabulary"  # no word that could be a key


AnyHead = Annotated[
    Annotated[Head, Tag("of the vocabulary")] | Annotated[Classifier, Tag("of classes")], Discriminator(_says_classes)
]
