"""One run of `check` shows all that is wrong: no fault of one key, layer kind or storey hides another's."""

from __future__ import annotations

import pytest

from blockc.checks.checking import check_text
from tests.spec_text import changed

KINDS = """\
layers:
  pattern: [a, b, c, d]
  kinds:
    a: {attention: {widnow: 4}}
    b: {attention: {heads: 3}}
    c: {mlp: {width: 0}}
    d: {block: [{residual: [attention_norm, atention]}]}
depth: 4
"""
EACH = {"widnow", "3", "0", "atention"}  # where each kind is wrong


def found(text: str) -> list[tuple[str, str]]:
    """The code of each finding, and the text that it points at."""
    findings = check_text(text.encode(), "s.yaml")
    lines = text.split("\n")
    return [(f.code.name, lines[f.place.line - 1][f.place.column - 1 :][: f.place.width]) for f in findings]


def errors(change: str, drop: str = "") -> list[tuple[str, str]]:
    return [each for each in found(changed(change, drop)) if not each[0].startswith("BLC4")]


def test_an_unknown_key_of_one_kind_hides_no_fault_of_another() -> None:
    kinds = errors(KINDS)
    assert {("BLC109", "widnow"), ("BLC106", "0")} <= set(kinds)
    assert {text for _, text in kinds} >= EACH
    for key, unknown in (("colour: red", "colour"), ("mlp: {type: relu, width: 16, glow: 1}", "glow")):
        assert {text for _, text in errors(f"{KINDS}{key}\n")} >= {*EACH, unknown}


def test_a_fault_of_the_list_of_layers_hides_none_of_the_kinds() -> None:
    for wrong in ("pattern: [a, b, c, d, e]", "pattern: [a, b, c, d]\n  first: [{a: 9}]", "pattern: [a, b, c, {d: 0}]"):
        found = errors(KINDS.replace("pattern: [a, b, c, d]", wrong))
        assert {text for _, text in found} >= EACH and len(found) == 5, (wrong, found)


@pytest.mark.parametrize("key", ["vocab: 0", "vocab: none", "colour: red", "head: {}", "depth: 20000"])
def test_a_fault_of_the_top_hides_none_of_the_kinds(key: str) -> None:
    found = errors(f"{KINDS}{key}\n" if "depth" not in key else KINDS.replace("depth: 4", key))
    assert {text for _, text in found} >= EACH
    assert len(found) == 5, found


def test_a_missing_key_of_the_top_hides_none_of_the_kinds() -> None:
    found = errors(KINDS, "vocab")
    assert {text for _, text in found} >= EACH and len(found) == 5, found


def test_an_unknown_key_hides_no_other_fault_beside_it() -> None:
    for change, each in (
        ("attention: {heads: 3, colour: red}\nmlp: {type: relu, width: 1.5}\n", {"colour", "3", "1.5"}),
        ("attention: {heads: 3}\nmlp: {type: relu, width: -1}\n", {"3", "-1"}),
        ("colour: red\nnorm: {type: rms, eps: 1e-5}\n", {"colour", "norm"}),
        ("colour: red\nnorm: {type: rms, eps: 1e-5}\nblock: [{residual: [atention]}]\n", {"colour", "atention"}),
    ):
        assert {text for _, text in errors(change)} >= each, (change, errors(change))


def test_all_in_one_go_is_each_by_itself() -> None:
    """Each fault alone gives the finding that it gives among the others, and nothing else is made up."""
    lines = [line for line in KINDS.splitlines() if line.startswith("    ")]
    together = set(errors(KINDS))
    alone: set[tuple[str, str]] = set()
    for line in lines:
        name = line.strip()[0]
        others = [other if other == line else f"    {other.strip()[0]}: {{}}" for other in lines]
        text = KINDS
        for old, new in zip(lines, others, strict=True):
            text = text.replace(old, new)
        one = errors(text)
        assert len(one) == 1, (name, one)
        alone |= set(one)
    assert together == alone
