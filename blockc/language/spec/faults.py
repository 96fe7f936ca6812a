"""Pydantic's errors and the parts' problems as findings at their line and column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from blockc.basics.expected import describe_expected, literal_words
from blockc.diagnostics import Code
from blockc.diagnostics.words import (
    BAD_NAME,
    MISSING_KEY,
    OUT_OF_RANGE,
    TOO_SMALL,
    UNKNOWN_KEY,
    UNKNOWN_WORD,
    WRONG_KIND,
)
from blockc.language.parts import Loc, Problem
from blockc.language.spec.classes import models_of
from blockc.language.spec.keys import LAYER_KEYS, PATTERNS, TOP_KEYS, LayerKeys, TopKeys
from blockc.language.spec.words import FOREIGN, is_reserved
from blockc.source import Finding, MappingNode, Place, ScalarNode, SequenceNode, Tree, find, finding, key_place, suggest

PydanticError = dict[str, Any]


def from_pydantic(error: ValidationError, model: type[BaseModel], tree: Tree, where: Loc = ()) -> list[Finding]:
    """One finding a path, `where` being the path of `tree` in the file."""
    by_path: dict[Loc, list[PydanticError]] = {}
    for each in error.errors(include_url=False, include_context=True):
        by_path.setdefault(_real_path(tree, each["loc"], each["type"]), []).append(dict(each))
    # Under an unknown type, what is missing and what is too much belongs to another type.
    retyped = {
        path[:-1] for path, errors in by_path.items() if path[-1:] == ("type",) and _is_kind(errors, "literal_error")
    }
    return [
        _finding(path, errors, model, tree, where)
        for path, errors in by_path.items()
        if not (path[:-1] in retyped and _is_kind(errors, "missing", "extra_forbidden"))
    ]


def unknown_keys(error: ValidationError, tree: Tree) -> list[Loc]:
    """The paths of keys that nothing reads: without them the rest can be read."""
    found = error.errors(include_url=False)
    return [_real_path(tree, each["loc"], each["type"]) for each in found if each["type"] == "extra_forbidden"]


def faulty_keys(error: ValidationError, tree: Tree) -> set[str]:
    """The keys of the tree itself under which something is wrong."""
    paths = (_real_path(tree, each["loc"], each["type"]) for each in error.errors(include_url=False))
    return {str(path[0]) for path in paths if path}


def remove_key(tree: Tree, path: Loc) -> Tree:
    """A tree without the key at a path."""
    if not path or not isinstance(tree, MappingNode) or path[0] not in tree.entries:
        return tree
    entry = tree.entries[str(path[0])]
    kept = {key: each for key, each in tree.entries.items() if key != path[0] or len(path) > 1}
    if len(path) > 1:
        kept[str(path[0])] = replace(entry, value=remove_key(entry.value, path[1:]))
    return MappingNode(kept, tree.place)


def _is_kind(errors: list[PydanticError], *kinds: str) -> bool:
    return errors[0]["type"] in kinds


def from_problem(problem: Problem, tree: Tree, where: Loc, name: str = "") -> Finding:
    """`name` is what the part is called, where that is not its path in the tree."""
    called = name or join_path((*where, *problem.loc[:-1]))
    others = [(label, value_place(tree, (*where, *loc))) for label, loc in problem.also]
    known = not called or problem.message.startswith(called)
    return finding(
        problem.code,
        value_place(tree, (*where, *problem.loc)),
        problem.message if known else f"{called}: {problem.message}",
        expected=problem.expected,
        got=problem.got,
        hint=problem.hint,
        others=others,
    )


def value_place(tree: Tree, path: Loc) -> Place:
    """Where a value stands; where a key stands if its value is a whole block; the parent's where neither is there."""
    found = find(tree, path)
    return found.place if isinstance(found, ScalarNode) else key_place(tree, path)


