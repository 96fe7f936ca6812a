"""Rope that goes by the length of the call: longrope with both lists, and dynamic.

A call of one length is what transformers computes, on both sides of the original length. Across it a cache holds what
was turned otherwise, so that cached and uncached differ by definition, and a session reads anew or refuses to go on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from blockc import api
from blockc.graph import interp
from blockc.graph.shrink import shrink
from blockc.graph.target import Target
from blockc.ir import Array, GraphError
from blockc.ir.reach import Constant, Leaks, Length, Places, Tokens
from blockc.language.parts.twin import LENGTH
from blockc.ops import Longest, RotaryTable
from blockc.passes import verify_graph
from blockc.pipeline.compiled import PORTABLE, Compiled, compile_spec
from blockc.products.folder import FolderError, product_inputs
from blockc.products.genai import context_of
from blockc.proof.cases import Case
from blockc.proof.comparison import TOLERANCE
from blockc.proof.matrix import prove
from blockc.proof.runners import Onnx, Oracle, Params, Torch
from blockc.runtime import Session, SessionError
from blockc.weights.rules import random_parameters
from tests.checkpoints import save, twin
from tests.cuda_kernels import placed
from tests.proof.test_reference import changed
from tests.reference.models import OUTSIDE

NAME, FAMILIES = "llama3-8b", ("llama3-8b", "qwen3-0.6b")
SCALINGS: dict[str, dict[str, Any]] = {
    "longrope": {
        "type": "longrope", "choose": "by_length", "original": LENGTH, "attention_factor": 1.19,
        "short": [1.0, 1.0, 1.0, 1.5, 1.5, 1.5, 2.0, 2.0], "long": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
    },
    "dynamic": {"type": "dynamic", "factor": 4.0, "original": LENGTH},
}  # fmt: skip
SIDES = [LENGTH - 1, LENGTH, LENGTH + 1, LENGTH + 13]
each_kind = pytest.mark.parametrize("kind", SCALINGS)


@cache
def model(kind: str, name: str = NAME) -> Compiled:
    return changed(name, {"attention": {"rope": {"scaling": SCALINGS[kind]}}})


@cache
def params(kind: str, name: str = NAME) -> Params:
    return OUTSIDE[name].params(model(kind, name))


def tokens(count: int, rows: int = 2) -> Array:
    return np.random.RandomState(5).randint(0, model("longrope").spec.top.vocab, (rows, count))


def case(ids: Array, *chunks: int, first: int = 0) -> Case:
    return Case("whole", tuple(ids), (0,) * len(ids), chunks or (ids.shape[1],), first=first)


def distance(wanted: Array, got: Array) -> float:
    return float(np.abs(wanted - got).max() / wanted.std())


BACKENDS: dict[str, Callable[[Compiled, Path], Any]] = {
    "oracle": lambda model, _: Oracle(model.served),
    "torch": lambda model, folder: Torch(_written(model, folder), model.served),
    "portable": lambda model, _: Onnx(model.onnx(), model.graph),
    "fused": lambda model, _: Onnx(model.onnx(Target("cpu")), model.flatten(Target("cpu"))),
    "buffer": lambda model, _: Onnx(model.onnx(Target(cache="buffer")), model.flatten(Target(cache="buffer"))),
}


def _written(model: Compiled, folder: Path) -> Path:
    (folder / "model.py").write_text(model.model_py(), encoding="utf-8")
    return folder / "model.py"


# One call


@each_kind
@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_is_that_of_transformers_on_both_sides(kind: str, family: str, tmp_path: Path) -> None:
    made, outside = model(kind, family), OUTSIDE[family]
    runners = {name: make(made, tmp_path) for name, make in BACKENDS.items()}
    for count in SIDES:
        ids = tokens(count, 1)
        truth = outside.logits(made)(ids)
        for name, runner in runners.items():
            tolerance = 4 * outside.closeness if name == "oracle" else TOLERANCE["float32"]
            assert distance(truth, runner.run(case(ids), params(kind, family)).logits) < tolerance, (name, count)


@each_kind
def test_the_longest_row_decides_for_all(kind: str) -> None:
    """transformers with padding and positions as we feed them."""
    import torch

    made = model(kind)
    long, short = tokens(LENGTH + 4, 1)[0], tokens(5, 1)[0]
    padded = Case("padded", (long, short), (0, 0), (len(long),))
    theirs = OUTSIDE[NAME].model(made, torch.float64)
    feeds = (padded.input_ids, padded.attention_mask, padded.position_ids)
    with torch.no_grad():
        ids, mask, positions = map(torch.from_numpy, feeds)
        truth = theirs(input_ids=ids, attention_mask=mask, position_ids=positions).logits.numpy()
    got = Oracle(made.served).run(padded, params(kind)).logits
    alone = Oracle(made.served).run(case(short[None]), params(kind)).logits[0]
    for wanted, ours in zip(padded.real_rows(truth), padded.real_rows(got), strict=True):
        assert distance(wanted, ours) < 1e-5
    assert distance(alone, padded.real_rows(got)[1]) > 1e-2


# Chunks and what comes later


@each_kind
def test_across_the_original_length_a_cache_holds_what_was_turned_otherwise(kind: str) -> None:
    ids = tokens(LENGTH + 2)
    whole, chunked = (Oracle(model(kind).served).run(case(ids, *c), params(kind)).logits for c in ((), (LENGTH, 1, 1)))
    assert distance(whole, chunked) > 1e-2


@each_kind
def test_within_chunks_are_the_whole_and_beyond_where_all_lengths_are_alike(kind: str) -> None:
    oracle = Oracle(model(kind).served)

    def differ(count: int, *chunks: int) -> float:
        ids = tokens(count)
        return distance(*(oracle.run(case(ids, *c), params(kind)).logits for c in ((), chunks)))

    assert differ(LENGTH, LENGTH - 3, 1, 2) < 1e-9
    beyond = differ(LENGTH + 5, LENGTH + 1, 1, 3)
    assert beyond > 1e-2 if kind == "dynamic" else beyond < 1e-9


@each_kind
def test_an_earlier_output_depends_on_how_many_come_later_and_not_on_which(kind: str) -> None:
    made, ids = model(kind), tokens(LENGTH + 1, 1)
    other = ids.copy()
    other[0, -1] = (other[0, -1] + 1) % made.spec.top.vocab
    one, two, shorter = (Oracle(made.function).run(case(i), params(kind)).logits for i in (ids, other, ids[:, :-1]))
    np.testing.assert_array_equal(one[0, :-1], two[0, :-1])
    assert distance(one[:, :-1], shorter) > 1e-2


def test_a_length_is_made_from_positions_and_read_by_a_table_alone() -> None:
    table = next(n.op for n in model("dynamic").function.nodes if isinstance(n.op, RotaryTable))
    types = model("dynamic").function.inputs[2].types
    assert Longest().reach(types, (Places(1),)) == (Length(),)
    assert isinstance(Longest().reach(types, (Tokens(1),))[0], Leaks)
    assert table.reach((*types, *types), (Places(1), Length())) == (Tokens(1), Tokens(1))
    assert isinstance(table.reach((*types, *types), (Places(1), Leaks("x")))[0], Leaks)
    plain = next(n.op for n in twin(NAME).function.nodes if isinstance(n.op, RotaryTable))
    assert plain.reach(types, (Places(1),)) == (Tokens(1), Tokens(1))
    assert isinstance(plain.reach(types, (Length(),))[0], Leaks)
    assert plain.reach(types, (Constant(),)) == (Constant(), Constant())


def test_a_length_that_is_made_from_tokens_is_refused() -> None:
    function = model("dynamic").function
    ids = function.inputs[0][0]
    length = next(n for n in function.nodes if isinstance(n.op, Longest))
    object.__setattr__(length, "inputs", (ids,))
    try:
        with pytest.raises(GraphError, match="not positions"):
            verify_graph(function)
    finally:
        object.__setattr__(length, "inputs", (function.inputs[2][0],))
    verify_graph(function)


# The proof


@each_kind
def test_the_proof_runs_both_sides_and_says_what_no_cache_can_hold(kind: str) -> None:
    proof = prove(model(kind), targets=())
    assert proof.holds
    names = {row.variant for row in proof.rows}
    assert {"full", "decode", f"full, beyond {LENGTH}"} <= names
    assert (f"decode, beyond {LENGTH}" in names) == (kind == "longrope")
    unlike = [what for what, why in proof.inapplicable.items() if "different lengths" in why]
    assert [f"decode, beyond {LENGTH}" in what for what in unlike] == ([True] if kind == "dynamic" else [])


@each_kind
def test_a_twin_has_both_sides(kind: str) -> None:
    made = compile_spec(shrink(model(kind).spec))
    assert [side.original for side in made.sides] == [LENGTH] and made.spec.top.context >= 2 * LENGTH


# Sessions


@each_kind
@pytest.mark.parametrize("target", [Target(), Target("cpu"), Target(cache="buffer")], ids=["joined", "fused", "buffer"])
def test_a_session_refuses_to_cross_and_goes_on_on_one_side(kind: str, target: Target, tmp_path: Path) -> None:
    session = Session(_built(kind, target, tmp_path), threads=1)
    rows = tokens(LENGTH + 3).tolist()
    logits = session.prefill([row[: LENGTH - 1] for row in rows])
    logits = session.decode([row[LENGTH - 1] for row in rows])
    assert distance(_truth(kind, rows, LENGTH), logits) < 1e-4
    with pytest.raises(SessionError, match=f"beyond {LENGTH} the model's rope rotates tokens differently"):
        session.decode([1, 2])
    session.reset()
    session.prefill([row[: LENGTH + 1] for row in rows])
    if kind == "dynamic":
        with pytest.raises(SessionError, match="at every length"):
            session.decode([1, 2])
    else:
        logits = session.decode([row[LENGTH + 1] for row in rows])
        assert distance(_truth(kind, rows, LENGTH + 2), logits) < 1e-4
    assert len(list(session.generate([rows[0][: LENGTH - 2]], 3))) == 3
    if kind == "dynamic":
        with pytest.raises(SessionError, match="reset"):
            next(session.generate([rows[0][: LENGTH - 2]], 4))
        return
    texts = [rows[0][: LENGTH - 2], rows[1][: LENGTH - 5]]
    for step in session.generate(texts, 6):  # in which the longer row, and so the batch, comes to the other side
        longest = max(map(len, texts))
        mask = np.array([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
        ids = np.array([text + [0] * (longest - len(text)) for text in texts])
        feeds = {"input_ids": ids, "attention_mask": mask, "position_ids": np.maximum(mask.cumsum(1) - 1, 0)}
        whole = interp.interpret(model(kind).function, feeds, _weights(kind))["logits"]
        assert step == [int(whole[i, len(text) - 1].argmax()) for i, text in enumerate(texts)], longest
        texts = [[*text, token] for text, token in zip(texts, step, strict=True) if token is not None]
    assert max(map(len, texts)) > LENGTH + 1


def test_genai_which_goes_on_with_its_cache_is_told_of_one_side() -> None:
    assert {kind: context_of(product_inputs(model(kind), PORTABLE, {})) for kind in SCALINGS} == dict.fromkeys(
        SCALINGS, LENGTH
    )
    assert context_of(product_inputs(twin(NAME), PORTABLE, {})) == twin(NAME).spec.top.context > LENGTH


def _truth(kind: str, rows: list[list[int]], count: int) -> Array:
    ids = np.array(rows)[:, :count]
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(count)[None].repeat(2, 0)}
    return interp.interpret(model(kind).function, feeds, _weights(kind))["logits"][:, -1]


@cache
def _weights(kind: str) -> Params:
    return random_parameters(model(kind).function, 3)


def _built(kind: str, target: Target, folder: Path) -> Path:
    weights = save(folder / "in" / "model.safetensors", {k: v.astype(np.float32) for k, v in _weights(kind).items()})
    own = model(kind)
    own = replace(own, spec=replace(own.spec, top=own.spec.top.model_copy(update={"checkpoint": None})))
    api.build(own, folder / "out", target=target, proof=False, weights=weights)
    return folder / "out"


# CUDA


def test_a_graph_for_cuda_has_both_lists_and_dynamic_is_refused(tmp_path: Path) -> None:
    found = placed(onnx.load_from_string(model("longrope").onnx(Target("cuda", "fp16", "last"))))
    assert (found.missing, found.copies) == (set(), set())
    with pytest.raises(FolderError, match="dynamic"):
        api.build(model("dynamic"), tmp_path / "out", target=Target("cuda", "fp16"), proof=False)
    assert not (tmp_path / "out").exists()
    assert model("dynamic").count_nodes(Target("cpu"))["all"] and model("dynamic").refuses(Target("cuda", "fp16"))


def test_a_graph_for_cuda_computes_both_sides() -> None:
    """The same nodes in float32, on the CPU."""
    target = Target("cuda", "fp16")
    runner = Onnx(model("longrope").onnx(target, dtype="fp32"), model("longrope").flatten(target))
    for count in SIDES:
        truth = Oracle(model("longrope").served).run(case(tokens(count)), params("longrope")).logits
        assert distance(truth, runner.run(case(tokens(count)), params("longrope")).logits) < TOLERANCE["float32"]
