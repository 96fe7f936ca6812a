"""What a part is: the Pydantic class of one key of the language, with an `expand` that emits ops."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice
from typing import Annotated, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from blockc.diagnostics import Code
from blockc.ir import B, Call, Function, Input, Node, Op, S, Type, Value, node, tensor
from blockc.language.parts.twin import Edits, Twin
from blockc.source import MappingNode, Place

T = TypeVar("T")
Loc = tuple[str | int, ...]

ORNONE = BeforeValidator(lambda value: None if value == "none" else value)  # `none` turns a thing off
OrNone = Annotated[T | None, ORNONE]
NOTHING = BeforeValidator(lambda value: () if value == "none" else value)  # the same of a list
KIND = r"^[a-z][a-z0-9_]{0,31}$"
KindName = Annotated[str, Field(pattern=KIND)]  # of layers.kinds


class Mark(Enum):
    """What a key says beside its type, as metadata of its field."""

    LAST = "stands behind the keys without this mark in the text of a spec"
    OF_NORM = "of a norm inside a part: taken over from the layer's norm where it is absent"
    LAYERS = "names, each with a mapping of a layer's keys"


@dataclass(frozen=True)
class Problem:
    """A fault that types alone do not catch, at a location relative to the part."""

    code: Code
    loc: Loc
    message: str
    expected: str = ""
    got: str = ""
    hint: str = ""
    also: tuple[tuple[str, Loc], ...] = ()

    def under(self, key: str | int) -> Problem:
        """The same problem, seen from the part that holds this one at `key`."""
        return replace(self, loc=(key, *self.loc), also=tuple((label, (key, *loc)) for label, loc in self.also))


class Model(BaseModel):
    """Strict: no coercion, no unknown keys, no change after reading."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def key_order(cls) -> tuple[str, ...]:
        """The keys as they stand in a spec, but for those that are marked LAST: the order of the fields."""
        return tuple(cls.model_fields)

    def shrink_keys(self, said: MappingNode, twin: Twin) -> Edits:
        """The values in a twin of keys that shrink together, where `said` stands; a key alone has its Rule."""
        return {}


@dataclass(frozen=True)
class Shared:
    """A value that is made once at the root and passed into the layers: `op` of the root's values with these names.

    Masks and rotary tables are shared, so that layers that differ only in a window or a theta are one function. The
    value `length` is one number; every other has one for each token.
    """

    label: str
    op: Op
    reads: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return self.op.output_names

    @property
    def types(self) -> tuple[Type, ...]:
        return self.op.infer(*(tensor("int", *(() if read == "length" else (B, S))) for read in self.reads))


@dataclass(frozen=True)
class Lent:
    """Keys and values (B, heads, S, head_dim) that one layer's attention makes, and later ones of its label read."""

    label: str
    heads: int
    head_dim: int
    names: ClassVar[tuple[str, ...]] = ("key", "value")

    @property
    def types(self) -> tuple[Type, ...]:
        return (tensor("float", B, self.heads, S, self.head_dim),) * 2


Request = Shared | Lent


@dataclass
class Scope:
    """A function being built. Its stream is the input x, and what it asks for becomes further inputs.

    `lends` are the labels of attentions whose keys and values later layers read: these become further outputs.
    """

    width: int
    lends: frozenset[str] = frozenset()
    x: Node = field(init=False)
    asked: dict[Request, tuple[Node, ...]] = field(default_factory=dict[Request, tuple[Node, ...]], init=False)
    lent: dict[Lent, tuple[Value, ...]] = field(default_factory=dict[Lent, tuple[Value, ...]], init=False)

    names: set[str] = field(default_factory=set[str], init=False)

    def __post_init__(self) -> None:
        self.x = Node(Input(tensor("float", B, S, self.width), token_axis=1), (), "x")

    def fresh_name(self, wish: str) -> str:
        """The name, or the same with a number where the function already has it."""
        self.names.add(name := _free_name(wish, self.names))
        return name

    def ask(self, asked: Request) -> tuple[Value, ...]:
        if asked not in self.asked:
            taken = [n.name for nodes in self.asked.values() for n in nodes]
            self.asked[asked] = tuple(
                Node(Input(type_), (), _free_name(name, taken))
                for name, type_ in zip(asked.names, asked.types, strict=True)
            )
        return tuple(n[0] for n in self.asked[asked])

    def close(self, name: str, output: Value, doc: str) -> Piece:
        inputs = (self.x, *(n for nodes in self.asked.values() for n in nodes))
        outputs = [("out", output)]
        for lent, values in self.lent.items():
            taken = [name for name, _ in outputs]
            outputs += ((_free_name(name, taken), value) for name, value in zip(lent.names, values, strict=True))
        function = Function(name, inputs, tuple(outputs), doc=doc, stream="x")
        return Piece(function, tuple(self.asked), tuple(self.lent))

    def call(self, piece: Piece, x: Value, *, name: str, place: Place | None) -> Value:
        asked = (value for each in piece.asks for value in self.ask(each))
        made = node(Call(piece.function), x, *asked, name=name, place=place)
        self.lent |= piece.lent_values(made)
        return made[0]


@dataclass(frozen=True)
class Piece:
    """A finished function and what its caller must pass in after the stream."""

    function: Function
    asks: tuple[Request, ...]
    lends: tuple[Lent, ...] = ()

    def lent_values(self, call: Node) -> dict[Lent, tuple[Value, ...]]:
        """The outputs of a call of the function beside the stream."""
        values = (call[i] for i in range(1, len(call.types)))
        return {lent: tuple(islice(values, len(lent.names))) for lent in self.lends}


class Part(Model):
    """A part of a block: reads a stream (B, S, width) and gives one of the same type."""

    def resolve(self, width: int) -> Part:
        """The same part with its derived values written out."""
        return self

    def problems(self, width: int, context: int) -> Iterator[Problem]:
        return iter(())

    def expand(self, scope: Scope, x: Value, label: str, place: Place | None) -> Value:
        raise NotImplementedError


def _free_name(name: str, taken: Collection[str]) -> str:
    candidates = (name, *(f"{name}_{i}" for i in range(2, len(taken) + 3)))
    return next(candidate for candidate in candidates if candidate not in taken)
