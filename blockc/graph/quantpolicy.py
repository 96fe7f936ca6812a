"""A policy of quantising: how each matrix of a model is stored, in a file that is read as strictly as a spec.

blockc_quant: 1
scales: calibrated
matrices:
  embedding: int8
  head: int8
  "*.v": int8
  layers.0.mlp: keep
  "*": int4:32

Patterns go from first to last, and the first that matches a matrix says how it is stored. What none matches stays as
it is. A pattern that changes nothing is an error at its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, StringConstraints, ValidationError
from pydantic_core import PydanticCustomError

from blockc.basics.errors import UsageError
from blockc.diagnostics.figures import QUANT_SHADOWED, QUANT_UNMATCHED
from blockc.graph.quant import Quant, parse_quant
from blockc.ir import Blocks
from blockc.language.parts import Model
from blockc.language.spec.faults import from_pydantic
from blockc.source import (
    Finding,
    MappingNode,
    Place,
    SpecError,
    escape_text,
    finding,
    key_place,
    parse,
    read_bytes,
    suggest,
    to_plain,
)

KEEP = "keep"
STORAGE = "int8, int4, one of them with a block of 16, 32, 64, 128 or 256, or keep"
LONGEST = 100  # characters of a pattern
NAME = "policy"  # of the recipe, whatever the file is called

Readers = Mapping[str, Sequence[str]]  # the names of the nodes that read a matrix, by the matrix's path


Rule = tuple[str, Blocks | None]


def _read_storage(word: str) -> Blocks | None:
    """The blocks of a word such as int4:32; None for keep. Raises UsageError."""
    if word == KEEP:
        return None
    recipe = parse_quant(word)
    if word == "int4:quality":
        raise UsageError(f"{word}: is a whole recipe", "quant")
    return recipe.rules[-1][1]


def _check_storage(value: object) -> object:
    if isinstance(value, str):
        try:
            _read_storage(value)
        except UsageError:
            raise PydanticCustomError("storage", STORAGE) from None
    return value


def _require_rules(rules: dict[str, str]) -> dict[str, str]:
    if not rules:
        raise PydanticCustomError("no_rule", "at least one pattern")
    return rules


class QuantKeys(Model):
    blockc_quant: Literal[1]
    scales: Literal["rounded", "calibrated"] = "rounded"
    matrices: Annotated[
        dict[Annotated[str, StringConstraints(max_length=LONGEST)], Annotated[str, BeforeValidator(_check_storage)]],
        AfterValidator(_require_rules),
    ]


@dataclass(frozen=True)
class QuantPolicy:
    """The rules in their order, how scales are chosen, and where each pattern is written."""

    rules: tuple[Rule, ...]
    scales: Literal["rounded", "calibrated"]
    tree: MappingNode

    def __repr__(self) -> str:
        return f"<QuantPolicy {escape_text(self.tree.place.file)}: {len(self.rules)} patterns, {self.scales} scales>"

    def make_quant(self, readers: Readers) -> Quant:
        """The recipe for a model with these matrices. Raises SpecError for patterns that change nothing of it."""
        if found := self.misfits(readers):
            raise SpecError(found)
        names = [name for each in readers.values() for name in each]
        rules = [(form, blocks) for pattern, blocks in self.rules for form in _forms(pattern) if _matches(form, names)]
        return Quant(NAME, tuple(rules), self.scales)

    def misfits(self, readers: Readers) -> list[Finding]:
        """A finding for each pattern that changes nothing of a model with these matrices."""
        taken: dict[str, Rule] = {}
        found: list[Finding] = []
        for pattern, blocks in self.rules:
            forms = _forms(pattern)
            own = [path for path, names in readers.items() if any(_matches(form, names) for form in forms)]
            others = [taken[path] for path in own if path in taken and taken[path][1] != blocks]
            if not own:
                found.append(self._unmatched(pattern, readers))
            elif others and taken.keys() >= {*own}:
                found.append(self._shadowed(pattern, others[0]))
            taken |= {path: (pattern, blocks) for path in own if path not in taken}
        return found

    def place(self, pattern: str) -> Place:
        return key_place(self.tree, ("matrices", pattern))

    def _unmatched(self, pattern: str, readers: Readers) -> Finding:
        steps = dict.fromkeys(step for names in readers.values() for name in names for step in name.split("."))
        near = suggest(pattern.rpartition(".")[2], [step for step in steps if not step.isdigit()])
        names = [name for each in readers.values() for name in each]
        return finding(
            QUANT_UNMATCHED,
            self.place(pattern),
            f"{pattern} matches no matrix of this model",
            expected=f"a name such as {names[-1]}, a part of one, or a pattern" if names else "a model with matrices",
            got=pattern,
            hint=f"did you mean {near}?" if near else "",
        )

    def _shadowed(self, pattern: str, above: Rule) -> Finding:
        first, blocks = above
        return finding(
            QUANT_SHADOWED,
            self.place(pattern),
            f"{pattern} changes nothing: what it matches is taken by a pattern above",
            expected="the narrower pattern first, and one storage for a matrix that is tied",
            got=f"{first}: {blocks or KEEP}",
            others=[("the pattern above", self.place(first))],
        )


def _forms(pattern: str) -> tuple[str, ...]:
    """The patterns of whole names that have a pattern as a part between dots, or are it."""
    starts = ("",) if pattern.startswith("*") else ("", "*.")
    ends = ("",) if pattern.endswith("*") else ("", ".*")
    return tuple(start + pattern + end for start in starts for end in ends)


def _matches(form: str, names: Sequence[str]) -> bool:
    return Quant("form", ((form, Blocks()),)).blocks_for(names) is not None


def read_quant_policy(data: bytes, file: str) -> QuantPolicy:
    """Reads a policy of quantising. Raises SpecError with everything that is wrong."""
    tree = parse(data, file)
    try:
        keys = QuantKeys.model_validate(to_plain(tree))
    except ValidationError as error:
        found = from_pydantic(error, QuantKeys, tree)
        raise SpecError(sorted(found, key=lambda each: (each.place.line, each.place.column))) from None
    rules = tuple((pattern, _read_storage(word)) for pattern, word in keys.matrices.items())
    return QuantPolicy(rules, keys.scales, tree)


def load_quant_policy(path: Path | str) -> QuantPolicy:
    return read_quant_policy(read_bytes(path), str(path))
