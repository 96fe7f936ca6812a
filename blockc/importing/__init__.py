"""A config.json to the spec that a person would have written. Nothing of a model type stands here: its map says it.

The tree that is made is one of a spec whose values lie in config.json, so that whatever is wrong has its line there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from blockc.advice import beyond_scaling
from blockc.compile import Compiled
from blockc.diagnostics.importing import CONFIG_MISSING, CONFIG_VALUE, MODEL_TYPE, QUANTISED_WEIGHTS
from blockc.fmt import formatted
from blockc.importing.layers import with_layers
from blockc.importing.maps import load_map, model_types
from blockc.importing.values import MOST_LAYERS, Reading
from blockc.newspec import lines
from blockc.report.graph import Graph
from blockc.report.memory import growth
from blockc.safetensors import shown
from blockc.source import Entry, Finding, Mapping, Scalar, SpecError, finding, plain, read_bytes, suggest
from blockc.source.jsontext import is_null, parse_json
from blockc.spec.keys import name_fault

CONFIG = "config.json"
QUANTISED = ("quantization_config", "compression_config")


@dataclass(frozen=True)
class Imported:
    """A spec's tree, and the model type that it comes from."""

    tree: Mapping
    model_type: str


def config_file(path: Path) -> Path | None:
    """The config.json at a path: a .json file, or the one in a folder."""
    if path.is_dir():
        return path / CONFIG if (path / CONFIG).is_file() else None
    return path if path.suffix == ".json" else None


def read_config(path: Path) -> Imported:
    """The config.json as a spec. Raises SpecError with all that is wrong, by line and column."""
    return from_config(read_bytes(path), str(path), _name(path))


def from_config(data: bytes, file: str, name: str) -> Imported:
    whole = parse_json(data, file)
    model_type, config, faults = _language_model(_model_type(whole), whole)
    reading = Reading(load_map(model_type), _unquantised(config, faults))
    reading.faults += faults
    spec = reading.map.spec.entries
    depth = plain(reading.tree(spec["depth"].value)) if "depth" in spec else 0
    reading.depth = depth if isinstance(depth, int) and 0 < depth <= MOST_LAYERS else 0
    base = reading.tree(Mapping({key: entry for key, entry in spec.items() if key != "layers"}, config.place))
    layers = reading.tree(spec["layers"].value) if "layers" in spec and reading.depth else None
    reading.close()
    assert isinstance(base, Mapping) and (layers is None or isinstance(layers, Mapping))
    made = with_layers(base, layers, reading)
    first = {"blockc": Scalar(1, config.place, "1"), "name": Scalar(name, config.place, name)}
    head = {key: Entry(config.place, value) for key, value in first.items()}
    return Imported(Mapping({**head, **made.entries}, config.place), model_type)


def _language_model(model_type: str, config: Mapping) -> tuple[str, Mapping, list[Finding]]:
    """(The model type and the config of what generates text; what is not understood of all around it.)"""
    map_ = load_map(model_type)
    if map_.inner is None:
        return model_type, config, []
    key, known = map_.inner
    inner = config.entries[key].value if key in config.entries else None
    if not isinstance(inner, Mapping):
        raise SpecError([finding(CONFIG_MISSING, config.place, f"missing key {key}",
                                 expected="the config of the language model")])  # fmt: skip
    around = Mapping({name: entry for name, entry in config.entries.items() if name != key}, config.place)
    faults: list[Finding] = []
    outer = Reading(map_, _unquantised(around, faults))
    return _model_type(inner) if "model_type" in inner.entries else known, inner, faults + outer.faults


def _unquantised(config: Mapping, faults: list[Finding]) -> Mapping:
    """Without what says how the weights are quantised, which is a fault of its own: no map knows it."""
    found = {key: config.entries[key] for key in QUANTISED if key in config.entries}
    for key, entry in found.items():
        if is_null(entry.value):
            continue
        method = entry.value.entries.get("quant_method") if isinstance(entry.value, Mapping) else None
        how = f" by {shown(str(plain(method.value)))}" if method is not None else ""
        faults.append(
            finding(
                QUANTISED_WEIGHTS,
                entry.key,
                f"{key}: the weights are quantised{how}, and no such encoding is read",
                expected="weights in floats: fp32, fp16 or bf16, of the model as it was before; or its GGUF file",
                hint=f"without the key {key}, the config is imported as that model, and its sizes are known",
            )
        )
    return Mapping({key: entry for key, entry in config.entries.items() if key not in found}, config.place)


def _model_type(config: Mapping) -> str:
    if "model_type" not in config.entries:
        raise SpecError([finding(CONFIG_MISSING, config.place, "missing key model_type",
                                 expected="one of " + ", ".join(model_types()))])  # fmt: skip
    tree = config.entries["model_type"].value
    word = plain(tree)
    if not isinstance(word, str):
        raise SpecError([finding(CONFIG_VALUE, tree.place, "model_type is a word", expected="a text")])
    if word not in model_types():
        near = suggest(word, model_types())
        hint = f"did you mean {near}?" if near else "write its spec by hand, or its map: CONTRIBUTING.md has the recipe"
        raise SpecError([finding(MODEL_TYPE, tree.place, f"unknown model type {word}",
                                 expected=", ".join(model_types()), hint=hint)])  # fmt: skip
    return word


def _name(path: Path) -> str:
    """That of the folder, or of the file where it has one of its own; in a download cache, of the model."""
    path = path.absolute()
    word = path.parent.name if path.name == CONFIG else path.stem
    if path.name == CONFIG and path.parent.parent.name == "snapshots":
        word = path.parent.parent.parent.name.rpartition("--")[2]
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", word).lstrip("._-")[:100].lower()
    return "imported" if name_fault(word) else word


# The text


def spec_text(imported: Imported, model: Compiled, weighed: bool) -> str:
    """The spec, with its figures as they are computed; `weighed` says that a checkpoint's tensors have them too."""
    data = {key: _short(plain(entry.value)) for key, entry in imported.tree.entries.items()}
    kinds, graph = model.spec.kinds, Graph(model.function, model.decoder.kinds)
    expect = {"parameters": model.parameters, "kv_values_per_token": growth(graph, 1)}
    expect |= {"context": model.spec.top.context} if beyond_scaling(model) else {}
    data["expect"] = {**expect, **({"layers": kinds} if len(kinds) > 1 else {})}
    by = "as the checkpoint's tensors have them" if weighed else "as computed from these sizes"
    written: list[str] = []
    for key, value in data.items():
        written += [f"# parameters: {by}"] if key == "expect" else ()
        written += _block(key, value)
    written[0] += f"  # imported from a {CONFIG} of model_type {imported.model_type}"
    return formatted("\n".join([*written, ""]).encode(), "spec").decode()


def _block(key: str, value: object) -> list[str]:
    """A key's lines; layers and their kinds one below the other."""
    if key != "layers" or not isinstance(value, dict):
        return lines(key, value, "")
    kinds = value["kinds"]
    listed = [line for word in value if word != "kinds" for line in lines(word, value[word], "  ")]
    return ["layers:", *listed, "  kinds:", *(line for kind in kinds for line in lines(kind, kinds[kind], "    "))]


def _short(value: object) -> object:
    """8.0 as 8: a number of the language is the same whether it is written with a point or not."""
    match value:
        case dict():
            return {key: _short(inner) for key, inner in value.items()}
        case list():
            return [_short(inner) for inner in value]
        case float() if value.is_integer() and abs(value) < 1e15:
            return int(value)
        case _:
            return value
