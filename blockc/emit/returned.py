"""What model.py's forward returns, and the loss that it computes from labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from blockc.graph.contract import HIDDEN, IDS, LOGITS, POOLED, Contract
from blockc.ir import Function, Value
from blockc.ops import Embed

_WHAT = {
    LOGITS: ("Logits of each token", "Logits of each text"),
    HIDDEN: ("The hidden state of each token", ""),
    POOLED: ("", "one vector of each text"),
}


@dataclass(frozen=True)
class Field:
    """A field of Output: its name, its shape, and the variable of forward that it holds."""

    name: str
    shape: str
    variable: str


@dataclass(frozen=True)
class Loss:
    """`each`: next, of the token after each one; token, of each token; text, of each text. `score`: of one logit.

    `wanted` is what a label of a token is: a token of the vocabulary, or a class.
    """

    each: Literal["next", "token", "text"]
    score: bool
    wanted: Literal["token", "class"]

    @property
    def labels(self) -> str:
        """What labels are, for the docstring of forward."""
        if self.each == "next":
            return "(B, S) are the tokens themselves"
        if self.each == "text":
            return f"(B) are the {'score wanted of each text, 0 to 1' if self.score else 'class of each text'}"
        what = "score, 0 to 1," if self.score else self.wanted
        return f"(B, S) are the {what} wanted at each place, -100 where none is"


@dataclass(frozen=True)
class Returned:
    fields: tuple[Field, ...]
    loss: Loss | None

    @property
    def doc(self) -> str:
        """What forward gives, as a sentence without its full stop."""
        said = [_WHAT[field.name]["S" not in field.shape] for field in self.fields]
        return ", and ".join(said)

    @property
    def given(self) -> str:
        """The variables, as arguments of Output."""
        return ", ".join(field.variable for field in self.fields)

    @property
    def shapes(self) -> str:
        return "; ".join(f"{field.name} {field.shape}" for field in self.fields)


def returned_by(root: Function, serves: Contract, names: Mapping[Value, str]) -> Returned:
    """`names` are the variables that hold values of the root's forward."""
    given = dict(root.outputs)
    held = {each.present for each in serves.held}
    answers = {name: value for name, value in given.items() if name not in held}
    fields = tuple(Field(name, _shape_text(name, value), names[value]) for name, value in answers.items())
    logits = given.get(LOGITS)
    if logits is None:
        return Returned(fields, None)
    each = "next" if root.causal else "token" if len(logits.type.shape) == 3 else "text"
    many, vocab = logits.type.shape[-1].value, _vocab_of(root)
    return Returned(fields, Loss(each, many == 1, "token" if many == vocab else "class"))


def _vocab_of(root: Function) -> int | None:
    """The rows of the table that input_ids look up."""
    tables = (n.op for n in root.nodes if n.inputs and n.inputs[0].node.name == IDS)
    return next((op.rows for op in tables if isinstance(op, Embed)), None)


def _shape_text(name: str, value: Value) -> str:
    """The shape in words where a size has one: the vocabulary of logits."""
    *sizes, last = value.type.shape
    wide = "vocab" if name == LOGITS and len(sizes) == 2 else last
    return f"({', '.join(map(str, (*sizes, wide)))})"
