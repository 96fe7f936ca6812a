"""A language model inside a model of images or sound: how its tensors are named there, and whose the others are.

One data file, layouts/wrapped/language-models.yaml, holds for the layouts of all families.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blockc.basics.errors import shorten
from blockc.layouts import LayoutError
from blockc.source import parse, to_plain

FILE = "layouts/wrapped/language-models.yaml"


@dataclass(frozen=True)
class Spelling:
    """How a file spells the names of a layout: those that begin with `old` begin with `new` there.

    Those that end with the second of a pair of `ends` end with the first.
    """

    old: str = ""
    new: str = ""
    wrapped: bool = False
    ends: tuple[tuple[str, str], ...] = ()

    def __call__(self, name: str) -> str:
        begun = self.new + name.removeprefix(self.old) if name.startswith(self.old) else name
        end = next(((older, now) for older, now in self.ends if begun.endswith(now)), ("", ""))
        return begun.removesuffix(end[1]) + end[0]


class _FileModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Renaming(_FileModel):
    old: str = Field(alias="from", pattern=r"^[a-z_.]*$")
    new: str = Field(alias="to", pattern=r"^[a-z_.]+$")


class Wrapper(_FileModel):
    wrapper: Literal[1]
    language: list[_Renaming]
    towers: Mapping[str, str]

    @property
    def spellings(self) -> tuple[Spelling, ...]:
        return tuple(Spelling(each.old, each.new, True) for each in self.language)

    def towers_of(self, names: Iterable[str]) -> dict[str, str]:
        """{tensor: tower} for the tensors that belong to a tower."""
        words = "|".join(map(re.escape, self.towers))
        found = ((name, re.match(rf"(?:model\.)?({words})(?:\.|$)", name)) for name in names)
        return {name: tower[1] for name, tower in found if tower}


@cache
def load_wrapper() -> Wrapper:
    tree = parse(files("blockc").joinpath(*FILE.split("/")).read_bytes(), FILE)
    try:
        return Wrapper.model_validate(to_plain(tree))
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise LayoutError("\n  ".join([f"{FILE} is not one:", *shorten(faults)])) from None
