"""How much a run takes: `make quick` the front end, `make test` all tests with samples, `make matrix` the full width.

In `make test` a spec's twin runs the cases of SAMPLE alone, and all of them where it is one of those that are unlike;
tests that take seconds a spec run on the unlike ones alone. With BLOCKC_MATRIX=1 every spec runs everything.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from blockc.graph.target import Target
from tests.paths import ROOT
from tests.structures import SPECS, unlike, unlike_kinds

WIDE = os.environ.get("BLOCKC_MATRIX") == "1"
SAMPLE = frozenset({"full", "chunked", "decode", "padded left", "padded right", "labels", "full, no mask"})
# What a run without a backend imports none of.
BACKENDS = frozenset({
    "torch", "onnxruntime", "onnxruntime_genai", "transformers", "benchmarks", "blockc.bench", "blockc.proof",
    "blockc.runtime",
})  # fmt: skip


def whole(name: str) -> bool:
    """Whether a spec's twin runs every case."""
    return WIDE or name in unlike()


def chosen(*targets: Target) -> tuple[str, ...]:
    """The specs of a costly test: unlike ones, in what these targets make of them too."""
    return tuple(SPECS) if WIDE else unlike(*targets)


def traced() -> tuple[str, ...]:
    """The specs of a test that takes many seconds for each: every kind of op once."""
    return tuple(SPECS) if WIDE else unlike_kinds()


def some(*names: str) -> tuple[str, ...]:
    """Of these specs alone, where all would take an hour."""
    return tuple(SPECS) if WIDE else names


def backends(file: Path) -> frozenset[str]:
    """The backends that a test file imports, itself or through others of tests/."""
    return frozenset(_backends(file, set()))


def _backends(file: Path, seen: set[Path]) -> Iterator[str]:
    seen.add(file)
    for name in _imported(file):
        parts = name.split(".")
        yield from ({parts[0], ".".join(parts[:2])} & BACKENDS)
        inner = ROOT / ("/".join(parts) + ".py")
        if parts[0] == "tests" and inner.exists() and inner not in seen:
            yield from _backends(inner, seen)


@cache
def _imported(file: Path) -> tuple[str, ...]:
    """Every module that is named by an import of the file, wherever it stands."""
    names: list[str] = []
    for n in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(n, ast.Import):
            names += [alias.name for alias in n.names]
        elif isinstance(n, ast.ImportFrom) and n.module:
            names += [n.module, *(f"{n.module}.{alias.name}" for alias in n.names)]
    return tuple(names)


# What makes a test costly that is not marked so: it starts a process, or loads a package that the file does not import.
COSTLY = frozenset({"subprocess", "pty", "importorskip"})


@cache
def costly(file: Path) -> frozenset[str]:
    """The tests of a file that start processes, themselves or by a function, a fixture or a table of the file."""
    named = dict(_names(ast.parse(file.read_text(encoding="utf-8"))))
    found = {name for name, used in named.items() if used & COSTLY}
    while more := {name for name, used in named.items() if used & found} - found:
        found |= more
    return frozenset(name for name in found if name.startswith("test_"))


def _names(module: ast.Module) -> Iterator[tuple[str, frozenset[str]]]:
    """What stands at the top of a module, and every name in it."""
    for stated in module.body:
        match stated:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names = [name]
            case ast.Assign(targets=targets):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
            case _:
                names = []
        inside = frozenset(found for n in ast.walk(stated) for found in _named(n))
        yield from ((name, inside) for name in names)


def _named(n: ast.AST) -> tuple[str, ...]:
    match n:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            return (name,)
        case _:
            return ()
