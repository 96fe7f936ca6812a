"""What was expected where pydantic refuses a value, in our own words: users never see pydantic's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic_core.core_schema import ErrorType

_KINDS = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "int_parsing_size": "a smaller integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_type": "a word",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "dataclass_type": "a mapping",
    "dataclass_exact_type": "a mapping",
    "unexpected_keyword_argument": "no such key",
    "model_attributes_type": "a mapping",
    "none_required": "nothing",
    "missing": "a value",
    "extra_forbidden": "no such key",
}
_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
    "too_short": ("a length of at least", "min_length"),
    "too_long": ("a length of at most", "max_length"),
    "string_too_short": ("a length of at least", "min_length"),
    "string_too_long": ("a length of at most", "max_length"),
}
_THEIRS = frozenset(get_args(ErrorType))


def describe_expected(error: Mapping[str, Any]) -> str:
    """What one of `ValidationError.errors()` expected. An error that our own validator raises has its own message."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in _BOUNDS:
        word, key = _BOUNDS[kind]
        bound = context[key]
        return f"{word} {bound if isinstance(bound, int) else format(bound, 'g')}"
    if kind == "literal_error":
        words = literal_words(error)
        return words[0] if len(words) == 1 else "one of " + ", ".join(words)
    if kind in _KINDS:
        return _KINDS[kind]
    if kind == "value_error":
        return str(context["error"])
    return "another value" if kind in _THEIRS else str(error["msg"])


def literal_words(error: Mapping[str, Any]) -> list[str]:
    """The words of a Literal. Pydantic lists them as 'a', 'b' or 'c', and writes False for false."""
    listed = str(error["ctx"]["expected"]).replace("'", "").replace("False", "false")
    return listed.replace(" or ", ", ").split(", ")
