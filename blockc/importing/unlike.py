"""The config.json that lies beside weights, compared with the function that a spec was built into.

The config.json is imported and built like any other. Every figure in which the two functions differ is reported, by
the key of config.json that it comes from. The class that it names is that of whoever saved the weights: a spec that
ends otherwise is compared with the class that ends like it, and what a spec makes of hidden states with modules.json.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from blockc.basics.errors import CheckpointError, shorten
from blockc.basics.jsonfile import FileError, read_bounded
from blockc.graph.build import build_graph
from blockc.graph.contract import HIDDEN, IDS, LOGITS
from blockc.importing import ImportResult, Modules, import_tree, read_modules, why_unknown
from blockc.importing.figures import equal_figures, figure_text, figures_by_layer, figures_of
from blockc.importing.same import count_ops, same_function
from blockc.ir import Fact, Function, GraphError
from blockc.language.algebra import elaborate
from blockc.language.spec import from_tree
from blockc.ops import Embed
from blockc.source import Finding, MappingNode, SpecError, Tree, escape_text, render_finding, to_plain, tree_at
from blockc.source.jsontext import parse_json

Path_ = tuple[str, ...]
# Where a figure stands in a spec, and where that stands from which it follows if nothing says it.
_AT: Mapping[str, tuple[Path_, ...]] = {
    "activation": (("mlp", "type"),),
    "biases": (("attention", "bias"), ("mlp", "bias")),
    "attention.kv_heads": (("attention", "kv_heads"), ("attention", "heads")),
    "attention.head_dim": (("attention", "head_dim"), ("width",)),
    "attention.scale": (("attention", "scale"), ("attention", "head_dim"), ("width",)),
    "attention.rope.dims": (("attention", "rope", "dims"), ("attention", "head_dim"), ("width",)),
}
# Figures that follow from others, which name them.
_FOLLOWS = ("attention.rope.dims over head_dim", "attention.rope.scaling")


@dataclass(frozen=True)
class ConfigBeside:
    """A config.json beside weights: its import and function, or the faults of the import.

    `tree` is the file, and `modules` those of sentence-transformers beside it.
    """

    imported: ImportResult | None = None
    function: Function | None = None
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    tree: MappingNode | None = None
    modules: Modules | None = None

    def readings(self) -> Iterator[tuple[ImportResult, Function]]:
        """As the class that the file names, and as each other class of its model type that can be read."""
        if self.imported is None or self.function is None or self.tree is None:
            return
        yield self.imported, self.function
        for ending in self.imported.endings:
            try:
                yield _build(import_tree(self.tree, "beside", lenient=True, ending=ending))
            except (SpecError, GraphError):
                continue


NOTHING = ConfigBeside()


def read_config_beside(path: Path) -> ConfigBeside:
    """Reads the config.json at a path; NOTHING where there is none. Raises CheckpointError where it is not JSON."""
    try:
        data = read_bounded(path)
    except (FileNotFoundError, NotADirectoryError):
        return NOTHING
    except FileError as error:
        raise CheckpointError(str(error)) from None
    try:
        tree = parse_json(data, str(path))
    except SpecError as error:
        first = error.findings[0]
        said = f"not a JSON object that can be read: {first.message}"
        raise CheckpointError(_one_line(replace(first, message=said))) from None
    if (why := why_unknown(tree)) is not None:
        return ConfigBeside(notes=(f"{escape_text(str(path))}: {why}: it was not compared with the spec",))
    try:
        modules, told = read_modules(path.parent), tuple[str, ...]()
    except SpecError as error:
        modules, told = None, (f"modules.json was not compared with the spec: {_one_line(error.findings[0])}",)
    try:
        imported, function = _build(import_tree(tree, "beside", lenient=True, modules=modules))
        return ConfigBeside(imported, function, (*_notes_of(imported), *told), (), tree, modules)
    except SpecError as error:
        return ConfigBeside(faults=tuple(f"unlike: {_one_line(each)}" for each in error.findings))
    except GraphError as error:
        return ConfigBeside(faults=(f"unlike: {escape_text(str(path))}: {error}",))


def _build(imported: ImportResult) -> tuple[ImportResult, Function]:
    return imported, build_graph(elaborate(from_tree(imported.tree)))


def _notes_of(imported: ImportResult) -> tuple[str, ...]:
    passed = ", ".join(shorten(imported.skipped))
    notes = [f"{_file_of(imported)}: unknown keys that were not compared: {passed}"] if passed else []
    return (*(_one_line(each) for each in imported.warnings), *notes)


def _file_of(imported: ImportResult) -> str:
    return escape_text(imported.tree.place.file)


def _one_line(found: Finding) -> str:
    """A finding in one line."""
    first = render_finding(found).splitlines()[0]
    more = [f"{word} {said}" for word, said in (("expected", found.expected), ("got", found.got)) if said]
    return "; ".join([first, *more])


# The comparison


def compare_config(said: ConfigBeside, function: Function, context: int | None = None) -> list[str]:
    """A line for each figure in which the function differs from config.json. A shorter context is no difference."""
    if said.imported is None or said.function is None:
        return list(said.faults)
    lines: list[str] = []
    imported, ours, function = _like(said, function)
    own = _context_of(imported)
    if context is not None and own is not None and context > own:
        lines.append(f"unlike: {_source_of(imported, 'context', {own})}, and the spec's context is longer: {context}")
    least = min(n for n in (context, own, 1 << 62) if n is not None)
    if not same_function(ours, function, least):
        lines += list(_compare_figures(imported, ours, function, least)) or _compare_ops(
            imported, ours, function, least
        )
    return lines


def _like(said: ConfigBeside, function: Function) -> tuple[ImportResult, Function, Function]:
    """(The reading of config.json that ends like the function; its function; the function) as far as all say it."""
    readings = list(islice(said.readings(), 1))
    if _end_of(readings[0][1]) != _end_of(function):
        readings = [each for each in said.readings() if _end_of(each[1]) == _end_of(function)] or readings
    same = (each for each in readings[1:] if same_function(each[1], function, 1 << 62))
    imported, theirs = next(same, readings[0])
    if said.modules is None and all(HIDDEN in each.output_names for each in (theirs, function)):
        theirs, function = (replace(each, outputs=((HIDDEN, each.output(HIDDEN)),)) for each in (theirs, function))
    return imported, theirs, function


def _end_of(function: Function) -> Hashable:
    """What goes out: hidden states, with a pool or without; or logits, of tokens or texts, of the vocabulary or not."""
    if LOGITS not in function.output_names:
        return HIDDEN
    shape = function.output(LOGITS).type.shape
    tables = {n.op.rows for n in function.nodes if isinstance(n.op, Embed) and n.inputs[0].node.name == IDS}
    return len(shape), shape[-1].value in tables


def _context_of(imported: ImportResult) -> int | None:
    value = to_plain(found) if (found := _tree_at(imported, ("context",))) is not None else None
    return value if isinstance(value, int) else None


def _tree_at(imported: ImportResult, path: Path_) -> Tree | None:
    """What a key of the import is, in the layers' kinds too."""
    kinds = tree_at(imported.whole, ("layers", "kinds"))
    inner = [entry.value for entry in kinds.entries.values()] if isinstance(kinds, MappingNode) else []
    trees = [imported.whole, *(each for each in inner if isinstance(each, MappingNode))]
    found = (tree_at(each, path) for each in trees)
    return next((each for each in found if each is not None and to_plain(each) != "none"), None)


