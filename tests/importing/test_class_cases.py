"""The class that config.json names: which model of a model type it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from blockc.importing import import_config
from blockc.importing.maps import load_map, model_types, read_map
from blockc.layouts import load_layout
from blockc.source import SpecError, parse, to_plain

POOLER = {"type": "first", "dense": {"act": "tanh", "bias": True}}
GELU = {"type": "first", "dense": {"act": "gelu", "bias": True}}
CASES: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "BertModel": ({"model_type": "bert"}, "none", POOLER),
    "BertForSequenceClassification": ({"model_type": "bert"}, {"classes": 2, "bias": True}, POOLER),
    "BertForTokenClassification": ({"model_type": "bert", "num_labels": 9}, {"classes": 9, "bias": True}, None),
    "XLMRobertaForSequenceClassification": (
        {"model_type": "xlm-roberta", "id2label": {"0": "LABEL_0"}}, {"classes": 1, "bias": True}, POOLER),
    "DistilBertForSequenceClassification": (
        {"model_type": "distilbert"}, {"classes": 2, "bias": True},
        {"type": "first", "dense": {"act": "relu", "bias": True}}),
    "ElectraForPreTraining": (
        {"model_type": "electra", "embedding_size": 256},
        {"classes": 1, "bias": True, "transform": {"act": "gelu", "bias": True}}, None),
    "ElectraForSequenceClassification": (
        {"model_type": "electra", "embedding_size": 256}, {"classes": 2, "bias": True}, GELU),
    "Qwen3ForCausalLM": ({"model_type": "qwen3"}, {"tied": False}, None),
    "Qwen3Model": ({"model_type": "qwen3"}, "none", None),
    "Qwen3ForSequenceClassification": (
        {"model_type": "qwen3", "num_labels": 1}, {"classes": 1, "bias": False}, {"type": "last"}),
    "Gemma3TextModel": ({"model_type": "gemma3_text"}, "none", None),
}  # fmt: skip


def said(config: dict[str, Any]) -> Any:
    return to_plain(import_config(json.dumps(config).encode(), "config.json", "x").tree)


@pytest.mark.parametrize("name", CASES)
def test_a_class_has_its_head_and_pool(name: str) -> None:
    config, head, pool = CASES[name]
    keys = said({**config, "architectures": [name]})
    assert (keys["head"], keys.get("pool")) == (head, pool)


@pytest.mark.parametrize("name", [name for name in model_types() if load_map(name).cases])
def test_the_first_case_is_that_of_a_file_without_a_class(name: str) -> None:
    bare: dict[str, Any] = {"model_type": name, "hidden_size": 64, "embedding_size": 64, "num_attention_heads": 4}
    bare = {key: value for key, value in bare.items() if key == "model_type" or key in load_map(name).known}
    first = next(iter(load_map(name).cases))
    for word in (None, [], [f"Any{first}"], [f"Any{first}", "OtherForAnything"]):
        assert said({**bare, "architectures": word}) == said(bare)


def test_a_class_that_is_not_known_is_refused_at_its_line() -> None:
    for word in ("BertLMHeadModel", "BertForQuestionAnswering", "Bert"):
        with pytest.raises(SpecError) as caught:
            said({"model_type": "bert", "architectures": [word]})
        (found,) = caught.value.findings
        assert found.message == "no spec is known for this class of the model type" and found.got == f'"{word}"'
        assert found.expected.startswith("...Model or ...ForMaskedLM")


def test_every_layout_of_a_case_is_there() -> None:
    for name in model_types():
        for case in load_map(name).cases.values():
            assert load_layout(str(to_plain(case.entries["checkpoint"].value)))


def test_cases_are_read_strictly() -> None:
    for text, message in (
        ("cases: [a]", "not a mapping"),
        ("cases: {Model: 1}", "not what a class adds to the spec"),
        ("cases: {Model: {head: <a}}", "not a key of config.json"),
    ):
        with pytest.raises(SpecError, match=message):
            read_map(parse(f"import: 1\nspec: {{width: <w>}}\n{text}\n", "map.yaml"))


def test_what_of_a_class_is_left_out_is_a_warning_at_its_line() -> None:
    config = {"model_type": "bert", "architectures": ["BertForPreTraining"]}
    made = import_config(json.dumps(config, indent=1).encode(), "config.json", "x")
    (found,) = made.warnings
    assert (found.code.name, found.place.line) == ("BLC708", 4)
    assert found.message == "of BertForPreTraining is left out: the two logits of whether one text follows the other"
    for name in model_types():
        assert load_map(name).left_out.keys() <= load_map(name).cases.keys()


def test_a_narrow_embedding_is_refused_with_the_reason() -> None:
    with pytest.raises(SpecError) as caught:
        said({"model_type": "electra", "embedding_size": 128})
    (found,) = caught.value.findings
    assert found.message == "no word of a spec stands for this embedding_size"
    assert found.hint.startswith(
        "an embedding_size below hidden_size puts positions, segments and norm before a matrix"
    )
