"""Each placement, position scheme and activation is proved by two families: of one alone it may be a habit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import get_args

import numpy as np
import pytest

from blockc.graph.interp import interpret
from blockc.language.algebra import leaves_of
from blockc.language.parts import Attention
from blockc.language.parts.base import Model, Scope
from blockc.language.parts.mlp import Mlp
from blockc.language.parts.position import Learned, Sine
from blockc.language.parts.rope import Rope, Scaling
from blockc.language.spec import resolve_spec
from blockc.language.spec.keys import Placement
from blockc.pipeline.compiled import Compiled
from blockc.proof.cases import Case
from blockc.proof.comparison import TOLERANCE
from blockc.proof.runners import Onnx, Oracle, Runner
from blockc.weights.rules import random_parameters
from tests.ops.test_by_length import FAMILIES, SCALINGS
from tests.ops.test_by_length import model as by_length
from tests.proof.test_reference import VARIANTS, changed
from tests.reference import foreign, inner
from tests.reference.models import OUTSIDE, twin
from tests.spec_text import made

Proof = Callable[[foreign.Params], foreign.Logits]
FOREIGN: dict[str, tuple[str, Proof, float]] = {
    "xlm": (foreign.XLM, foreign.xlm, 5e-6),
    "biogpt": (foreign.BIOGPT, foreign.biogpt, 1e-11),
    "nanochat": (inner.NANOCHAT, inner.nanochat, 5e-6),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_the_logits_of_a_family_without_a_spec_come_out(name: str) -> None:
    text, outside, closeness = FOREIGN[name]
    model = made(text)
    params = random_parameters(model.function, seed=5)
    tokens = np.random.RandomState(6).randint(0, 39, (2, 16))
    truth = outside(params)(tokens)
    assert truth.std() > 0.5
    runners: list[tuple[Runner, float]] = [
        (Oracle(model.served), closeness),
        (Onnx(model.onnx(), model.served), TOLERANCE["float32"]),
    ]
    for runner, tolerance in runners:
        for chunks in ((16,), (7, 6, 1, 1, 1)):
            ours = runner.run(Case("", tuple(tokens), (0, 0), chunks), params).logits
            assert np.abs(ours - truth).max() < tolerance * truth.std(), (runner, chunks)


def test_the_clamped_gate_is_that_of_a_second_family() -> None:
    scope = Scope(24)
    mlp = Mlp(type="swiglu_clamped", width=56, limit=0.8, alpha=1.702)
    function = scope.close("Mlp", mlp.expand(scope, scope.x[0], "mlp", None), "").function
    params = random_parameters(function, seed=5)
    x = np.random.RandomState(6).standard_normal((2, 7, 24))
    wanted = foreign.minimax_mlp(params, x)
    assert np.abs(interpret(function, {"x": x}, params)["out"] - wanted).max() < 1e-12 * wanted.std()


def test_the_numbers_of_an_activation_are_those_of_a_second_family() -> None:
    scope = Scope(24)
    mlp = Mlp(type="xielu", width=56)
    function = scope.close("Mlp", mlp.expand(scope, scope.x[0], "mlp", None), "").function
    params = random_parameters(function, seed=5)
    x = np.random.RandomState(6).standard_normal((2, 7, 24))
    wanted = inner.xielu_mlp(params, x)
    assert np.abs(interpret(function, {"x": x}, params)["out"] - wanted).max() < 1e-12 * wanted.std()


def every() -> set[str]:
    """All that the language can say of the three."""
    scalings = {_type(scaling) for scaling in get_args(get_args(Scaling)[0])}
    pairings = get_args(Rope.model_fields["pairing"].annotation)
    return {
        *(f"placement {word}" for word in get_args(Placement)),
        *(f"mlp {word}" for word in get_args(Mlp.model_fields["type"].annotation)),
        *(f"rope {word}" for word in (*pairings, "dims", "pairs")),
        *(f"scaling {word}" for word in scalings),
        *(f"positions {_type(kind)}" for kind in (Learned, Sine)),
        "positions learned with an offset",
        "alibi",
        "a layer without rope among others",
    }


def _type(model: type[Model]) -> str:
    (word,) = get_args(model.model_fields["type"].annotation)
    return word


def words(model: Compiled) -> Iterator[str]:
    """What of it a model says."""
    norm = resolve_spec(model.spec).get("norm", {})
    if "placement" in norm:
        yield f"placement {norm['placement']}"
    if (positions := model.decoder.positions) is not None:
        yield f"positions {positions.type}"
        if isinstance(positions, Learned) and positions.offset:
            yield "positions learned with an offset"
    parts = [leaf.part for term in {id(t): t for t in model.decoder.layers}.values() for leaf in leaves_of(term)]
    attention = [part for part in parts if isinstance(part, Attention)]
    yield from (f"mlp {part.type}" for part in parts if isinstance(part, Mlp))
    yield from ("alibi" for part in attention if part.alibi)
    ropes = [part.rope for part in attention if part.rope]
    if 0 < len(ropes) < len(attention):
        yield "a layer without rope among others"
    for rope in ropes:
        yield f"rope {rope.pairing}"
        yield from (f"rope {key}" for key in ("dims", "pairs") if getattr(rope, key))
        yield from (f"scaling {rope.scaling.type}" for _ in (1,) if rope.scaling)


def test_every_word_is_proved_by_two_families() -> None:
    proved: dict[str, set[str]] = defaultdict(set)
    models = [(name, twin(name)) for name in OUTSIDE]
    models += [(name, by_length(kind, name)) for kind in SCALINGS for name in FAMILIES]
    models += [(name, changed(name, change)) for name, change, _ in VARIANTS.values()]
    for name, model in models:
        for word in words(model):
            proved[word].add(family(name, model))
    for name, (text, _, _) in FOREIGN.items():
        for word in words(made(text)):
            proved[word].add(name)
    for name in ("gpt-oss", "minimax-m3"):  # tests/proof/test_sinks.py, and above
        proved["mlp swiglu_clamped"].add(name)
    proved["mlp xielu"].add("gpt2")  # above
    assert not {word: proved[word] for word in every() if len(proved[word]) < 2}


def family(name: str, model: Compiled) -> str:
    """The library's type of model, or the name of the one that was written out."""
    outside = OUTSIDE[name]
    if outside.config is not None:
        return outside.config(resolve_spec(model.spec)).model_type
    assert outside.plain is not None
    return outside.plain.__name__


def test_what_is_counted_is_what_is_said() -> None:
    said = set(words(twin("llama3.1-405b")))
    assert {"placement pre", "mlp swiglu", "rope half", "scaling llama3"} <= said <= every()
    assert "rope pairs" not in set(words(twin("phi-2"))) and "rope dims" in set(words(twin("phi-2")))
    assert "a layer without rope among others" in set(words(twin("smollm3-3b")))
