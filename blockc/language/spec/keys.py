"""The keys of the language as Pydantic classes. Whatever is not a field here is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from blockc.diagnostics.meaning import EMBEDDING
from blockc.language.parts import Attention, Mlp, Model, Norm, OrNone, Part, Positions, Problem
from blockc.language.parts.base import KIND, KindName
from blockc.language.parts.numbers import Count, Positive, PositiveFloat
from blockc.language.spec import labels

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
LAYOUT = r"^[a-z0-9][a-z0-9._-]{0,99}$"

# What does not match a pattern, and what does.
PATTERNS = {
    NAME: ("not a name", "ASCII letters, digits and . _ -, at most 100 of them, a letter or digit first"),
    LAYOUT: ("not the name of a checkpoint layout", "a word such as llama: a layout says how files name their tensors"),
    KIND: ("not a name of a layer kind", "a letter a-z, then letters, digits and _, at most 32 in all"),
    labels.PATTERN: ("not a label", labels.PATTERN_IN_WORDS),
}


def _no_device(name: str) -> str:
    """A file called con or lpt1.txt cannot be made on Windows."""
    if re.fullmatch(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", name, re.IGNORECASE):
        raise PydanticCustomError("device_name", "a name that Windows keeps for a device")
    return name


def name_fault(name: str) -> str:
    """Why this is no name of a model, or nothing."""
    try:
        return "" if re.fullmatch(NAME, _no_device(name), re.ASCII) else f"{PATTERNS[NAME][0]}; {PATTERNS[NAME][1]}"
    except PydanticCustomError as error:
        return str(error)


Name = Annotated[str, Field(pattern=NAME), AfterValidator(_no_device)]
Layout = Annotated[str, Field(pattern=LAYOUT)]
Label = Annotated[str, Field(pattern=labels.PATTERN)]

Placement = Literal["pre", "post", "sandwich", "branch", "parallel_one", "parallel_two"]

# norm.placement is sugar for these terms, and for nothing else.
PLACEMENTS: dict[str, list[Any]] = {
    "pre": [{"residual": ["attention_norm", "attention"]}, {"residual": ["mlp_norm", "mlp"]}],
    "post": [{"residual": ["attention"]}, "attention_post_norm", {"residual": ["mlp"]}, "mlp_post_norm"],
    "sandwich": [
        {"residual": ["attention_norm", "attention", "attention_post_norm"]},
        {"residual": ["mlp_norm", "mlp", "mlp_post_norm"]},
    ],
    "branch": [{"residual": ["attention", "attention_post_norm"]}, {"residual": ["mlp", "mlp_post_norm"]}],
    "parallel_one": [{"residual": ["norm", {"sum": [["attention"], ["mlp"]]}]}],
    "parallel_two": [{"residual": [{"sum": [["attention_norm", "attention"], ["mlp_norm", "mlp"]]}]}],
}


def scaled(placement: Placement, factor: float | None) -> list[Any]:
    """The term of a placement, each branch times the factor."""
    if factor is None:
        return PLACEMENTS[placement]
    last = [{"scale": factor}]
    return [{"residual": t["residual"] + last} if isinstance(t, dict) else t for t in PLACEMENTS[placement]]


class Rsqrt(Model):
    """The number 1/sqrt(rsqrt)."""

    rsqrt: PositiveFloat


def _rsqrt_or_number(value: object) -> str:
    return "1/sqrt" if isinstance(value, dict | Rsqrt) else "number"  # no word that could be a key


Factor = Annotated[
    Annotated[PositiveFloat | Literal["sqrt_width"], Tag("number")] | Annotated[Rsqrt, Tag("1/sqrt")],
    Discriminator(_rsqrt_or_number),
]


class Embedding(Model):
    """Order: look up, project, scale, add positions, norm. A width of its own is projected in, and out for the head."""

    scale: OrNone[Factor] = None
    width: OrNone[Positive] = None
    norm: OrNone[Norm] = None

    def problems(self, width: int) -> Iterator[Problem]:
        if self.width == width:
            message = f"the embedding is as wide as the stream, {width}"
            hint = "leave the key out: a projection between equal widths would be a guess"
            yield Problem(EMBEDDING, ("width",), message, f"another number than {width}", str(width), hint)


class Head(Model):
    """Order: linear, bias, scale, softcap. A tied head is the embedding's own matrix; the bias is the head's."""

    tied: bool
    bias: bool | None = None
    scale: OrNone[PositiveFloat] = None
    softcap: OrNone[PositiveFloat] = None


class NormKeys(Norm):
    """The norm of every label that ends in _norm, where the norms stand, and whether one follows the last layer."""

    placement: OrNone[Placement] = None
    final: bool | None = None

    @property
    def part(self) -> Norm:
        return Norm(type=self.type, eps=self.eps, weight=self.weight, bias=self.bias, offset=self.offset)


class LayerKeys(Model):
    """What a layer is made of; `layers.kinds` varies these and no others."""

    norm: OrNone[NormKeys] = None
    residual_scale: OrNone[PositiveFloat] = None
    attention: OrNone[Attention] = None
    mlp: OrNone[Mlp] = None
    block: OrNone[Annotated[list[Any], Field(description="a term of the block algebra")]] = None
    parts: OrNone[dict[Label, OrNone[dict[str, Any]]]] = None

    def part(self, key: str) -> Part | None:
        """The part that a key of PARTS describes here; of the norm, without where it stands."""
        held: Part | None = getattr(self, key)
        return held.part if isinstance(held, NormKeys) else held

    @property
    def own(self) -> frozenset[str]:
        """The labels of `parts`."""
        return frozenset(label for label, part in (self.parts or {}).items() if part is not None)


class Bounds(Model):
    """min <= figure <= max. One of the two may be absent."""

    min: Annotated[float, Field(ge=0)] | None = None
    max: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _some_room(self) -> Bounds:
        if self.min is None and self.max is None:
            raise PydanticCustomError("no_bound", "min, max or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise PydanticCustomError("crossed_bounds", "a max that is not below min")
        return self

    def hold(self, figure: int) -> bool:
        return (self.min is None or self.min <= figure) and (self.max is None or figure <= self.max)

    def __str__(self) -> str:
        """at least 8,000,000,000 and at most 9,000,000,000"""
        said = (("at least", self.min), ("at most", self.max))
        return " and ".join(f"{word} {number:,.15g}" for word, number in said if number is not None)


def _exact_or_bounds(value: object) -> str:
    return "bounds" if isinstance(value, dict | Bounds) else "exact"


# A figure itself, or bounds of it.
Figure = Annotated[Annotated[Count, Tag("exact")] | Annotated[Bounds, Tag("bounds")], Discriminator(_exact_or_bounds)]
PositiveFigure = Annotated[
    Annotated[Positive, Tag("exact")] | Annotated[Bounds, Tag("bounds")], Discriminator(_exact_or_bounds)
]


class Expect(Model):
    """Known figures, or bounds of them: compared, never filled in."""

    parameters: PositiveFigure | None = None
    active_parameters: PositiveFigure | None = None
    kv_values_per_token: Figure | None = None
    context: Positive | None = None
    layers: dict[str, Positive] | None = None


class Init(Model):
    """How an untrained model starts: the standard deviation of its matrices. No effect on the function."""

    std: PositiveFloat


class Layers(Model):
    """first and last are laid once, pattern is tiled over what lies between."""

    first: list[Any] | None = None
    pattern: list[Any] | None = None
    last: list[Any] | None = None
    kinds: dict[KindName, dict[str, Any]]


class TopKeys(Model):
    """What is said once for the whole model."""

    blockc: Literal[1]
    name: Name
    description: str | None = None
    checkpoint: OrNone[Layout] = None
    vocab: Positive
    width: Positive
    depth: Positive
    context: Positive
    positions: OrNone[Positions] = None
    embedding: OrNone[Embedding] = None
    head: Head
    layers: OrNone[Layers] = None
    init: OrNone[Init] = None
    expect: OrNone[Expect] = None


class Document(TopKeys, LayerKeys):
    """A whole spec file, for the JSON schema that editors read."""


LAYER_KEYS = frozenset(LayerKeys.model_fields)
TOP_KEYS = frozenset(TopKeys.model_fields)