def join_path(path: Loc) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def describe_value(tree: Tree) -> str:
    """A value as it came, in the language's own words."""
    match tree:
        case ScalarNode():
            return tree.text
        case SequenceNode():
            return "a list" if tree.items else "an empty list"
        case MappingNode():
            return f"a mapping with {', '.join(tree.entries)}" if tree.entries else "an empty mapping"


def _finding(path: Loc, errors: list[PydanticError], model: type[BaseModel], tree: Tree, where: Loc) -> Finding:
    error, name = errors[0], join_path((*where, *path))
    if error["type"] == "union_tag_not_found":
        path, name, error = (*path, "type"), f"{name}.type", {**error, "type": "missing"}
    if error["type"] == "extra_forbidden":
        return _unknown_key(path, name, model, tree, where)
    if error["type"] == "missing":
        return _missing_key(path, name, error, model, tree)
    if error["loc"][-1] == "[key]":
        key = str(path[-1])
        message = f"{name}: {_what_is_wrong(error)}"
        return finding(_code_of(error), key_place(tree, path), message, expected=_expected_text(error), got=key)
    if error["type"] == "union_tag_invalid":
        path = (*path, "type")
    found = find(tree, path)
    return finding(
        _code_of(error),
        value_place(tree, path),
        f"{name}: {_what_is_wrong(error)}",
        expected=" or ".join(dict.fromkeys(map(_expected_text, errors))),
        got=describe_value(found),
        hint=_hint(error, found),
    )


def _real_path(tree: Tree, loc: Loc, kind: str) -> Loc:
    """Pydantic's location without the names of union members, which no spec contains."""
    path: list[str | int] = []
    current: Tree = tree
    for i, step in enumerate(loc):
        if isinstance(current, MappingNode) and step in current.entries:
            current = current.entries[str(step)].value
        elif isinstance(current, SequenceNode) and isinstance(step, int):
            current = current.items[step]
        elif not (kind == "missing" and i == len(loc) - 1):
            continue
        path.append(step)
    return tuple(path)


def _missing_key(path: Loc, name: str, error: PydanticError, model: type[BaseModel], tree: Tree) -> Finding:
    expected = _tags_text(error) if "ctx" in error else _expected_of(model, path)
    hint = f"no default is supplied: say {path[-1]}"
    return finding(MISSING_KEY, key_place(tree, path[:-1]), f"missing key {name}", expected=expected, hint=hint)


def _unknown_key(path: Loc, name: str, model: type[BaseModel], tree: Tree, where: Loc) -> Finding:
    word = str(path[-1])
    known = sorted(_field_names(_model_without(model, path)))
    if not where and len(path) == 1 and issubclass(model, TopKeys | LayerKeys):
        known = sorted(TOP_KEYS | LAYER_KEYS)
    return unknown_key_finding(key_place(tree, path), name, word, known)


def unknown_key_finding(place: Place, name: str, word: str, known: Iterable[str]) -> Finding:
    known = list(known)
    near = suggest(word, known)
    if word in FOREIGN:
        hint = f"here it is {FOREIGN[word]}"
    elif is_reserved(name):
        hint = f"{word} is kept for a later version"
    else:
        hint = f"did you mean {near}?" if near else ""
    expected = "one of " + ", ".join(known)
    return finding(UNKNOWN_KEY, place, f"unknown key {name}", expected=expected, got=word, hint=hint)


def _model_without(model: type[BaseModel], path: Loc) -> type[BaseModel] | None:
    """The class of what holds the key at a path, or of several the first that has no such key."""
    found = _model_at(model, path[:-1])
    if found is None or path[-1] not in found.model_fields or len(path) < 2:
        return found
    holder = _model_at(model, path[:-2])
    field = holder.model_fields.get(str(path[-2])) if holder else None
    return (
        next((each for each in models_of(field.annotation) if path[-1] not in each.model_fields), found)
        if field
        else found
    )


