"""The bytes of a model's weights where a recipe of quantising says how each matrix is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from blockc.basics.floats import INTEGERS, FloatType, float_of, format_of
from blockc.ir import Function, Node, Param, parameters_of
from blockc.ir.derive import Derivation, PassResult, Quantise


@dataclass(frozen=True)
class Stored:
    """The tensors of a model that are stored in one way: how many, the numbers that they hold, and their bytes.

    In floats a tensor is its `numbers` alone, whose bytes are `plain`.
    """

    how: str  # int4:32, or a float type
    tensors: int = 0
    numbers: int = 0
    codes: int = 0
    scales: int = 0
    lows: int = 0
    plain: int = 0

    @property
    def bytes(self) -> int:
        return self.codes + self.scales + self.lows + self.plain

    def plus(self, tensor: str, size: int, numbers: int) -> Stored:
        """With one more tensor. `numbers` are those of the model, which a matrix's codes count."""
        more = {tensor: getattr(self, tensor) + size}
        return replace(self, tensors=self.tensors + (numbers > 0), numbers=self.numbers + numbers, **more)


@dataclass(frozen=True)
class Storage:
    """The bytes of all weights by a recipe, and those that a decode step reads: all but tables that it looks up in."""

    recipe: str
    stored: tuple[Stored, ...]
    read: int

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.stored)

    def json(self) -> dict[str, Any]:
        stored = [{**asdict(each), "bytes": each.bytes} for each in self.stored]
        return {"recipe": self.recipe, "bytes": self.bytes, "read_in_a_step": self.read, "stored": stored}

    @property
    def lines(self) -> list[str]:
        """A line for each way to store, and one for all."""
        lines = [f"{each.how}: {each.tensors:,} tensors, {_bytes_text(each)}" for each in self.stored]
        return [*lines, f"{self.recipe}: {self.bytes:,} bytes of weights, {self.read:,} of them read in a decode step"]


def _bytes_text(each: Stored) -> str:
    if each.plain:
        return f"{each.plain:,} bytes"
    parts = {"codes": each.codes, "scales": each.scales, "lows": each.lows}
    said = " + ".join(f"{name} {size:,}" for name, size in parts.items() if size)
    return f"{each.bytes:,} bytes ({said}), {8 * each.bytes / each.numbers:.4g} bits a number"


def measure_storage(
    recipe: str, function: Function, made: PassResult, dtype: FloatType, looks_up: Callable[[Node], bool]
) -> Storage:
    """`function` is the model's own, `made` the flat one whose matrices are quantised.

    `looks_up`: whether a node reads single rows of its matrix.
    """
    own, held = parameters_of(function), parameters_of(made.function)
    found: dict[str, Stored] = {}
    known: set[Quantise] = set()
    for path, param in held.items():
        size, term = _bytes_of(param, dtype), _find_quantised(made.derived.get(path))
        if term is None:
            how = param.dtype if param.dtype in INTEGERS else float_of(param.dtype, dtype)
            found[how] = found.get(how, Stored(how)).plus("plain", size, param.size)
        elif term not in known:  # another shape of the same bytes counts once
            known.add(term)
            how, numbers = str(term.blocks), _source_of(term, own).size if term.tensor == "codes" else 0
            found[how] = found.get(how, Stored(how)).plus(term.tensor, size, numbers)
    read = {param for n in made.function.nodes if not looks_up(n) for param in n.params}
    ways = sorted(found.values(), key=lambda each: (each.plain > 0, -each.bytes))
    return Storage(recipe, tuple(ways), sum(_bytes_of(param, dtype) for param in read))


def _bytes_of(param: Param, dtype: FloatType) -> int:
    return format_of(param.dtype, dtype).size(param.size)


def _find_quantised(derivation: Derivation | None) -> Quantise | None:
    """The tensor in blocks that a parameter is, in its own shape or another; None for any other parameter."""
    while derivation is not None and not isinstance(derivation, Quantise):
        derivation = next((source for source in derivation.sources if not isinstance(source, str)), None)
    return derivation


def _source_of(term: Quantise, own: Mapping[str, Param]) -> Param:
    (source,) = term.sources
    return own[source] if isinstance(source, str) else source.param_of("", own)
