"""Small specs for tests: a whole one, changed key by key, with « » around what a finding must point at."""

from __future__ import annotations

import re

import pytest

from blockc.language.spec import Spec, from_tree
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.source import Finding, SpecError, parse

BASE = """\
blockc: 1
name: tiny
vocab: 16
width: 8
depth: 2
context: 32
positions: none
attention: {heads: 2}
mlp: {type: relu, width: 16}
norm: {type: rms, eps: 1e-5, placement: pre}
head: {tied: true}
"""
BARE = "norm: {type: rms, eps: 1e-5}\n"  # for a block: it says where the norms stand


def chunks(text: str) -> dict[str, str]:
    """Each top-level key with its lines."""
    found = re.findall(r"^([^\s#].*\n(?:[ #].*\n|\n)*)", text if text.endswith("\n") else text + "\n", re.MULTILINE)
    return {re.split(r"[:\s]", chunk.replace("«", "").replace("»", ""), maxsplit=1)[0]: chunk for chunk in found}


def changed(change: str = "", drop: str = "") -> str:
    """The base with these keys put in the place of its own, and without the keys of `drop`."""
    kept = chunks(BASE) | chunks(change)
    return "".join(chunk for key, chunk in kept.items() if key not in drop.split())


def spec(change: str = "", drop: str = "") -> Spec:
    return from_tree(parse(changed(change, drop), "s.yaml"))


def made(change: str = "", drop: str = "") -> Compiled:
    return compile_spec(spec(change, drop))


def findings(change: str = "", drop: str = "") -> tuple[Finding, ...]:
    """What the whole line refuses."""
    return refused(changed(change, drop).replace("«", "").replace("»", ""))


def refused(text: str) -> tuple[Finding, ...]:
    with pytest.raises(SpecError) as caught:
        compile_spec(from_tree(parse(text, "s.yaml")))
    return caught.value.findings


def finding(change: str, drop: str = "") -> Finding:
    """The one finding, which stands where the change is marked."""
    (found,) = findings(change, drop)
    assert (found.place.line, found.place.column, found.place.width) == mark(changed(change, drop)), found
    return found


def mark(text: str) -> tuple[int, int, int]:
    """Line, column and width of what stands between the marks."""
    before, inside = text.split("«")
    return before.count("\n") + 1, len(before) - before.rfind("\n"), len(inside.split("»")[0])
