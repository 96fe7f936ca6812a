"""Quantised folders for onnxruntime-genai: its own package generates from them what our session does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai
import pytest

from blockc import api
from blockc.graph.quant import parse_quant
from blockc.graph.target import Target
from blockc.runtime import Session
from tests.checkpoints import save, tensors, twin

PROMPTS = [[3, 14, 15, 9, 26, 5, 35], [8, 9, 79, 32, 38, 46, 26]]
NEW = 12
FORMS = [
    pytest.param("llama3-8b", Target("cpu", logits="last", quant=parse_quant("int4")), id="cpu, int4"),
    pytest.param("llama3-8b", Target("cpu", padding="right", quant=parse_quant("int8")), id="by rows, int8"),
    pytest.param("gemma2-9b", Target("cpu", quant=parse_quant("int4:16")), id="tied, int4:16"),
    pytest.param("llama3-8b", Target(logits="last", quant=parse_quant("int4")), id="portable, int4"),
]


def generated(folder: Path, row: list[int]) -> list[int]:
    """A row with what genai adds to it, greedily."""
    model: Any = onnxruntime_genai.Model(str(folder))
    params: Any = onnxruntime_genai.GeneratorParams(model)
    params.set_search_options(batch_size=1, max_length=len(row) + NEW, do_sample=False)
    generator: Any = onnxruntime_genai.Generator(model, params)
    generator.append_tokens(np.array([row], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)]


@pytest.mark.parametrize(("name", "target"), FORMS)
def test_genai_generates_from_a_quantised_folder_what_our_session_does(
    name: str, target: Target, tmp_path: Path
) -> None:
    save(tmp_path / "in" / "model.safetensors", tensors(twin(name)))
    (tmp_path / "in" / "generation_config.json").write_text(json.dumps({"eos_token_id": 0, "pad_token_id": 1}))
    folder = tmp_path / "out"
    api.build(twin(name), folder, target=target, proof=False, weights=tmp_path / "in", products=["genai"])
    for row in PROMPTS:
        ours = [step[0] for step in Session(folder, threads=1).generate([row], NEW)]
        assert generated(folder, row) == row + ours
        assert len(set(ours)) > 1
