"""What an op is: one frozen dataclass that holds all its rules.

    infer      types of the operands -> types of the outputs (refuses what does not fit)
    params     the learned tensors that a node of this op owns
    flops      2 a multiply-add
    numpy      the meaning, in float64: the oracle
    declares   PyTorch: what stands in __init__, or nothing
    torch      PyTorch: the expression that calls it
    onnx       the lowering to the standard dialect
    tokenwise  over which axes it works token by token; `reach` follows from it
    samples    operands on which all of these are compared

An op imports NumPy only: the torch rule gives text, the ONNX rule receives a builder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from blockc.ir import Dim, Function, GraphError, Param, Type, dim
from blockc.ir.reach import Constant, Leaks, Reach, Tokens, along

Array = NDArray[Any]
Arrays = tuple[Array, ...]
OnnxValue = Any  # a value of the builder's own kind, opaque to an op


class OnnxBuilder(Protocol):
    """What an op's ONNX rule may ask for. Names come from the node being lowered."""

    def op(self, op_type: str, *inputs: OnnxValue | None, **attributes: object) -> OnnxValue: ...

    def ops(
        self, op_type: str, outputs: int, *inputs: OnnxValue | None, domain: str = "", **attributes: object
    ) -> Sequence[OnnxValue]:
        """A node of several outputs."""
        ...

    def constant(self, value: Array | Sequence[int]) -> OnnxValue: ...

    def real(self, value: Array | float) -> OnnxValue:
        """A constant in the model's own float type."""
        ...

    def narrowed(self, value: OnnxValue) -> OnnxValue:
        """An fp32 value in the model's own float type."""
        ...

    def widened(self, value: OnnxValue) -> OnnxValue:
        """A value of the model's own float type in fp32."""
        ...


@dataclass(frozen=True)
class TokenAxes:
    """Operand i is read token by token along inputs[i] (None: read whole), output j written so along outputs[j]."""

    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class State:
    """An operand that a later call needs again: it grows along `axis` by the past tokens."""

    operand: int
    axis: int
    name: str


@dataclass(frozen=True)
class Sample:
    op: Op
    args: Arrays


@dataclass(frozen=True)
class Op:
    """One operation. Subclasses are frozen dataclasses whose fields are all that the operation depends on."""

    output_names: ClassVar[tuple[str, ...]] = ("out",)

    @property
    def name(self) -> str:
        return "".join("_" + c.lower() if c.isupper() else c for c in type(self).__name__).lstrip("_")

    def infer(self, *args: Type) -> tuple[Type, ...]:
        raise NotImplementedError

    def params(self) -> tuple[Param, ...]:
        return ()

    def flops(self, *args: Type) -> Dim:
        return dim(0)

    def scratch(self, *args: Type) -> Dim:
        """Numbers that an unfused kernel holds beside operands and outputs."""
        return dim(0)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        raise NotImplementedError

    def declares(self) -> str | None:
        return None

    def torch(self, me: str, *args: str) -> str:
        """`me` is what `declares` was bound to; `args` name the operands."""
        raise NotImplementedError

    @property
    def helpers(self) -> tuple[str, ...]:
        """Files of templates/helpers that the torch texts call."""
        return ()

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        raise NotImplementedError

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return None

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        """By default: token by token where `tokenwise` says so, a leak where it does not."""
        count = len(self.output_names)
        reaches = tuple(along(reach) for reach in reaches)
        if leak := next((r for r in reaches if isinstance(r, Leaks)), None):
            return (leak,) * count
        if all(isinstance(reach, Constant) for reach in reaches):
            return (Constant(),) * count
        axes = self.tokenwise(*types)
        if axes is None:
            return (Leaks(f"{self.name} reads tokens across time"),) * count
        for reach, axis in zip(reaches, axes.inputs, strict=True):
            if not isinstance(reach, Constant) and reach != (Tokens(axis) if axis is not None else None):
                return (Leaks(f"{self.name} mixes tokens of different times"),) * count
        return tuple(Tokens(axis) for axis in axes.outputs)

    def state(self) -> tuple[State, ...]:
        return ()

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        raise NotImplementedError


@dataclass(frozen=True)
class Input(Op):
    """A function's input. `token_axis` runs over the new tokens; `grows` is an axis that spans past and new tokens."""

    type: Type
    token_axis: int | None = None
    grows: int | None = None
    past: bool = False  # what an earlier call returned: set by with_cache

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return (self.type,)


@dataclass(frozen=True)
class Call(Op):
    """Calls a function; its parameters live under the node's name."""

    function: Function

    @property
    def output_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.function.output_names

    def infer(self, *args: Type) -> tuple[Type, ...]:
        wanted = self.function.inputs
        if len(args) != len(wanted):
            raise GraphError(f"{self.function.name} takes {len(wanted)} inputs, got {len(args)}")
        for given, formal in zip(args, wanted, strict=True):
            expect(given == formal.types[0], f"{self.function.name}.{formal.name}", formal.types[0], given)
        return tuple(value.type for _, value in self.function.outputs)


def expect(holds: bool, what: str, expected: object, got: object) -> None:
    if not holds:
        raise GraphError(f"{what}: expected {expected}, got {got}", expected=str(expected), got=str(got))


def token_axis(type_: Type) -> int:
    """(B, S, ...) everywhere but in head-split tensors, which are (B, heads, S, head_dim)."""
    return 2 if len(type_.shape) == 4 else 1


def last(type_: Type) -> Dim:
    return type_.shape[-1]


def rand(*shape: int, seed: int = 0) -> Array:
    return np.random.RandomState(seed).standard_normal(shape)


@dataclass(frozen=True)
class Elementwise(Op):
    """An op whose output has the type of its operands and whose entries depend on the same entries alone."""

    def infer(self, *args: Type) -> tuple[Type, ...]:
        for other in args[1:]:
            expect(other == args[0], f"{self.name} of unlike tensors", args[0], other)
        return (args[0],)

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        axis = token_axis(args[0])
        return TokenAxes((axis,) * len(args), (axis,))
