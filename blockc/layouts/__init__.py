"""Checkpoint layouts: how a family of weight files names and packs its tensors. One data file a layout, read strictly.

    tensors, layers   a name in the file: the parameter it holds, or {of: [...], groups, axis, transpose}; in GGUF
                      also permute_rope and plus_offset
    beyond            in layers: a tensor that a layer after the last one has: what that layer is; it is dropped
    tied              a name that may be in the file: the parameter that it then equals
    ignore            a name known to be without effect: the reason
    like              another layout, whose lines hold too; of a name in both, the line here holds, and none drops it
    older             the end of a name in older files: what stands there now
    prefix            alternatives; the first is the one that stands in the names of the layout

<i> is the layer, <p> is weight or bias. <e> is an expert: its tensor is a slice of the parameter along axis 0.
`weights` applies a layout to a function.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import cast

from blockc.basics.errors import BlockcError
from blockc.diagnostics.layouts import LAYOUT, LAYOUT_VERSION
from blockc.source import (
    Entry,
    Finding,
    MappingNode,
    Place,
    ScalarNode,
    SequenceNode,
    SpecError,
    Tree,
    extend,
    finding,
    parse,
    suggest,
    to_plain,
)

WORDS = ("layout", "like", "older", "prefix", "tensors", "layers", "tied", "ignore")
HEADS = ("heads", "kv_heads")
GROUPS = (*HEADS, "mlp_width")  # the sizes by which a file may group
GGUF_WORDS = ("permute_rope", "plus_offset")


class LayoutError(BlockcError):
    """A layout that does not exist, or that does not fit the function."""


@dataclass(frozen=True)
class Item:
    """One line of a layout: a name in the file, the parameters joined in it, and how.

    {i} stands for the layer, {e} for the expert.
    """

    name: str
    targets: tuple[str, ...]
    groups: int | str = 1
    axis: int = 0
    transpose: bool = False
    permute_rope: str | None = None  # the heads whose rows are interleaved in the file and halves here
    plus_offset: bool = False  # the file stores the gain with the norm's offset already added

    @property
    def by_expert(self) -> bool:
        """Whether the file has a tensor for each expert."""
        return "{e}" in self.name


@dataclass(frozen=True)
class Layout:
    name: str
    items: tuple[Item, ...]
    tied: Mapping[str, str]  # a name that may be in the file: the parameter that it then equals
    ignored: Mapping[str, str]  # a name known to be without effect: the reason
    prefixes: tuple[str, ...]  # the first stands in the names above; a file may have another in its stead
    beyond: Mapping[str, str]  # a tensor that a layer after the last one has: what that layer is
    older: Mapping[str, str] = field(default_factory=dict[str, str])  # the end of a name in older files: that of today


def load_layout(name: str) -> Layout:
    """The layout of this name. Raises LayoutError where there is none, SpecError where its file is at fault."""
    return _load(name, files("blockc").joinpath("layouts"), ())


def load_gguf_layout(architecture: str) -> Layout:
    """The layout of GGUF files of an architecture: a folder of its own, as no model.py reads them."""
    return _load(architecture, files("blockc").joinpath("layouts", "gguf"), GGUF_WORDS)


@cache
def _load(name: str, folder: Traversable, words: tuple[str, ...]) -> Layout:
    known = sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    if name not in known:
        raise LayoutError(f"no checkpoint layout is named {name!r}; there are: {', '.join(known)}")
    return read_layout(name, _read_file(name, folder), words)


def _read_file(name: str, folder: Traversable) -> MappingNode:
    tree = parse(folder.joinpath(f"{name}.yaml").read_bytes(), f"layouts/{name}.yaml")
    like = tree.entries.get("like")
    if like is None:
        return tree
    own = MappingNode({key: entry for key, entry in tree.entries.items() if key != "like"}, tree.place)
    return _drop_none(extend(_read_file(str(to_plain(like.value)), folder), own))


def _drop_none(tree: MappingNode) -> MappingNode:
    """The tree without the lines that are none."""
    kept = {key: entry for key, entry in tree.entries.items() if to_plain(entry.value) != "none"}
    inner = {key: entry.value for key, entry in kept.items()}
    each = {key: _drop_none(value) if isinstance(value, MappingNode) else value for key, value in inner.items()}
    return MappingNode({key: Entry(kept[key].key, value) for key, value in each.items()}, tree.place)


def read_layout(name: str, tree: MappingNode, words: tuple[str, ...] = ()) -> Layout:
    """A layout's tree, every word understood or refused with its place. `words` are those that model.py cannot undo."""
    reader = _LayoutReader(words)
    top = reader.mapping(tree, WORDS)
    version = to_plain(top["layout"].value) if "layout" in top else None
    if type(version) is not int or version != 1:
        place = top["layout"].value.place if "layout" in top else tree.place
        message = "unknown version of the layout format"
        raise SpecError([finding(LAYOUT_VERSION, place, message, expected="layout: 1")])
    items = list(reader.items(top["tensors"].value, "", "")) if "tensors" in top else []
    beyond: dict[str, str] = {}
    if "layers" in top:
        of_layers, beyond = reader.layers(top["layers"].value)
        items += of_layers
    tied = dict(reader.pairs(top["tied"].value, ())) if "tied" in top else {}
    ignored = dict(reader.reasons(top["ignore"].value, "a tensor is ignored for no reason")) if "ignore" in top else {}
    prefixes = tuple(reader.words(top["prefix"].value, ())) if "prefix" in top else ()
    older = dict(reader.pairs(top["older"].value, ())) if "older" in top else {}
    if reader.faults:
        raise SpecError(reader.faults)
    return Layout(name, tuple(items), tied, ignored, prefixes, beyond, older)


