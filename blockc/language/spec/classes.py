"""A spec's tree with the classes of its keys beside it: what a key says, what stands below it, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from blockc.language.parts import Model
from blockc.language.parts.base import Mark
from blockc.language.spec.keys import Document, LayerKeys


@dataclass(frozen=True)
class AllowedKeys:
    """What a mapping of a spec may say: the keys of one of these classes; or names, each with a mapping of them."""

    classes: tuple[type[Model], ...] = ()
    named: bool = False

    def select_type(self, type_: object) -> AllowedKeys:
        """Of several classes that a `type` tells apart the one of this type; all, where none is."""
        if len(self.classes) < 2 or not all("type" in each.model_fields for each in self.classes):
            return self
        fitting = (each for each in self.classes if type_ in get_args(each.model_fields["type"].annotation))
        return AllowedKeys(tuple(fitting) or self.classes)

    def fields(self, key: str) -> list[FieldInfo]:
        """What the classes say of a key, of those that have it."""
        return [] if self.named else [c.model_fields[key] for c in self.classes if key in c.model_fields]

    def keys_below(self, key: str) -> AllowedKeys:
        """What the mapping under a key may say."""
        if self.named:
            return AllowedKeys(self.classes)
        fields = self.fields(key)
        if any(Mark.LAYERS in field.metadata for field in fields):
            return AllowedKeys((LayerKeys,), named=True)
        return AllowedKeys(
            tuple(dict.fromkeys(c for f in fields for c in models_of(f.annotation) if issubclass(c, Model)))
        )

    @property
    def order(self) -> tuple[str, ...]:
        """The keys as they stand in a text; names have no order."""
        if self.named:
            return ()
        keys = dict.fromkeys(key for c in self.classes for key in c.key_order())
        return tuple(sorted(keys, key=lambda key: any(Mark.LAST in field.metadata for field in self.fields(key))))


DOCUMENT = AllowedKeys((Document,))


def norms_inside(part: type[Model]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The norms inside a part, each with the keys that it takes over from the layer's norm."""
    for key in part.model_fields:
        fields = [field for c in AllowedKeys((part,)).keys_below(key).classes for field in c.model_fields.items()]
        if taken := tuple(name for name, field in fields if Mark.OF_NORM in field.metadata):
            yield key, taken


def models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    """The classes in a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_of(inner)
