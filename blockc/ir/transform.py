"""transform: copies a function node by node, and replaces the nodes that a rule replaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from blockc.ir.nodes import Function, Node, Value

# (node, its new operands) -> the node that replaces it, or a value for each of its outputs; None copies it.
RewriteRule = Callable[[Node, tuple[Value, ...]], Node | tuple[Value, ...] | None]


def transform(function: Function, rule: RewriteRule, inputs: Mapping[Node, Node] | None = None) -> Function:
    """The function with each node replaced as the rule says; nodes that nothing reads any more are gone.

    `inputs` replace some of its inputs, or all. Called functions stay as they are.
    """
    stands = {n: (inputs or {}).get(n, n) for n in function.inputs}
    results = transform_values(function, rule, {n[0]: new[0] for n, new in stands.items()})
    outputs = tuple(zip(function.output_names, results, strict=True))
    return replace(function, inputs=tuple(stands.values()), outputs=outputs)


def transform_values(function: Function, rule: RewriteRule, new: dict[Value, Value]) -> tuple[Value, ...]:
    """The new outputs. `new` holds a value for each input, and receives one for every other value."""
    for n in function.nodes:
        operands = tuple([new[value] for value in n.inputs])
        made = rule(n, operands)
        if made is None:
            made = n.remake(inputs=operands)
        for i in range(len(n.types)):
            new[n[i]] = made[i]
    return tuple(new[value] for _, value in function.outputs)
