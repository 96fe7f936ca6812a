"""Maps: what the keys of a config.json mean, one data file a model type, read strictly.

    like             another model type, whose map holds for this one too, but for what stands beside
    inner            in the place of a spec: {key: model type} of the language model that lies under a key
    spec             the spec of the model type; <key> stands for the value of a key of config.json
    cases            the end of the class that `architectures` names: the keys of the spec that hold for that class,
                     each instead of the same of `spec`; the first case holds where the key is absent
    left_out         the end of such a class: what of it is not read, which is a warning
    absent           the value of a key that a config.json leaves out or sets to null
    if_null          the value of a key that is set to null, where that is another than the absent one's
    spelled          another name of a key: the key; of all below it too
    let              a name for a value that is computed
    only             a key without a word in the language: the value, or the list of values, that it may have
    without_effect   a key that does not change the function: the reason
    read_otherwise   a key of which the model type's code makes something else than the file says: {as: the value that
                     it takes, because: why}; where the two differ, that is a warning
    noted            the same where nothing is wrong, and both figures are worth knowing: a note

Beside <key>, a value may be

    {from: key, is: {word: value}, else: value}            a table; absent and null are the word none; because: why no
                                                           other word is read
    {if: key, then: value, else: value}                    of a truth value; else is none where it is left out
    {has: key, then: value, else: value}                   whether a key has a value
    {times: [a, b]}, {ratio: [a, b]}, {power: [a, b]}      a b, a / b, a ^ b
    {plus: [a, b]}, {log: [a, b]}, {most: [a, b]}          a + b, ln a / ln b, the larger of the two
    {quotient: [a, b]}                                     a / b without its rest
    {entries: <key>}                                       how many entries an object has
    {tile: [a, b]}                                         a value for each layer, these in turn
    {every: n, last: a, others: b}                         a for each n-th layer
    {runs_of: n, first: a, others: b}                      a for the first of each n layers
    {until: n, before: a, after: b}                        a for the first n layers
    {at: [n, m], here: a, others: b}                       a for the layers of these numbers, from 0
    {runs: [[[a, b], n]]}                                  a and b, n times
    {joined: [a, b]}                                       the words of two lists as a_b, a layer each; none is left out

a and b of a few layers may be lists, with a value for each. `none` leaves a key of the spec out. A table or a condition
on a list is applied to each of its values. In `layers`, `each` is the kind of each layer. What all model types have in
common is read from _common.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from blockc.basics.distribution import model_types as model_types
from blockc.diagnostics.importing import IMPORT_MAP
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

WORDS = (
    "import", "like", "inner", "spec", "cases", "absent", "if_null", "spelled", "let", "only", "without_effect",
    "left_out", "read_otherwise", "noted",
)  # fmt: skip
# The first word of each value that is computed: the words beside it.
OPS: dict[str, tuple[str, ...]] = {
    "from": ("is", "else", "because"),
    "if": ("then", "else"),
    "has": ("then", "else"),
    "times": (),
    "ratio": (),
    "quotient": (),
    "power": (),
    "plus": (),
    "log": (),
    "most": (),
    "entries": (),
    "tile": (),
    "every": ("last", "others"),
    "runs_of": ("first", "others"),
    "until": ("before", "after"),
    "at": ("here", "others"),
    "runs": (),
    "joined": (),
}
COMMON = "_common"
CLASS = "architectures"  # the key that names the class
UNREAD = "layouts/unread/model-types.yaml"
KEY = r"[A-Za-z_][A-Za-z0-9_.]*"
_HOLE = re.compile(rf"<({KEY})>")


@dataclass(frozen=True)
class OtherValue:
    """The value that a key is taken for, and why that is not what the file says."""

    taken: Tree
    because: str


@dataclass(frozen=True)
class Map:
    """A model type's map, with what is common to all."""

    spec: MappingNode
    inner: tuple[str, str] | None = None  # the key of the language model's own config, and its model type
    absent: dict[str, Tree] = field(default_factory=dict[str, Tree])
    if_null: dict[str, Tree] = field(default_factory=dict[str, Tree])
    spelled: dict[str, str] = field(default_factory=dict[str, str])
    let: dict[str, Tree] = field(default_factory=dict[str, Tree])
    only: dict[str, Tree] = field(default_factory=dict[str, Tree])
    without_effect: dict[str, str] = field(default_factory=dict[str, str])
    read_otherwise: dict[str, OtherValue] = field(default_factory=dict[str, OtherValue])
    noted: dict[str, OtherValue] = field(default_factory=dict[str, OtherValue])
    cases: dict[str, MappingNode] = field(default_factory=dict[str, MappingNode])  # by the end of a class's name
    left_out: dict[str, str] = field(default_factory=dict[str, str])  # by the same
    read: frozenset[str] = frozenset()  # the keys that the spec depends on

    @property
    def known(self) -> frozenset[str]:
        said = self.read | self.only.keys() | self.without_effect.keys() | self.spelled.keys()
        return said | self.read_otherwise.keys()


