"""transform: a function made again node by node, with something else where a rule says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from blockc.ir.nodes import Function, Node, Value

# A node and its operands as they are now -> the node that stands for it, or a value for each of its outputs; None: it
# is made again as it was.
Rule = Callable[[Node, tuple[Value, ...]], Node | tuple[Value, ...] | None]


def transform(function: Function, rule: Rule, inputs: Mapping[Node, Node] | None = None) -> Function:
    """The function with each of its nodes as the rule says; what nobody reads any more is gone.

    `inputs` are stand-ins for some of its inputs, or for all. Called functions stay as they are.
    """
    stands = {n: (inputs or {}).get(n, n) for n in function.inputs}
    results = transformed(function, rule, {n[0]: new[0] for n, new in stands.items()})
    outputs = tuple(zip(function.output_names, results, strict=True))
    return replace(function, inputs=tuple(stands.values()), outputs=outputs)


def transformed(function: Function, rule: Rule, new: dict[Value, Value]) -> tuple[Value, ...]:
    """What the outputs have become. `new` has a value for each input, and gets one for every other value."""
    for n in function.nodes:
        operands = tuple([new[value] for value in n.inputs])
        made = rule(n, operands)
        if made is None:
            made = n.remade(inputs=operands)
        for i in range(len(n.types)):
            new[n[i]] = made[i]
    return tuple(new[value] for _, value in function.outputs)
