"""Symbolic sizes: integer polynomials over B, S, P and M, so that two shapes are equal or not, never "maybe".

    B * (S + P) == B * S + B * P        S + P != P + 1

B is the batch, S the new tokens, P the past tokens, M the length of a cache that is fixed. min(S, 8) is a symbol of its
own, whose size follows from that of S.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

Monomial = tuple[str, ...]
_AT_MOST = re.compile(r"min\((\w+), ([0-9]+)\)", re.ASCII)


@dataclass(frozen=True, eq=False)
class Dim:
    """sum of coefficient * product(symbols), kept in one normal form: sorted, without zero terms.

    `of` gives one object for each polynomial, so that equality is identity: exact, because the normal form is unique.
    """

    terms: tuple[tuple[Monomial, int], ...]

    @staticmethod
    def of(terms: Mapping[Monomial, int]) -> Dim:
        return _dim(tuple(sorted((m, c) for m, c in terms.items() if c)))

    def __add__(self, other: Dim | int) -> Dim:
        return _sum(self, dim(other))

    def __mul__(self, other: Dim | int) -> Dim:
        return _product(self, dim(other))

    def __sub__(self, other: Dim | int) -> Dim:
        return self + dim(other) * -1

    __radd__ = __add__
    __rmul__ = __mul__

    @cached_property
    def value(self) -> int | None:
        """The integer that this is, or None where a symbol is left."""
        if not self.terms:
            return 0
        (monomial, coefficient), *rest = self.terms
        return coefficient if not monomial and not rest else None

    @cached_property
    def symbol(self) -> str | None:
        """The name, where this is one symbol alone."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            return self.terms[0][0][0]
        return None

    def at(self, sizes: Mapping[str, int]) -> int:
        """The integer at these sizes; KeyError names a symbol that has none."""
        total = 0
        for monomial, coefficient in self.terms:
            for symbol in monomial:
                coefficient *= _size_of(symbol, sizes)
            total += coefficient
        return total

    def __str__(self) -> str:
        return self.text

    @cached_property
    def text(self) -> str:
        if not self.terms:
            return "0"
        # Symbols read in the order P, S as everyone writes P + S; the constant comes last.
        ordered = sorted(self.terms, key=lambda term: (not term[0], term[0]))
        parts = ["*".join(([str(c)] if c != 1 or not monomial else []) + list(monomial)) for monomial, c in ordered]
        return " + ".join(parts).replace("+ -", "- ")


@cache
def _dim(terms: tuple[tuple[Monomial, int], ...]) -> Dim:
    return Dim(terms)


@cache
def _sum(left: Dim, right: Dim) -> Dim:
    total = dict(left.terms)
    for monomial, coefficient in right.terms:
        total[monomial] = total.get(monomial, 0) + coefficient
    return Dim.of(total)


@cache
def _product(left: Dim, right: Dim) -> Dim:
    total: dict[Monomial, int] = {}
    for one, a in left.terms:
        for other, b in right.terms:
            monomial = tuple(sorted(one + other))
            total[monomial] = total.get(monomial, 0) + a * b
    return Dim.of(total)


def dim(value: Dim | int) -> Dim:
    return value if isinstance(value, Dim) else Dim.of({(): value})


def symbol(name: str) -> Dim:
    return Dim.of({(name,): 1})


def at_most(size: Dim, most: int) -> Dim:
    """min(size, most), of a symbol or a number."""
    if size.value is not None:
        return dim(min(size.value, most))
    if size.symbol is None:
        raise ValueError(f"min({size}, {most}) is not of one symbol")
    return symbol(f"min({size.symbol}, {most})")


def parse_at_most(name: str) -> tuple[str, int] | None:
    """(The symbol, the number) of min(symbol, number); None for any other symbol."""
    found = _AT_MOST.fullmatch(name)
    return (found[1], int(found[2])) if found else None


def _size_of(name: str, sizes: Mapping[str, int]) -> int:
    found = parse_at_most(name)
    return sizes[name] if found is None else min(sizes[found[0]], found[1])


def product(dims: Iterable[Dim | int]) -> Dim:
    result = dim(1)
    for factor in dims:
        result = result * factor
    return result


B, S, P, M = symbol("B"), symbol("S"), symbol("P"), symbol("M")
T = P + S