class _LayoutReader:
    """Reads a layout's tree. Faults are gathered, so that one run shows all that is wrong."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self.how = ("of", "groups", "axis", "transpose", *words)
        self.faults: list[Finding] = []

    def wrong(self, place: Place, message: str, expected: str, got: object = "", hint: str = "") -> None:
        self.faults.append(finding(LAYOUT, place, message, expected=expected, got=str(got), hint=hint))

    def mapping(self, tree: Tree, words: tuple[str, ...] = ()) -> dict[str, Entry]:
        """The entries; where words are given, no other key stands."""
        if not isinstance(tree, MappingNode):
            self.wrong(tree.place, "not a mapping", "key: value", to_plain(tree))
            return {}
        for key, entry in tree.entries.items():
            if words and key not in words:
                near = suggest(key, words)
                hint = f"did you mean {near}?" if near else ""
                self.wrong(entry.key, f"unknown word {key}", ", ".join(words), key, hint)
        return tree.entries

    def name(self, text: object, place: Place, holes: tuple[str, ...]) -> str:
        """A tensor's name, in which each of these placeholders may stand once; they come back in braces."""
        bare = text if isinstance(text, str) else "!"
        for hole in holes:
            bare = bare.replace(hole, "", 1)
        if not re.fullmatch(r"[A-Za-z0-9_.]*", bare):
            self.wrong(place, "not a tensor name", " ".join(("letters, digits, _ and .", *holes)), text)
        return re.sub(r"<([ipe])>", r"{\1}", str(text))

    def words(self, tree: Tree, holes: tuple[str, ...]) -> list[str]:
        if not isinstance(tree, SequenceNode) or not tree.items:
            self.wrong(tree.place, "not a list of names", "[a, b]", to_plain(tree))
            return []
        return [self.name(to_plain(item), item.place, holes) for item in tree.items]

    def pairs(self, tree: Tree, holes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for key, entry in self.mapping(tree).items():
            yield self.name(key, entry.key, holes), self.name(to_plain(entry.value), entry.value.place, holes)

    def reasons(self, tree: Tree, without: str) -> Iterator[tuple[str, str]]:
        for key, entry in self.mapping(tree).items():
            reason = to_plain(entry.value)
            if not isinstance(reason, str) or not reason:
                self.wrong(entry.value.place, without, "a sentence", reason)
            yield self.name(key, entry.key, ("<i>",)), str(reason)

    def layers(self, tree: Tree) -> tuple[list[Item], dict[str, str]]:
        """(The items of each layer; tensors of layers after the last one, with what those are.)"""
        entries = self.mapping(tree, ("at", "tensors", "beyond"))
        if not entries.keys() >= {"at", "tensors"}:
            self.wrong(tree.place, "layers lacks a word", "at and tensors", ", ".join(entries))
            return [], {}
        at = self.name(to_plain(entries["at"].value), entries["at"].value.place, ("<i>",))
        if "{i}" not in at:
            self.wrong(entries["at"].value.place, "no place for the layer's number", "<i>", at)
        told = "nothing says what the layers after the last one are"
        beyond = dict(self.reasons(entries["beyond"].value, told)) if "beyond" in entries else {}
        items = list(self.items(entries["tensors"].value, f"{at}.", "layers.{i}."))
        return items, {f"{at}.{name}": what for name, what in beyond.items()}

    def items(self, tree: Tree, at: str, under: str) -> Iterator[Item]:
        """One item a line, or two where <p> stands for weight and bias."""
        for key, entry in self.mapping(tree).items():
            name = at + self.name(key, entry.key, ("<p>", "<e>") if under else ("<p>",))
            item = self.item(name, entry.value, under)
            if item.by_expert and not isinstance(entry.value, ScalarNode):
                self.wrong(entry.value.place, "<e> stands alone", "one parameter, neither joined nor transposed", key)
            if any(("{p}" in target) != ("{p}" in name) for target in item.targets):
                self.wrong(entry.key, "<p> on one side alone", "<p> in the file's name and in every parameter's")
            for kind in ("weight", "bias") if "{p}" in name else ("",):
                targets = tuple(target.replace("{p}", kind) for target in item.targets)
                yield replace(item, name=name.replace("{p}", kind), targets=targets)

    def item(self, name: str, tree: Tree, under: str) -> Item:
        if isinstance(tree, ScalarNode):
            return Item(name, (under + self.name(tree.value, tree.place, ("<p>",)),))
        entries = self.mapping(tree, self.how)
        if "of" not in entries:
            self.wrong(tree.place, "no parameters are named", "of: [...]")
            return Item(name, ())
        targets = tuple(under + target for target in self.words(entries["of"].value, ("<p>",)))
        groups = self.number(entries, "groups", 1, 1, GROUPS)
        axis = cast(int, self.number(entries, "axis", 0, 0))
        transpose, plus = self.flag(entries, "transpose"), self.flag(entries, "plus_offset")
        if plus and (len(targets) > 1 or entries.keys() > {"of", "plus_offset"}):
            self.wrong(tree.place, "plus_offset stands alone", "one parameter, neither joined nor transposed", name)
        return Item(name, targets, groups, axis, transpose, self.permutation(entries, len(targets)), plus)

    def flag(self, entries: dict[str, Entry], key: str) -> bool:
        value = to_plain(entries[key].value) if key in entries else False
        if not isinstance(value, bool):
            self.wrong(entries[key].value.place, f"{key} is yes or no", "true or false", value)
        return value is True

    def permutation(self, entries: dict[str, Entry], targets: int) -> str | None:
        """The value of permute_rope, which only a line of one parameter and no other word may have."""
        if "permute_rope" not in entries:
            return None
        tree = entries["permute_rope"].value
        word = to_plain(tree)
        if not isinstance(word, str) or word not in HEADS:
            self.wrong(tree.place, "not a value of permute_rope", " or ".join(HEADS), word)
        elif targets > 1 or entries.keys() > {"of", "permute_rope"}:
            self.wrong(tree.place, "permute_rope stands alone", "one parameter, neither joined nor transposed", word)
        else:
            return word
        return None

    def number(
        self, entries: dict[str, Entry], key: str, absent: int, least: int, words: tuple[str, ...] = ()
    ) -> int | str:
        value = to_plain(entries[key].value) if key in entries else absent
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        if isinstance(value, str) and value in words:
            return value
        self.wrong(entries[key].value.place, f"not a value of {key}", " or ".join((f"{least} or more", *words)), value)
        return absent
