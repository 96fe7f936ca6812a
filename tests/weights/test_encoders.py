"""Encoders, embedders and classifiers: folders as transformers saves them are imported, and compute what it computes.

Random weights, none as it starts; a row padded on the right, one on the left where the class allows it, and segments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from blockc import api
from blockc.graph.interp import interpret
from blockc.ir import Array
from blockc.language.spec import from_tree
from blockc.layouts import load_layout
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.source import parse
from blockc.weights.checkpoint import open_checkpoint
from blockc.weights.matching import unpack
from blockc.weights.rules import group_sizes, rules
from blockc.weights.safetensors import write_safetensors

Config = dict[str, Any]
B, S = 3, 21
PADS = 6
PAD = 1  # the number of the padding token
SIZES: Config = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
LABELS: Config = {"id2label": {str(i): f"LABEL_{i}" for i in range(3)}, "label2id": {f"LABEL_{i}": i for i in range(3)}}
DISTIL: Config = {"vocab_size": 64, "dim": 32, "hidden_dim": 48, "n_layers": 3, "n_heads": 4,
                  "max_position_embeddings": 64, "pad_token_id": PAD}  # fmt: skip
MODERN: Config = {**SIZES, "num_hidden_layers": 4, "local_attention": 6, "cls_token_id": 0, "sep_token_id": 2}
GROUPED: Config = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}
GEMMA: Config = {**GROUPED, "num_hidden_layers": 7, "query_pre_attn_scalar": 20, "sliding_window": 6}


@dataclass(frozen=True)
class Case:
    """`left`: whether a row may be padded on the left, where the class takes the first token by its index."""

    config: Config
    left: bool = True
    segments: bool = False


CASES: dict[str, Case] = {
    "BertModel": Case(SIZES, False, True),
    "BertForMaskedLM": Case({**SIZES, "hidden_act": "gelu_new"}, True, True),
    "BertForPreTraining": Case(SIZES, True, True),
    "BertForSequenceClassification": Case({**SIZES, **LABELS}, False, True),
    "BertForTokenClassification": Case({**SIZES, **LABELS}, True, True),
    "RobertaModel": Case({**SIZES, "type_vocab_size": 1}, False),
    "RobertaForMaskedLM": Case({**SIZES, "type_vocab_size": 2}, True, True),
    "RobertaForSequenceClassification": Case({**SIZES, "type_vocab_size": 1, "num_labels": 1}, False),
    "RobertaForTokenClassification": Case({**SIZES, **LABELS, "type_vocab_size": 1}),
    "XLMRobertaForSequenceClassification": Case({**SIZES, **LABELS, "type_vocab_size": 1}, False),
    "CamembertForMaskedLM": Case({**SIZES, "type_vocab_size": 1}),
    "DistilBertModel": Case(DISTIL),
    "DistilBertForMaskedLM": Case(DISTIL),
    "DistilBertForSequenceClassification": Case({**DISTIL, **LABELS}, False),
    "DistilBertForTokenClassification": Case({**DISTIL, **LABELS}),
    "MPNetModel": Case(SIZES, False),
    "MPNetForMaskedLM": Case(SIZES),
    "MPNetForSequenceClassification": Case({**SIZES, **LABELS}, False),
    "MPNetForTokenClassification": Case({**SIZES, **LABELS}),
    "ElectraModel": Case({**SIZES, "embedding_size": 32}, True, True),
    "ElectraForPreTraining": Case({**SIZES, "embedding_size": 32, "hidden_act": "relu"}, True, True),
    "ElectraForMaskedLM": Case({**SIZES, "embedding_size": 32}, True, True),
    "ElectraForSequenceClassification": Case({**SIZES, **LABELS, "embedding_size": 32}, False, True),
    "ElectraForTokenClassification": Case({**SIZES, **LABELS, "embedding_size": 32}, True, True),
    "ModernBertModel": Case(MODERN),
    "ModernBertForMaskedLM": Case(MODERN),
    "ModernBertForSequenceClassification": Case({**MODERN, **LABELS, "classifier_pooling": "mean"}),
    "ModernBertForTokenClassification": Case({**MODERN, **LABELS, "norm_bias": True, "classifier_bias": True}),
    "NomicBertModel": Case(SIZES, True, True),
    "NomicBertForMaskedLM": Case(SIZES, True, True),
    "NomicBertForSequenceClassification": Case({**SIZES, **LABELS}, False, True),
    "EuroBertModel": Case({**GROUPED, "mask_token_id": 3}),
    "EuroBertForMaskedLM": Case({**GROUPED, "mask_token_id": 3}),
    "EuroBertForSequenceClassification": Case({**GROUPED, **LABELS, "mask_token_id": 3, "classifier_pooling": "mean"}),
    "EuroBertForTokenClassification": Case({**GROUPED, **LABELS, "mask_token_id": 3}),
    "Qwen3Model": Case(GROUPED),
    "Qwen3ForSequenceClassification": Case({**GROUPED, "num_labels": 1}),
    "Qwen3ForTokenClassification": Case({**GROUPED, **LABELS}),
    "Gemma3TextModel": Case({**GEMMA, "use_bidirectional_attention": True}),
    "Gemma3TextForSequenceClassification": Case({**GEMMA, **LABELS}),
}


def saved(name: str, config: Config, folder: Path) -> Any:
    """The model in float64, and in a folder."""
    kind: Any = getattr(transformers, name)
    made: Any = kind.config_class(**config)
    made._attn_implementation = "eager"
    torch.manual_seed(11)
    model = kind(made)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    model.float().eval().save_pretrained(folder)
    return model.double()


def compiled(folder: Path) -> tuple[Compiled, dict[str, Array]]:
    model = compile_spec(from_tree(parse(api.import_spec(folder), "spec.yaml")))
    layout = load_layout(model.spec.top.checkpoint or "")
    held = rules(layout, model.function, group_sizes(model.function))
    tensors = {name: tensor.read() for name, tensor in open_checkpoint(folder).tensors.items()}
    return model, {path: array.astype(np.float64) for path, array in unpack(held, tensors).items()}


def feeds(left: bool, segments: bool) -> dict[str, Array]:
    """Tokens and the mask: all; padded on the right; padded on the left, or again all."""
    random = np.random.RandomState(0)
    tokens, mask = random.randint(4, 64, (B, S)), np.ones((B, S), np.int64)
    mask[1, -PADS:] = 0
    mask[2, :PADS] = 0 if left else 1
    tokens[mask == 0] = PAD
    made = {"input_ids": tokens, "attention_mask": mask}
    made["position_ids"] = np.maximum(np.cumsum(mask, 1) - 1, 0)
    return made | ({"token_type_ids": random.randint(0, 2, (B, S)) * mask} if segments else {})


def theirs(model: Any, given: Mapping[str, Array]) -> Any:
    """RoBERTa and MPNet count positions by the tokens themselves, the others by the indices unless they are told."""
    offset = model.config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet")
    passed = {key: torch.tensor(value) for key, value in given.items() if not (offset and key == "position_ids")}
    with torch.no_grad():
        return model(**passed)


@pytest.mark.parametrize("name", CASES)
def test_a_saved_folder_is_imported_and_computes_the_same(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model, given = saved(name, case.config, tmp_path), feeds(case.left, case.segments)
    made, params = compiled(tmp_path)
    ours = interpret(made.function, {each.name: given[each.name] for each in made.function.inputs}, params)
    outputs = theirs(model, given)
    seen = given["attention_mask"] == 1
    compared: dict[str, tuple[Array, Array]] = {}
    if "logits" in ours:
        logits = (outputs.prediction_logits if "prediction_logits" in outputs else outputs.logits).numpy()
        logits = logits[..., None] if name == "ElectraForPreTraining" else logits
        each = seen if ours["logits"].ndim == 3 else ...
        compared["logits"] = (ours["logits"][each], logits[each])
    if "hidden" in ours:
        compared["hidden"] = (ours["hidden"][seen], outputs.last_hidden_state.numpy()[seen])
    if "pooled" in ours:
        compared["pooled"] = (ours["pooled"], outputs.pooler_output.numpy())
    assert compared.keys() == ours.keys()
    for key, (a, b) in compared.items():
        assert a.shape == b.shape and a.std() > 0.05, key
        assert np.abs(a - b).max() < 1e-5 * b.std(), key  # transformers has cosines in float32


# Folders of sentence-transformers, whose modules are a few lines

POOL: dict[str, Callable[[Array, Array], Array]] = {
    "mean": lambda hidden, mask: (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True),
    "cls": lambda hidden, mask: hidden[np.arange(B), mask.argmax(1)],
    "lasttoken": lambda hidden, mask: hidden[np.arange(B), S - 1 - mask[:, ::-1].argmax(1)],
}
ACTS: dict[str, Callable[[Array], Array]] = {"linear.Identity": lambda x: x, "activation.Tanh": np.tanh}


@pytest.mark.parametrize(
    ("name", "mode", "acts"),
    [
        ("BertModel", "mean", []),
        ("BertModel", "cls", ["activation.Tanh"]),
        ("MPNetModel", "mean", []),
        ("DistilBertModel", "mean", ["activation.Tanh"]),
        ("Qwen3Model", "lasttoken", []),
        ("Gemma3TextModel", "mean", ["linear.Identity", "linear.Identity"]),
    ],
)
def test_a_folder_of_sentence_transformers_computes_the_same(
    name: str, mode: str, acts: list[str], tmp_path: Path
) -> None:
    case = CASES[name]
    model, given = saved(name, case.config, tmp_path), feeds(True, case.segments)
    vectors = POOL[mode](theirs(model, given).last_hidden_state.numpy(), given["attention_mask"])
    of = "sentence_transformers.models"
    modules = [{"path": "", "type": f"{of}.Transformer"}, {"path": "1_Pooling", "type": f"{of}.Pooling"}]
    configs: dict[str, Config] = {"1_Pooling": {"embedding_dimension": 32, "pooling_mode": mode}}
    random = np.random.RandomState(1)
    for number, act in enumerate(acts):
        wide, bias = 32 if number == len(acts) - 1 else 80, "Tanh" in act
        folder = f"{number + 2}_Dense"
        matrix = random.standard_normal((wide, vectors.shape[1])).astype(np.float32)
        vector = random.standard_normal(wide).astype(np.float32)
        configs[folder] = {"in_features": vectors.shape[1], "out_features": wide, "bias": bias,
                           "activation_function": f"torch.nn.modules.{act}"}  # fmt: skip
        modules.append({"path": folder, "type": f"{of}.Dense"})
        (tmp_path / folder).mkdir()
        tensors = {"linear.weight": matrix, **({"linear.bias": vector} if bias else {})}
        write_safetensors(tmp_path / folder / "model.safetensors", tensors)
        vectors = ACTS[act](vectors @ matrix.T.astype(np.float64) + (vector if bias else 0))
    modules.append({"path": "9_Normalize", "type": f"{of}.Normalize"})
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for folder, config in configs.items():
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "config.json").write_text(json.dumps(config))
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    made, params = compiled(tmp_path)
    ours = interpret(made.function, {each.name: given[each.name] for each in made.function.inputs}, params)
    assert np.abs(ours["pooled"] - vectors).max() < 1e-6
