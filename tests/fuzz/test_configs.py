"""config.json by chance: what the import makes of it is what transformers makes of it, or is refused with a reason."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from blockc.graph.build import build_graph
from blockc.importing import import_config
from blockc.importing.unlike import compare_config, read_config_beside
from blockc.language.algebra import elaborate
from blockc.language.spec import from_tree
from blockc.source import SpecError
from tests.fuzz.configs import CLOSE, Config, base, drawn, offset, outcome, quiet, reference, tokens_of, truth_of, types
from tests.fuzz.strategies import TIMES

DRAWS = 60


def test_a_config_with_a_change_is_the_model_of_transformers_or_refused() -> None:
    """And enough of them are a model: neither side's refusals alone pass."""
    quiet()
    words: Counter[str] = Counter()
    for number in range(DRAWS):
        model_type, config, changes = drawn(number, seed=TIMES)
        found = outcome(config)
        assert not found.wrong, f"{model_type}: {'; '.join(changes)}: {found.word} {found.why}\n{json.dumps(config)}"
        words[found.word] += 1
    assert words["same"] >= 8, words


def test_a_tiny_config_of_every_model_type_is_the_model_of_transformers() -> None:
    quiet()
    found = {name: outcome({"model_type": name, **base(name)}) for name in types()}
    assert {name: each for name, each in found.items() if each.word != "same"} == {}


@pytest.mark.parametrize(
    ("model_type", "change"),
    [("llama", {"hidden_act": "gelu"}), ("gpt2", {"activation_function": "gelu"}), ("gemma2", {"sliding_window": 7}),
     ("qwen3", {"rms_norm_eps": 2e-3}), ("phi3", {"rope_theta": 9000.0}), ("granite", {"attention_multiplier": 0.41})],
    ids=str,
)  # fmt: skip
def test_a_model_of_another_config_is_told_apart(model_type: str, change: Config) -> None:
    """So the comparison can fail: the nearest activation, one token more in a window, another eps."""
    quiet()
    config: Config = {"model_type": model_type, **base(model_type)}
    if "gelu" in change.values():
        config |= dict.fromkeys(change, "gelu_pytorch_tanh")
    theirs = reference(config)
    spec = from_tree(import_config(json.dumps({**config, **change}).encode(), "config.json", "other").tree)
    truth = truth_of(theirs, tokens_of(spec))
    assert offset(spec, build_graph(elaborate(spec)), theirs, truth) > 3 * CLOSE


@pytest.mark.parametrize("first", range(0, 90, 30))
def test_what_transformers_saves_of_a_config_is_like_its_import(first: int, tmp_path: Path) -> None:
    """The file that lies beside weights that transformers wrote, with all its keys, and the first file's spec."""
    quiet()
    compared = 0
    for number in range(first, first + 30):
        model_type, config, changes = drawn(number, seed=77)
        try:
            spec = from_tree(import_config(json.dumps(config).encode(), "config.json", "first").tree)
            function = build_graph(elaborate(spec))
        except SpecError:
            continue
        theirs = reference(config)
        if not hasattr(theirs, "config"):
            continue
        theirs.config.save_pretrained(tmp_path)
        said = read_config_beside(tmp_path / "config.json")
        assert compare_config(said, function, spec.top.context) == [], f"{model_type}: {changes}"
        compared += said.imported is not None
    assert compared > 3


@pytest.mark.parametrize(
    ("model_type", "word"),
    [("apertus", "quick_gelu"), ("arcee", "gelu_fast"), ("bitnet", "swish"), ("codegen", "silu"), ("ernie4_5", "relu2"),
     ("gpt_bigcode", "gelu_accurate"), ("helium", "gelu_new"), ("hunyuan_v1_dense", "relu"), ("nemotron", "swish"),
     ("persimmon", "quick_gelu"), ("seed_oss", "gelu_python_tanh")],
)  # fmt: skip
def test_a_family_takes_the_activations_that_all_have_in_common(model_type: str, word: str) -> None:
    quiet()
    key = "activation_function" if model_type in ("codegen", "gpt_bigcode") else "hidden_act"
    assert outcome({"model_type": model_type, **base(model_type), key: word}).word == "same"