def placeholder_of(tree: Tree) -> str | None:
    """The key that <key> stands for."""
    found = _HOLE.fullmatch(tree.value) if isinstance(tree, ScalarNode) and isinstance(tree.value, str) else None
    return found[1] if found else None


def op_of(tree: MappingNode) -> str | None:
    """The first word of a value that is computed."""
    return next((word for word in OPS if word in tree.entries), None)


@cache
def load_map(model_type: str) -> Map:
    """The map of one of `model_types`."""
    return read_map(_read_file(model_type), read_map(_read_file(COMMON)))


@cache
def unread_types() -> dict[str, str]:
    """Model types that are known and not read: the part of each that the language has no word for."""
    tree = parse(files("blockc").joinpath(*UNREAD.split("/")).read_bytes(), UNREAD)
    types = to_plain(tree.entries["types"].value)
    return {str(name): str(why) for name, why in types.items()} if isinstance(types, dict) else {}


def _read_file(name: str) -> MappingNode:
    path = files("blockc").joinpath("layouts", "config", f"{name}.yaml")
    tree = parse(path.read_bytes(), f"layouts/config/{name}.yaml")
    like = tree.entries.get("like")
    if like is None:
        return tree
    own = MappingNode({key: entry for key, entry in tree.entries.items() if key != "like"}, tree.place)
    return extend(_read_file(str(to_plain(like.value))), own)


def read_map(tree: MappingNode, common: Map | None = None) -> Map:
    """A map's tree, every word understood or refused with its place. Its own words go before those in common."""
    reader = _MapReader()
    top = reader.mapping(tree, WORDS)
    version = to_plain(top["import"].value) if "import" in top else None
    if type(version) is not int or version != 1:
        place = top["import"].value.place if "import" in top else tree.place
        raise SpecError([finding(IMPORT_MAP, place, "unknown version of the format of maps", expected="import: 1")])
    said = {word: reader.trees(top[word].value) if word in top else {} for word in WORDS[5:]}
    spec = top["spec"].value if "spec" in top else MappingNode({}, tree.place)
    cases = reader.cases(top["cases"].value) if "cases" in top else {}
    spelled = {key: reader.text(each, "the name of a key") for key, each in said["spelled"].items()}
    otherwise = {word: reader.read_other_values(said[word]) for word in ("read_otherwise", "noted")}
    left_out = {key: reader.text(each, "what of the class is not read") for key, each in said["left_out"].items()}
    reasons = {key: reader.text(each, "why it has no effect") for key, each in said["without_effect"].items()}
    shared = common or Map(MappingNode({}, tree.place))
    absent, if_null = {**shared.absent, **said["absent"]}, {**shared.if_null, **said["if_null"]}
    let = {**shared.let, **said["let"]}
    whole = SequenceNode((spec, *cases.values()), tree.place)
    read = reader.find_keys(whole, let, absent, if_null) | ({CLASS} if cases else set())
    if "spec" in top:
        besides = [each.taken for word in otherwise.values() for each in word.values()]
        told = read | reader.find_keys(SequenceNode(tuple(besides), tree.place), let, absent, if_null)
        reader.report_unread(
            [(key, tree) for word in ("absent", "if_null", "let") for key, tree in said[word].items()], told
        )
    inner = reader.inner(top["inner"].value) if "inner" in top else None
    if common is None:  # what it says of keys holds where they are read
        read |= otherwise["read_otherwise"].keys() | otherwise["noted"].keys()
    if reader.faults or not isinstance(spec, MappingNode):
        raise SpecError(dict.fromkeys(reader.faults))
    return Map(
        spec=spec,
        inner=inner,
        absent=absent,
        if_null=if_null,
        spelled={**shared.spelled, **spelled},
        let=let,
        cases=cases,
        left_out=left_out,
        only={**shared.only, **said["only"]},
        without_effect={**shared.without_effect, **reasons},
        read_otherwise={**_select(shared.read_otherwise, read), **otherwise["read_otherwise"]},
        noted={**_select(shared.noted, read), **otherwise["noted"]},
        read=frozenset(read - let.keys()),
    )


def _select(said: dict[str, OtherValue], read: set[str]) -> dict[str, OtherValue]:
    return {key: each for key, each in said.items() if key in read}


