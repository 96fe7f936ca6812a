"""Whether two functions compute the same of the same tensors, whatever their nodes are called.

Every value gets a number, the same for both functions where it is the same op of the same values: so are two graphs
equal where their outputs are. Sums and products are of their terms in any order. A window as long as the context is
none, and a table of angles is its frequencies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace

from blockc.ir import Function, Node, Op, Value, called, is_call
from blockc.ops import Add, Alibi, Mul, RotaryTable, Visible

Key = tuple[object, ...]


@dataclass
class Numbers:
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
            made = self.called(n, operands) if is_call(n) else self.made(n, operands)
            values |= {Value(n, i): number for i, number in enumerate(made)}
        return tuple(values[v] for _, v in function.outputs)

    def called(self, n: Node, operands: list[int]) -> tuple[int, ...]:
        inner = called(n)
        return self.outputs(inner, dict(zip(inner.inputs, operands, strict=True)))

    def made(self, n: Node, operands: list[int]) -> tuple[int, ...]:
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
        return tuple(_plain(shortened(op, self.context)))

    def number(self, key: Key) -> int:
        return self.known.setdefault(key, len(self.known))


def shortened(op: Op, context: int) -> Op:
    """Without a window that hides nothing."""
    if isinstance(op, Visible | Alibi) and op.window is not None and op.window >= context:
        return replace(op, window=None)
    return op


def _plain(value: object) -> Iterator[object]:
    """What an op, or a field of it, computes with; floats to seven digits."""
    match value:
        case RotaryTable() if value.by_length is None:
            yield from ("table", value.still, *map(_short, value.frequencies.tolist()), _short(value.factor))
        case float():
            yield _short(value)
        case tuple():
            yield from (part for each in value for part in _plain(each))  # pyright: ignore[reportUnknownVariableType]
        case _ if is_dataclass(value) and not isinstance(value, type):
            yield type(value).__name__
            for each in fields(value):
                yield from _plain(getattr(value, each.name))
        case _:
            yield value


def _short(value: float) -> float:
    return float(f"{value:.6e}")


def same_function(a: Function, b: Function, context: int) -> bool:
    numbers = Numbers(context)
    return numbers.of(a) == numbers.of(b)


def ops(function: Function, context: int) -> Counter[str]:
    """How often each op stands in a function, those of what it calls among them."""
    found: Counter[str] = Counter()
    for n in function.nodes:
        if is_call(n):
            found.update(ops(called(n), context))
        else:
            found[str(shortened(n.op, context))] += 1
    return found
