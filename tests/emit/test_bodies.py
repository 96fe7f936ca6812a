"""The graphs inside of a Loop or an If: checked, run, counted, and their reads known outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
import pytest

from blockc.basics.floats import FloatType
from blockc.basics.opsets import OPSETS
from blockc.emit.external import operators_of
from blockc.emit.onnx import count_operators, emit_onnx, find_lost, serialise
from blockc.ir import Array, Arrays, Function, Input, Node, OnnxBuilder, OnnxValue, Op, Param, Type, node, tensor

DTYPES: tuple[FloatType, ...] = ("fp32", "fp16")


@dataclass(frozen=True)
class Doubled(Op):
    """y = weight + 2 (x + 1) where x's first number is positive, else x: a Loop in an If, with an output unread."""

    scale: float = 2.0

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return args

    def params(self) -> tuple[Param, ...]:
        return (Param("weight", (4,), "gain"),)

    def onnx(self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]) -> Sequence[OnnxValue]:
        first, _ = g.ops("Split", 2, g.ops("Dropout", 2, args[0])[0], g.constant([1, 3]), axis=0)
        one = g.ops("TopK", 2, args[0], g.constant([1]))[1]  # its values are unread, its indices in the body alone
        raised = g.op("Add", args[0], g.real(1.0))

        def double(h: OnnxBuilder, turn: OnnxValue, carried: Sequence[OnnxValue]) -> Sequence[OnnxValue]:
            wide = h.op("Mul", h.widen(carried[0]), h.constant(np.array(self.scale, np.float32)))
            kept = h.op("Mul", h.op("Cast", one, to=7), h.op("Cast", turn, to=7))
            return [h.narrow(wide), h.op("Add", carried[1], kept), h.op("Identity", raised)]

        def then(h: OnnxBuilder) -> Sequence[OnnxValue]:
            trip = h.op("Squeeze", h.op("Sub", h.op("Add", one, h.constant([1])), one), h.constant([0]))
            start = h.op("Add", raised, h.real(0.0))
            made = h.loop(trip, [start, h.constant([0]), raised], double)
            return [h.op("Add", made[0], params[0])]

        positive = g.op("Squeeze", g.op("Greater", first, g.real(0.0)), g.constant([0]))
        return g.choose(positive, then, lambda h: [h.op("Identity", args[0])])

    def numpy(self, args: Arrays, params: Arrays) -> Arrays:
        (x,) = args
        return (params[0] + self.scale * (x + 1) if x[0] > 0 else x,)


def _function(*ops: Op) -> Function:
    x = Node(Input(tensor("float", 4)), (), "x")
    value = x[0]
    for i, op in enumerate(ops):
        value = node(op, value, name=f"part.{i}")[0]
    return Function("Alone", (x,), (("y", value),))


def _run(model: onnx.ModelProto, inputs: dict[str, Array]) -> Array:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(serialise(model), options, providers=["CPUExecutionProvider"])
    return session.run(["y"], inputs)[0]  # type: ignore[return-value]


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_body_reads_what_is_outside_and_gives_what_it_made(dtype: FloatType, opset: int) -> None:
    model = emit_onnx(_function(Doubled(), Doubled(3.0)), {}, dtype=dtype, opset=opset)
    onnx.checker.check_model(model, full_check=True)
    as_numpy = np.float32 if dtype == "fp32" else np.float16
    weights = {f"part.{i}.weight": np.arange(4, dtype=as_numpy) for i in range(2)}
    for x in (np.array([1, -2, 3, 4]), np.array([-1, -2, 3, 4]), np.array([-0.5, 0, 0, 0])):
        wanted = x
        for op in (Doubled(), Doubled(3.0)):
            (wanted,) = op.numpy((wanted,), (np.arange(4),))
        np.testing.assert_array_equal(_run(model, {"x": x.astype(as_numpy)} | weights), wanted)


def _names(graph: onnx.GraphProto) -> list[str]:
    """Of all nodes and outputs, those in bodies too."""
    own = [name for n in graph.node for name in (n.name, *n.output) if name]
    return own + [name for n in graph.node for a in n.attribute if a.HasField("g") for name in _names(a.g)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_nodes_of_bodies_are_named_once_and_counted(dtype: FloatType) -> None:
    function = _function(Doubled(), Doubled(3.0))
    model = emit_onnx(function, {}, dtype=dtype)
    dropped = [n.output[1] for n in model.graph.node if n.op_type == "Dropout"]
    assert dropped == ["", ""], "what nothing reads and the operator need not give"
    names = _names(model.graph)
    assert len({*names}) == len(names)
    assert "/part/1/If/then/Loop/Mul_2" in names
    assert len(operators_of(serialise(model))) == count_operators(function, dtype, {}).total()
    assert not [v for n in model.graph.node for a in n.attribute if a.HasField("g") for v in a.g.initializer]


def test_constants_of_bodies_are_in_range_or_found() -> None:
    @dataclass(frozen=True)
    class Wide(Doubled):
        def onnx(
            self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]
        ) -> Sequence[OnnxValue]:
            def body(h: OnnxBuilder, turn: OnnxValue, carried: Sequence[OnnxValue]) -> Sequence[OnnxValue]:
                return [h.op("Mul", carried[0], h.real(1e5))]

            return g.loop(g.constant(np.array(1)), [args[0]], body)

    assert [number for _, number in find_lost(_function(Wide()), "fp16", {})] == [1e5]
    assert not [*find_lost(_function(Wide()), "fp32", {})]


def test_a_body_that_gives_what_it_did_not_make_is_refused() -> None:
    @dataclass(frozen=True)
    class Passed(Doubled):
        def onnx(
            self, g: OnnxBuilder, args: tuple[OnnxValue, ...], params: tuple[OnnxValue, ...]
        ) -> Sequence[OnnxValue]:
            return g.loop(g.constant(np.array(1)), [args[0]], lambda h, turn, carried: carried)

    with pytest.raises(AssertionError, match="part/0/Loop"):
        emit_onnx(_function(Passed()), {})
