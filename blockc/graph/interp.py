"""The oracle: a function's meaning in NumPy float64, each array's shape asserted against its inferred type.

A value is held as long as a later node reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from blockc.ir import Array, Function, GraphError, Param, Type, Value, callee_of, is_call

Watch = Callable[[str, Array], None]


def interpret(
    function: Function,
    inputs: Mapping[str, Array],
    params: Mapping[str, Array],
    watch: Watch | None = None,
    real: type[np.floating[Any]] = np.float64,
) -> dict[str, Array]:
    """The outputs by name. `params` are by path; `watch` is called with the name and the array of every value.
    `real` is the float type to compute in: the oracle's, or a smaller one where only a measure is wanted.

    Raises GraphError where an input is missing or an array does not have the shape that was inferred for it.
    """
    sizes: dict[str, int] = {}
    arrays: list[Array] = []
    for n in function.inputs:
        if n.name not in inputs:
            raise GraphError(f"input {n.name} is missing")
        array = np.asarray(inputs[n.name])
        arrays.append(array.astype(real) if n.types[0].dtype == "float" else array)
        _bind(n.types[0], array, sizes)
    for n, array in zip(function.inputs, arrays, strict=True):
        _solve(n.types[0], array, sizes)
    for n, array in zip(function.inputs, arrays, strict=True):
        _check_shape(n.name, n.types[0], array, sizes)
    results = _Run(params, sizes, watch, np.dtype(real)).results(function, arrays, "")
    return dict(zip(function.output_names, results, strict=True))


def _bind(type_: Type, array: Array, sizes: dict[str, int]) -> None:
    """Takes the size of each symbol that is an axis by itself from the array."""
    for dim, extent in zip(type_.shape, array.shape, strict=False):
        if dim.symbol is not None:
            sizes.setdefault(dim.symbol, extent)


def _solve(type_: Type, array: Array, sizes: dict[str, int]) -> None:
    """Solves an axis with one unknown symbol: P of P + S, where no past has it as an axis."""
    for dim, extent in zip(type_.shape, array.shape, strict=False):
        unknown = [term for term in dim.terms if any(symbol not in sizes for symbol in term[0])]
        if len(unknown) == 1 and len(unknown[0][0]) == unknown[0][1] == 1:
            (name,) = unknown[0][0]
            sizes[name] = extent - dim.at({**sizes, name: 0})


def _check_shape(name: str, type_: Type, array: Array, sizes: dict[str, int]) -> None:
    wanted = tuple(dim.at(sizes) for dim in type_.shape)
    if array.shape != wanted:
        raise GraphError(f"{name}: {type_} is {wanted} here", expected=str(wanted), got=str(array.shape))


@dataclass(frozen=True)
class _Run:
    params: Mapping[str, Array]
    sizes: dict[str, int]
    watch: Watch | None
    real: np.dtype[Any]

    def results(self, function: Function, arguments: list[Array], prefix: str) -> list[Array]:
        values: dict[Value, Array] = {n[0]: array for n, array in zip(function.inputs, arguments, strict=True)}
        last = _last_reads(function)
        for i, n in enumerate(function.nodes):
            inputs = [values[value] for value in n.inputs]
            path = prefix + n.name
            if is_call(n):
                results = self.results(callee_of(n), inputs, f"{path}.")
            else:
                owned = tuple(self._owned(param, self.params[prefix + param.name]) for param in n.params)
                results = [self._real(array) for array in n.op.numpy(tuple(inputs), owned)]
            for k, (array, type_) in enumerate(zip(results, n.types, strict=True)):
                _check_shape(path, type_, array, self.sizes)
                values[n[k]] = array
                if self.watch is not None and (k == 0 or not is_call(n)):
                    self.watch(prefix + n[k].name, array)
            for value in last.get(i, ()):
                del values[value]
        return [values[value] for _, value in function.outputs]

    def _owned(self, param: Param, array: Array) -> Array:
        return np.asarray(array, self.real) if param.dtype in ("float", "float32") else np.asarray(array)

    def _real(self, array: Array) -> Array:
        """An op's constants are in float64, and what they meet becomes so."""
        return array.astype(self.real, copy=False) if array.dtype.kind == "f" else array


def _last_reads(function: Function) -> dict[int, list[Value]]:
    """The values that no node after this one reads, and no output is, by the node's place."""
    places = {value: i for i, n in enumerate(function.nodes) for value in n.inputs}
    kept = {value for _, value in function.outputs}
    found: dict[int, list[Value]] = {}
    for value, i in places.items():
        if value not in kept:
            found.setdefault(i, []).append(value)
    return found
