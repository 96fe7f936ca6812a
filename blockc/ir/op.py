"""What an op is: one frozen dataclass that holds all its rules.

    infer      types of the operands -> types of the outputs (refuses what does not fit)
    params     the learned tensors that a node of this op owns
    idle       how many of its parameters one token leaves unread
    flops      2 a multiply-add
    numpy      the meaning, in float64: the oracle
    declares   PyTorch: what stands in __init__, or nothing
    torch      PyTorch: the expression that calls it
    constant   PyTorch: a tensor that the model computes once for it
    absent     PyTorch: what None means in place of the output; `optional_operands` says which operands may be None
    onnx       the lowering to the standard dialect, in operators of the opset `since`
    older      the same in operators of the oldest opset, where `since` is a later one
    tokenwise  over which axes it works token by token; `reach` follows from it
    figures    what it computes with, by the spec's keys: compared with a config.json beside weights
    state      what a later call needs again, and how it is held
    samples    operands on which the tests compare all of these

An op imports NumPy only: the torch rule gives text, the ONNX rule receives a builder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Protocol

from numpy.typing import NDArray

from blockc.basics.opsets import OPSETS
from blockc.ir.dims import Dim, dim
from blockc.ir.reach import Constant, Leaks, Reach, Sides, Tokens, as_tokens
from blockc.ir.types import GraphError, Param, Type

FREE = {"free": True}  # of an integer that no shape of a parameter follows from
USUAL = {"usual": True}  # of a field whose default is left out of a graph's text
Array = NDArray[Any]
Arrays = tuple[Array, ...]
Fact = int | float | str | bool | tuple[float, ...] | None  # a figure as a spec, a config.json or a GGUF file says it
OnnxValue = Any  # a value of the builder's own kind, opaque to an op


class OnnxBuilder(Protocol):
    """What an op's ONNX rule may ask for. Names come from the node being lowered."""

    opset: int  # whose operators are wanted

    def op(self, op_type: str, *inputs: OnnxValue | None, **attributes: object) -> OnnxValue: ...

    def ops(
        self, op_type: str, outputs: int, *inputs: OnnxValue | None, domain: str = "", **attributes: object
    ) -> Sequence[OnnxValue]:
        """A node of several outputs."""
        ...

    def loop(self, trip: OnnxValue, carried: Sequence[OnnxValue], body: OnnxLoopBody) -> Sequence[OnnxValue]:
        """The carried values after `trip` rounds, trip an int of shape () or (1).

        `body` receives a builder of its own, the number of the round, an int of shape (), and the carried values. It
        gives the next ones, each the output of a node of its own. It may read any value that was made before.
        """
        ...

    def choose(self, condition: OnnxValue, then: OnnxBranch, otherwise: OnnxBranch) -> Sequence[OnnxValue]:
        """What `then` gives where the condition, a bool of shape (), holds, else what `otherwise` gives.

        Each receives a builder of its own and gives as many values, each the output of a node of its own.
        """
        ...

    def constant(self, value: Array | Sequence[int]) -> OnnxValue: ...

    def real(self, value: Array | float) -> OnnxValue:
        """A constant in the model's own float type."""
        ...

    def narrow(self, value: OnnxValue) -> OnnxValue:
        """An fp32 value in the model's own float type."""
        ...

    def widen(self, value: OnnxValue) -> OnnxValue:
        """A value of the model's own float type in fp32."""
        ...


OnnxLoopBody = Callable[[OnnxBuilder, OnnxValue, Sequence[OnnxValue]], Sequence[OnnxValue]]
OnnxBranch = Callable[[OnnxBuilder], Sequence[OnnxValue]]


@dataclass(frozen=True)
class TokenAxes:
    """Operand i is read token by token along inputs[i] (None: read whole), output j written so along outputs[j]."""

    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Grows:
    """A state that is longer after each call: operand `operand`, along `axis`, of all tokens so far."""

    name: str
    operand: int
    axis: int


@dataclass(frozen=True)
class Carried:
    """A state of one size, zeros before the first call. The op's `continue_states` reads it and gives the next one."""

    name: str
    type: Type


State = Grows | Carried


@dataclass(frozen=True)
class Sample:
    op: Op
    args: Arrays


