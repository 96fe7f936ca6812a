"""What the keys of a GGUF file's metadata mean: one data file, gguf/metadata.yaml, read strictly."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from blockc.basics.errors import shorten
from blockc.layouts import LayoutError
from blockc.source import parse, to_plain
from blockc.weights.gguf.figures import OF_LAYERS, OF_MODEL

# Facts that are computed from several keys at once: blockc/weights/gguf/metadata.py has their rules.
GROUPED = ("context", "attention.window", "attention.rope.theta", "attention.rope.dims", "attention.rope.scaling")
FILE = "weights/gguf/metadata.yaml"


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Architecture(_StrictModel):
    facts: Mapping[str, bool | str | None] = {}
    compared: Mapping[str, str] = {}
    rope: bool = True
    every: int | None = None
    local_rope_scaled: bool = True


class MetadataKeys(_StrictModel):
    metadata: Literal[1]
    compared: Mapping[str, str]
    zero: Mapping[str, Literal["none", "unsaid"]]
    only: Mapping[str, list[bool | int]]
    without_effect: Mapping[str, str]
    facts: Mapping[str, bool | str | None]
    architectures: Mapping[str, Architecture]

    @model_validator(mode="after")
    def _each_key_means_one_thing(self) -> MetadataKeys:
        lists = (self.compared, self.only, self.without_effect)
        twice = [key for key in self.compared if any(key in other for other in lists[1:])]
        twice += [key for key in self.only if key in self.without_effect]
        known = {*OF_MODEL, *OF_LAYERS, *GROUPED}
        of_architectures = [(self.facts, a.compared.values(), a.facts) for a in self.architectures.values()]
        facts = {*self.compared.values(), *(fact for each in of_architectures for some in each for fact in some)}
        if twice or facts - known or self.zero.keys() - self.compared.keys():
            raise ValueError(f"twice: {twice}, unknown facts: {sorted(facts - known)}, zero of what is not compared")
        return self

    def knows(self, architecture: str, key: str) -> bool:
        lists = (self.architectures[architecture].compared, self.compared, self.without_effect)
        return any(key in each for each in lists) or self.harmless(key) is not None

    def harmless(self, key: str) -> tuple[bool | int, ...] | None:
        """The values with which a key has no effect; None for a key that is not listed so."""
        for name, values in self.only.items():
            if key == name or (name.endswith(".*") and key.startswith(name[:-1])):
                return tuple(values)
        return None


@cache
def metadata_keys() -> MetadataKeys:
    tree = parse(files("blockc").joinpath(*FILE.split("/")).read_bytes(), FILE)
    try:
        return MetadataKeys.model_validate(to_plain(tree))
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise LayoutError("\n  ".join([f"{FILE} is not one:", *shorten(faults)])) from None


def fact_name(fact: str) -> str:
    """The name of a fact in messages: norm.eps for either kind of norm."""
    return re.sub(" of (rms|layer)$", "", fact)
