"""The stored outputs of other libraries come out of every backend. Needs none of those libraries."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from blockc.pipeline.compiled import PORTABLE, Compiled
from blockc.proof.cases import Case
from blockc.proof.runners import Onnx, Oracle, Params, Runner, Torch
from blockc.weights.rules import random_parameters
from tests.paths import ROOT
from tests.reference.models import SPECS, twin

torch.set_num_threads(1)  # the twins are too small to share out
FOLDER = ROOT / "tests" / "golden"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
RENEW = "python -m tests.golden.renew"
OUTPUTS = ("logits", "last_hidden_state", "pooled")
DIGITS = 1e-6  # they are stored to seven significant digits
TOLERANCE = {"oracle": 5e-6, "torch": 3e-5, "onnxruntime": 3e-5}  # of their standard deviation


@cache
def _stored(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


@cache
def _twin(name: str) -> Compiled:
    return twin(name)


def _error(name: str, runner: Runner, params: Params, chunks: tuple[int, ...] = ()) -> float:
    """The largest difference of an output: of tokens, or of the texts that begin with the first token."""
    stored = _stored(name)
    tokens = np.array(stored["tokens"])
    whole = runner.run(Case("golden", (tokens,), (0,), chunks or (len(tokens),)), params).outputs
    texts = [runner.run(Case("", (tokens[:n],), (0,), (n,)), params).outputs for n in stored.get("lengths", ())]
    assert whole.keys() == {key for key in OUTPUTS if key in stored}
    error = 0.0
    for key, array in whole.items():
        got = array[0, stored["first"] :] if array.ndim == 3 else np.concatenate([text[key] for text in texts])
        wanted = np.array(stored[key])
        assert got.shape == wanted.shape
        error = max(error, float(np.abs(got - wanted).max() / wanted.std()))
    return error


def test_every_spec_has_a_golden_file() -> None:
    assert sorted(path.stem for path in SPECS.glob("*.yaml")) == NAMES, f"renew: {RENEW}"


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_file_is_of_the_twin_as_it_is(name: str) -> None:
    stored = _stored(name)
    assert stored["spec"] == name
    assert stored["semantic_hash"] == _twin(name).decoder.semantic_hash, f"the twin has changed; renew: {RENEW}"
    assert stored["library"] and stored["version"]
    for key in (key for key in OUTPUTS if key in stored):
        least = 0.5 if _twin(name).contract(PORTABLE).held else 0.02  # one number of a text hardly moves
        assert np.array(stored[key]).std() > least, key
    assert (FOLDER / f"{name}.json").stat().st_size < 8192


@pytest.mark.backend("golden")
@pytest.mark.parametrize("backend", TOLERANCE)
@pytest.mark.parametrize("name", NAMES)
def test_the_stored_outputs_come_out(name: str, backend: str, tmp_path: Path) -> None:
    stored, model = _stored(name), _twin(name)
    if backend == "torch":
        (tmp_path / "model.py").write_text(model.model_py(), encoding="utf-8")
        runner = Torch(tmp_path / "model.py", model.served)
    else:
        runner = Oracle(model.served) if backend == "oracle" else Onnx(model.onnx(), model.served)
    params = random_parameters(model.function, stored["seed"])
    for chunks in ((), (5, 6, 1)) if runner.contract.held else ((),):
        assert _error(name, runner, params, chunks) < TOLERANCE[backend] + DIGITS, chunks


@pytest.mark.parametrize("name", NAMES)
def test_other_parameters_give_other_outputs(name: str) -> None:
    model = _twin(name)
    assert _error(name, Oracle(model.served), random_parameters(model.function, _stored(name)["seed"] + 1)) > 0.1


def test_transformers_is_not_needed() -> None:
    """With transformers out of reach this file runs all the same."""
    hidden = "import sys; sys.modules['transformers'] = None"
    code = f"{hidden}; import tests.proof.test_golden as t; t._twin('gpt2'); print(len(t.NAMES))"
    folder = ROOT
    answer = subprocess.run([sys.executable, "-B", "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert int(answer.stdout) == len(NAMES) > 0
