"""Functions as text: one line for each value with its type, equal calls folded. Nothing parses it again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from blockc.ir.call import callee_of, is_call
from blockc.ir.nodes import Function, Node, Value
from blockc.ir.roll import Loop, period_of, roll


def render_function(function: Function) -> str:
    """The functions that `function` calls, innermost first and each once, then itself."""
    return "\n\n".join(_function_text(f) for f in functions_of(function)) + "\n"


def functions_of(root: Function) -> list[Function]:
    """All reachable functions, a callee before its callers, `root` last."""
    order: dict[Function, None] = {}

    def visit(function: Function) -> None:
        for n in function.nodes:
            if is_call(n) and callee_of(n) not in order:
                visit(callee_of(n))
        order[function] = None

    visit(root)  # as deep as parts nest, which the spec bounds
    return list(order)


def _function_text(function: Function) -> str:
    names = Names(function)
    inputs = list(_input_texts(function))
    lines = [f"function {function.name}({', '.join(inputs)}):"]
    for item in roll(function):
        lines.extend(
            f"    {line}" for line in (_loop_text(item, names) if isinstance(item, Loop) else _node_text(item, names))
        )
    lines.append(f"    return {', '.join(_output_texts(function, names))}")
    return "\n".join(lines)


def _input_texts(function: Function) -> Iterator[str]:
    for n in function.inputs:
        if ".0." in n.name or not _is_indexed(n.name):
            yield f"{n.name.replace('.0.', '.N.')}: {n.types[0]}"


def _output_texts(function: Function, names: Names) -> Iterator[str]:
    for name, value in function.outputs:
        if not _is_indexed(name):
            yield f"{name} = {names[value]}"
        elif ".0." in name:
            yield name.replace(".0.", ".N.")


def _is_indexed(name: str) -> bool:
    return any(part.isdigit() for part in name.split("."))


class Names:
    """The name of each value in a function's text: the node's name, or name.output where it has several outputs."""

    def __init__(self, function: Function) -> None:
        self.last_of_loop = {item.calls[-1]: item.prefix for item in roll(function) if isinstance(item, Loop)}

    def __getitem__(self, value: Value) -> str:
        base = self.last_of_loop.get(value.node, value.node.name)
        if len(value.node.types) == 1:
            return base
        if is_call(value.node):
            return base if value.index == 0 else f"{base}.{callee_of(value.node).outputs[value.index][0]}"
        return f"{base}.{value.node.op.output_names[value.index]}"


def _node_text(n: Node, names: Names) -> Iterator[str]:
    if is_call(n):
        yield f"{n.name} = {callee_of(n).name}({', '.join(names[v] for v in n.inputs)}) : {_types_text(n)}"
        return
    fields = ", ".join(f"{k}={v}" for k, v in _fields_of(n))
    params = ", ".join(f"{p.name}[{', '.join(map(str, p.shape))}]" for p in n.params)
    yield (
        f"{n.name} = {n.op.name}({', '.join(names[v] for v in n.inputs)})"
        + (f" {{{fields}}}" if fields else "")
        + (f" with {params}" if params else "")
        + f" : {_types_text(n)}"
    )


def _types_text(n: Node) -> str:
    return ", ".join(map(str, n.types))


def _fields_of(n: Node) -> Iterator[tuple[str, object]]:
    for f in dataclasses.fields(n.op):
        value = getattr(n.op, f.name)
        usual = f.metadata.get("usual") and value == f.default
        if value is not None and value is not False and not usual:
            yield f.name, value


def _loop_text(loop: Loop, names: Names) -> Iterator[str]:
    first = loop.calls[0]
    start = int(first.name.rpartition(".")[2])
    columns = [
        "chain"
        if i == loop.chain
        else names[loop.fixed[i]]
        if i in loop.fixed
        else _column_text(loop.varying[i], names, start)
        for i in range(len(first.inputs))
    ]
    kinds = [f.name for f in loop.functions]
    cycle = kinds[: period_of(tuple(kinds))]
    yield f"chain = {names[first.inputs[loop.chain]]}"
    yield f"for N in {start}..{start + len(loop.calls) - 1}:"
    yield f"    chain = {' | '.join(cycle)} as {loop.prefix}.N({', '.join(columns)}) : {_types_text(first)}"
    yield f"{loop.prefix} = chain"


def _column_text(values: tuple[Value, ...], names: Names, start: int) -> str:
    """An operand that differs from call to call. For pasts, N is the number of the layer."""
    texts = tuple(names[value] for value in values)
    if all(_is_indexed(text) and not value.node.inputs for text, value in zip(texts, values, strict=True)):
        before, index, after = texts[0].split(".")
        behind = start - int(index)  # layers before it that remember nothing
        return f"{before}.{f'(N - {behind})' if behind else 'N'}.{after}"
    n = period_of(texts)
    return "[" + ", ".join(texts[:n]) + "]" + ("[N % " + str(n) + "]" if n < len(texts) else "[N]")