def _compare_figures(imported: ImportResult, ours: Function, theirs: Function, context: int) -> Iterator[str]:
    left, right = (_drop_idle_windows(figures_of(each), context) for each in (ours, theirs))
    layers = None
    for key in dict.fromkeys((*left, *right)):
        one, other = left.get(key, {None}), right.get(key, {None})
        if key in _FOLLOWS and any(each.startswith("attention.rope") for each in _differing_keys(left, right)):
            continue
        if not _equal_sets(one, other):
            yield f"unlike: {_source_of(imported, key, one)}, and the spec's {key} is {_values_text(other)}"
            continue
        layers = layers or [figures_by_layer(each) for each in (ours, theirs)]
        numbers = [i for i in layers[0] if i is not None and i in layers[1]]
        pairs = {i: [_drop_idle_windows(side[i], context).get(key, {None}) for side in layers] for i in numbers}
        if apart := [i for i, (a, b) in pairs.items() if not _equal_sets(a, b)]:
            first, (a, b) = apart[0], pairs[apart[0]]
            where = f"layer {first}" + (f" and {len(apart) - 1} more" if apart[1:] else "")
            yield f"unlike: {_source_of(imported, key, a)} in {where}, and the spec's {key} is {_values_text(b)} there"


def _differing_keys(left: Mapping[str, set[Fact]], right: Mapping[str, set[Fact]]) -> list[str]:
    keys = [key for key in dict.fromkeys((*left, *right)) if key not in _FOLLOWS]
    return [key for key in keys if not _equal_sets(left.get(key, {None}), right.get(key, {None}))]


def _drop_idle_windows(found: Mapping[str, set[Fact]], context: int) -> dict[str, set[Fact]]:
    """Windows that hide something within the context."""
    key = "attention.window"
    windows = {None if isinstance(each, int) and each >= context else each for each in found.get(key, ())}
    return {**found, key: windows} if windows else dict(found)


def _equal_sets(one: set[Fact], other: set[Fact]) -> bool:
    return all(any(equal_figures(a, b) for b in other) for a in one) and all(
        any(equal_figures(a, b) for a in one) for b in other
    )


def _values_text(values: set[Fact]) -> str:
    return " and ".join(sorted(map(figure_text, values)))


def _source_of(imported: ImportResult, key: str, values: set[Fact]) -> str:
    """The key of config.json that a figure comes from, its value and its place; or whose default it is."""
    paths = _AT.get(key, (tuple(key.split(".")),))
    by_layer_ = (("layers", "each"),) if key.startswith("attention.") else ()  # what the list of kinds may say
    trees = [tree for tree in (_tree_at(imported, path) for path in (*paths, *by_layer_)) if tree is not None]
    for tree in trees:
        name, raw = imported.names.get((tree.place.line, tree.place.column), ("", None))
        if name and name != "model_type":
            verb = "is" if isinstance(raw, Hashable) and values == {raw} else "gives"
            return f"{name} {verb} {_values_text(values)} ({_file_of(imported)}:{tree.place.line}:{tree.place.column})"
    return f"{_file_of(imported)} leaves {key} to {imported.model_type}, which has {_values_text(values)}"


def _compare_ops(imported: ImportResult, ours: Function, theirs: Function, context: int) -> list[str]:
    """What no figure tells: ops that only one of the two has, or that the same ops read other values."""
    one, other = count_ops(ours, context), count_ops(theirs, context)
    only = [f"{count} times {op}" for op, count in (one - other).items()][:3]
    extra = [f"{count} times {op}" for op, count in (other - one).items()][:3]
    if not only and not extra:
        return [f"unlike: {_file_of(imported)}: {imported.model_type} wires the same ops otherwise than the spec"]
    return [
        f"unlike: {_file_of(imported)}: {imported.model_type} has {', '.join(only) or 'nothing more'}, "
        f"and the spec {', '.join(extra) or 'nothing more'}"
    ]
