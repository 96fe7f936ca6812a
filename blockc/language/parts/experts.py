"""mlp.experts: a mixture of experts, of which each token takes a few."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from typing import Annotated, Literal

from pydantic import Field

from blockc.diagnostics.meaning import EXPERT_GROUPS, EXPERTS
from blockc.language.parts.base import Model, OrNone, Problem
from blockc.language.parts.numbers import Positive, PositiveFloat
from blockc.language.parts.twin import SCALES, OfWidth, ShrinkRule, Twin, Within
from blockc.ops import Groups as GroupsOp
from blockc.ops import Route
from blockc.source import Entry, MappingNode, ScalarNode, Tree

COUNT, ACTIVE, GROUPS, ACTIVE_GROUPS = 8, 2, 4, 2  # the most of a twin


class Groups(Model):
    """Experts in groups of equal size, of which only the best are chosen from. Source: DeepSeek-AI 2024."""

    count: Positive = Field(description="Groups, a divisor of the experts' count. An integer above 0.")
    active: Positive = Field(description="The best groups, whose experts may be chosen. An integer above 0.")
    score: Literal["max", "top2_sum"] = Field(
        description="How good a group is. max: its highest score. top2_sum: the sum of its two highest."
    )


class Router(Model):
    """The matrix whose logits choose the experts, and how logits become weights."""

    scores: Literal["softmax", "sigmoid"] = Field(
        description="What logits become. softmax: over all experts. sigmoid: each by itself. Softmax over the chosen "
        "alone is softmax with normalise: true."
    )
    normalise: bool = Field(
        description="Whether the scores of the chosen experts are divided by their sum. true or false; there is no "
        "default."
    )
    scale: Annotated[OrNone[PositiveFloat], Within(*SCALES)] = Field(
        default=None, description="Number that the weights are multiplied by. A number above 0. Absent or none: 1."
    )
    bias: OrNone[bool] = Field(
        default=None, description="Whether the router's matrix has a bias. true or false. Absent or none: false."
    )
    selection_bias: OrNone[bool] = Field(
        default=None,
        description="Whether a number for each expert is added to its score for the choice alone: a buffer, no "
        "parameter. true or false. Absent or none: false.",
    )
    groups: OrNone[Groups] = Field(
        default=None, description="Groups of experts, of which the best are chosen from. Absent or none: none."
    )


class SharedExpert(Model):
    """An MLP of the same type beside the experts, which each token takes."""

    width: Annotated[Positive, OfWidth()] = Field(
        description="Numbers between its up and down; of several shared experts, all together. An integer above 0."
    )
    gate: OrNone[Literal["sigmoid"]] = Field(
        default=None,
        description="sigmoid: its output is multiplied by the sigmoid of one more number, of a matrix of its own. "
        "Absent or none: it is added as it is.",
    )


class Experts(Model):
    """y = sum of w_e mlp_e(x) over the experts that the router chooses, each an MLP of the given type and width.

    Source: Shazeer et al. 2017; shared experts: Dai et al. 2024.
    """

    count: Positive = Field(description="Experts. An integer above 0.")
    active: Positive = Field(description="Experts that one token takes, at most count. An integer above 0.")
    router: Router = Field(description="How a token's experts and their weights follow from its logits.")
    shared: OrNone[SharedExpert] = Field(
        default=None, description="An MLP beside the experts, which each token takes. Absent or none: none."
    )

    def resolve(self) -> Experts:
        router = self.router.model_copy(
            update={
                "scale": None if self.router.scale in (None, 1) else float(self.router.scale),
                "bias": self.router.bias or None,
                "selection_bias": self.router.selection_bias or None,
            }
        )
        return self.model_copy(update={"router": router})

    def problems(self) -> Iterator[Problem]:
        if self.active > self.count:
            yield Problem(
                EXPERTS,
                ("active",),
                f"a token takes {self.active} of {self.count} experts",
                f"at most {self.count}",
                str(self.active),
                also=(("count", ("count",)),),
            )
        elif self.router.groups:
            yield from self._group_problems(self.router.groups)

    def _group_problems(self, groups: Groups) -> Iterator[Problem]:
        at = ("router", "groups")
        also = (("count of experts", ("count",)),)
        if self.count % groups.count:
            message = f"{groups.count} groups do not divide {self.count} experts"
            yield Problem(EXPERT_GROUPS, (*at, "count"), message, f"a divisor of {self.count}", str(groups.count),
                          also=also)  # fmt: skip
            return
        size = self.count // groups.count
        if groups.active > groups.count:
            message = f"{groups.active} of {groups.count} groups are chosen from"
            yield Problem(EXPERT_GROUPS, (*at, "active"), message, f"at most {groups.count}", str(groups.active))
        elif groups.active * size < self.active:
            held = f"{groups.active} group{'s' * (groups.active > 1)} of {size}"
            message = f"a token takes {self.active} experts, of {held}"
            yield Problem(EXPERT_GROUPS, (*at, "active"), message, f"at least {-(-self.active // size)}",
                          str(groups.active), also=(("experts of a token", ("active",)),))  # fmt: skip
        if groups.score == "top2_sum" and size < 2:
            message = "the two highest scores of a group of one expert"
            yield Problem(EXPERT_GROUPS, (*at, "score"), message, "score: max", groups.score, also=also)

    @property
    def route(self) -> Route:
        router, groups = self.router, self.router.groups
        return Route(
            self.count,
            self.active,
            router.scores,
            router.normalise,
            float(router.scale or 1),
            bool(router.selection_bias),
            GroupsOp(groups.count, groups.active, groups.score) if groups else None,
        )


@dataclass(frozen=True)
class FewExperts(ShrinkRule):
    """Fewer experts in fewer groups, more than a token takes: where a token takes all, nothing shows the choice."""

    def shrink_value(self, value: Tree, twin: Twin) -> Tree | None:
        if not isinstance(value, MappingNode):
            return value
        return _edit(value, _few({path: _number_at(value, path) for path in SIZES}))


SIZES = (("count",), ("active",), ("router", "groups", "count"), ("router", "groups", "active"))


def _number_at(tree: Tree, path: tuple[str, ...]) -> int | None:
    for key in path:
        if not isinstance(tree, MappingNode) or key not in tree.entries:
            return None
        tree = tree.entries[key].value
    return tree.value if isinstance(tree, ScalarNode) and isinstance(tree.value, int) else None


def _few(said: Mapping[tuple[str, ...], int | None]) -> dict[tuple[str, ...], int]:
    """The numbers of a twin that are said, by their keys: small ones, and unlike where those of the model are."""
    was = tuple(said[path] for path in SIZES)
    few = next((each for each in _candidates(was) if _are_alike(was, each)), next(_candidates(was)))
    return {path: min(size, new) for path, size, new in zip(SIZES, was, few, strict=True) if size is not None}


Sizes = tuple[int, int, int, int]  # in the order of SIZES


def _candidates(was: tuple[int | None, ...]) -> Iterator[Sizes]:
    """Sizes of a twin, the best first: groups of equal size, which hold more than a token takes, or else as many."""
    count, active, groups, kept = was
    numbers = product((0, 1), (ACTIVE, ACTIVE + 1, 1), (GROUPS, GROUPS - 1, 2), (ACTIVE_GROUPS, 1, ACTIVE_GROUPS + 1))
    for loose, few, few_groups, few_kept in numbers:
        few, few_groups = min(few, active or few), min(few_groups, groups or 1)
        few_kept = few_groups if kept == groups else min(few_kept, kept or few_kept, few_groups)
        size = min((count or COUNT) // (groups or 1), COUNT // few_groups)
        if few_kept * size > few or (loose and few_kept * size == few):
            yield few_groups * size, few, few_groups, few_kept


def _are_alike(was: tuple[int | None, ...], few: Sizes) -> bool:
    """Whether no two sizes are equal that differ in the model: which is which would not show."""
    said = [(old, new) for old, new in zip(was, few, strict=True) if old is not None]
    return all(a == b or x != y for (a, x), (b, y) in combinations(said, 2))


def _edit(tree: MappingNode, numbers: dict[tuple[str, ...], int], at: tuple[str, ...] = ()) -> MappingNode:
    entries: dict[str, Entry] = {}
    for key, entry in tree.entries.items():
        value, path = entry.value, (*at, key)
        if path in numbers:
            value = ScalarNode(numbers[path], value.place, str(numbers[path]))
        elif isinstance(value, MappingNode):
            value = _edit(value, numbers, path)
        entries[key] = Entry(entry.key, value)
    return MappingNode(entries, tree.place)
