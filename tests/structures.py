"""Which specs are unlike: a costly test runs on as few as hold every feature that the twin of any spec has.

A feature is an op with its attributes, or two ops of which one reads the other, in the function or in what a provider
is given; or the order of the layers. Sizes are told apart within an op alone: heads and kv_heads are equal or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, cast

from blockc.basics.opsets import OPSETS
from blockc.graph.shrink import shrink
from blockc.graph.target import Target
from blockc.ir import Function, Node, functions_of, is_call
from blockc.language.spec import load
from blockc.pipeline.compiled import Compiled, compile_spec
from tests.paths import ROOT

SPECS = {path.stem: path for path in sorted((ROOT / "specs").glob("*.yaml"))}
# What the costly columns of the table are proved on; a spec is left out of one where others hold all that it has there.
COLUMNS = {
    "buffer": (Target(cache="buffer"),),
    "cuda graph": (Target("cuda", "fp16"),),
    "fp16": (Target(dtype="fp16"), Target("cpu", "fp16")),
    "packed": (Target("cpu", packed=True),),
    "by rows": (Target("cpu", padding="right"),),
    "oldest opset": (Target(opset=OPSETS.start),),
}
PROVIDERS = tuple(target for targets in COLUMNS.values() for target in targets)


@cache
def unlike(*targets: Target) -> tuple[str, ...]:
    """Again and again the spec that holds most of what no chosen one holds, in the function and for these targets."""
    return _chosen({name: features(twin(name), targets) for name in SPECS})


@cache
def unlike_kinds() -> tuple[str, ...]:
    """As few specs as hold every kind of op, without attributes and without what reads what."""
    return _chosen({name: frozenset(_kinds(twin(name))) for name in SPECS})


def _kinds(model: Compiled) -> Iterator[object]:
    graphs = (model.function, *functions_of(model.function))
    return (_kind(n) for graph in graphs for n in graph.nodes if not is_call(n))


def _chosen(held: Mapping[str, frozenset[object]]) -> tuple[str, ...]:
    left, chosen = set[object]().union(*held.values()), list[str]()
    while left:
        chosen.append(max(SPECS, key=lambda name: len(held[name] & left)))
        left -= held[chosen[-1]]
    return tuple(sorted(chosen))


@cache
def twin(name: str) -> Compiled:
    return compile_spec(shrink(load(SPECS[name])))


def features(model: Compiled, targets: tuple[Target, ...] = ()) -> frozenset[object]:
    graphs = (model.function, *functions_of(model.function))
    found = {("", feature) for graph in graphs for feature in _of_nodes(graph)}
    found |= {(str(t), feature) for t in targets if _has_graph(model, t) for feature in _of_nodes(model.flatten(t))}
    return frozenset(found | {("layers", tuple(_order(model.function)))})


def _has_graph(model: Compiled, target: Target) -> bool:
    """Without a cache there is none to hold in a buffer, and nothing is refused before it is made."""
    return target.cache == "joined" or bool(model.contract(Target()).held)


def _of_nodes(graph: Function) -> Iterator[object]:
    for n in graph.nodes:
        if not is_call(n):
            yield attributes(n.op), tuple(param.role for param in n.params)
            yield from ((_kind(n), i, _kind(value.node)) for i, value in enumerate(n.inputs))


def _kind(n: Node) -> str:
    return type(n.op).__name__


def _order(function: Function) -> Iterator[int]:
    """Each layer by a number, alike where function and what is passed in beside the stream are the same."""
    known: dict[object, int] = {}
    return (known.setdefault((n.op, n.inputs[1:]), len(known)) for n in function.nodes if is_call(n))


def ops(model: Compiled, apart: bool = True) -> set[object]:
    """Every op of the function with its attributes."""
    graphs = (model.function, *functions_of(model.function))
    return {attributes(n.op, apart) for graph in graphs for n in graph.nodes if not is_call(n)}


def attributes(op: object, apart: bool = True) -> object:
    """An op's fields: of sizes, which are equal, and 0 and 1 as they are; of other numbers, whether they are there.

    Unless sizes are told apart, only whether they are 0, 1 or more.
    """
    sizes: dict[int, str] = {}

    def told(value: Any) -> object:
        match value:
            case bool() | str() | None:
                return value
            case int():
                return value if value < 2 else sizes.setdefault(value, f"size {len(sizes)}") if apart else "size"
            case float():
                return "a number"
            case tuple():
                return tuple(dict.fromkeys(told(item) for item in value))
            case _ if is_dataclass(value):
                return (type(value).__name__, *(told(getattr(value, field.name)) for field in fields(value)))
            case _:
                raise TypeError(f"an attribute of no known kind: {value!r}")

    return told(op)


def tells_apart(small: object, large: object, sizes: dict[object, object]) -> bool:
    """Whether one op's attributes are another's, with sizes unlike wherever the other's are; `sizes` starts empty."""
    if isinstance(small, tuple) and isinstance(large, tuple):
        ours, theirs = cast(tuple[object, ...], small), cast(tuple[object, ...], large)
        return len(ours) == len(theirs) and all(map(lambda a, b: tells_apart(a, b, sizes), ours, theirs))
    if isinstance(small, str) and small.startswith("size "):
        return sizes.setdefault(small, large) == large
    return small == large
