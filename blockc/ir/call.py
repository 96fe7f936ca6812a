"""The two ops that are part of the graph itself: a function's input, and a call of a function."""

from __future__ import annotations

from dataclasses import dataclass

from blockc.ir.nodes import Function, Node
from blockc.ir.op import Op, expect
from blockc.ir.types import GraphError, Type


@dataclass(frozen=True)
class Input(Op):
    """A function's input. `token_axis` runs over the new tokens; `grows` is an axis that spans past and new tokens.

    `past` names the state (key, value, tail) that an earlier call returned: only `with_cache` makes such inputs.
    """

    type: Type
    token_axis: int | None = None
    grows: int | None = None
    past: str | None = None

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (self.type,)


@dataclass(frozen=True)
class Call(Op):
    """Calls a function; its parameters live under the node's name."""

    function: Function

    @property
    def output_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.function.output_names

    def infer_cached(self, *args: Type) -> tuple[Type, ...]:
        """Not cached: the cache would keep the function alive."""
        return self.infer(*args)

    def infer(self, *args: Type) -> tuple[Type, ...]:
        wanted = self.function.inputs
        if len(args) != len(wanted):
            raise GraphError(f"{self.function.name} takes {len(wanted)} inputs, got {len(args)}")
        for given, formal in zip(args, wanted, strict=True):
            expect(given == formal.types[0], f"{self.function.name}.{formal.name}", formal.types[0], given)
        return tuple(value.type for _, value in self.function.outputs)


def callee_of(call: Node) -> Function:
    """The function that a call calls."""
    assert isinstance(call.op, Call)
    return call.op.function


def is_call(n: Node) -> bool:
    return isinstance(n.op, Call)


def is_past(n: Node) -> bool:
    """Whether this input takes a state that an earlier call returned."""
    return isinstance(n.op, Input) and n.op.past is not None
