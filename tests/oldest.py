"""Graphs and the oracle's answers, for an onnxruntime that lies in an environment of its own.

A folder holds a model and, for each case, its calls: what goes in, which present is the next call's past, and the
logits that must come. `tests/oldest_run.py` runs them with NumPy and onnxruntime alone.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from blockc.graph.target import Target
from blockc.ir import Array
from blockc.pipeline.compiled import PORTABLE, Compiled
from blockc.proof.cases import Case, cases
from blockc.proof.comparison import TOLERANCE, Truth
from blockc.proof.feeding import empty_states, feeds_of
from blockc.proof.matrix import RUN_AS, SEED
from blockc.weights.rules import random_parameters


def record(twin: Compiled, target: Target, folder: Path, only: frozenset[str]) -> None:
    """The target's graph with random weights inside, in fp32 where the CPU has no kernels of its type."""
    dtype = target.dtype if target.dtype in RUN_AS else "fp32"
    real, contract = np.dtype(RUN_AS[dtype]), twin.contract(target)
    params = random_parameters(twin.function, SEED)
    truth = Truth(twin, params)
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(twin.onnx(target, params, dtype))
    told: dict[str, object] = {
        "states": {held.past: held.present for held in contract.held},
        "tolerance": TOLERANCE[real.name],
        "cases": {},
    }
    for case in cases(twin.spec.top.vocab, cached=bool(twin.contract(PORTABLE).held), only=only):
        if case.labels or (contract.one_row and case.several_on_a_past):
            continue
        calls = [
            _call(truth, case, feed.inputs, feed.columns, real.name, contract.logits_of_every_token)
            for feed in feeds_of(contract, case)
        ]
        arrays = {f"{i} {name}": a for i, call in enumerate(calls) for name, a in call.items()}
        empty = {f"0 {name}": a for name, a in empty_states(contract, case, real).items()}
        np.savez(folder / f"{case.name}.npz", **arrays, **empty)  # pyright: ignore[reportArgumentType]
        told["cases"][case.name] = len(calls)  # type: ignore[index]
    (folder / "told.json").write_text(json.dumps(told), encoding="utf-8")


def _call(
    truth: Truth, case: Case, inputs: dict[str, Array], columns: Array, dtype: str, every: bool
) -> dict[str, Array]:
    """What goes in, and for each row the columns that count and their logits."""
    alone = [truth.logits_of(row, dtype, case.first) for row in case.rows]
    wanted = np.zeros((*columns.shape, alone[0].shape[-1]))
    for i, start in enumerate(case.starts):
        for j, column in enumerate(columns[i]):
            if column >= 0:
                wanted[i, j] = alone[i][column - start]
    real = columns >= 0
    if not every:  # the last real token of each row
        last = np.array([row.nonzero()[0].max(initial=-1) for row in real])
        wanted, real = wanted[np.arange(len(last)), last][:, None], (last >= 0)[:, None]
    return {**inputs, "wanted": wanted, "real": real}
