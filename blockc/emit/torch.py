"""Functions to model.py: one class a function, rendered by templates that only loop.

Everything Python stands in the templates, in the helper files that they copy, or in an op's one expression; here the
graph is only put in order for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, count, groupby
from pathlib import Path
from typing import Any

import jinja2

from blockc.emit.loading import Loading
from blockc.graph.contract import LOGITS, POSITIONS, Contract, Held, contract
from blockc.ir import (
    Function,
    Loop,
    Node,
    T,
    Type,
    Value,
    called,
    functions,
    is_call,
    is_past,
    parameters,
    period,
    roll,
)
from blockc.ops import Linear

_LINE, _BODY = 120, " " * 8  # of model.py


@dataclass(frozen=True)
class Step:
    """One statement: targets = expression  # shape. `template` names how it is printed."""

    template: str
    targets: tuple[str, ...]
    expression: str
    comment: str = ""
    detail: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Declaration:
    """self.name = text, or a list of layers."""

    name: str
    text: str
    repeats: tuple[int, ...] = ()  # how many layers there are, where all are alike
    items: tuple[str, ...] = ()  # each layer, where they are not

    @property
    def lists(self) -> tuple[str, ...]:
        return (self.name,) if self.items else ()

    @property
    def singles(self) -> tuple[str, ...]:
        return () if self.repeats or self.items else (self.text,)


@dataclass(frozen=True)
class Class:
    name: str
    doc: str
    declarations: tuple[Declaration, ...]
    arguments: tuple[str, ...]
    steps: tuple[Step, ...]
    returns: tuple[str, ...]
    reads_positions: tuple[str, ...] = ()

    @property
    def wrapped(self) -> tuple[str, ...]:
        """The arguments where they need a line of their own."""
        around = 33  # what stands before, between and after them
        wide = around + len(": Tensor, ".join(self.arguments)) + len(self.result)
        return self.arguments if wide > _LINE else ()

    @property
    def inline(self) -> tuple[str, ...]:
        return () if self.wrapped else (": Tensor, ".join(self.arguments),)

    @property
    def result(self) -> str:
        return "Tensor" if len(self.returns) == 1 else f"tuple[{', '.join(['Tensor'] * len(self.returns))}]"


def emit(function: Function, *, name: str, summary: str, load: Loading, init: float) -> str:
    """The text of model.py for the root `function`, cached or not.

    `load` is what the loading template prints; `init` is the standard deviation of new matrices.
    """
    *inner, root = functions(function)
    serves = contract(root)
    reads = _reads(root)
    loss, labels = _LOSSES[root.causal]
    helpers = _helpers(function, [*(["query_positions"] if reads else []), loss])
    body = _Body(root, helpers)
    logits = body[root.output(LOGITS)]
    return (
        _environment()
        .get_template(f"torch/{'cached' if serves.held else 'plain'}.py.j2")
        .render(
            name=name,
            summary=summary,
            total=sum(param.learned for param in parameters(function).values()),
            imports=_imports([*helpers, *load.helpers]),
            helpers=[_definition(helper) for helper in helpers],
            classes=[_class(f, helpers) for f in inner],
            root=Class(
                "Model",
                summary,
                tuple(_declarations(root)),
                (),
                tuple(body.steps),
                (logits,),
                reads,
            ),
            table=next(param.name for param in root.own_params),
            ties=list(_ties(root)),
            cache=_cache(root, serves),
            load=load,
            loss=loss,
            labels=labels,
            loading=[_definition(helper) for helper in load.helpers],
            init=_init(function, init),
        )
    )


# Whether a model is causal: its loss, and what the labels are.
_LOSSES = {
    True: ("next_token_loss", "the tokens themselves"),
    False: ("token_loss", "the token wanted at each place, -100 where none is"),
}


def _reads(root: Function) -> tuple[str, ...]:
    """position_ids, where anything in the model reads it."""
    used = {value.node.name for n in root.nodes for value in n.inputs}
    return (POSITIONS,) if POSITIONS in used else ()


