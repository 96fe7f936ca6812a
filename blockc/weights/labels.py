"""labels.json: what a runtime says of a classifier's logits, which config.json alone says.

{"labels": ["NEGATIVE", "POSITIVE"], "activation": "identity"}

`labels` are the names of the classes, in the order of the logits; `activation` is what sentence-transformers applies to
the logits of a text, if it says so. Neither is a part of the function.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

FILE = "labels.json"
_ACTIVATIONS = {"Identity": "identity", "Sigmoid": "sigmoid", "Softmax": "softmax", "Tanh": "tanh"}


def read_labels(config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(The content of labels.json, empty where config.json says nothing; notes on what is left out.)"""
    labels, word = _labels_of(config), _activation_of(config)
    notes: list[str] = []
    if labels is None and config.get("id2label"):
        notes.append(f"{FILE}: id2label of config.json is not a name for each number from 0 on: left out")
    if word and word not in _ACTIVATIONS:
        notes.append(f"{FILE}: the activation {word!r} of config.json is not known: a score is sigmoid(logit)")
    activation = _ACTIVATIONS.get(word)
    return {
        **({"labels": labels} if labels and not all(map(_is_default, labels, range(len(labels)))) else {}),
        **({"activation": activation} if activation else {}),
    }, tuple(notes)


def _labels_of(config: Mapping[str, Any]) -> list[str] | None:
    held = config.get("id2label")
    if not isinstance(held, dict):
        return None
    named = {str(key): label for key, label in cast("dict[object, object]", held).items()}
    labels = [named.get(str(i)) for i in range(len(named))]
    return [each for each in labels if isinstance(each, str)] if all(isinstance(x, str) for x in labels) else None


def _is_default(label: str, number: int) -> bool:
    return label == f"LABEL_{number}"


def _activation_of(config: Mapping[str, Any]) -> str:
    """The last word of the class, in the key of newer files or of older ones; no class is imported."""
    inner = config.get("sentence_transformers")
    newer = cast("dict[str, object]", inner).get("activation_fn") if isinstance(inner, dict) else None
    said = newer or config.get("sbert_ce_default_activation_function") or ""
    found = re.fullmatch(r"torch\.nn\.(?:modules\.\w+\.)?(\w+)", str(said))
    return found[1] if found else str(said)
