"""BLC403, a context beyond what the rope scaling covers: a warning, but where the spec says that it is published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blockc import api
from blockc.checks.checking import check_text
from blockc.diagnostics.examples import change_base
from blockc.source import Finding
from tests.structures import SPECS

SCALED = """\
context: {context}
attention:
  heads: 4
  rope:
    theta: 10000
    pairing: half
    scaling: {{type: {type}, factor: 8, original: 64, {more}}}
"""
TYPES = {
    "llama3": "low_freq_factor: 1, high_freq_factor: 4",
    "yarn": "beta_fast: 32, beta_slow: 1, truncate: true",
}
CONFIG = {
    "model_type": "llama", "vocab_size": 1024, "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "tie_word_embeddings": False, "rope_theta": 500000.0, "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192},
}  # fmt: skip


def check(text: str | bytes, *assignments: str) -> tuple[Finding, ...]:
    return check_text(text if isinstance(text, bytes) else text.encode(), "s.yaml", assignments)


def spec(context: int, type_: str, more: str = "") -> bytes:
    scaled = SCALED.format(context=context, type=type_, more=TYPES[type_])
    return change_base(scaled + f"expect: {{layers: {{layer: 2}}{more}}}\n")


@pytest.mark.parametrize("type_", TYPES)
def test_a_context_that_expect_says_is_no_slip(type_: str) -> None:
    assert [each.code.name for each in check(spec(1024, type_))] == ["BLC403"]
    assert check(spec(1024, type_))[0].hint == "where the model is published with it, say so: expect: {context: 1024}"
    assert check(spec(1024, type_, ", context: 1024")) == ()


@pytest.mark.parametrize("type_", TYPES)
def test_a_context_other_than_the_published_one_is_an_error(type_: str) -> None:
    (found,) = [each for each in check(spec(1024, type_, ", context: 512")) if each.severity == "error"]
    assert (found.code.name, found.message) == ("BLC301", "expect.context does not hold")
    assert (found.expected, found.got) == ("512", "1024")


def test_another_context_is_warned_of_again() -> None:
    """Laid over a spec, nothing of which `expect` speaks."""
    text = spec(1024, "llama3", ", context: 1024")
    assert [each.code.name for each in check(text, "context=2048")] == ["BLC403"]


def test_an_import_of_a_published_context_passes_as_strictly_as_it_is_checked(tmp_path: Path) -> None:
    """Llama 3.1's own: 131,072 tokens, and a scaling by 8 of 8,192."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    text = api.import_spec(tmp_path / "config.json")
    assert "context: 131072" in text.partition("expect:")[2]
    assert check(text) == ()
    covered = CONFIG | {"max_position_embeddings": 65536}
    (tmp_path / "config.json").write_text(json.dumps(covered))
    assert "context" not in api.import_spec(tmp_path / "config.json").partition("expect:")[2]


def test_the_bundled_specs_are_checked_without_a_warning_silenced() -> None:
    for path in SPECS.values():
        text = path.read_text(encoding="utf-8")
        assert "ignore BLC403" not in text
        assert not [each for each in check(text) if each.code.name == "BLC403"], path
