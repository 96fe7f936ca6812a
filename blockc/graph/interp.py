"""The oracle: a function's meaning in NumPy float64, each array's shape asserted against its inferred type."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from blockc.ir import Array, Function, GraphError, Param, Type, Value, callee_of, is_call

Watch = Callable[[str, Array], None]


def interpret(
    function: Function,
    inputs: Mapping[str, Array],
    params: Mapping[str, Array],
    watch: Watch | None = None,
) -> dict[str, Array]:
    """The outputs by name. `params` are by path; `watch` is called with the name and the array of every value.

    Raises GraphError where an input is missing or an array does not have the shape that was inferred for it.
    """
    sizes: dict[str, int] = {}
    arrays: list[Array] = []
    for n in function.inputs:
        if n.name not in inputs:
            raise GraphError(f"input {n.name} is missing")
        array = np.asarray(inputs[n.name])
        arrays.append(array.astype(np.float64) if n.types[0].dtype == "float" else array)
        _bind(n.types[0], array, sizes)
    for n, array in zip(function.inputs, arrays, strict=True):
        _solve(n.types[0], array, sizes)
    for n, array in zip(function.inputs, arrays, strict=True):
        _check_shape(n.name, n.types[0], array, sizes)
    results = _run(function, arrays, params, sizes, "", watch)
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


def _as_float64(param: Param, array: Array) -> Array:
    return np.asarray(array, np.float64) if param.dtype in ("float", "float32") else np.asarray(array)


def _run(
    function: Function,
    arguments: list[Array],
    params: Mapping[str, Array],
    sizes: dict[str, int],
    prefix: str,
    watch: Watch | None,
) -> list[Array]:
    values: dict[Value, Array] = {n[0]: array for n, array in zip(function.inputs, arguments, strict=True)}
    for n in function.nodes:
        inputs = [values[value] for value in n.inputs]
        path = prefix + n.name
        if is_call(n):
            results = _run(callee_of(n), inputs, params, sizes, f"{path}.", watch)
        else:
            owned = tuple(_as_float64(param, params[prefix + param.name]) for param in n.params)
            results = list(n.op.numpy(tuple(inputs), owned))
        for i, (array, type_) in enumerate(zip(results, n.types, strict=True)):
            _check_shape(path, type_, array, sizes)
            values[n[i]] = array
            if watch is not None and (i == 0 or not is_call(n)):
                watch(prefix + n[i].name, array)
    return [values[value] for _, value in function.outputs]
