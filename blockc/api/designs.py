"""New specs with the ratios of existing ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from blockc.authoring.newspec import Sizes, budget_of, new_spec
from blockc.authoring.specfiles import spec_file
from blockc.basics.errors import UsageError
from blockc.language.spec.keys import name_fault
from blockc.source import escape_text, read_tree


@dataclass(frozen=True)
class NewSpec:
    """The text of a new spec, its sizes and parameters, and the budget."""

    name: str
    text: str
    sizes: Sizes
    parameters: int
    budget: float | None = None

    def __repr__(self) -> str:
        return f"<NewSpec {self.name}: {self.line}>"

    @property
    def line(self) -> str:
        off = "" if self.budget is None else f" ({self.parameters / self.budget - 1:+.1%})"
        sizes = self.sizes
        return (
            f"{self.parameters:,} parameters{off}: width {sizes.width}, depth {sizes.depth}, "
            f"{sizes.heads} heads of {sizes.head_dim}, {sizes.kv_heads} of keys and values, mlp {sizes.mlp} wide"
        )


def new(name: str, like: Path | str, parameters: str | float | None = None) -> NewSpec:
    """A spec with the ratios of another: width, depth and heads for a budget such as "350M" or 7.5e9.

    Without a budget it has the sizes of the other spec. Raises NoDesignError if no design is within 3 percent.
    """
    if fault := name_fault(name):
        raise UsageError(f"{escape_text(name)}: {fault}")
    budget = None if parameters is None else budget_of(parameters)
    family = spec_file(like)
    text, sizes, counted = new_spec(name, read_tree(family), family.stem, budget)
    return NewSpec(name, text, sizes, counted, budget)
