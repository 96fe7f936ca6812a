"""Valid specs by chance: every backend computes what the oracle does, in every case of the proof."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import assume, given

from blockc.diff import Side, diff
from blockc.graph import interp
from blockc.graph.shrink import shrink
from blockc.ir import Array, parameters_of
from blockc.language.algebra import canonical_form
from blockc.language.spec import from_tree
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.proof import prove
from blockc.proof.cases import sequences
from blockc.proof.comparison import TOLERANCE
from blockc.proof.matrix import SEED
from blockc.report import make_report
from blockc.source import parse
from blockc.weights.rules import random_parameters
from tests.fuzz.strategies import Keys, counted, specs, text

STEADY = TOLERANCE["float32"] / 6


def made(spec: Keys | str) -> Compiled:
    return compile_spec(from_tree(parse(spec if isinstance(spec, str) else text(spec), "fuzz.yaml")))


def unsteadiness(model: Compiled) -> float:
    """How far the logits move, in their spread, when each parameter moves by one rounding of fp32.

    Chains without residuals, and scores without bound, multiply what a rounding does: there no two backends can agree.
    """
    params = random_parameters(model.function, SEED)
    signs = random_parameters(model.function, 5)
    moved = {path: array * (1 + np.sign(signs[path]) * 2.0**-24) for path, array in params.items()}
    ids = sequences(model.spec.top.vocab)[0][None]
    before, after = (logits(model, each, ids) for each in (params, moved))
    return float(np.abs(before - after).max() / before.std())


@counted(6, shrink=False)
@given(specs())
def test_every_backend_computes_what_the_oracle_does(spec: Keys) -> None:
    torch.set_num_threads(1)  # the models are too small for more
    model = made(spec)
    assume(unsteadiness(model) < STEADY)
    proof = prove(model)
    assert proof.complete, f"{text(spec)}\n{proof.table()}"


@counted(15, shrink=False)
@given(specs())
def test_what_a_spec_means_is_kept(spec: Keys) -> None:
    model = made(spec)
    again = made(model.resolved_yaml())
    assert again.decoder.semantic_hash == model.decoder.semantic_hash, text(spec)
    assert parameters_of(again.function) == parameters_of(model.function)
    assert canonical_form(again.decoder) == canonical_form(model.decoder)
    twin = compile_spec(shrink(model.spec))
    assert twin.function.causal == model.function.causal
    figures = make_report(model.spec, model.decoder, model.function)
    assert figures.parameters.total == sum(param.size for param in parameters_of(model.function).values())
    assert not diff(Side("a", b"", model), Side("b", b"", again)).changes


@counted(10, shrink=False)
@given(specs())
def test_no_output_depends_on_a_later_token(spec: Keys) -> None:
    model = made(spec)
    if not model.function.causal:
        return
    params = random_parameters(model.function, 1)
    ids = np.arange(6)[None] % model.spec.top.vocab
    for j in (0, 3, 5):
        other = ids.copy()
        other[0, j] = (other[0, j] + 1) % model.spec.top.vocab
        before, after = (logits(model, params, each) for each in (ids, other))
        assert np.array_equal(before[:, :j], after[:, :j]), text(spec)


def logits(model: Compiled, params: dict[str, Array], ids: Array) -> Array:
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(ids.shape[1])[None]}
    return interp.interpret(model.function, inputs, params)["logits"]


@counted(8, shrink=False)
@given(specs(), specs())
def test_two_specs_are_compared(a: Keys, b: Keys) -> None:
    one, other = made(a), made(b)
    found = diff(Side("a", text(a).encode(), one), Side("b", text(b).encode(), other))
    same = one.decoder.semantic_hash == other.decoder.semantic_hash
    assert set(found.classes) <= {"SOURCE"} if same else set(found.classes) - {"SOURCE"}, f"{text(a)}\n{text(b)}"