def _class(function: Function, helpers: Sequence[str]) -> Class:
    body = _Body(function, helpers)
    return Class(
        function.name,
        function.doc,
        tuple(_declarations(function)),
        tuple(n.name for n in function.inputs),
        tuple(body.steps),
        tuple(body[value] for _, value in function.outputs),
    )


def shape(type_: Type) -> str:
    """(B, 8, T, 128)"""
    return f"({', '.join('T' if size == T else str(size) for size in type_.shape)})"


# What a method's text may call: no value takes these names.
_RESERVED = {"self", "torch", "nn", "F", "x", "layer", "past", "present", "loss", "batch", "tokens", "labels"}


class _Body:
    """A function's statements, and what each value is called in them."""

    def __init__(self, function: Function, helpers: Sequence[str]) -> None:
        self.function = function
        self.names: dict[Value, str] = {n[0]: n.name for n in function.inputs}
        self.taken = {*self.names.values(), *_RESERVED, *helpers}
        self.pasts = {n[0] for n in function.inputs if is_past(n)}
        self.layers = [n for n in function.nodes if is_call(n) and "." in n.name]
        self.stateful = [n for n in self.layers if any(v in self.pasts for v in n.inputs)]
        self.lends = {v.node for n in function.nodes for v in n.inputs if v.index and is_call(v.node)}
        self.steps: list[Step] = []
        for item in roll(function):
            self.steps.append(self._loop(item) if isinstance(item, Loop) else self._step(item))

    def __getitem__(self, value: Value) -> str:
        return self.names[value]

    def _bind(self, value: Value, wish: str) -> str:
        name = next(n for n in chain([wish], (f"{wish}_{i}" for i in count(2))) if n not in self.taken)
        self.taken.add(name)
        self.names[value] = name
        return name

    def _step(self, n: Node) -> Step:
        if is_call(n):
            return self._call(n)
        text = n.op.torch(f"self.{n.name}", *(self[v] for v in n.inputs))
        single = len(n.types) == 1
        wishes = [n.name] if single else list(n.op.output_names)
        targets = tuple(self._bind(n[i], wish) for i, wish in enumerate(wishes))
        return Step("statement", targets, text, shape(n.types[0]))

    def _call(self, n: Node) -> Step:
        function = called(n)
        plain = tuple(self[v] for v in n.inputs if not (self.layers and v in self.pasts))
        path = n.name.replace(".", "_")
        wishes = (path, *(f"{path}_{name}" if n in self.lends else name for name in function.output_names[1:]))
        if n not in self.stateful:
            targets = tuple(self._bind(n[i], wish) for i, wish in enumerate(wishes))
            return Step("call", targets, "", shape(n.types[0]), {"callee": _member(n.name), "arguments": plain})
        bound = len(wishes) if n in self.lends else 1  # what later layers read has a name of its own
        targets = (*(self._bind(n[i], wishes[i]) for i in range(bound)), *wishes[bound:])
        index = self.stateful.index(n)
        return Step("layer_call", targets, "", shape(n.types[0]),
                    {"callee": _member(n.name), "arguments": plain, "index": index,
                     "present": self._present(n, targets)})  # fmt: skip

    def _present(self, n: Node, targets: Sequence[str]) -> str:
        """Those of a call's targets that are its present, in the order of its past."""
        return _tuple([targets[value.index] for _, value in self.function.outputs[1:] if value.node is n])

    def _loop(self, loop: Loop) -> Step:
        """for layer, past in zip(self.layers, past_key_values): what varies is zipped, what is fixed is passed."""
        first, function = loop.calls[0], called(loop.calls[0])
        names, sources, arguments = ["layer"], list[str](), list[str]()
        for i, formal in enumerate(function.inputs):
            if i == loop.chain:
                arguments.append("x")
            elif i in loop.fixed:
                arguments.append(self[loop.fixed[i]])
            elif loop.varying[i][0] not in self.pasts:
                names.append(f"layer_{formal.name}")
                column = tuple(self[value] for value in loop.varying[i])
                sources.append(_tile(column))
                arguments.append(names[-1])
        start = self[first.inputs[loop.chain]]
        self.names[loop.calls[-1][0]] = "x"
        cached = first in self.stateful
        template = "cached_loop" if cached else "loop" if sources else "plain_loop"
        layers = loop.prefix + _slice(loop.calls, self.layers)
        columns = [f"self.{layers}", *sources]
        if cached:
            names.append("past")
            columns.append(f"past_key_values{_slice(loop.calls, self.stateful)}")
        targets = ("x", *function.output_names[1:])
        return Step(template, targets, "", shape(first.types[0]),
                    {"starts": [] if start == "x" else [start], "layers": layers, "zipped": _zipped(names, columns),
                     "arguments": arguments, "present": self._present(first, targets)})  # fmt: skip


