"""How a pass makes parameters: each is a function of others, whose numbers a checkpoint or a proof has.

A pass names the sources by the parameters of the function that it takes (`PassResult`). Along a recipe derivations
compose: each parameter of the last function is one of the first's, or a term over them. Whoever wants its numbers
says how a parameter of the first is read: `Derivation.evaluate` is the only evaluator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np

from blockc.basics.blocks import Blocks
from blockc.ir.nodes import Function
from blockc.ir.op import Array, expect
from blockc.ir.types import Param


@dataclass(frozen=True)
class Derivation:
    """A parameter as a function of `sources`: paths of parameters, or derivations of them."""

    sources: tuple[str | Derivation, ...]

    def param(self, name: str, *sources: Param) -> Param:
        """The parameter that it makes of such sources. Raises GraphError where they do not fit."""
        raise NotImplementedError

    def numpy(self, *sources: Array) -> Array:
        raise NotImplementedError

    def invert(self, held: Array, *sources: Array) -> tuple[Array, ...]:
        """Sources from which `numpy` gives `held`; numbers that it does not read stay as they are in `sources`."""
        raise NotImplementedError

    def round_sources(self, *sources: Array) -> tuple[Array, ...]:
        """The sources as the stored numbers represent them: the same arrays, unless digits are lost."""
        return sources

    @property
    def is_lossy(self) -> bool:
        """Whether it, or one of its sources, loses digits, as quantising does."""
        return any(source.is_lossy for source in self.sources if not isinstance(source, str))

    @property
    def leaves(self) -> tuple[str, ...]:
        """The paths of parameters that the whole term reads, each once."""
        return tuple(dict.fromkeys(self._leaves()))

    def _leaves(self) -> Iterator[str]:
        for source in self.sources:
            yield from (source,) if isinstance(source, str) else source._leaves()

    def compose(self, earlier: Derivations) -> Derivation:
        """The same derivation with each source that is itself derived replaced by its own derivation."""
        made = (earlier.get(s, s) if isinstance(s, str) else s.compose(earlier) for s in self.sources)
        return replace(self, sources=tuple(made))

    def param_of(self, name: str, params: Mapping[str, Param]) -> Param:
        """The parameter that it makes of these parameters, by path."""
        return self.param(name, *(params[s] if isinstance(s, str) else s.param_of(name, params) for s in self.sources))

    def evaluate(self, read: Callable[[str], Array]) -> Array:
        """Its numbers; `read` gives those of a path."""
        return self.numpy(*(read(s) if isinstance(s, str) else s.evaluate(read) for s in self.sources))


Derivations = Mapping[str, Derivation]  # by path


def add_derived(params: Mapping[str, Array], derivations: Derivations) -> dict[str, Array]:
    """The parameters, with those that are derived from them added."""
    return {**params, **{path: derivation.evaluate(params.__getitem__) for path, derivation in derivations.items()}}


def round_params(params: Mapping[str, Array], derivations: Iterable[Derivation]) -> dict[str, Array]:
    """The parameters as these derivations represent them: a quantised graph is compared on these."""
    held = dict(params)
    for each in derivations:
        _round(each, params, held)
    return held


def _round(derivation: Derivation, params: Mapping[str, Array], held: dict[str, Array]) -> None:
    values = tuple(_value_of(source, params) for source in derivation.sources)
    for source, value, rounded in zip(derivation.sources, values, derivation.round_sources(*values), strict=True):
        if not isinstance(source, str):
            _round(source, params, held)
        if rounded is not value:
            _set_source(source, rounded, held)


def _set_source(source: str | Derivation, value: Array, held: dict[str, Array]) -> None:
    if isinstance(source, str):
        held[source] = value
        return
    now = (_value_of(inner, held) for inner in source.sources)
    for inner, part in zip(source.sources, source.invert(value, *now), strict=True):
        _set_source(inner, part, held)


def _value_of(source: str | Derivation, params: Mapping[str, Array]) -> Array:
    return params[source] if isinstance(source, str) else source.evaluate(params.__getitem__)


@dataclass(frozen=True)
class Join(Derivation):
    """y = [x1; x2; ...] along `axis`: rows one after another."""

    axis: int = 0

    @property
    def byte_sources(self) -> tuple[str, ...]:
        """The parameters whose bytes, one after another, are its own; empty where it must be computed."""
        paths = tuple(source for source in self.sources if isinstance(source, str))
        return paths if self.axis == 0 and len(paths) == len(self.sources) else ()

    def param(self, name: str, *sources: Param) -> Param:
        _check_alike(name, self.axis, sources)
        return _resize_axis(sources[0], name, self.axis, sum(source.shape[self.axis] for source in sources))

    def numpy(self, *sources: Array) -> Array:
        return np.concatenate(sources, self.axis)

    def invert(self, held: Array, *sources: Array) -> tuple[Array, ...]:
        ends = np.cumsum([source.shape[self.axis] for source in sources])
        return tuple(np.split(held, ends[:-1], self.axis))


@dataclass(frozen=True)
class Slice(Derivation):
    """y = x[start:stop] along `axis`."""

    start: int
    stop: int
    axis: int = 0

    def param(self, name: str, *sources: Param) -> Param:
        (x,) = sources
        expect(0 <= self.start < self.stop <= x.shape[self.axis], f"{name}: a slice of {x.name}",
               f"within {x.shape[self.axis]}", f"{self.start}:{self.stop}")  # fmt: skip
        return _resize_axis(x, name, self.axis, self.stop - self.start)

    def numpy(self, *sources: Array) -> Array:
        return sources[0].take(range(self.start, self.stop), self.axis)

    def invert(self, held: Array, *sources: Array) -> tuple[Array, ...]:
        whole = sources[0].copy()
        whole.swapaxes(0, self.axis)[self.start : self.stop] = held.swapaxes(0, self.axis)
        return (whole,)


@dataclass(frozen=True)
class Permute(Derivation):
    """y[i] = x[index[i]] along `axis`, index a permutation."""

    index: tuple[int, ...] = field(repr=False)
    axis: int = 0

    def param(self, name: str, *sources: Param) -> Param:
        (x,) = sources
        whole = sorted(self.index) == list(range(x.shape[self.axis]))
        expect(whole, f"{name}: the index of {x.name}", f"each of {x.shape[self.axis]} rows once", "another")
        return replace(x, name=name)

    def numpy(self, *sources: Array) -> Array:
        return sources[0].take(self.index, self.axis)

    def invert(self, held: Array, *sources: Array) -> tuple[Array, ...]:
        return (held.take(np.argsort(self.index), self.axis),)


@dataclass(frozen=True)
class Transpose(Derivation):
    """y = x^T, of a matrix."""

    def param(self, name: str, *sources: Param) -> Param:
        (x,) = sources
        expect(len(x.shape) == 2, f"{name}: what is transposed", "a matrix", x.shape)
        return replace(x, name=name, shape=x.shape[::-1])

    def numpy(self, *sources: Array) -> Array:
        return sources[0].T

    def invert(self, held: Array, *sources: Array) -> tuple[Array, ...]:
        return (held.T,)


@dataclass(frozen=True)
class Interleave(Derivation):
    """y[n i + k] = xk[i] along `axis`: rows of n tensors taken in turn."""

    axis: int = 0

    def param(self, name: str, *sources: Param) -> Param:
        _check_alike(name, self.axis, sources)
        sizes = {source.shape[self.axis] for source in sources}
        expect(len(sizes) == 1, f"{name}: rows of what is interleaved", "as many of each", sorted(sizes))
        return _resize_axis(sources[0], name, self.axis, sizes.pop() * len(sources))

    def numpy(self, *sources: Array) -> Array:
        stacked = np.stack(sources, self.axis + 1)
        return stacked.reshape(*stacked.shape[: self.axis], -1, *stacked.shape[self.axis + 2 :])

    def invert(self, held: Array, *sources: Array) -> tuple[Array, ...]:
        turns = range(len(sources))
        return tuple(held.take(range(k, held.shape[self.axis], len(sources)), self.axis) for k in turns)


@dataclass(frozen=True)
class Reshape(Derivation):
    """y = x in another shape of as many numbers, whose bytes are x's."""

    shape: tuple[int, ...]

    def param(self, name: str, *sources: Param) -> Param:
        (x,) = sources
        made = replace(x, name=name, shape=self.shape)
        expect(made.size == x.size, f"{name}: the shape of {x.name}", f"as many numbers as {x.shape}", self.shape)
        return made

    def numpy(self, *sources: Array) -> Array:
        return sources[0].reshape(self.shape)

    def invert(self, held: Array, *sources: Array) -> tuple[Array, ...]:
        return (held.reshape(sources[0].shape),)


