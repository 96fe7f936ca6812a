"""Encoders, embedders and classifiers: folders as transformers saves them are imported, and compute what it computes.

Random weights, none as it starts. Ours has one row padded on the right and one on the left, and segments; transformers
computes each row alone, since its masks know no first token behind padding, and its windows make NaN of padding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
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
from blockc.proof.runners import load_module
from blockc.source import parse
from blockc.weights.checkpoint import open_checkpoint
from blockc.weights.matching import unpack
from blockc.weights.rules import group_sizes, rules
from blockc.weights.safetensors import write_safetensors
from tests.reference.classes import CASES, PAD, Config

B, S = 3, 21
PADS = 6


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


def feeds() -> dict[str, Array]:
    """Tokens, segments and the mask of three rows: all; padded on the right; padded on the left."""
    random = np.random.RandomState(0)
    tokens, mask = random.randint(4, 64, (B, S)), np.ones((B, S), np.int64)
    mask[1, -PADS:], mask[2, :PADS] = 0, 0
    tokens[mask == 0] = PAD
    positions = np.maximum(np.cumsum(mask, 1) - 1, 0)
    segments = random.randint(0, 2, (B, S)) * mask
    return {"input_ids": tokens, "attention_mask": mask, "position_ids": positions, "token_type_ids": segments}


def theirs(model: Any, given: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """The outputs of each row alone, by our names: of its tokens (S, N), or of the text (N)."""
    several = getattr(model.config, "type_vocab_size", 1) > 1
    keys = ("input_ids", "token_type_ids") if several else ("input_ids",)
    for row, mask in enumerate(given["attention_mask"]):
        with torch.no_grad():
            outputs = model(**{key: torch.tensor(given[key][row, mask == 1])[None] for key in keys})
        names = {"prediction_logits": "logits", "last_hidden_state": "last_hidden_state", "pooler_output": "pooled"}
        made = {names.get(key, key): value[0].numpy() for key, value in outputs.items() if hasattr(value, "numpy")}
        yield {key: value for key, value in made.items() if key in ("logits", "last_hidden_state", "pooled")}


def ours(folder: Path, given: Mapping[str, Array]) -> dict[str, Array]:
    made, params = compiled(folder)
    return interpret(made.function, {each.name: given[each.name] for each in made.function.inputs}, params)


@pytest.mark.parametrize("name", CASES)
def test_a_saved_folder_is_imported_and_computes_the_same(name: str, tmp_path: Path) -> None:
    model, given = saved(name, CASES[name], tmp_path), feeds()
    outputs, rows = ours(tmp_path, given), list(theirs(model, given))
    assert outputs.keys() == rows[0].keys()
    for key, all_rows in outputs.items():
        wanted = [row[key][:, None] if name == "ElectraForPreTraining" else row[key] for row in rows]
        by_token = all_rows.ndim == 3
        masks = given["attention_mask"] == 1
        got = [each[mask] if by_token else each for each, mask in zip(all_rows, masks, strict=True)]
        spread = np.concatenate(wanted).std()
        assert spread > 0.05, key
        for a, b in zip(got, wanted, strict=True):
            assert a.shape == b.shape and np.abs(a - b).max() < 1e-5 * spread, key  # their cosines are in float32


# Folders of sentence-transformers, whose modules are a few lines

POOL: dict[str, Callable[[Array], Array]] = {
    "mean": lambda hidden: hidden.mean(0),
    "cls": lambda hidden: hidden[0],
    "lasttoken": lambda hidden: hidden[-1],
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
    model, given = saved(name, CASES[name], tmp_path), feeds()
    vectors = np.stack([POOL[mode](row["last_hidden_state"]) for row in theirs(model, given)])
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
    assert np.abs(ours(tmp_path, given)["pooled"] - vectors).max() < 1e-6
    assert np.abs(loaded(tmp_path, given) - vectors).max() < 1e-4


def loaded(folder: Path, given: Mapping[str, Array]) -> Array:
    """What the written model.py computes from the folder itself."""
    (folder / "model.py").write_text(compiled(folder)[0].model_py(), encoding="utf-8")
    model = load_module(folder / "model.py").Model.load(folder)
    names = model.forward.__code__.co_varnames[: model.forward.__code__.co_argcount]
    with torch.no_grad():
        return model(**{key: torch.tensor(array) for key, array in given.items() if key in names}).pooled.numpy()
