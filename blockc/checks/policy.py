"""A policy: bounds that a team sets for all its specs, in a file that is read as strictly as a spec.

policy: 1
parameters: {min: 1e9, max: 9e9}
kv_bytes_per_token: {max: 128KiB, dtype: bf16}
memory: {context: 8192, batch: 8, dtype: bf16, devices: 2, device_memory: 80GB}
head_dims: [64, 128]
weights: {max: 5GB, dtype: fp16, quant: int4}
placements: [pre, sandwich]
expect: [parameters, kv_values_per_token]

Every key except the first is optional. A breach is an error at the key of the spec that causes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ValidationError
from pydantic_core import PydanticCustomError

from blockc.basics.errors import UsageError
from blockc.basics.floats import BYTES, FloatType, StorageType
from blockc.checks.advice import describe_parts, has_key
from blockc.diagnostics.figures import (
    POLICY_EXPECT,
    POLICY_HEAD_DIM,
    POLICY_KV,
    POLICY_MEMORY,
    POLICY_PARAMETERS,
    POLICY_PLACEMENT,
    POLICY_WEIGHTS,
)
from blockc.graph.quant import WORDS, parse_quant
from blockc.language.algebra import Chain, Leaf, Residual, Scaled, Term
from blockc.language.parts import Attention, Model
from blockc.language.spec import PLACEMENTS, Bounds
from blockc.language.spec.faults import from_pydantic, value_place
from blockc.language.spec.keys import Placement, Positive
from blockc.pipeline.compiled import Compiled
from blockc.report.expect import sum_of_cache, sum_of_parameters
from blockc.report.figures import count_parameters
from blockc.report.graph import Graph
from blockc.report.memory import bytes_per_token, measure_activations, measure_cache
from blockc.report.sizes import SIZE, parse_size
from blockc.source import (
    Finding,
    MappingNode,
    Place,
    SpecError,
    Tree,
    escape_text,
    finding,
    key_place,
    parse,
    read_bytes,
    to_plain,
)


def _read_size(value: object) -> object:
    """80GB as bytes; a number is bytes."""
    if not isinstance(value, str):
        return value
    try:
        return parse_size(value)
    except ValueError:
        raise PydanticCustomError("size", SIZE) from None


def _require_items(listed: list[Any]) -> list[Any]:
    if not listed:
        raise PydanticCustomError("no_item", "at least one")
    return listed


Size = Annotated[Positive, BeforeValidator(_read_size)]
_SOME = AfterValidator(_require_items)


class CacheBound(Model):
    max: Size
    dtype: StorageType


class MemoryBound(Model):
    """A server with `devices` of `device_memory` each. The context is the spec's where that is less, or by default."""

    context: Positive | None = None
    batch: Positive
    dtype: StorageType
    devices: Positive
    device_memory: Size


def _check_recipe(word: str) -> str:
    try:
        parse_quant(word)
    except UsageError:
        raise PydanticCustomError("recipe", WORDS) from None
    return word


class WeightsBound(Model):
    """All parameters in `dtype`; with a recipe of quantising, what it does not quantise is in `dtype`."""

    max: Size
    dtype: FloatType
    quant: Annotated[str, AfterValidator(_check_recipe)] | None = None


class PolicyKeys(Model):
    policy: Literal[1]
    parameters: Bounds | None = None
    kv_bytes_per_token: CacheBound | None = None
    memory: MemoryBound | None = None
    weights: WeightsBound | None = None
    head_dims: Annotated[list[Positive], _SOME] | None = None
    placements: Annotated[list[Placement], _SOME] | None = None
    expect: (
        Annotated[list[Literal["parameters", "active_parameters", "kv_values_per_token", "layers"]], _SOME] | None
    ) = None


