"""The keys of the language as Pydantic classes. Whatever is not a field here is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from blockc.diagnostics.meaning import EMBEDDING
from blockc.language.parts import AnyHead, Attention, Mlp, Model, Norm, OrNone, Part, Pool, Positions, Problem
from blockc.language.parts.base import KIND, KindName, Mark
from blockc.language.parts.numbers import Count, Positive, PositiveFloat
from blockc.language.parts.twin import (
    LENGTH,
    SCALES,
    Edits,
    LeftOut,
    OfWidth,
    ShrinkRule,
    Twin,
    Within,
)
from blockc.language.spec import labels
from blockc.source import MappingNode, ScalarNode, SequenceNode, Tree, to_plain

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
LAYOUT = r"^[a-z0-9][a-z0-9._-]{0,99}$"

VOCAB = 96  # of a twin
CONTEXT = 128

# What does not match a pattern, and what does.
PATTERNS = {
    NAME: ("not a name", "ASCII letters, digits and . _ -, at most 100 of them, a letter or digit first"),
    LAYOUT: ("not the name of a checkpoint layout", "a word such as llama: a layout says how files name their tensors"),
    KIND: ("not a name of a layer kind", "a letter a-z, then letters, digits and _, at most 32 in all"),
    labels.PATTERN: ("not a label", labels.PATTERN_IN_WORDS),
}


def _refuse_device(name: str) -> str:
    """A file called con or lpt1.txt cannot be made on Windows."""
    if re.fullmatch(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", name, re.IGNORECASE):
        raise PydanticCustomError("device_name", "a name that Windows keeps for a device")
    return name


def name_fault(name: str) -> str:
    """Why this is no name of a model, or nothing."""
    try:
        return "" if re.fullmatch(NAME, _refuse_device(name), re.ASCII) else f"{PATTERNS[NAME][0]}; {PATTERNS[NAME][1]}"
    except PydanticCustomError as error:
        return str(error)


Name = Annotated[str, Field(pattern=NAME), AfterValidator(_refuse_device)]
LayoutName = Annotated[str, Field(pattern=LAYOUT)]
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


def placement_term(placement: Placement, factor: float | None) -> list[Any]:
    """The term of a placement, each branch times the factor."""
    if factor is None:
        return PLACEMENTS[placement]
    last = [{"scale": factor}]
    return [{"residual": t["residual"] + last} if isinstance(t, dict) else t for t in PLACEMENTS[placement]]


class Rsqrt(Model):
    """The number 1/sqrt(rsqrt)."""

    rsqrt: PositiveFloat = Field(description="N of the factor 1/sqrt(N). A number above 0.")


def _rsqrt_or_number(value: object) -> str:
    return "1/sqrt" if isinstance(value, dict | Rsqrt) else "number"  # no word that could be a key


Factor = Annotated[
    Annotated[PositiveFloat | Literal["sqrt_width"], Tag("number")] | Annotated[Rsqrt, Tag("1/sqrt")],
    Discriminator(_rsqrt_or_number),
]


class Embedding(Model):
    """Order: look up, project, scale, add segments and positions, norm.

    A width of its own is projected in, and out for the head.
    """

    scale: OrNone[Factor] = Field(
        default=None,
        description="Number that a looked-up row is multiplied by, before positions are added; sqrt_width for "
        "the root of width, {rsqrt: N} for 1 over the root of N. Absent or none: 1.",
    )
    width: Annotated[OrNone[Positive], OfWidth(unlike=True)] = Field(
        default=None,
        description="Numbers of a row of the embedding, where they are not width: a matrix takes them in, "
        "another takes the stream out for the head. Absent or none: width.",
    )
    segments: OrNone[Positive] = Field(
        default=None,
        description="Rows of a second table, one of which is added to each token: that of its token_type_ids, an input "
        "of the graph, or of 1 segment that one. An integer above 0. Absent or none: no such table.",
    )
    norm: OrNone[Norm] = Field(
        default=None,
        description="A norm of the stream before the first layer, behind the positions. Absent or none: none.",
    )

    def problems(self, width: int) -> Iterator[Problem]:
        if self.width == width:
            message = f"the embedding is as wide as the stream, {width}"
            hint = "leave the key out: a projection between equal widths would be a guess"
            yield Problem(EMBEDDING, ("width",), message, f"another number than {width}", str(width), hint)


class NormKeys(Norm):
    """The norm of every label that ends in _norm, where the norms stand, and whether one follows the last layer."""

    placement: OrNone[Placement] = Field(
        default=None,
        description="Where the norms of a layer stand. pre: x + f(norm x). post: norm(x + f x). sandwich: x + "
        "norm(f(norm x)). branch: x + norm(f x). parallel_one: x + attention(norm x) + mlp(norm x), one norm. "
        "parallel_two: the same with a norm each. Or write a block.",
    )
    final: bool | None = Field(
        default=None, description="Whether a norm follows the last layer. Absent: false for placement post, else true."
    )

    @property
    def part(self) -> Norm:
        return Norm(type=self.type, eps=self.eps, weight=self.weight, bias=self.bias, offset=self.offset)


class LayerKeys(Model):
    """What a layer is made of; `layers.kinds` varies these and no others."""

    attention: OrNone[Attention] = Field(
        default=None, description="softmax(q k^T * scale) v in heads; o reads the heads, concatenated."
    )
    mlp: OrNone[Mlp] = Field(default=None, description="down(act(up x)), or with a gate down(act(gate x) * up x).")
    norm: OrNone[NormKeys] = Field(
        default=None,
        description="The norm of every label that ends in _norm, where the norms stand, and the final norm.",
    )
    residual_scale: Annotated[OrNone[PositiveFloat], Within(*SCALES)] = Field(
        default=None,
        description="Number that each branch of the placement is multiplied by before it is added: x + scale * "
        "f(x). Absent or none: 1. In a block, write {scale: x}.",
    )
    block: OrNone[list[Any]] = Field(
        default=None,
        description="A layer as a term, where no norm.placement names it: [a, b] is a chain, {residual: [...]} "
        "adds its branch to what it reads, {sum: [[...], [...]]} adds branches that read the same.",
    )
    parts: Annotated[OrNone[dict[Label, OrNone[dict[str, Any]]]], Mark.LAYERS] = Field(
        default=None,
        description="Labels of further parts for the block: what each changes of the layer's key, as in "
        "{first_mlp: {mlp: {width: 512}}}.",
    )

    def part(self, key: str) -> Part | None:
        """The part that a key of PARTS describes here; of the norm, without where it stands."""
        held: Part | None = getattr(self, key)
        return held.part if isinstance(held, NormKeys) else held

    @property
    def own_labels(self) -> frozenset[str]:
        """The labels of `parts`."""
        return frozenset(label for label, part in (self.parts or {}).items() if part is not None)


class Bounds(Model):
    """min <= figure <= max. One of the two may be absent."""

    min: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="The figure is at least this. A number of 0 or more."
    )
    max: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="The figure is at most this. A number of 0 or more."
    )

    @model_validator(mode="after")
    def _check_order(self) -> Bounds:
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

    parameters: PositiveFigure | None = Field(
        default=None, description="Parameters, each tensor once, tied ones too: the number itself, or {min, max}."
    )
    active_parameters: PositiveFigure | None = Field(
        default=None, description="Parameters that one token uses: the number itself, or {min, max}."
    )
    kv_values_per_token: Figure | None = Field(
        default=None,
        description="Numbers, not bytes, that one more token adds to the cache: the number itself, or {min, max}.",
    )
    context: Positive | None = Field(
        default=None, description="Tokens that the model is published for, be they more than its rope scaling covers."
    )
    layers: dict[str, Positive] | None = Field(
        default=None, description="How many layers there are of each kind, as in {local: 21, global: 21}."
    )


class Init(Model):
    """How an untrained model starts: the standard deviation of its matrices. No effect on the function."""

    std: PositiveFloat = Field(
        description="Standard deviation of new matrices in model.py. A number above 0. Without init: 0.02."
    )


@dataclass(frozen=True)
class FewLayers(ShrinkRule):
    """Two layers stand for many in a row: enough for what treats a run as a loop."""

    def shrink_value(self, value: Tree, twin: Twin) -> Tree | None:
        if not isinstance(value, SequenceNode):
            return value
        return SequenceNode(tuple(layer for item in value.items for layer in self._few(item)), value.place)

    def _few(self, item: Tree) -> tuple[Tree, ...]:
        if not isinstance(item, MappingNode):
            return (item,)
        ((name, entry),) = item.entries.items()
        return (ScalarNode(name, entry.key, name),) * self.count(to_plain(item))

    @staticmethod
    def count(item: object) -> int:
        """How many layers an entry of a list gives in a twin."""
        return 2 if isinstance(item, dict) and 1 not in item.values() else 1


class Layers(Model):
    """first and last are laid once, pattern is tiled over what lies between."""

    first: Annotated[list[Any] | None, FewLayers()] = Field(
        default=None, description="Kinds of the first layers, laid once."
    )
    pattern: Annotated[list[Any] | None, FewLayers()] = Field(
        default=None, description="Kinds tiled over what lies between first and last; the last tile may be cut."
    )
    last: Annotated[list[Any] | None, FewLayers()] = Field(
        default=None, description="Kinds of the last layers, laid once."
    )
    kinds: Annotated[dict[KindName, dict[str, Any]], Mark.LAYERS] = Field(
        description="Each kind's name, and what it has otherwise than the top-level keys say."
    )

    def few(self, depth: int) -> int:
        """The depth of a twin: each entry of the lists, and the pattern twice where it is tiled."""
        first, tile, last = (
            sum(map(FewLayers.count, listed or ())) for listed in (self.first, self.pattern, self.last)
        )
        return first + tile * (2 if depth > first + tile + last else 1) + last


class TopKeys(Model):
    """What is said once for the whole model."""

    blockc: Literal[1] = Field(description="The version of the language: 1. It is the first key of a spec.")
    name: Name = Field(
        description="The model's name, of files and of classes: letters, digits and . _ -, at most 100, a letter or "
        "digit first. No effect on the function."
    )
    description: Annotated[str | None, LeftOut()] = Field(
        default=None, description="A sentence for people. No effect on the function."
    )
    vocab: Positive = Field(description="Rows of the embedding, and logits of a token. An integer above 0.")
    width: Positive = Field(description="Numbers of the residual stream for each token (d_model). An integer above 0.")
    depth: Positive = Field(description="Layers. An integer from 1 to 10000.")
    context: Positive = Field(
        description="Tokens that the model is made for, counted with those before. An integer above 0."
    )
    positions: OrNone[Positions] = Field(
        default=None,
        description="What is added to the embedding to say where a token stands. This, attention.rope or "
        "attention.alibi is said; none for a model without.",
    )
    embedding: OrNone[Embedding] = Field(
        default=None, description="What is done to a token's row before the first layer. Absent or none: nothing."
    )
    head: OrNone[AnyHead] = Field(
        description="The map from the stream to the logits of the vocabulary, or of classes. none: the hidden states "
        "of the tokens come out, and what pool makes of them."
    )
    pool: OrNone[Pool] = Field(
        default=None,
        description="One vector of all tokens, which comes out beside head: none, and which a head of classes reads. "
        "Absent or none: none.",
    )
    layers: OrNone[Layers] = Field(default=None, description="Layers of several kinds. Absent or none: all are alike.")
    init: OrNone[Init] = Field(default=None, description="How an untrained model starts. No effect on the function.")
    checkpoint: OrNone[LayoutName] = Field(
        default=None,
        description="The layout of published weight files, such as llama: how they name and pack the tensors. "
        "No effect on the function. Absent or none: files name the parameters as the model does.",
    )
    expect: Annotated[OrNone[Expect], LeftOut()] = Field(
        default=None,
        description="Known figures, or bounds of them: compared with the computed ones, never filled in. No "
        "effect on the function.",
    )

    def shrink_keys(self, said: MappingNode, twin: Twin) -> Edits:
        """The twin's name and its sizes: no two alike by chance."""
        return {
            "name": self.name.removesuffix("-twin") + "-twin",
            "width": twin.width,
            "vocab": min(self.vocab, VOCAB + (twin.width == VOCAB)),
            "context": max(min(self.context, CONTEXT), 2 * LENGTH if twin.by_length else 0),
            "depth": self.layers.few(self.depth) if self.layers else min(self.depth, 2),
        }


class Document(TopKeys, LayerKeys):
    """A whole spec file."""

    @classmethod
    def key_order(cls) -> tuple[str, ...]:
        """The parts of a layer stand before the head and the pool, its block behind them."""
        top, layer = TopKeys.key_order(), LayerKeys.key_order()
        head, block = top.index("head"), layer.index("block")
        return (*top[:head], *layer[:block], "head", "pool", *layer[block:], *top[head + 2 :])


LAYER_KEYS = frozenset(LayerKeys.model_fields)
TOP_KEYS = frozenset(TopKeys.model_fields)
