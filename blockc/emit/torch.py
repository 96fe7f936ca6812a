"""Functions to model.py: a class for each function.

The Python text is in the templates, in the helper files that they copy, and in each op's expression. This module only
arranges the graph for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2

from blockc.emit.body import Body
from blockc.emit.kinds import choice_text, condition_text
from blockc.emit.loading import Loading, layers_text, ties_of
from blockc.emit.plan import ModulePlan, plan_module
from blockc.emit.returned import returned_by
from blockc.emit.statements import LINE, Statement, fit, is_laid_by_hand
from blockc.graph.contract import POSITIONS, SEGMENTS, Contract, StatePort, contract_of
from blockc.ir import (
    Function,
    Node,
    callee_of,
    functions_of,
    is_call,
    is_past,
    layers_of,
    parameters_of,
    period_of,
)
from blockc.ops import Add, Experts, LatentAttention, Linear, SigmoidGate


@dataclass(frozen=True)
class Declaration:
    """self.name = text; where `listed`, the text is a comprehension over layers."""

    name: str
    text: str
    listed: bool = False

    @property
    def long(self) -> bool:
        around = 27  # what stands beside both
        return around + len(self.name + self.text) > LINE


@dataclass(frozen=True)
class Argument:
    name: str
    type: str


@dataclass(frozen=True)
class Class:
    """A class of model.py. `switch` is an argument of its constructor; with `keeps` it is stored on self."""

    name: str
    doc: str
    declarations: tuple[Declaration, ...]
    statements: tuple[Statement, ...]
    returns: str
    arguments: tuple[Argument, ...] = ()
    result: str = "Tensor"
    switch: str = ""
    keeps: bool = False

    @property
    def signature(self) -> str:
        """forward's arguments, if the whole signature fits on one line; else empty."""
        line = ", ".join(["self", *(f"{each.name}: {each.type}" for each in self.arguments)])
        around = 22  # what stands beside both
        return line if around + len(line + self.result) <= LINE else ""

    @property
    def indented(self) -> str:
        """forward's arguments, if they fit on a line of their own; else empty."""
        line = ", ".join(["self", *(f"{each.name}: {each.type}" for each in self.arguments)])
        return line if len(" " * 8 + line) <= LINE else ""


@dataclass(frozen=True)
class ComputedConstant:
    """A tensor that the model computes once and keeps beside its parameters."""

    name: str
    text: str


@dataclass(frozen=True)
class Zeros:
    """The states before the first call, where some have one size: shapes by layer, and how often they repeat."""

    period: tuple[str, ...]
    times: int


@dataclass(frozen=True)
class Initialisation:
    """How a new model is initialised: the matrices that write to the stream, their number, whether there are biases."""

    std: float
    writers: tuple[str, ...]
    additions: int
    biases: bool
    experts: str = ""  # the classes of mixtures of experts
    latent: bool = False  # whether any attention holds the matrices of its keys and values


@dataclass(frozen=True)
class Imports:
    """Imports of the standard library: whole modules, and names by module."""

    whole: tuple[str, ...]
    parts: tuple[tuple[str, tuple[str, ...]], ...]


def emit_torch(function: Function, *, name: str, summary: str, load: Loading, init: float) -> str:
    """The text of model.py for the root `function`, cached or not.

    `load` is what the loading template prints; `init` is the standard deviation of new matrices.
    """
    root = functions_of(function)[-1]
    serves = contract_of(root)
    helpers = _order_helpers(function, ["query_positions"] if _reads(root, POSITIONS) else [])
    whole = plan_module(root, helpers)
    body = Body(root, whole)
    classes = [_make_class(f, whole) for f in _find_classes(whole)]
    listed = bool(layers_of(root))
    tied = list(ties_of(root))
    constants = [
        ComputedConstant(f"{n.name}_{each[0]}", _skip_format(each[1])) for n in root.nodes if (each := n.op.constant())
    ]
    return (
        _environment()
        .get_template("torch/model.py.j2")
        .render(
            name=name,
            summary=summary,
            total=sum(param.learned for param in parameters_of(function).values()),
            imports=_collect_imports([*helpers, *load.helpers], listed, bool(tied or constants)),
            helpers=[_definition_of(helper) for helper in helpers],
            classes=classes,
            root=Class(
                "Model",
                summary,
                tuple(_make_declarations(root, whole)),
                tuple(body.statements),
                "",
            ),
            returned=returned_by(root, serves, body.names),
            segments=any(n.name == SEGMENTS for n in root.inputs),
            table=next(param.name for param in root.own_params),
            ties=tied,
            constants=constants,
            cached=bool(serves.held),
            plain={held.state for held in serves.held} <= {"key", "value"},
            keeps=body.keeps,
            listed=listed,
            carried=_make_zeros(root, serves) if whole.carried else None,
            asked=not whole.lends,
            stateful=len(body.stateful),
            length=_length_text(_states_by_layer(root, serves)),
            unmasked=any(f is root for f, _ in whole.absent),
            load=load,
            loading=[_definition_of(helper) for helper in load.helpers],
            init=_make_initialisation(function, init),
        )
    )