@dataclass(frozen=True)
class Policy:
    """The bounds, and where each is written."""

    keys: PolicyKeys
    tree: MappingNode

    def __repr__(self) -> str:
        bounds = ", ".join(sorted(self.keys.model_fields_set - {"policy"}))
        return f"<Policy {escape_text(self.tree.place.file)}: {bounds}>"

    def place(self, *path: str) -> tuple[str, Place]:
        """The policy's place, which a finding names beside its own."""
        return "the policy", key_place(self.tree, path)

    def breaches(self, model: Compiled) -> list[Finding]:
        """A finding for each bound that a valid spec breaks."""
        graph = Graph(model.function, model.decoder.kinds)
        found = (
            *self._parameters(model, graph),
            *self._kv(model, graph),
            *self._memory(model, graph),
            *self._weights(model, graph),
            *self._head_dims(model),
            *self._placements(model),
            *self._expect(model),
        )
        return list(dict.fromkeys(found))  # kinds of layers inherit keys, and so the same breaches

    def _parameters(self, model: Compiled, graph: Graph) -> Iterator[Finding]:
        bounds, counted = self.keys.parameters, count_parameters(graph)
        if bounds is None or bounds.hold(counted.total):
            return
        bound = "min" if bounds.min is not None and counted.total < bounds.min else "max"
        yield finding(
            POLICY_PARAMETERS,
            value_place(model.spec.tree, ("width",)),
            f"the model has {counted.total:,} parameters",
            expected=str(bounds),
            got=str(counted.total),
            hint=f"computed as {sum_of_parameters(counted, Counter(graph.kinds))}",
            others=[self.place("parameters", bound)],
        )

    def _kv(self, model: Compiled, graph: Graph) -> Iterator[Finding]:
        bound = self.keys.kv_bytes_per_token
        if bound is None or (grows := bytes_per_token(graph, BYTES[bound.dtype])) <= bound.max:
            return
        yield finding(
            POLICY_KV,
            _kv_place(model),
            f"a token keeps {grows:,} bytes in {bound.dtype}",
            expected=f"at most {bound.max:,}",
            got=str(grows),
            hint=f"computed as {BYTES[bound.dtype]} bytes x ({sum_of_cache(graph)})",
            others=[self.place("kv_bytes_per_token", "max")],
        )

    def _memory(self, model: Compiled, graph: Graph) -> Iterator[Finding]:
        bound = self.keys.memory
        if bound is None:
            return
        number, context = BYTES[bound.dtype], min(bound.context or model.decoder.context, model.decoder.context)
        needed = {
            "weights": count_parameters(graph).total * number,
            "cache": measure_cache(graph, number, context, bound.batch).bytes.kept_by_graph,
            "activations": measure_activations(graph, number, context, bound.batch).peak,
        }
        total, there = sum(needed.values()), bound.devices * bound.device_memory
        if total <= there:
            return
        by_cache = needed["cache"] == max(needed.values())
        yield finding(
            POLICY_MEMORY,
            _kv_place(model) if by_cache else value_place(model.spec.tree, ("width",)),
            f"{bound.batch} x {context} tokens in {bound.dtype} need {total:,} bytes",
            expected=f"at most {there:,}: {bound.devices} x {bound.device_memory:,}",
            got=str(total),
            hint="computed as " + " + ".join(f"{name} {size:,}" for name, size in needed.items()),
            others=[self.place("memory")],
        )

    def _weights(self, model: Compiled, graph: Graph) -> Iterator[Finding]:
        bound = self.keys.weights
        if bound is None:
            return
        if bound.quant is None:
            size = count_parameters(graph).total * BYTES[bound.dtype]
            said = f"{count_parameters(graph).total:,} parameters of {BYTES[bound.dtype]} bytes"
        else:
            storage = model.storage(parse_quant(bound.quant), bound.dtype)
            size, said = storage.bytes, " + ".join(f"{each.how} {each.bytes:,}" for each in storage.stored)
        if size <= bound.max:
            return
        yield finding(
            POLICY_WEIGHTS,
            value_place(model.spec.tree, ("width",)),
            f"the weights {'' if bound.quant is None else f'by the recipe {bound.quant} '}take {size:,} bytes",
            expected=f"at most {bound.max:,}",
            got=str(size),
            hint=f"computed as {said}",
            others=[self.place("weights", "max")],
        )

    def _head_dims(self, model: Compiled) -> Iterator[Finding]:
        for name, part, read in describe_parts(model) if self.keys.head_dims else ():
            if isinstance(part, Attention) and part.key_dim not in (self.keys.head_dims or ()):
                yield finding(
                    POLICY_HEAD_DIM,
                    value_place(read, (_first_key(read, "latent", "head_dim"),)),
                    f"{name} has heads of {part.key_dim}",
                    expected=_one_of(self.keys.head_dims or ()),
                    got=str(part.key_dim),
                    others=[self.place("head_dims")],
                )

    def _placements(self, model: Compiled) -> Iterator[Finding]:
        terms = dict(zip(model.decoder.kinds, model.decoder.layers, strict=True))
        for layer in model.spec.distinct if self.keys.placements else ():
            said = _plain_term(terms[layer.kind])
            word = next((word for word, term in PLACEMENTS.items() if term == said), None)
            if word in (self.keys.placements or ()):
                continue
            path = ("block",) if layer.keys.block is not None else ("norm", "placement")
            yield finding(
                POLICY_PLACEMENT,
                value_place(layer.tree, path),
                f"norms are placed as in {word}" if word else "a block that matches no placement",
                expected=_one_of(self.keys.placements or ()),
                got=word or "a block",
                others=[self.place("placements")],
            )

    def _expect(self, model: Compiled) -> Iterator[Finding]:
        said = model.spec.top.expect.model_fields_set if model.spec.top.expect else ()
        for key in self.keys.expect or ():
            if key not in said:
                place = key_place(model.spec.tree, ("expect",))
                message = f"expect has no {key}"
                yield finding(POLICY_EXPECT, place, message, expected=f"expect.{key}", others=[self.place("expect")])