def _slice(calls: Sequence[Node], every: Sequence[Node]) -> str:
    """Which of all these the calls are: nothing to say where they are all."""
    start = every.index(calls[0])
    return "" if len(calls) == len(every) else f"[{start}:{start + len(calls)}]"


def _tile(column: tuple[str, ...]) -> str:
    """The column as one period and how often it is laid; what is beyond its end of the last tile is cut off."""
    length = period(column)
    times, unit = -(-len(column) // length), _runs(column[:length])
    if times == 1:
        return unit
    laid = f"{unit} * {times}" if unit.endswith(")") and " * " not in unit else f"({unit}) * {times}"
    return laid if len(column) % length == 0 else f"({laid})[:{len(column)}]"


def _runs(names: tuple[str, ...]) -> str:
    """(a, b), or (a,) * 5 + (b,) where one follows itself more than twice."""
    runs = [(name, len(list(same))) for name, same in groupby(names)]
    if max(n for _, n in runs) < 3:
        return f"({', '.join(names)})"
    return " + ".join(f"({name},)" + (f" * {n}" if n > 1 else "") for name, n in runs)


def _zipped(names: list[str], columns: list[str]) -> str:
    """for a, b in zip(...): in one line, or one for each column where that is too long."""
    head, arguments = f"for {', '.join(names)} in zip(", [*columns, "strict=True"]
    line = f"{head}{', '.join(arguments)}):"
    if len(_BODY + line) <= _LINE:
        return line
    return "\n".join([head, *(f"{_BODY}    {each}," for each in arguments), f"{_BODY}):"])


def _member(name: str) -> str:
    """layers.0 is self.layers[0]"""
    base, _, index = name.rpartition(".")
    return f"{base}[{index}]" if base else name


def _declarations(function: Function) -> Iterator[Declaration]:
    """What __init__ makes: modules in the order of use, layers as one list."""
    lists: dict[str, list[str]] = {}
    for n in function.nodes:
        prefix, _, index = n.name.rpartition(".")
        if is_call(n) and prefix and index.isdigit():
            lists.setdefault(prefix, []).append(called(n).name)
    for n in function.nodes:
        prefix = n.name.rpartition(".")[0]
        if is_call(n) and prefix in lists:
            yield from _list(prefix, tuple(lists.pop(prefix)))
        elif is_call(n) and not prefix:
            yield Declaration(n.name, f"{called(n).name}()")
        elif (text := n.op.declares()) is not None:
            yield Declaration(n.name, text)


def _list(name: str, classes: tuple[str, ...]) -> Iterator[Declaration]:
    if len(set(classes)) == 1:
        yield Declaration(name, f"{classes[0]}()", repeats=(len(classes),))
    else:
        yield Declaration(name, "", items=tuple(f"{c}()" for c in classes))


def _ties(root: Function) -> Iterator[tuple[str, str]]:
    """self.head.weight = self.embedding.weight, wherever a node holds a parameter of another's name."""
    for n in root.nodes:
        for held, owned in zip(n.params, n.op.params(), strict=True):
            if held.name != f"{n.name}.{owned.name}":
                yield f"{n.name}.{owned.name}", held.name


def _cache(root: Function, serves: Contract) -> dict[str, Any]:
    """What each layer holds, as one period and how often it is laid; and where the length of a cache is read."""
    groups = _by_layer(root, serves)
    layers = [tuple(held.sized(0, 0)[1:] for held in group) for group in groups]
    length = period(tuple(layers)) if layers else 0
    if length and len(layers) % length:
        length = len(layers)
    in_heads = all(held.grows == 2 and len(held.shape) == 4 for held in serves.held)
    shown = [tuple((shape[0], shape[2]) for shape in layer) for layer in layers] if in_heads else layers
    return {
        "empty": "empty_cache" if in_heads else "empty_states",
        "total": f"{_length(groups)}tokens",
        "period": [_tuple(list(map(str, layer))) for layer in shown[:length]],
        "times": len(layers) // length if length else 0,
    }


def _by_layer(root: Function, serves: Contract) -> list[list[Held]]:
    """The states of each layer that has some."""
    known = {held.past: held for held in serves.held}
    groups = ([known[v.node.name] for v in n.inputs if is_past(v.node)] for n in root.nodes)
    return [group for group in groups if group]


def _length(groups: Sequence[Sequence[Held]]) -> str:
    """How many tokens a cache holds, read off the first state that grows; nothing where none does."""
    for i, group in enumerate(groups):
        for j, held in enumerate(group):
            if held.grows is not None:
                return f"past_key_values[{i}][{j}].shape[{held.grows}] + "
    return ""


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _init(function: Function, std: float) -> dict[str, Any]:
    """How an untrained model starts, read off the graph: the matrices that write to the stream, how many they are."""
    layers = [called(n) for n in function.nodes if is_call(n)]
    writers = [n for layer in layers for call in layer.nodes if is_call(call) for n in _writers(called(call))]
    biases = any(isinstance(n.op, Linear) and n.op.bias for f in functions(function) for n in f.nodes)
    return {"std": std, "writers": sorted({f".{n.name}" for n in writers}), "additions": max(1, len(writers)),
            "biases": ["bias"] if biases else []}  # fmt: skip


def _writers(function: Function) -> Iterator[Node]:
    end = function.outputs[0][1].node
    if isinstance(end.op, Linear):
        yield end


def _helpers(function: Function, more: Iterable[str]) -> list[str]:
    """Each helper once, in the order of first use, after those that it is written with."""
    used = (helper for f in functions(function) for n in f.nodes for helper in n.op.helpers)
    order: dict[str, None] = {}
    for helper in (*used, *more):
        order.update(dict.fromkeys((*_needs(helper), helper)))
    return list(order)


@cache
def _needs(helper: str) -> tuple[str, ...]:
    """What a helper file imports from its neighbours."""
    found = re.findall(r"^from \.(\w+) import", _text(helper), re.MULTILINE)
    return tuple(name for needed in found for name in (*_needs(needed), needed))


_BLANK = "\n\n\n"  # what stands between a helper file's imports and its definition


@cache
def _text(helper: str) -> str:
    return (_templates() / "helpers" / f"{helper}.py").read_text(encoding="utf-8")


@cache
def _helper(name: str) -> tuple[tuple[str, ...], str]:
    """The import lines of a helper file, and its definition."""
    head, _, body = _text(name).partition(_BLANK)
    lines = tuple(line for line in head.splitlines() if line and "import" in line and not line.startswith("from ."))
    return lines, body.rstrip()


def _definition(name: str) -> str:
    return _helper(name)[1]


def _imports(helpers: Sequence[str]) -> dict[str, Any]:
    """What the helpers import beside torch, which every model imports: whole modules, and names by module."""
    lines = {line for helper in helpers for line in _helper(helper)[0] if " torch" not in line}
    parts: dict[str, set[str]] = {"typing": {"NamedTuple"}}
    for line in lines:
        if line.startswith("from "):
            module, _, names = line.removeprefix("from ").partition(" import ")
            parts.setdefault(module, set()).update(names.split(", "))
    whole = sorted(line.removeprefix("import ") for line in lines if line.startswith("import "))
    return {"whole": whole, "parts": [(module, sorted(names)) for module, names in sorted(parts.items())]}


def _templates() -> Path:
    """templates/ beside the package in a checkout, inside it in a wheel."""
    inside = Path(__file__).parent.parent / "templates"
    return inside if inside.is_dir() else Path(__file__).parent.parent.parent / "templates"


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_templates()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Python text, not HTML; no spec text reaches a template but names that match a pattern
    )
