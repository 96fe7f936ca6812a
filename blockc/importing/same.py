"""Whether two functions compute the same from the same tensors, whatever their nodes are called.

Every value gets a number, the same for both functions where it is the same op of the same values: so are two graphs
equal where their outputs are. Sums and products are of their terms in any order. A window as long as the context is
none, and a table of angles is its frequencies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace

from blockc.ir import Function, Node, Op, Value, callee_of, is_call
from blockc.ops import Add, Alibi, Mul, RotaryTable, Visible

Key = tuple[object, ...]


@dataclass
class ValueNumbers:
    """Numbers of values of several functions, at a context that none of them exceeds."""

    context: int
    known: dict[Key, int] = field(default_factory=dict[Key, int])
    terms: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])  # of sums

    def of(self, function: Function) -> tuple[int, ...]:
        """Those of the outputs."""
        given = {n: self.number(("input", i)) for i, n in enumerate(function.inputs)}
        return self.outputs(function, given)

    def outputs(self, function: Function, given: dict[Node, int]) -> tuple[int, ...]:
        values: dict[Value, int] = {Value(n, 0): number for n, number in given.items()}
        for n in function.nodes:
            if n in given:
                continue
            operands = [values[v] for v in n.inputs]
            made = self.number_call(n, operands) if is_call(n) else self.number_node(n, operands)
            values |= {Value(n, i): number for i, number in enumerate(made)}
        return tuple(values[v] for _, v in function.outputs)

    def number_call(self, n: Node, operands: list[int]) -> tuple[int, ...]:
        inner = callee_of(n)
        return self.outputs(inner, dict(zip(inner.inputs, operands, strict=True)))

    def number_node(self, n: Node, operands: list[int]) -> tuple[int, ...]:
        if isinstance(n.op, Add):
            return (self.sum(operands),)
        operands = sorted(operands) if isinstance(n.op, Mul) else operands
        tied = tuple(param.name != f"{n.name}.{own.name}" for own, param in zip(n.op.params(), n.params, strict=True))
        return tuple(self.number((i, self.op(n.op), tied, *operands)) for i in range(len(n.types)))

    def sum(self, operands: list[int]) -> int:
        terms = tuple(sorted(term for each in operands for term in self.terms.get(each, (each,))))
        number = self.number(("sum", *terms))
        self.terms[number] = terms
        return number

    def op(self, op: Op) -> Key:
        return tuple(_parts_of(drop_idle_window(op, self.context)))

    def number(self, key: Key) -> int:
        return self.known.setdefault(key, len(self.known))


def drop_idle_window(op: Op, context: int) -> Op:
    """The op without a window that hides nothing within the context."""
    if isinstance(op, Visible | Alibi) and op.window is not None and op.window >= context:
        return replace(op, window=None)
    return op


def _parts_of(value: object) -> Iterator[object]:
    """What an op, or a field of it, computes with; floats to seven digits."""
    match value:
        case RotaryTable() if value.by_length is None:
            yield from ("table", value.still, *map(_round, value.frequencies.tolist()), _round(value.factor))
        case float():
            yield _round(value)
        case tuple():
            yield from (part for each in value for part in _parts_of(each))  # pyright: ignore[reportUnknownVariableType]
        case _ if is_dataclass(value) and not isinstance(value, type):
            yield type(value).__name__
            for each in fields(value):
                yield from _parts_of(getattr(value, each.name))
        case _:
            yield value


def _round(value: float) -> float:
    return float(f"{value:.6e}")


def same_function(a: Function, b: Function, context: int) -> bool:
    numbers = ValueNumbers(context)
    return numbers.of(a) == numbers.of(b)


def count_ops(function: Function, context: int) -> Counter[str]:
    """How often each op occurs in a function and the functions that it calls."""
    found: Counter[str] = Counter()
    for n in function.nodes:
        if is_call(n):
            found.update(count_ops(callee_of(n), context))
        else:
            found[str(drop_idle_window(n.op, context))] += 1
    return found
