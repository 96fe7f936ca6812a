"""Pydantic's errors and the parts' problems as findings at their line and column."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from blockc.parts import Loc, Problem
from blockc.source import Finding, Mapping, Place, Scalar, Sequence, Tree, find, finding, key_place, suggest
from blockc.spec.keys import FOREIGN, LAYER_KEYS, TOP_KEYS


def from_pydantic(error: ValidationError, model: type[BaseModel], tree: Tree, where: Loc = ()) -> list[Finding]:
    """One finding an error, `where` being the path of `tree` in the file."""
    return [_finding(dict(e), model, tree, where) for e in error.errors(include_url=False, include_context=True)]


def from_problem(problem: Problem, tree: Tree, where: Loc) -> Finding:
    others = [(label, value_place(tree, (*where, *loc))) for label, loc in problem.also]
    return finding(
        value_place(tree, (*where, *problem.loc)),
        f"{dotted(where)}: {problem.message}" if where and not problem.message.startswith(dotted(where)) else problem.message,
        expected=problem.expected,
        got=problem.got,
        hint=problem.hint,
        others=others,
    )


def value_place(tree: Tree, path: Loc) -> Place:
    """Where a value stands; where a key stands if its value is a whole block; the parent's where neither is there."""
    found = find(tree, path)
    return found.place if isinstance(found, Scalar) else key_place(tree, path)


def dotted(path: Loc) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _finding(error: dict[str, Any], model: type[BaseModel], tree: Tree, where: Loc) -> Finding:
    path, kind = _real_path(tree, error["loc"], error["type"]), error["type"]
    name = dotted((*where, *path))
    if kind == "extra_forbidden":
        return _unknown_key(path, name, model, tree, where)
    if kind == "missing":
        parent = path[:-1]
        return finding(
            key_place(tree, parent) if parent else tree.place,
            f"missing key {name}",
            expected=_expected_of(model, path),
            hint=f"no default is supplied: say {path[-1]}",
        )
    if kind == "union_tag_invalid":
        path = (*path, "type")
    found = find(tree, path)
    expected = _expected(error)
    return finding(
        value_place(tree, path),
        f"{name}: {_what(error)}",
        expected=expected,
        got=_got(found),
        hint=_hint(error, found),
    )


def _real_path(tree: Tree, loc: Loc, kind: str) -> Loc:
    """Pydantic's location without the names of union members, which no spec contains."""
    path: list[str | int] = []
    current: Tree = tree
    for i, step in enumerate(loc):
        if isinstance(current, Mapping) and step in current.entries:
            current = current.entries[str(step)].value
        elif isinstance(current, Sequence) and isinstance(step, int):
            current = current.items[step]
        elif not (kind == "missing" and i == len(loc) - 1):
            continue
        path.append(step)
    return tuple(path)


def _unknown_key(path: Loc, name: str, model: type[BaseModel], tree: Tree, where: Loc) -> Finding:
    word = str(path[-1])
    known = sorted(_fields(_model_at(model, path[:-1])))
    if not where and len(path) == 1:
        known = sorted(TOP_KEYS | LAYER_KEYS)
    return unknown_key(key_place(tree, path), name, word, known)


def unknown_key(place: Place, name: str, word: str, known: Iterable[str]) -> Finding:
    known = list(known)
    near = suggest(word, known)
    hint = f"here it is {FOREIGN[word]}" if word in FOREIGN else f"did you mean {near}?" if near else ""
    return finding(place, f"unknown key {name}", expected="one of " + ", ".join(known), got=word, hint=hint)


def _model_at(model: type[BaseModel], path: Loc) -> type[BaseModel] | None:
    current: type[BaseModel] | None = model
    for step in path:
        field = current.model_fields.get(str(step)) if current else None
        current = _model_of(field.annotation) if field else None
    return current


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        if found := _model_of(inner):
            return found
    return None


def _fields(model: type[BaseModel] | None) -> Iterable[str]:
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
        return "one of " + ", ".join(words)
    names: dict[Any, str] = {int: "an integer", float: "a number", str: "a word", bool: "true or false"}
    return names.get(field.annotation, "")


_WANTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "string_type": "a word",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def _expected(error: dict[str, Any]) -> str:
    context: dict[str, Any] = error.get("ctx", {})
    kind = error["type"]
    if kind == "greater_than":
        return f"more than {context['gt']}"
    if kind == "greater_than_equal":
        return f"at least {context['ge']}"
    if kind == "literal_error":
        return "one of " + str(context["expected"]).replace("'", "").replace(" or ", ", ")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return "a type: " + str(context.get("expected_tags", "learned, sinusoidal")).replace("'", "")
    if kind == "string_pattern_mismatch":
        return "ASCII letters, digits and . _ -, at most 100 of them, a letter or digit first"
    return _WANTED.get(kind, str(error["msg"]))


def _what(error: dict[str, Any]) -> str:
    kind = error["type"]
    if kind in ("greater_than", "greater_than_equal"):
        return "too small"
    if kind == "literal_error":
        return "not a word that is known here"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return "no such type"
    if kind == "string_pattern_mismatch":
        return "not a name"
    return "wrong kind of value"


def _got(found: Tree) -> str:
    if isinstance(found, Scalar):
        return f'"{found.text}"' if found.quoted and not found.text.startswith(('"', "'")) else found.text
    return "a mapping" if isinstance(found, Mapping) else "a list"


def _hint(error: dict[str, Any], found: Tree) -> str:
    if not isinstance(found, Scalar):
        return ""
    if error["type"] in ("int_type", "float_type") and found.quoted and _numeric(str(found.value)):
        return "remove the quotes"
    if error["type"] in ("int_type", "int_from_float") and isinstance(found.value, float) and found.value.is_integer():
        return f"write {int(found.value)}"
    if error["type"] == "literal_error":
        words = str(error["ctx"]["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        near = suggest(str(found.value), words)
        return f"did you mean {near}?" if near else ""
    return ""


def _numeric(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