def _reads(root: Function, name: str) -> bool:
    """Whether anything in the model reads this input."""
    return any(value.node.name == name for n in root.nodes for value in n.inputs)


def _find_classes(whole: ModulePlan) -> Iterator[Function]:
    """The functions that become classes, each after the functions that it calls."""
    seen: set[Function] = set()

    def walk(function: Function) -> Iterator[Function]:
        if function in seen:
            return
        seen.add(function)
        for n in function.nodes:
            if is_call(n):
                yield from walk(whole.kinds.classes.get(callee_of(n), callee_of(n)))
        yield function

    for function in walk(whole.root):
        if function is not whole.root:
            yield function


def _make_class(function: Function, whole: ModulePlan) -> Class:
    body, switch = Body(function, whole), whole.kinds.switch_of(function)
    count = len(function.outputs) - 1
    result = (
        "tuple[Tensor, Cache | None]"
        if whole.takes_use_cache(function)
        else f"tuple[{', '.join(['Tensor'] * (count + 1))}]"
    )
    return Class(
        function.name,
        function.doc,
        tuple(_make_declarations(function, whole)),
        tuple(body.statements),
        body.returns,
        tuple(_make_arguments(function, whole)),
        result if count else "Tensor",
        switch.word if switch else "",
        bool(body.skipped),
    )


def _make_arguments(function: Function, whole: ModulePlan) -> Iterator[Argument]:
    """The arguments of forward. Where layers are uniform, each takes the inputs of all."""
    own = [n.name for n in function.inputs if not is_past(n)]
    layer = whole.kinds.uniform and function in whole.kinds.classes.values()
    absent = {name for f, name in whole.absent if not layer or f in whole.kinds.classes}
    for name in whole.kinds.inputs if layer else own:
        lacks = name in absent if layer else (function, name) in whole.absent
        yield Argument(name, "Tensor | None" if lacks else "Tensor")
    if whole.has_past(function):
        yield Argument("past", "Cache" if whole.carried else "Cache | None")
    if whole.takes_use_cache(function):
        yield Argument("use_cache", "bool")


def _make_declarations(function: Function, whole: ModulePlan) -> Iterator[Declaration]:
    """The modules that __init__ makes, in order of use; layers as one list."""
    listed: set[str] = set()
    for n in function.nodes:
        prefix = n.name.rpartition(".")[0]
        if is_call(n) and prefix:
            if prefix not in listed:
                listed.add(prefix)
                yield Declaration(
                    prefix, _layer_list_text([c for c in function.nodes if is_call(c)], whole), listed=True
                )
        elif is_call(n):
            switch = whole.kinds.switch_of(callee_of(n))
            yield Declaration(n.name, f"{callee_of(n).name}({switch.word if switch else ''})")
        elif (text := n.op.declares()) is not None:
            yield Declaration(n.name, fit(f"self.{n.name}", text, ""))


def _layer_list_text(calls: Sequence[Node], whole: ModulePlan) -> str:
    """One comprehension over the layers' numbers."""
    made = [callee_of(call) for call in calls]
    classes, off = whole.kinds.classes, whole.kinds.off
    one = len({classes[function] for function in made}) == 1
    told = condition_text([function not in off for function in made]) if one and off else ""
    texts: dict[Function, str] = {}
    for function in dict.fromkeys(made):
        switch = whole.kinds.switches.get(classes[function])
        given = f"{switch.word}={told or function not in off}" if switch else ""
        texts[function] = f"{classes[function].name}({given})"
    column = [texts[function] for function in made]
    text = choice_text(column)
    return f"[{text} for {'i' if re.search(r'[(= ]i ', text) else '_'} in range({len(calls)})]"


def _skip_format(text: str) -> str:
    return f"{text}  # fmt: skip" if is_laid_by_hand(text) else text


