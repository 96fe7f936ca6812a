"""Whatever is written in a spec, a policy or a JSON file, no word of pydantic's reaches a user."""

from __future__ import annotations

import json
import re
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticKnownError
from pydantic_core.core_schema import ErrorType

from blockc import api
from blockc.basics.expected import describe_expected
from blockc.checks.policy import PolicyKeys, read_policy
from blockc.diagnostics.examples import BASE
from blockc.language.parts import PARTS, Positions
from blockc.language.spec.keys import Document
from blockc.source import Finding, SpecError

THEIRS = re.compile(
    r"Input should|[Pp]ydantic|type=|[Vv]alue error|[Ff]ield required|[Ee]xtra inputs|valid (integer|string|number)|"
    r"Assertion|unable to parse|discriminator|Unable to extract|ctx|NoneType|\bdict\b|\bNone\b|\[type|input_value"
)
ROWS = (1, 0, -3, 2.5, 1e300, True, False, "none", "rms", "x y", "1", "", "é", [], [1, "a"], [[]], {}, {"a": 1})
VALUES = st.sampled_from(ROWS) | st.dictionaries(
    st.sampled_from(["type", "min", "heads", "eps", "x"]), st.sampled_from(ROWS)
)


def keys(model: type[BaseModel]) -> dict[str, Any]:
    return dict(model.model_fields)


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for inner in get_args(annotation) for found in models(inner)]


def paths(model: type[BaseModel], depth: int = 0) -> list[tuple[str, ...]]:
    """Every key of the language, however deep."""
    found: list[tuple[str, ...]] = []
    for key, field in keys(model).items():
        found.append((key,))
        for inner in models(field.annotation) if depth < 4 else ():
            found += [(key, *rest) for rest in paths(inner, depth + 1)]
    return list(dict.fromkeys(found))


DOCUMENT = [*paths(Document), *(("layers", "kinds", "k", *path) for path in paths(Document) if path[0] in PARTS)]
POLICY = paths(PolicyKeys)


def said(findings: tuple[Finding, ...]) -> str:
    return "\n".join(f"{each.message}\n{each.expected}\n{each.got}\n{each.hint}" for each in findings)


def test_every_key_is_tried() -> None:
    assert (
        len(DOCUMENT) > 100
        and ("attention", "rope", "theta") in DOCUMENT
        and ("expect", "parameters", "min") in DOCUMENT
    )
    assert models(Positions) and len(POLICY) > 10


@settings(max_examples=400, deadline=None)
@given(path=st.sampled_from(DOCUMENT), value=VALUES)
def test_a_spec_with_any_value_anywhere_is_answered_in_words_of_ours(path: tuple[str, ...], value: Any) -> None:
    found = api.check_text(set_(BASE, path, value).encode(), "x.yaml")
    assert not THEIRS.search(said(found)), said(found)


def set_(text: str, path: tuple[str, ...], value: Any) -> str:
    """The value at the path, by a mapping in a line of its own; what else the key said is gone."""
    for step in reversed(path[1:]):
        value = {step: value}
    lines = [line for line in text.splitlines() if not line.startswith(f"{path[0]}:")]
    return "\n".join([*lines, f"{path[0]}: {written(value)}", ""])


@settings(max_examples=200, deadline=None)
@given(path=st.sampled_from(POLICY), value=VALUES)
def test_a_policy_with_any_value_anywhere_is_answered_in_words_of_ours(path: tuple[str, ...], value: Any) -> None:
    try:
        read_policy(set_("policy: 1\n", path, value).encode(), "p.yaml")
    except SpecError as error:
        assert not THEIRS.search(said(error.findings)), said(error.findings)


NUMBERS = dict.fromkeys(("gt", "ge", "lt", "le", "min_length", "max_length", "actual_length", "multiple_of"), 1)
TEXTS = dict.fromkeys(
    ("expected", "field_type", "error", "pattern", "expected_schemes", "class", "tag", "method_name"), "a"
)


@pytest.mark.parametrize("kind", get_args(ErrorType))
def test_every_error_that_pydantic_knows_is_said_in_words_of_ours(kind: str) -> None:
    assert not THEIRS.search(
        describe_expected({"type": kind, "msg": "Input should be a pydantic", "ctx": {**NUMBERS, **TEXTS}})
    )


def test_the_pattern_sees_what_pydantic_says() -> None:
    class Model(BaseModel, extra="forbid", strict=True):
        a: int
        b: str
        c: float

    with pytest.raises(ValidationError) as raised:
        Model.model_validate({"a": "x", "b": 1, "d": 0})
    assert all(THEIRS.search(each["msg"]) for each in raised.value.errors())
    assert THEIRS.search(PydanticKnownError("int_type").message())
