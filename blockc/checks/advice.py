"""Warnings about specs that are right but cost something. Each is placed at the key that causes it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from blockc.diagnostics.advice import FUSED_HEADS, NO_EXPECT, ROPE_COVERAGE, WIDTH
from blockc.language.algebra import leaves_of
from blockc.language.parts import Attention, Llama3, Mlp, Part, Yarn
from blockc.language.spec import key_of, read_own_part
from blockc.language.spec.faults import value_place
from blockc.ort.kernels import HEAD, TURNED
from blockc.pipeline.compiled import Compiled
from blockc.report.expect import known_figures
from blockc.report.graph import Graph
from blockc.source import Finding, Place, Tree, find, finding

TILE = 64  # the width of a matrix kernel's tile


def advice(model: Compiled, expectations: bool = True) -> list[Finding]:
    """The warnings for a right spec, each once, since kinds of layers inherit keys and so their warnings."""
    return list(dict.fromkeys((*_check_sizes(model), *(_check_expect(model) if expectations else ()))))


def _check_sizes(model: Compiled) -> Iterator[Finding]:
    top, tree = model.spec.top, model.spec.tree
    if top.width >= TILE:  # smaller models are for study, not speed
        yield from _check_tile(top.width, "width", value_place(tree, ("width",)))
    context = value_place(tree, ("context",))
    for name, part, read in describe_parts(model):
        if isinstance(part, Mlp) and top.width >= TILE:
            yield from _check_tile(part.width, f"{name}.width", value_place(read, ("width",)))
        elif isinstance(part, Attention):
            yield from _check_heads(part, name, read) if top.width >= TILE else ()
            yield from _check_coverage(part, top.context, context, read) if not _is_published(model) else ()


def describe_parts(model: Compiled) -> Iterator[tuple[str, Part, Tree]]:
    """(The name of each part in the spec; the resolved part; the tree that it was read from)."""
    terms = dict(zip(model.decoder.kinds, model.decoder.layers, strict=True))
    for layer in model.spec.distinct:
        for leaf in leaves_of(terms[layer.kind]):
            if leaf.label in layer.keys.own_labels:
                own = read_own_part(layer, leaf.label)
                yield f"parts.{leaf.label}.{own.key}", leaf.part, own.tree
            elif key := key_of(leaf.label):
                yield key, leaf.part, find(layer.tree, (key,))


def _check_tile(width: int, name: str, place: Place) -> Iterator[Finding]:
    if width % TILE:
        below, above = width // TILE * TILE, -(-width // TILE) * TILE
        expected = f"{below} or {above}" if below else f"{above}"
        yield finding(WIDTH, place, f"{name} {width} is no multiple of {TILE}", expected=expected, got=str(width))


def _check_heads(part: Attention, name: str, read: Tree) -> Iterator[Finding]:
    """Warns of heads beyond the kernels' limits in blockc.ort.kernels."""
    head_dim, unit = part.head_dim or 0, TURNED if part.rope else HEAD
    turned = part.rope.width(head_dim) if part.rope else 0
    expected = f"a multiple of {unit}" + (" with rope" if part.rope else "")
    if head_dim % unit:
        place = value_place(read, ("head_dim",) if has_key(read, "head_dim") else ("heads",))
        message = f"{name}: no fused attention takes heads of {head_dim}"
        yield finding(FUSED_HEADS, place, message, expected=expected, got=str(head_dim))
    elif turned % unit:
        message = f"{name}.rope: no fused attention rotates {turned} of {head_dim}"
        yield finding(FUSED_HEADS, value_place(read, ("rope", "dims")), message, expected=expected, got=str(turned))


def has_key(read: Tree, key: str) -> bool:
    return find(read, (key,)) is not read


def is_beyond_scaling(model: Compiled) -> bool:
    """Whether the context is longer than the rope scaling of some attention covers."""
    parts = (part for _, part, _ in describe_parts(model))
    return any(
        isinstance(part, Attention) and _uncovered_scaling(part, model.spec.top.context) is not None for part in parts
    )


def _is_published(model: Compiled) -> bool:
    """Whether `expect` confirms the context, so that it is no mistake."""
    expect = model.spec.top.expect
    return expect is not None and expect.context == model.spec.top.context


def _uncovered_scaling(part: Attention, context: int) -> Llama3 | Yarn | None:
    """The rope scaling, if it does not cover the context; else None."""
    scaling = part.rope.scaling if part.rope else None
    if isinstance(scaling, Llama3 | Yarn) and scaling.factor * scaling.original < context:
        return scaling
    return None


def _check_coverage(part: Attention, context: int, place: Place, read: Tree) -> Iterator[Finding]:
    if (scaling := _uncovered_scaling(part, context)) is None:
        return
    covered = f"{scaling.factor * scaling.original:g}"
    yield finding(
        ROPE_COVERAGE,
        place,
        f"context {context} is beyond {covered}, which rope scaling covers: factor {scaling.factor:g} x original "
        f"{scaling.original}",
        expected=f"a context of at most {covered}, or a factor of {math.ceil(context / scaling.original)}",
        got=str(context),
        hint=f"where the model is published with it, say so: expect: {{context: {context}}}",
        others=[("the scaling", value_place(read, ("rope", "scaling")))],
    )


def _check_expect(model: Compiled) -> Iterator[Finding]:
    expect = model.spec.top.expect
    if expect is not None and expect.model_fields_set:
        return
    graph = Graph(model.function, model.decoder.kinds)
    figures = ", ".join(f"{key}: {number}" for key, number in known_figures(graph).items())
    yield finding(
        NO_EXPECT,
        model.spec.tree.place,
        "nothing is expected of the spec",
        expected="known figures, which are compared with the computed ones",
        hint=f"where these are what is meant: expect: {{{figures}}}",
    )