class _MapReader:
    """Reads a map's tree. Faults are gathered, so that one run shows all that is wrong."""

    def __init__(self) -> None:
        self.faults: list[Finding] = []

    def wrong(self, place: Place, message: str, expected: str, hint: str = "") -> None:
        self.faults.append(finding(IMPORT_MAP, place, message, expected=expected, hint=hint))

    def mapping(self, tree: Tree, words: tuple[str, ...] | None) -> dict[str, Entry]:
        """The entries; where words are given, no other key stands."""
        if not isinstance(tree, MappingNode):
            self.wrong(tree.place, "not a mapping", "key: value")
            return {}
        for key, entry in tree.entries.items():
            if words is not None and key not in words:
                near = suggest(key, words)
                self.wrong(entry.key, f"unknown word {key}", ", ".join(words), f"did you mean {near}?" if near else "")
        return tree.entries

    def trees(self, tree: Tree) -> dict[str, Tree]:
        """The entries of a mapping whose keys are those of config.json."""
        if not isinstance(tree, MappingNode):
            self.wrong(tree.place, "not a mapping", "key: value")
            return {}
        for key, entry in tree.entries.items():
            if not re.fullmatch(KEY, key):
                self.wrong(entry.key, f"{key} is no key of config.json", "letters, digits, _ and .")
        return {key: entry.value for key, entry in tree.entries.items()}

    def inner(self, tree: Tree) -> tuple[str, str] | None:
        entries = list(self.trees(tree).items())
        if len(entries) == 1:
            return entries[0][0], self.text(entries[0][1], "a model type")
        self.wrong(tree.place, "not the place of one language model", "{key: model type}")
        return None

    def cases(self, tree: Tree) -> dict[str, MappingNode]:
        found: dict[str, MappingNode] = {}
        for ending, entry in self.mapping(tree, None).items():
            if isinstance(entry.value, MappingNode):
                found[ending] = entry.value
            else:
                self.wrong(entry.value.place, "not what a class adds to the spec", "{key of the spec: value}")
        return found

    def read_other_values(self, said: dict[str, Tree]) -> dict[str, OtherValue]:
        found: dict[str, OtherValue] = {}
        for key, tree in said.items():
            entries = self.mapping(tree, ("as", "because"))
            if entries.keys() >= {"as", "because"}:
                because = self.text(entries["because"].value, "why its code takes another value")
                found[key] = OtherValue(entries["as"].value, because)
                set(self.keys(entries["as"].value))  # for what is wrong in it
            else:
                self.wrong(tree.place, "not what a key is taken for", "{as: value, because: reason}")
        return found

    def text(self, tree: Tree, expected: str) -> str:
        if isinstance(tree, ScalarNode) and isinstance(tree.value, str) and tree.value:
            return tree.value
        self.wrong(tree.place, "not a text", expected)
        return ""

    def find_keys(self, spec: Tree, *given: dict[str, Tree]) -> set[str]:
        """The keys that the spec depends on: those in it, and those in the values that they are given."""
        found, todo = set[str](), set(self.keys(spec))
        while todo:
            found.add(key := todo.pop())
            todo |= {each for values in given if key in values for each in self.keys(values[key])} - found
        return found

    def report_unread(self, given: list[tuple[str, Tree]], read: set[str]) -> None:
        for key, tree in given:
            if key not in read:
                self.wrong(tree.place, f"{key} is given a value, and nothing reads it", f"<{key}> in the spec")

    def keys(self, tree: Tree) -> Iterator[str]:
        """Every key that a value reads; the words of what is computed are looked at on the way."""
        match tree:
            case ScalarNode():
                if (key := placeholder_of(tree)) is not None:
                    yield key
                elif isinstance(tree.value, str) and "<" in tree.value:
                    self.wrong(tree.place, "not a key of config.json", "<key>, and nothing beside it")
            case SequenceNode():
                for item in tree.items:
                    yield from self.keys(item)
            case MappingNode():
                yield from self.keys_of_computed(tree)

    def keys_of_computed(self, tree: MappingNode) -> Iterator[str]:
        word = op_of(tree)
        if word is not None:
            self.mapping(tree, (word, *OPS[word]))
            needed = set(OPS[word]) - {"else", "because"}
            if missing := needed - tree.entries.keys():
                self.wrong(tree.place, f"{word} without {', '.join(sorted(missing))}", ", ".join((word, *OPS[word])))
        for key, entry in tree.entries.items():
            if key == word and word in ("from", "if", "has"):
                yield self.text(entry.value, "a key of config.json")
            elif word == "from" and key == "because":
                self.text(entry.value, "why no other word is read")
            elif word == "from" and key == "is":
                yield from (each for value in self.table(entry.value) for each in self.keys(value))
            else:
                yield from self.keys(entry.value)

    def table(self, tree: Tree) -> list[Tree]:
        if isinstance(tree, MappingNode):
            return [entry.value for entry in tree.entries.values()]
        self.wrong(tree.place, "not a table", "{word: value}")
        return []