@dataclass(frozen=True)
class Quantise(Derivation):
    """One of the tensors that stand for x in blocks: codes (..., blocks, bytes), scales and lows (..., blocks).

    The scales here are the plain ones of `Blocks.scales`, in float64. Whoever packs weights may choose better ones:
    the graph is the same.
    """

    tensor: Literal["codes", "scales", "lows"]
    blocks: Blocks

    def param(self, name: str, *sources: Param) -> Param:
        (x,) = sources
        last = (self.blocks.bytes,) if self.tensor == "codes" else ()
        shape = (*x.shape[:-1], self.blocks.count(x.shape[-1]), *last)
        return replace(x, name=name, shape=shape, dtype="uint8" if self.tensor == "codes" else x.dtype, buffer=True)

    def numpy(self, *sources: Array) -> Array:
        x, scales, lows = self._scaled(sources[0])
        if self.tensor == "codes":
            return self.blocks.pack(self.blocks.codes(x, scales, lows))
        return scales if self.tensor == "scales" or lows is None else lows

    def round_sources(self, *sources: Array) -> tuple[Array, ...]:
        x, scales, lows = self._scaled(sources[0])
        codes = self.blocks.pack(self.blocks.codes(x, scales, lows))
        return (self.blocks.restore(codes, scales, lows, sources[0].shape[-1]),)

    @property
    def is_lossy(self) -> bool:
        return True

    def _scaled(self, x: Array) -> tuple[Array, Array, Array | None]:
        x = self.blocks.split(np.asarray(x, np.float64))
        return x, *self.blocks.scales(x)


def _check_alike(name: str, axis: int, sources: tuple[Param, ...]) -> None:
    others = {(s.dtype, s.buffer, s.shape[:axis], s.shape[axis + 1 :]) for s in sources}
    shapes = " and ".join(str(s.shape) for s in sources)
    expect(len(others) == 1, f"{name}: what it is made of", f"alike but along axis {axis}", shapes)


def _resize_axis(param: Param, name: str, axis: int, size: int) -> Param:
    return replace(param, name=name, shape=(*param.shape[:axis], size, *param.shape[axis + 1 :]))


@dataclass(frozen=True)
class SkippedNode:
    """A node that a pass did not rewrite, and why."""

    node: str
    reason: str


@dataclass(frozen=True)
class PassResult:
    """The result of a pass: a function, and for each parameter that the pass made, its derivation.

    `skipped` lists the nodes that it could have rewritten and did not, each with the reason.
    """

    function: Function
    derived: Derivations = field(default_factory=dict[str, Derivation])
    skipped: tuple[SkippedNode, ...] = ()


class Pass(Protocol):
    """Function to function. Hashable, so that the common beginning of two recipes runs once."""

    def __call__(self, function: Function, /) -> PassResult: ...

    def __hash__(self) -> int: ...
