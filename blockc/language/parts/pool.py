"""pool: one vector of all tokens of a text, for search and classification."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from blockc.ir import Value, apply
from blockc.language.parts.base import Model, OrNone, Problem
from blockc.language.parts.dense import Dense
from blockc.language.parts.twin import OfWidth, ShrinkRule, Twin
from blockc.ops import Pool as PoolOp
from blockc.ops import Unit
from blockc.source import MappingNode, SequenceNode, Tree


@dataclass(frozen=True)
class EachOfWidth(ShrinkRule):
    """The width of each of several keeps its ratio to the model's."""

    def shrink_value(self, value: Tree, twin: Twin) -> Tree | None:
        if not isinstance(value, SequenceNode):
            return value
        return SequenceNode(tuple(self._shrink(item, twin) for item in value.items), value.place)

    def _shrink(self, item: Tree, twin: Twin) -> Tree:
        entry = item.entries.get("width") if isinstance(item, MappingNode) else None
        if not isinstance(item, MappingNode) or entry is None:
            return item
        width = OfWidth().shrink_value(entry.value, twin) or entry.value
        return MappingNode({**item.entries, "width": replace(entry, value=width)}, item.place)


def _one_or_several(value: object) -> str:
    return "several" if isinstance(value, list | tuple) else "one"


Denses = Annotated[
    Annotated[Dense, Tag("one")]
    | Annotated[Annotated[tuple[Dense, ...], Field(strict=False, min_length=1)], Tag("several")],
    Discriminator(_one_or_several),
]


class Pool(Model):
    """unit(dense(pool(x))): (B, S, width) -> (B, D). Padding counts nowhere, whichever side it is on."""

    type: Literal["first", "last", "mean"] = Field(
        description="first, last: the vector of the first or the last token that is no padding. mean: the mean of "
        "those that are none."
    )
    dense: Annotated[OrNone[Denses], EachOfWidth()] = Field(
        default=None,
        description="A matrix with an activation and a norm that reads the pooled vector, or a list of such. Absent "
        "or none: none.",
    )
    unit: bool | None = Field(
        default=None,
        description="Whether the vector is divided by its length (L2). Absent: false.",
        json_schema_extra={"default": False},
    )

    @property
    def chain(self) -> tuple[Dense, ...]:
        """What stands behind the pool, one after the other."""
        return () if self.dense is None else self.dense if isinstance(self.dense, tuple) else (self.dense,)

    def problems(self) -> Iterator[Problem]:
        for i, each in enumerate(self.chain):
            for problem in each.problems():
                yield (problem.under(i) if isinstance(self.dense, tuple) else problem).under("dense")

    def resolve(self, width: int) -> Pool:
        chain = tuple(each.resolve(width) for each in self.chain)
        dense = chain if isinstance(self.dense, tuple) else next(iter(chain), None)
        return self.model_copy(update={"dense": dense, "unit": bool(self.unit)})

    def expand(self, x: Value, mask: Value) -> Value:
        """Of a resolved one: the vector of a stream (B, S, width) and the attention mask (B, S)."""
        pooled = apply(PoolOp(self.type), x, mask, name="pool")
        for i, each in enumerate(self.chain, 1):
            pooled = each.expand(pooled, f"dense_{i}" if isinstance(self.dense, tuple) else "dense")
        return apply(Unit(), pooled, name="unit") if self.unit else pooled