def _model_at(model: type[BaseModel], path: Loc) -> type[BaseModel] | None:
    current: type[BaseModel] | None = model
    for step in path:
        field = current.model_fields.get(str(step)) if current else None
        current = _model_of(field.annotation) if field else None
    return current


def _model_of(annotation: Any) -> type[BaseModel] | None:
    return next(models_of(annotation), None)


def _field_names(model: type[BaseModel] | None) -> Iterable[str]:
    return model.model_fields if model else ()


def _expected_of(model: type[BaseModel], path: Loc) -> str:
    parent = _model_at(model, path[:-1])
    field = parent.model_fields.get(str(path[-1])) if parent else None
    if field is None:
        return ""
    inner = _model_of(field.annotation)
    if inner:
        return "a mapping with " + ", ".join(name for name, f in inner.model_fields.items() if f.is_required())
    if words := [str(word) for word in get_args(field.annotation) if isinstance(word, str | int)]:
        return _one_of(words)
    names: dict[Any, str] = {int: "an integer", float: "a number", str: "a word", bool: "true or false"}
    return names.get(field.annotation, "a mapping" if "dict" in str(field.annotation) else "")


def _expected_text(error: PydanticError) -> str:
    context: dict[str, Any] = error.get("ctx", {})
    match error["type"]:
        case "out_of_fp32":
            return str(context["expected"])
        case "union_tag_invalid":
            return _tags_text(error)
        case "string_pattern_mismatch":
            return PATTERNS[context["pattern"]][1]
        case "device_name":
            return "another name"
        case _:
            return describe_expected(error)


_CODES = {
    "greater_than": TOO_SMALL,
    "greater_than_equal": TOO_SMALL,
    "less_than_equal": OUT_OF_RANGE,
    "out_of_fp32": OUT_OF_RANGE,
    "literal_error": UNKNOWN_WORD,
    "union_tag_invalid": UNKNOWN_WORD,
    "string_pattern_mismatch": BAD_NAME,
    "device_name": BAD_NAME,
}


def _code_of(error: PydanticError) -> Code:
    return _CODES.get(error["type"], WRONG_KIND)


def _what_is_wrong(error: PydanticError) -> str:
    match error["type"]:
        case "greater_than" | "greater_than_equal":
            return "too small"
        case "less_than_equal":
            return "too large"
        case "out_of_fp32":
            return str(error["ctx"]["what"])
        case "literal_error":
            return "not a word that is known here"
        case "union_tag_invalid":
            return "no such type"
        case "string_pattern_mismatch":
            return PATTERNS[error["ctx"]["pattern"]][0]
        case "device_name":
            return "a name that Windows keeps for a device"
        case _:
            return "wrong kind of value"


def _tags_text(error: PydanticError) -> str:
    return _one_of(str(error.get("ctx", {}).get("expected_tags", "learned, sinusoidal")).replace("'", "").split(", "))


def _one_of(words: list[str]) -> str:
    return words[0] if len(words) == 1 else "one of " + ", ".join(words)


def _hint(error: PydanticError, found: Tree) -> str:
    return next(_hints(error, found), "") if isinstance(found, ScalarNode) else ""


def _hints(error: PydanticError, found: ScalarNode) -> Iterator[str]:
    kind, value = error["type"], found.value
    if kind in ("int_type", "float_type") and isinstance(value, str) and found.quoted and _is_numeric(value):
        yield "remove the quotes"
    if kind == "string_type" and not found.quoted:
        yield "quote it if it is text"
    if (
        kind in ("int_type", "int_from_float")
        and isinstance(value, float)
        and value.is_integer()
        and abs(value) < 2**53
    ):
        yield f"write {int(value)}"
    if kind in ("literal_error", "union_tag_invalid") and is_reserved(str(value)):
        yield f"{value} is kept for a later version"
    if kind == "literal_error" and (near := suggest(str(value), literal_words(error))):
        yield f"did you mean {near}?"


def _is_numeric(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
