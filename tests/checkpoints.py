"""Checkpoints to build from: random weights of a twin as a family's file, in a dtype, whole or in shards."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from blockc import api
from blockc.graph import interp
from blockc.ir import Array
from blockc.layouts import load_layout
from blockc.pipeline.compiled import Compiled
from blockc.weights.matching import pack, unpack
from blockc.weights.rules import Rules, group_sizes, random_parameters, rules
from tests.paths import ROOT

TOKENS = 13


@cache
def twin(name: str) -> Compiled:
    return api.twin(api.compile(ROOT / "specs" / f"{name}.yaml"))


def rules_of(model: Compiled) -> Rules:
    family = model.spec.top.checkpoint
    assert family is not None
    return rules(load_layout(family), model.function, group_sizes(model.function))


def tensors(model: Compiled, seed: int = 3) -> dict[str, Array]:
    """Random weights under the names of the model's family, in float32."""
    packed = pack(rules_of(model), random_parameters(model.function, seed))
    return {name: np.asarray(array, np.float32, order="C") for name, array in packed.items()}


def encoded(array: Array, word: str) -> bytes:
    if word == "BF16":
        return (np.asarray(array, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    return array.astype({"F32": "<f4", "F16": "<f2", "F64": "<f8", "I64": "<i8"}[word]).tobytes()


def kept(array: Array, word: str) -> Array:
    """What a file of this dtype holds of the numbers."""
    if word == "BF16":
        return (np.asarray(array, np.float32).view(np.uint32) >> 16 << 16).view(np.float32)
    return array.astype({"F32": np.float32, "F16": np.float16, "F64": np.float64}[word])


def save(path: Path, held: Mapping[str, Array], word: str = "F32", words: Mapping[str, str] | None = None) -> Path:
    """A safetensors file, written here and not by what is tested."""
    path.parent.mkdir(parents=True, exist_ok=True)
    said = {name: (words or {}).get(name, word) for name in held}
    data = {name: encoded(array, said[name]) for name, array in held.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in held.items():
        header[name] = {"dtype": said[name], "shape": array.shape, "data_offsets": [end, end + len(data[name])]}
        end += len(data[name])
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data.values()))
    return path


def save_sharded(folder: Path, held: Mapping[str, Array], shards: int, word: str = "F32") -> Path:
    names = list(held)
    placed: dict[str, str] = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        save(folder / file, {name: held[name] for name in names[i::shards]}, word)
        placed |= dict.fromkeys(names[i::shards], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return folder


def save_empty(folder: Path, model: Compiled, shards: int, word: str, size: int) -> int:
    """Shards full of zeros that take no room on the disk. (Their bytes.)"""
    folder.mkdir(parents=True)
    shapes = {rule.name: rule.shape for rule in rules_of(model)}
    placed: dict[str, str] = {}
    total = 0
    for i in range(shards):
        file, end = f"model-{i + 1:05}-of-{shards:05}.safetensors", 0
        header: dict[str, Any] = {}
        for name in list(shapes)[i::shards]:
            length = math.prod(shapes[name]) * size
            header[name] = {"dtype": word, "shape": shapes[name], "data_offsets": [end, end + length]}
            end += length
            placed[name] = file
        text = json.dumps(header).encode()
        with (folder / file).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            out.truncate(8 + len(text) + end)
        total += end
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    return total


def parameters_in(model: Compiled, held: Mapping[str, Array]) -> dict[str, Array]:
    return {path: array.astype(np.float64) for path, array in unpack(rules_of(model), held).items()}


def off_by(model: Compiled, onnx: Path, params: Mapping[str, Array]) -> float:
    """The largest difference of the logits of a file in onnxruntime from the oracle's, of their spread."""
    import onnxruntime

    ids = np.random.RandomState(0).randint(0, model.spec.top.vocab, (1, TOKENS))
    feeds: dict[str, Array] = {
        "input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(TOKENS)[None],
    }  # fmt: skip
    truth = interp.interpret(model.function, feeds, dict(params))["logits"]
    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session: Any = onnxruntime.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
    for i in session.get_inputs():
        if i.name.startswith("past"):
            real = np.float16 if i.type == "tensor(float16)" else np.float32
            feeds[i.name] = np.zeros([1 if i.shape[0] != 1 and k == 0 else 0 if isinstance(n, str) else n
                                      for k, n in enumerate(i.shape)], real)  # fmt: skip
    wanted = {i.name for i in session.get_inputs()}
    assert wanted <= feeds.keys(), "every parameter is in the model"
    logits = session.run(["logits"], {name: array for name, array in feeds.items() if name in wanted})[0]
    return float(np.abs(logits.astype(np.float64) - truth).max() / truth.std())
