"""The mutants of a file: each is the file with one piece of its code changed so that it should do something else.

Not drawn is what no test should be bound to: docstrings, annotations, decorators, `__repr__`, assertions, f-strings,
and what only words a message. No library draws the rest: mutmut leaves out tables and all that has a decorator, the
parser of cosmic-ray does not know `match`, and neither drops an operand, an element or an argument.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
CALLED = {"any": "all", "all": "any", "min": "max", "max": "min", "sorted": "list"}
CLASSES = {"isinstance", "issubclass", "cast", "TypeVar"}  # whose further arguments are types
WORDING = {"hint", "expected", "got", "message"}
Change = tuple[ast.AST, str]


@dataclass(frozen=True)
class Mutant:
    """`before` and `after` are the changed lines, with single spaces: what names a mutant while other lines move."""

    file: str
    function: str
    before: str
    after: str
    line: int
    text: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.file, self.function, self.before, self.after


def mutants(path: Path, file: str) -> list[Mutant]:
    """All of them, in the order of the source."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: dict[str, Mutant] = {}
    for (node, new), function in _visited(ast.parse(source), ""):
        first, last = starts[node.lineno - 1], starts[node.end_lineno]
        begin, end = first + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        changed = source[first:begin] + new.encode() + source[end:last]
        text = (source[:first] + changed + source[last:]).decode()
        before, after = (" ".join(piece.decode().split()) for piece in (source[first:last], changed))
        if before != after:
            found.setdefault(text, Mutant(file, function, before, after, node.lineno, text))
    return list(found.values())


def _visited(node: ast.AST, function: str) -> Iterator[tuple[Change, str]]:
    match node:
        case ast.FunctionDef(name="__repr__") | ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return
        case ast.Assign(targets=[ast.Name(id=name)]) if name in WORDING or name == "__all__":
            return
        case ast.keyword(arg="strict") | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.keyword(arg=name) if name in WORDING:
            return
    for change in _changes(node):
        yield change, function
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}".lstrip(".")
        yield from (((stmt, "pass"), function) for stmt in _droppable(node))
    for child in _children(node):
        yield from _visited(child, function)


def _children(node: ast.AST) -> Iterable[ast.AST]:
    match node:
        case ast.FunctionDef():
            return [*node.args.defaults, *(each for each in node.args.kw_defaults if each), *node.body]
        case ast.ClassDef():
            return node.body
        case ast.AnnAssign():
            return [node.value] if node.value else []
        case ast.Call(func=ast.Name(id=name)) if name in CLASSES:
            return node.args[:1]
        case ast.Subscript(slice=ast.Tuple(elts=elements)):  # mostly of types
            return [node.value, *elements]
        case ast.match_case():
            return [*([node.guard] if node.guard else []), *node.body]
        case ast.Expr(value=ast.Constant()):
            return []
        case _:
            return ast.iter_child_nodes(node)


def _changes(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare():
            for i, op in enumerate(node.ops):
                ops = [*node.ops[:i], COMPARED[type(op)](), *node.ops[i + 1 :]]
                yield node, _with(node, ops=ops)
        case ast.BoolOp():
            conjunction = isinstance(node.op, ast.And)
            yield node, _with(node, op=ast.Or() if conjunction else ast.And())
            yield from ((value, str(conjunction)) for value in node.values)
        case ast.BinOp() if type(node.op) in COMPUTED:
            yield node, _with(node, op=COMPUTED[type(node.op)]())
        case ast.UnaryOp(op=ast.Not()):
            yield node, f"({ast.unparse(node.operand)})"
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() | float() as value):
            yield node, repr(value + 1)
        case ast.Tuple(ctx=ast.Load()) | ast.List(ctx=ast.Load()) | ast.Set():
            yield from ((each, "*()") for each in node.elts)
        case ast.If() | ast.IfExp():
            yield from ((node.test, word) for word in ("True", "False"))
        case ast.While():
            yield node.test, "False"
        case ast.comprehension():
            yield from ((test, word) for test in node.ifs for word in ("True", "False"))
        case ast.match_case(guard=ast.expr() as guard):
            yield from ((guard, word) for word in ("True", "False"))
        case ast.keyword(arg=str()):
            yield node, "**{}"
        case ast.Call(func=ast.Name(id=name)) if name in CALLED:
            yield node.func, CALLED[name]


def _with(node: ast.AST, **fields: Any) -> str:
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return f"({ast.unparse(made)})"


def _droppable(owner: ast.FunctionDef | ast.ClassDef) -> Iterator[ast.stmt]:
    """What a function can do without and still run: effects, early ends, names that are bound again."""
    if isinstance(owner, ast.ClassDef):
        return
    bound = {arg.arg for arg in (*owner.args.posonlyargs, *owner.args.args, *owner.args.kwonlyargs)}
    for stmt in (each for each in ast.walk(owner) if isinstance(each, ast.stmt) and each is not owner):
        match stmt:
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break():
                yield stmt
            case ast.Return() if stmt is not owner.body[-1]:
                yield stmt
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield stmt
            case ast.Assign(targets=[ast.Name(id=name)]):
                if name in bound:
                    yield stmt
                bound.add(name)
