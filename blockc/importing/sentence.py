"""The modules of a sentence-transformers folder, which stand behind the model: pool, dense layers, unit length.

    modules.json               [Transformer, Pooling, Dense ..., Normalize], each with the folder of its own files
    1_Pooling/config.json      which tokens the vector is of: the spec's pool.type
    2_Dense/config.json        size and activation of a matrix, whose weights lie beside it

They are the spec's `pool`, in the place of the head. Dense layers are a list, even a single one: the parameter `dense`
is that of a model's own pooler. Raises SpecError, by the line of the file, for what the language has no word for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from blockc.diagnostics.importing import CONFIG_KEY, CONFIG_MISSING, CONFIG_VALUE
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
from blockc.source.jsontext import parse_json, parse_json_list

MODULES = "modules.json"
CONFIG = "config.json"
# By pooling_mode, and by the older keys that are true or false, in the order in which these are joined.
_TYPES = {"cls": "first", "mean": "mean", "lasttoken": "last"}
_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ACTS = {
    "torch.nn.modules.linear.Identity": "none",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
}
_SAME = {f"torch.nn.{each.rpartition('.')[2]}": each for each in _ACTS}
_IDLE = ("embedding_dimension", "word_embedding_dimension")  # sizes, which the model has
_OF_VECTOR = "sentence_embedding"


@dataclass(frozen=True)
class Modules:
    """`pool` of the spec, and the folders of the Dense modules, in their order."""

    pool: MappingNode
    dense: tuple[Path, ...]


def read_modules(folder: Path) -> Modules | None:
    """What modules.json in a folder says; None where there is none. Raises SpecError."""
    path = folder / MODULES
    if not path.exists():
        return None
    return _Reader(folder).read(parse_json_list(read_bytes(path), str(path)))


@dataclass
class _Reader:
    folder: Path
    faults: list[Finding] = field(default_factory=list[Finding])

    def read(self, listed: SequenceNode) -> Modules:
        found = [(kind, path, place) for each in listed.items for kind, path, place in self.module(each)]
        kinds = [kind for kind, _, _ in found if kind != "Dropout"]
        count = kinds.count("Dense")
        ends = (["Normalize"],) if kinds[-1:] == ["Normalize"] else ([],)
        if kinds != ["Transformer", "Pooling", *["Dense"] * count, *ends[0]] and not self.faults:
            self.wrong(listed.place, "an order of modules that no spec says",
                       "Transformer, Pooling, any Dense, Normalize", ", ".join(kinds))  # fmt: skip
        at = listed.place
        entries = {"type": ScalarNode("mean", at, "mean")}
        pool: dict[str, Tree] = {**entries}
        dense: list[tuple[MappingNode, Path]] = []
        stream: object = None
        for kind, path, place in found:
            if kind == "Transformer" and path:
                self.wrong(place, f"the model lies in a folder of its own, {path}",
                           "beside modules.json, where sentence-transformers saves it")  # fmt: skip
            elif kind == "Pooling":
                pool["type"] = self.pooling(self.config(path, place))
            elif kind == "Dense":
                config = self.config(path, place)
                stream = self.plain(config, "in_features", None) if stream is None else stream
                dense.append((self.dense(config, stream), self.folder / path))
        if dense:
            pool["dense"] = SequenceNode(tuple(each for each, _ in dense), at)
        if ends[0]:
            pool["unit"] = ScalarNode(True, at, "true")
        if self.faults:
            raise SpecError(self.faults)
        made = MappingNode({key: Entry(value.place, value) for key, value in pool.items()}, at)
        return Modules(made, tuple(path for _, path in dense))

    def wrong(self, place: Place, message: str, expected: str = "", got: str = "") -> None:
        self.faults.append(finding(CONFIG_VALUE, place, message, expected=expected, got=got))

    def module(self, tree: Tree) -> Iterable[tuple[str, str, Place]]:
        """(The last word of its type, its folder, its place.)"""
        held = tree.entries if isinstance(tree, MappingNode) else {}
        kind, path = (to_plain(held[key].value) if key in held else None for key in ("type", "path"))
        if not isinstance(kind, str) or not isinstance(path, str):
            self.wrong(tree.place, "not a module", '{"path": folder, "type": class}')
            return
        word = kind.rpartition(".")[2]
        known = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")
        if word not in known or not kind.startswith("sentence_transformers."):
            self.wrong(held["type"].value.place, f"no word of a spec stands for the module {kind}", " or ".join(known))
        elif Path(path).is_absolute() or ".." in Path(path).parts:
            self.wrong(held["path"].value.place, "a module outside of its folder", "the name of a folder beside", path)
        else:
            yield word, path, tree.place

    def config(self, path: str, place: Place) -> MappingNode:
        file = self.folder / path / CONFIG
        if not file.exists():
            self.faults.append(finding(CONFIG_MISSING, place, f"no {path}/{CONFIG}, which says what the module does"))
            return MappingNode({}, place)
        return parse_json(read_bytes(file), str(file))

    def plain(self, config: MappingNode, key: str, absent: object) -> object:
        return to_plain(config.entries[key].value) if key in config.entries else absent

    def only(self, config: MappingNode, key: str, value: object, why: str) -> None:
        """A key that may have one value alone."""
        if key in config.entries and self.plain(config, key, None) not in (value, "null"):
            self.wrong(config.entries[key].value.place, f"{key}: {why}", str(value).lower())

    def known(self, config: MappingNode, *keys: str) -> None:
        for key, entry in config.entries.items():
            if key not in keys:
                near = suggest(key, keys)
                hint = f"did you mean {near}?" if near else ""
                self.faults.append(finding(CONFIG_KEY, entry.key, f"unknown key {key}", hint=hint))

    def pooling(self, config: MappingNode) -> ScalarNode:
        """The word of pool.type."""
        self.known(config, "pooling_mode", "include_prompt", *_MODES, *_IDLE)
        self.only(config, "include_prompt", True, "no word of a spec leaves out the tokens of a prompt")
        entry = config.entries.get("pooling_mode")
        place = entry.value.place if entry is not None else config.place
        said = to_plain(entry.value) if entry is not None else None
        modes = said if isinstance(said, list) else [said]
        if entry is None:
            on = {key: mode for key, mode in _MODES.items() if self.plain(config, key, False) is True}
            modes = list(on.values()) or ["mean"]
            place = next((config.entries[key].key for key, mode in on.items() if mode not in _TYPES), place)
        word = _TYPES.get(str(modes[0]))
        if word is None or len(modes) > 1:
            joined = " and ".join(map(str, modes))
            self.wrong(place, f"no word of a spec stands for pooling by {joined}", f"one of {', '.join(_TYPES)}")
            word = "mean"
        return ScalarNode(word, place, word)

    def dense(self, config: MappingNode, stream: object) -> MappingNode:
        """One of pool.dense: its width where it is not the stream's, its activation and bias."""
        self.known(config, "in_features", "out_features", "bias", "activation_function", "module_input_name",
                   "module_output_name")  # fmt: skip
        for key in ("module_input_name", "module_output_name"):
            self.only(config, key, _OF_VECTOR, "a dense layer of something other than the pooled vector")
        at = config.place
        width = self.plain(config, "out_features", None)
        if type(width) is not int:
            self.wrong(at, "a dense layer without a size", '"out_features": a number')
        act = str(self.plain(config, "activation_function", "torch.nn.modules.activation.Tanh"))
        word = _ACTS.get(_SAME.get(act, act))
        if word is None:
            self.wrong(config.entries["activation_function"].value.place,
                       f"no word of a spec stands for {act}", " or ".join(_ACTS))  # fmt: skip
        made: dict[str, object] = {}
        made |= {"width": width} if width != stream else {}
        made |= {"act": word} if word not in (None, "none") else {}
        made |= {"bias": self.plain(config, "bias", True) is not False}
        nodes = {key: ScalarNode(value, at, str(value).lower()) for key, value in made.items()}  # type: ignore[arg-type]
        return MappingNode({key: Entry(at, node) for key, node in nodes.items()}, at)