class Operand(str):
    """The name of an operand in a PyTorch text, with its type.

    `absent` says what None means for it: "causal", every token but later ones is seen; "whole", every token is seen;
    "" where it is never None.
    """

    type: Type
    absent: str

    def __new__(cls, name: str, type_: Type, absent: str = "") -> Operand:
        made = super().__new__(cls, name)
        made.type, made.absent = type_, absent
        return made


@dataclass(frozen=True)
class Op:
    """One operation. Subclasses are frozen dataclasses whose fields are all that the operation depends on."""

    output_names: ClassVar[tuple[str, ...]] = ("out",)
    by_rows: ClassVar[bool] = False  # goes by the lengths of rows, which stand at the left
    one_row: ClassVar[bool] = False  # takes several new tokens on a past in one row only
    since: ClassVar[int] = OPSETS.start  # the opset of ai.onnx that has all operators of `onnx`
    switch: ClassVar[str | None] = None  # the argument of a class that has the op in some layers only

    @property
    def name(self) -> str:
        return "".join("_" + c.lower() if c.isupper() else c for c in type(self).__name__).lstrip("_")

    def infer(self, *args: Type) -> tuple[Type, ...]:
        raise NotImplementedError

    def infer_cached(self, *args: Type) -> tuple[Type, ...]:
        """`infer`, computed once for equal ops and types: equal layers repeat them."""
        return _infer_cached(self, args)

    def params(self) -> tuple[Param, ...]:
        return ()

    def idle(self, *args: Type) -> int:
        """How many numbers of its parameters one token leaves unread."""
        return 0

    def flops(self, *args: Type) -> Dim:
        return dim(0)

    def scratch(self, *args: Type) -> Dim:
        """Numbers that an unfused kernel holds beside operands and outputs."""
        return dim(0)

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        raise NotImplementedError

    def declares(self) -> str | None:
        return None

    def constant(self) -> tuple[str, str] | None:
        """PyTorch: a tensor that depends on no input, as (name, expression); the model keeps it."""
        return None

    def torch(self, me: str, *args: str) -> str:
        """The expression. `me` names the module of `declares` or the tensor of `constant`; `args` name the operands."""
        raise NotImplementedError

    def absent(self) -> str:
        """PyTorch: what the output is where there is neither padding nor a past, as Operand.absent says it."""
        return ""

    def optional_operands(self) -> tuple[int, ...]:
        """PyTorch: the operands that may be None."""
        return ()

    @property
    def helpers(self) -> tuple[str, ...]:
        """Files of templates/helpers that the torch texts call."""
        return ()

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        raise NotImplementedError

    def older(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        """`onnx` for an opset before `since`; an op without this rule is refused there."""
        raise NotImplementedError

    def tokenwise(self, *args: Type) -> TokenAxes | None:
        return None

    def reach(self, types: tuple[Type, ...], reaches: tuple[Reach, ...]) -> tuple[Reach, ...]:
        """By default: token by token where `tokenwise` says so, a leak where it does not."""
        count = len(self.output_names)
        reaches = tuple(as_tokens(reach) for reach in reaches)
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

    def state(self, *args: Type) -> tuple[State, ...]:
        """The states that a later call needs again, for operands of these types."""
        return ()

    def continue_states(self) -> Op:
        """The op that continues from carried states: they are its last operands, and the next ones its last outputs."""
        raise NotImplementedError

    def shares(self) -> Mapping[int, int]:
        """{operand: output} that may be the same memory: the op writes into the state that it reads."""
        return {}

    def figures(self, *args: Type) -> Iterable[tuple[str, Fact]]:
        """Numbers and words that it computes with, by the spec's keys, where no tensor's name or shape shows them."""
        return ()

    def sides(self) -> tuple[Sides, ...]:
        """The lengths of calls at which the op computes something else."""
        return ()

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        raise NotImplementedError


@lru_cache(maxsize=1 << 16)
def _infer_cached(op: Op, types: tuple[Type, ...]) -> tuple[Type, ...]:
    return op.infer(*types)


def expect(holds: bool, what: str, expected: object, got: object) -> None:
    if not holds:
        raise GraphError(f"{what}: expected {expected}, got {got}", expected=str(expected), got=str(got))
