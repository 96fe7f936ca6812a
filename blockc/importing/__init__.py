"""A config.json to the spec that a person would write. The map of its model type says what its keys mean.

The result is the tree of a spec whose values have their places in config.json, so that each fault has its line there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from blockc.basics.errors import escape
from blockc.diagnostics.importing import CONFIG_MISSING, CONFIG_VALUE, MODEL_TYPE, QUANTISED_WEIGHTS, READ_OTHERWISE
from blockc.importing.layers import add_layers
from blockc.importing.maps import CLASS, load_map, model_types, unread_types
from blockc.importing.sentence import Modules as Modules
from blockc.importing.sentence import read_modules as read_modules
from blockc.importing.values import MOST_LAYERS, ConfigReader, Names, none_at
from blockc.language.spec.keys import name_fault
from blockc.source import (
    Entry,
    Finding,
    MappingNode,
    Place,
    ScalarNode,
    SequenceNode,
    SpecError,
    Tree,
    finding,
    read_bytes,
    suggest,
    to_plain,
)
from blockc.source.jsontext import is_null, parse_json

CONFIG = "config.json"
QUANTISED = ("quantization_config", "compression_config")
READ = ("fp8", "mxfp4")  # methods whose codes have scales beside them that make them floats again


BASE = "Model"  # the end of the class without a head
INNER = "text_config"  # under which the language model of one with towers lies
TIED = "tie_word_embeddings"  # said around a language model, and meant of it


@dataclass(frozen=True)
class ImportResult:
    """A spec's tree, the model type that it comes from, and what is to be known of it: warnings and notes by place.

    `whole` is the tree with all that follows from other keys; `names` are the keys of config.json, and their values, by
    the line and column where these stand; `skipped` are the unknown keys that a lenient reading skipped; `endings` are
    those of the classes that the model type has.
    """

    tree: MappingNode
    model_type: str
    warnings: tuple[Finding, ...]
    whole: MappingNode
    names: Names
    skipped: tuple[str, ...]
    endings: tuple[str, ...] = ()


def find_config(path: Path) -> Path | None:
    """The config.json at a path: a .json file, or the one in a folder."""
    if path.is_dir():
        return path / CONFIG if (path / CONFIG).exists() else None
    return path if path.suffix == ".json" else None


def import_config_file(path: Path, modules: Modules | None = None) -> ImportResult:
    """The config.json as a spec. Raises SpecError with all that is wrong, by line and column."""
    return import_config(read_bytes(path), str(path), _name_from_path(path), modules=modules)


def import_config(
    data: bytes, file: str, name: str, lenient: bool = False, modules: Modules | None = None
) -> ImportResult:
    return import_tree(parse_json(data, file), name, lenient, modules)


def import_tree(
    whole: MappingNode, name: str, lenient: bool = False, modules: Modules | None = None, ending: str = ""
) -> ImportResult:
    """The spec of a parsed config.json. `lenient` skips unknown keys whose names do not suggest an effect.

    `modules` of a sentence-transformers folder stand in the place of the head. `ending` is that of a class to take
    instead of the one that the file names.
    """
    chosen = _find_language_model(whole)
    try:
        return _import(chosen, name, lenient, modules, ending or (BASE if modules is not None else ""))
    except SpecError as error:
        here = chosen.place
        raise SpecError(f if f.place.file == here.file else replace(f, place=here) for f in error.findings) from None


def _import(chosen: _LanguageConfig, name: str, lenient: bool, modules: Modules | None, ending: str) -> ImportResult:
    config = chosen.config
    reading = ConfigReader(load_map(chosen.model_type), _drop_quantisation(config, chosen.faults), lenient=lenient)
    reading.faults += chosen.faults
    case = reading.map.cases.get(ending, MappingNode({}, config.place)) if ending else reading.case()
    spec = {**reading.map.spec.entries, **case.entries}
    if modules is not None and BASE not in reading.map.cases:
        message = f"modules.json wants {chosen.model_type} without a head, and its map does not say how files name that"
        reading.wrong(CONFIG_VALUE, chosen.place, message, f"a model type whose map has the case {BASE}")
    if modules is not None:
        pool = Entry(modules.pool.place, modules.pool)
        spec = {key: entry for key, entry in spec.items() if key != "head"} | {"pool": pool}
    depth = to_plain(reading.tree(spec["depth"].value)) if "depth" in spec else 0
    reading.depth = depth if isinstance(depth, int) and 0 < depth <= MOST_LAYERS else 0
    base = reading.tree(MappingNode({key: entry for key, entry in spec.items() if key != "layers"}, config.place))
    layers = reading.tree(spec["layers"].value) if "layers" in spec and reading.depth else None
    reading.close()
    assert isinstance(base, MappingNode) and (layers is None or isinstance(layers, MappingNode))
    made = _set_places(_with_head(add_layers(base, layers, reading), base), chosen.place)
    assert isinstance(made, MappingNode)
    first = {"blockc": ScalarNode(1, config.place, "1"), "name": ScalarNode(name, config.place, name)}
    head = {key: Entry(config.place, value) for key, value in first.items()}
    said = (*reading.warnings, *_find_ignored_keys(chosen, reading))
    tree = MappingNode({**head, **made.entries}, config.place)
    whole = {**base.entries, **({"layers": Entry(config.place, layers)} if layers is not None else {})}
    placed = _set_places(MappingNode(whole, config.place), chosen.place)
    assert isinstance(placed, MappingNode)
    endings = tuple(reading.map.cases)
    return ImportResult(tree, chosen.model_type, said, placed, reading.names, tuple(reading.skipped), endings)


def _with_head(made: MappingNode, base: MappingNode) -> MappingNode:
    """The spec with its head; a model without one says so, where other keys that are none are left out."""
    if "head" in made.entries:
        return made
    place = base.entries["head"].value.place if "head" in base.entries else base.place
    entries = {**made.entries, "head": Entry(place, none_at(place))}
    order = [*base.entries, "head"] if "head" not in base.entries else [*base.entries]
    return MappingNode({key: entries[key] for key in dict.fromkeys((*order, *entries)) if key in entries}, made.place)


def _set_places(tree: Tree, place: Place) -> Tree:
    """Moves places in the map to the place in config.json that names the model type."""
    here = tree.place if tree.place.file == place.file else place
    match tree:
        case ScalarNode():
            return ScalarNode(tree.value, here, tree.text, tree.quoted)
        case SequenceNode():
            return SequenceNode(tuple(_set_places(item, place) for item in tree.items), here)
        case MappingNode():
            entries = {
                key: Entry(entry.key if entry.key.file == place.file else place, _set_places(entry.value, place))
                for key, entry in tree.entries.items()
            }
            return MappingNode(entries, here)


@dataclass
class _LanguageConfig:
    """The config of what generates text, what stands around it, and what is not understood of that."""

    model_type: str
    config: MappingNode
    place: Place  # of the word that chose the map
    around: MappingNode | None = None
    faults: list[Finding] = field(default_factory=list[Finding])


def _find_language_model(whole: MappingNode) -> _LanguageConfig:
    """What lies under text_config, where there is such; towers beside it, and their keys, are without effect on it."""
    word = _model_type_word(whole)
    map_ = load_map(word) if word in model_types() else None
    if map_ is not None and map_.inner is None:
        return _LanguageConfig(word, whole, whole.entries["model_type"].value.place)
    key, known = map_.inner if map_ is not None and map_.inner is not None else (INNER, "")
    inner = whole.entries[key].value if key in whole.entries else None
    if not isinstance(inner, MappingNode):
        if map_ is None:
            raise _unknown_type(word, whole)
        raise SpecError([finding(CONFIG_MISSING, whole.place, f"missing key {key}",
                                 expected="the config of the language model")])  # fmt: skip
    faults: list[Finding] = []
    around = _drop_quantisation(
        MappingNode({name: e for name, e in whole.entries.items() if name != key}, whole.place), faults
    )
    said = _read_model_type(inner) if "model_type" in inner.entries or not known else known
    place = inner.entries["model_type"].value.place if "model_type" in inner.entries else inner.place
    if TIED in around.entries and not is_null(around.entries[TIED].value):
        inner = _merge_tied(inner, around.entries[TIED], faults)
    return _LanguageConfig(said, inner, place, around, faults)


def _merge_tied(inner: MappingNode, around: Entry, faults: list[Finding]) -> MappingNode:
    """The outer key says it of the language model, whose own must not say otherwise."""
    own = inner.entries.get(TIED)
    if own is None or is_null(own.value):
        return MappingNode({**inner.entries, TIED: around}, inner.place)
    if to_plain(own.value) != to_plain(around.value):
        message = f"{TIED} of the language model and of the whole differ"
        others = [("the other is here", around.key)]
        faults.append(finding(CONFIG_VALUE, own.key, message, expected="one of the two", others=others))
    return inner


def _find_ignored_keys(chosen: _LanguageConfig, reading: ConfigReader) -> list[Finding]:
    """Keys of the language model that stand around it and say otherwise: they are those of another tower."""
    found: list[Finding] = []
    for name, entry in chosen.around.entries.items() if chosen.around is not None else ():
        if (
            name not in reading.map.read
            or name in (TIED, CLASS)
            or isinstance(entry.value, MappingNode)
            or is_null(entry.value)
        ):
            continue
        taken = to_plain(reading.key(name))
        if taken != to_plain(entry.value):
            message = f"{name} stands around the language model, and is not read: that of {INNER} is {taken}"
            found.append(finding(READ_OTHERWISE, entry.value.place, message))
    return found


def _drop_quantisation(config: MappingNode, faults: list[Finding]) -> MappingNode:
    """The config without its quantisation keys, which are a fault of their own: no map has them."""
    found = {key: config.entries[key] for key in QUANTISED if key in config.entries}
    for key, entry in found.items():
        if is_null(entry.value) or (isinstance(entry.value, MappingNode) and not entry.value.entries):
            continue
        method = entry.value.entries.get("quant_method") if isinstance(entry.value, MappingNode) else None
        if method is not None and to_plain(method.value) in READ:
            continue
        how = f" by {escape(str(to_plain(method.value)))}" if method is not None else ""
        faults.append(
            finding(
                QUANTISED_WEIGHTS,
                entry.key,
                f"{key}: the weights are quantised{how}, and no such encoding is read",
                expected="weights in floats: fp32, fp16 or bf16, of the model as it was before; or its GGUF file",
                hint=f"without the key {key}, the config is imported as that model, and its sizes are known",
            )
        )
    return MappingNode({key: entry for key, entry in config.entries.items() if key not in found}, config.place)


def why_unknown(whole: MappingNode) -> str | None:
    """Why no map reads this config.json; None where one does."""
    try:
        _find_language_model(whole)
    except SpecError as error:
        first = error.findings[0]
        return first.message if first.code in (MODEL_TYPE, CONFIG_MISSING) else None
    return None


def _read_model_type(config: MappingNode) -> str:
    """One that has a map. Raises SpecError."""
    word = _model_type_word(config)
    if word not in model_types():
        raise _unknown_type(word, config)
    return word


def _model_type_word(config: MappingNode) -> str:
    if "model_type" not in config.entries:
        raise SpecError([finding(CONFIG_MISSING, config.place, "missing key model_type",
                                 expected="one of " + ", ".join(model_types()))])  # fmt: skip
    tree = config.entries["model_type"].value
    word = to_plain(tree)
    if not isinstance(word, str):
        raise SpecError([finding(CONFIG_VALUE, tree.place, "model_type is a word", expected="a text")])
    return word


def _unknown_type(word: str, config: MappingNode) -> SpecError:
    place, why = config.entries["model_type"].value.place, unread_types().get(word)
    if why is not None:
        message = f"the model type {word} is not read: it has {why}"
        return SpecError([finding(MODEL_TYPE, place, message, expected="a function that the language can say")])
    near = suggest(word, model_types())
    hint = f"did you mean {near}?" if near else "write its spec by hand, or its map: CONTRIBUTING.md has the guide"
    return SpecError([finding(MODEL_TYPE, place, f"unknown model type {word}",
                              expected=", ".join(model_types()), hint=hint)])  # fmt: skip


def _name_from_path(path: Path) -> str:
    """The name of the folder, or of the file unless it is config.json; in a download cache, the name of the model."""
    path = path.absolute()
    word = path.parent.name if path.name == CONFIG else path.stem
    if path.name == CONFIG and path.parent.parent.name == "snapshots":
        word = path.parent.parent.parent.name.rpartition("--")[2]
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", word).lstrip("._-")[:100].lower()
    return "imported" if name_fault(word) else word