def _make_zeros(root: Function, serves: Contract) -> Zeros:
    shapes = [tuple(held.shape_for(0, 0)[1:] for held in group) for group in _states_by_layer(root, serves)]
    length = period_of(tuple(shapes))
    if len(shapes) % length:
        length = len(shapes)
    return Zeros(tuple(_tuple_text(list(map(str, each))) for each in shapes[:length]), len(shapes) // length)


def _states_by_layer(root: Function, serves: Contract) -> list[list[StatePort]]:
    """The states of each layer that has any."""
    known = {held.past: held for held in serves.held}
    groups = ([known[v.node.name] for v in n.inputs if is_past(v.node)] for n in root.nodes)
    return [group for group in groups if group]


def _length_text(groups: Sequence[Sequence[StatePort]]) -> str:
    """An expression for the number of tokens in a cache, from the first state that grows; empty where none does."""
    for i, group in enumerate(groups):
        for j, held in enumerate(group):
            if held.grows is not None:
                return f"past_key_values[{i}][{j}].shape[{held.grows}]"
    return ""


def _tuple_text(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _make_initialisation(function: Function, std: float) -> Initialisation:
    """Finds in the graph the matrices that write to the stream."""
    calls = [callee_of(n) for n in function.nodes if is_call(n)]
    branches = [list(_find_writers(callee_of(call))) for layer in calls for call in layer.nodes if is_call(call)]
    names = sorted({f".{n.name}" for each in branches for n in each if isinstance(n.op, Linear)})
    nodes = [n for f in functions_of(function) for n in f.nodes]
    biases = any(isinstance(n.op, Linear) and n.op.bias for n in nodes)
    experts = sorted({n.op.module for n in nodes if isinstance(n.op, Experts)})
    latent = any(isinstance(n.op, LatentAttention) for n in nodes)
    additions = max(1, sum(map(bool, branches)))
    return Initialisation(std, tuple(names), additions, biases, " | ".join(experts), latent)


def _find_writers(function: Function) -> Iterator[Node]:
    """The nodes whose matrix gives what a branch adds; the sum of several in a mixture of experts."""
    ends = [function.outputs[0][1].node]
    for end in ends:
        if isinstance(end.op, Linear | Experts):
            yield end
        elif is_call(end):
            yield from _find_writers(callee_of(end))
        elif isinstance(end.op, Add | SigmoidGate):
            ends += (value.node for value in end.inputs[: 1 if isinstance(end.op, SigmoidGate) else 2])


def _order_helpers(function: Function, more: Iterable[str]) -> list[str]:
    """Each helper once, in order of first use, after the helpers that it uses."""
    used = (helper for f in functions_of(function) for n in f.nodes for helper in n.op.helpers)
    order: dict[str, None] = {}
    for helper in (*used, *more):
        order.update(dict.fromkeys((*_find_needs(helper), helper)))
    return list(order)


@cache
def _find_needs(helper: str) -> tuple[str, ...]:
    """The helpers that a helper file imports, each after those that it imports itself."""
    found = re.findall(r"^from \.(\w+) import", _read_helper(helper), re.MULTILINE)
    return tuple(name for needed in found for name in (*_find_needs(needed), needed))


_BLANK = "\n\n\n"  # what stands between a helper file's imports and its definition


@cache
def _read_helper(helper: str) -> str:
    return (_templates() / "helpers" / f"{helper}.py").read_text(encoding="utf-8")


@cache
def _split_helper(name: str) -> tuple[tuple[str, ...], str]:
    """The import lines of a helper file, and its definition."""
    head, _, body = _read_helper(name).partition(_BLANK)
    lines = tuple(line for line in head.splitlines() if line and "import" in line and not line.startswith("from ."))
    return lines, body.rstrip()


def _definition_of(name: str) -> str:
    return _split_helper(name)[1]


def _collect_imports(helpers: Sequence[str], listed: bool, moved: bool) -> Imports:
    """The imports of the helpers, except torch, and those of the model itself; with `moved` it defines _apply."""
    lines = {line for helper in helpers for line in _split_helper(helper)[0] if " torch" not in line}
    parts: dict[str, set[str]] = {"typing": {"Self"}, "dataclasses": {"dataclass"}, "pathlib": {"Path"}}
    if listed:
        parts["functools"] = {"partial"}
    if moved:
        parts["typing"].add("Any")
    for line in lines:
        if line.startswith("from "):
            module, _, names = line.removeprefix("from ").partition(" import ")
            parts.setdefault(module, set()).update(names.split(", "))
    whole = sorted(line.removeprefix("import ") for line in lines if line.startswith("import "))
    return Imports(tuple(whole), tuple((module, tuple(sorted(names))) for module, names in sorted(parts.items())))


def _templates() -> Path:
    """templates/ beside the package in a checkout, inside it in a wheel."""
    inside = Path(__file__).parent.parent / "templates"
    return inside if inside.is_dir() else Path(__file__).parent.parent.parent / "templates"


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_templates()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Python text, not HTML; no spec text reaches a template but names that match a pattern
    )
    made.filters["layers"] = layers_text
    return made
