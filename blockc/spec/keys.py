"""The keys of the language as Pydantic classes. Whatever is not a field here is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from blockc.parts import Attention, Mlp, Model, Norm, OrNone, Positions

Positive = Annotated[int, Field(gt=0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Label = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]

Placement = Literal["pre", "post", "sandwich", "parallel_two"]


class Embedding(Model):
    """Order: look up, scale, add positions."""

    scale: Annotated[float, Field(gt=0)] | Literal["sqrt_width"] | None = None


class Head(Model):
    """Order: linear, softcap. A tied head is the embedding's own matrix."""

    tied: bool
    softcap: OrNone[Annotated[float, Field(gt=0)]] = None


class NormKeys(Norm):
    """The norm of every label that ends in _norm, where the norms stand, and whether one follows the last layer."""

    placement: Placement | None = None
    final: bool | None = None

    @property
    def part(self) -> Norm:
        return Norm(type=self.type, eps=self.eps, bias=self.bias, offset=self.offset)


class LayerKeys(Model):
    """What a layer is made of; `layers.kinds` varies these and no others."""

    norm: OrNone[NormKeys] = None
    attention: OrNone[Attention] = None
    mlp: OrNone[Mlp] = None
    block: Annotated[list[Any] | None, Field(description="a term of the block algebra")] = None
    parts: dict[Label, dict[str, Any]] | None = None


class Expect(Model):
    """Known figures: compared, never filled in."""

    parameters: Positive | None = None
    active_parameters: Positive | None = None
    kv_values_per_token: Annotated[int, Field(ge=0)] | None = None
    layers: dict[str, Positive] | None = None


class Init(Model):
    """How an untrained model starts: the standard deviation of its matrices. No effect on the function."""

    std: Annotated[float, Field(gt=0)]


class Layers(Model):
    """first and last are laid once, pattern is tiled over what lies between."""

    first: list[Any] | None = None
    pattern: list[Any] | None = None
    last: list[Any] | None = None
    kinds: dict[Label, dict[str, Any]]


class TopKeys(Model):
    """What is said once for the whole model."""

    blockc: Literal[1]
    name: Name
    description: str | None = None
    checkpoint: Name | None = None
    vocab: Positive
    width: Positive
    depth: Positive
    context: Positive
    positions: OrNone[Positions] = None
    embedding: OrNone[Embedding] = None
    head: Head
    layers: Layers | None = None
    init: Init | None = None
    expect: Expect | None = None


class Document(TopKeys, LayerKeys):
    """A whole spec file, for the JSON schema that editors read."""


LAYER_KEYS = frozenset(LayerKeys.model_fields)
TOP_KEYS = frozenset(TopKeys.model_fields)