def _kv_place(model: Compiled) -> Place:
    """The place of the key that sets the widest keys and values of a layer."""
    mixers = [(part, read) for _, part, read in describe_parts(model) if isinstance(part, Attention)]
    if not mixers:
        return value_place(model.spec.tree, ("width",))
    _, read = max(mixers, key=lambda each: _kept_width(each[0]))
    return value_place(read, (_first_key(read, "latent", "kv_heads"),))


def _kept_width(part: Attention) -> int:
    """Numbers that a cache keeps of a token's keys, and more of its values or latent."""
    return part.latent.kv_rank if part.latent else (part.kv_heads or 0) * (part.head_dim or 0)


def _first_key(read: Tree, *keys: str) -> str:
    """The first of these keys that is said, else that of all heads."""
    return next((key for key in keys if has_key(read, key)), "heads")


def _plain_term(term: Term) -> Any:
    """A term as the lists and mappings of a spec, without the factors of its branches."""
    match term:
        case Leaf():
            return term.label
        case Chain():
            return [_plain_term(inner) for inner in term.terms if not isinstance(inner, Scaled)]
        case Residual():
            return {"residual": _plain_term(term.body)}
        case Scaled():
            return {"scale": term.factor}
        case _:
            return {"sum": [_plain_term(branch) for branch in term.branches]}


def _one_of(words: list[int] | list[Placement] | tuple[()]) -> str:
    return ("one of " if len(words) > 1 else "") + ", ".join(map(str, words))


def read_policy(data: bytes, file: str) -> Policy:
    """Reads a policy. Raises SpecError with everything that is wrong."""
    tree = parse(data, file)
    try:
        return Policy(PolicyKeys.model_validate(to_plain(tree)), tree)
    except ValidationError as error:
        found = from_pydantic(error, PolicyKeys, tree)
        raise SpecError(sorted(found, key=lambda each: (each.place.line, each.place.column))) from None


def load_policy(path: Path | str) -> Policy:
    return read_policy(read_bytes(path), str(path))
