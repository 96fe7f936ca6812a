"""Frequencies of scaled rope at the sizes of published models, against the functions of transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from blockc.language.parts import Rope

HEAD_DIM = 128
YARN = {"type": "yarn", "factor": 8, "original": 8192, "beta_fast": 32, "beta_slow": 1, "truncate": True}
LISTS = {"short": [1 + i / 32 for i in range(64)], "long": [1.1**i for i in range(64)]}
CASES: dict[str, tuple[float, dict[str, Any]]] = {
    "linear": (1e6, {"type": "linear", "factor": 8}),
    "llama3": (5e5, {"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original": 8192}),
    "yarn": (5e5, YARN),
    "yarn between pairs": (1.5e5, YARN | {"factor": 32, "original": 4096, "truncate": False}),
    "yarn of fast pairs alone": (1e4, YARN | {"original": 100, "factor": 4, "attention_factor": 1.0}),
    "yarn that shortens": (1e4, YARN | {"factor": 0.5}),
    "longrope, short": (1e4, {"type": "longrope", **LISTS, "choose": "short", "attention_factor": 1.19}),
    "longrope, long": (1e4, {"type": "longrope", **LISTS, "choose": "long", "attention_factor": 1.19}),
}
WORDS = {"original": "original_max_position_embeddings", "short": "short_factor", "long": "long_factor"}


def _theirs(theta: float, scaling: dict[str, Any]) -> tuple[Any, float]:
    words = {WORDS.get(key, key): value for key, value in scaling.items() if key not in ("type", "choose")}
    long = scaling.get("choose") == "long"
    if "choose" in scaling:
        words["original_max_position_embeddings"] = 4096
    config = LlamaConfig(
        hidden_size=HEAD_DIM, num_attention_heads=1, head_dim=HEAD_DIM, max_position_embeddings=131072,
        rope_parameters={"rope_type": scaling["type"], "rope_theta": theta, **words},
    )  # fmt: skip
    return ROPE_INIT_FUNCTIONS[scaling["type"]](config, None, seq_len=4097 if long else 4096)


@pytest.mark.parametrize("case", CASES)
def test_frequencies_are_those_of_transformers(case: str) -> None:
    theta, scaling = CASES[case]
    rope = Rope.model_validate({"theta": theta, "pairing": "half", "scaling": scaling}).resolve(HEAD_DIM)
    table = rope.table_op(HEAD_DIM)
    frequencies, amplitude = _theirs(theta, scaling)
    plain = theta ** (-2 * np.arange(HEAD_DIM // 2) / HEAD_DIM)
    np.testing.assert_allclose(table.frequencies, frequencies.double().numpy(), rtol=2e-6)
    assert table.factor == pytest.approx(amplitude)
    assert np.abs(table.frequencies / plain - 1).max() > 0.4  # what is compared is scaled at all


def test_yarn_keeps_the_pairs_that_turn_often_and_stretches_the_others() -> None:
    rope = Rope.model_validate({"theta": 5e5, "pairing": "half", "scaling": YARN}).resolve(HEAD_DIM)
    plain = 5e5 ** (-2 * np.arange(HEAD_DIM // 2) / HEAD_DIM)
    turns = 8192 * plain / (2 * np.pi)
    ratio = plain / rope.table_op(HEAD_DIM).frequencies
    np.testing.assert_allclose(ratio[turns > 32 * 1.3], 1)
    np.testing.assert_allclose(ratio[turns < 1 / 1.3], 8)
    assert (np.diff(ratio) >= -1e-12).all()
    between = ratio[(turns < 30) & (turns > 1.1)]
    assert ((between > 1) & (between < 8)).all() and len(between) > 8
