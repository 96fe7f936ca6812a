"""labels.json: names of classes and the activation behind logits, which a build takes from config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blockc import api
from blockc.weights.companions import read_companions, with_config
from blockc.weights.labels import read_labels
from tests.checkpoints import save, tensors, twin

SAID: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "names": ({"id2label": {"0": "NEGATIVE", "1": "POSITIVE"}}, {"labels": ["NEGATIVE", "POSITIVE"]}),
    "names in another order": ({"id2label": {"1": "b", "0": "a", "2": "c"}}, {"labels": ["a", "b", "c"]}),
    "no names": ({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, {}),
    "an activation": (
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
        {"activation": "sigmoid"},
    ),
    "an older activation": (
        {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity", "id2label": {"0": "LABEL_0"}},
        {"activation": "identity"},
    ),
    "nothing": ({"sentence_transformers": {"version": "5.0"}, "id2label": None}, {}),
}


@pytest.mark.parametrize(("config", "wanted"), SAID.values(), ids=SAID)
def test_what_a_config_says_of_logits(config: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert read_labels(config) == (wanted, ())


def test_what_is_not_understood_is_left_out_with_a_note() -> None:
    for labels in ({"0": "a", "2": "b"}, {"0": "a", "1": 3}, [1]):
        made, (note,) = read_labels({"id2label": labels})
        assert made == {} and note.startswith("labels.json: id2label")
    made, (note,) = read_labels({"sentence_transformers": {"activation_fn": "os.system"}, "id2label": {"0": "x"}})
    assert made == {"labels": ["x"]} and "'os.system'" in note


def test_a_build_has_the_file_and_keeps_one_that_is_there(tmp_path: Path) -> None:
    model = twin("distilbert-sst2")
    save(tmp_path / "in" / "model.safetensors", tensors(model))
    (tmp_path / "in" / "labels.json").write_text('{"labels": ["no", "yes"]}')
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "config.json").write_text(json.dumps({"id2label": {"0": "bad", "1": "good"}}))
    made, told = with_config(tmp_path / "own", read_companions(tmp_path / "own"))
    assert json.loads(made["labels.json"]) == {"labels": ["bad", "good"]} and told == ()
    api.build(model, tmp_path / "out", weights=tmp_path / "in", proof=False)
    assert json.loads((tmp_path / "out" / "labels.json").read_text()) == {"labels": ["no", "yes"]}
    checked = api.verify(tmp_path / "out")
    assert not checked.changed and not checked.outdated
