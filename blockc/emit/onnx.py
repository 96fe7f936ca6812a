"""Functions to ONNX: the inlined graph, node by node, in ai.onnx operators of opset 23, or 24 where one needs it.

Built directly, never traced: no torch is needed and no weight is touched, so a graph of any size takes milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from blockc import target
from blockc.ir import B, Dim, Dtype, Function, M, Node, P, S, T, Type, Value, parameters
from blockc.ops import Array, OnnxBuilder, OnnxValue, Op

OPSET = 23
_LATER = {"TensorScatter": 24}  # the opset that an operator came with, where that is a later one
_IR_VERSION = 11
_NAMES = {
    B: "batch_size",
    S: "sequence_length",
    P: "past_sequence_length",
    T: "total_sequence_length",
    M: "cache_length",
}
Swap = Callable[[Any, OnnxBuilder, tuple[OnnxValue, ...], tuple[OnnxValue, ...]], Sequence[OnnxValue]]
FLOATS: dict[target.Dtype, ir.DataType] = {
    "fp32": ir.DataType.FLOAT,
    "fp16": ir.DataType.FLOAT16,
    "bf16": ir.DataType.BFLOAT16,
}


def emit(
    function: Function,
    metadata: Mapping[str, str],
    weights: Mapping[str, ir.TensorProtocol] | None = None,
    dtype: target.Dtype = "fp32",
    swaps: Mapping[type[Op], Swap] | None = None,
) -> ir.Model:
    """The model of an inlined function, in one float type.

    Without weights its parameters are graph inputs after the runtime ones; with them they are initialisers, in memory
    or in a file beside the model; one of another float type is cast where it enters. `metadata` goes into the file, so
    it holds neither paths nor dates. `swaps` are lowerings of another dialect, in place of an op's own.
    """
    emitter = _Emitter(function, weights, FLOATS[dtype], swaps or {})
    graph = ir.Graph(
        emitter.inputs,
        emitter.outputs(),
        nodes=emitter.builder.nodes,
        initializers=emitter.initialisers,
        opset_imports={"": emitter.opset} | dict.fromkeys(emitter.builder.domains - {""}, 1),
        name=function.name,
    )
    return ir.Model(graph, ir_version=_IR_VERSION, producer_name="blockc", metadata_props=dict(metadata))


def serialised(model: ir.Model) -> bytes:
    return ir.to_proto(model).SerializeToString(deterministic=True)


def in_memory(weights: Mapping[str, Array], dtype: target.Dtype = "fp32") -> dict[str, ir.TensorProtocol]:
    """Arrays as initialisers that are written into the model itself."""
    as_numpy = FLOATS[dtype].numpy()
    return {path: ir.tensor(np.ascontiguousarray(array.astype(as_numpy)), name=path) for path, array in weights.items()}


def _shape(type_: Type) -> ir.Shape:
    return ir.Shape([_extent(size) for size in type_.shape])


def _extent(size: Dim) -> int | str:
    return size.value if size.value is not None else _NAMES.get(size, str(size))


def counted(function: Function, dtype: target.Dtype, swaps: Mapping[type[Op], Swap]) -> Counter[str]:
    """How many operators each node of an inlined function becomes, by the node's name."""
    counter = _Counting(dtype)
    for n in function.nodes:
        counter.path = n.name
        lower = swaps.get(type(n.op), type(n.op).onnx)
        lower(n.op, counter, tuple(None for _ in n.inputs), tuple(None for _ in n.params))
    return counter.nodes


class _Counting:
    """A builder that makes nothing and counts."""

    def __init__(self, dtype: target.Dtype) -> None:
        self.nodes: Counter[str] = Counter()
        self.path, self.casts = "", int(dtype != "fp32")

    def op(self, op_type: str, *inputs: OnnxValue, **attributes: object) -> None:
        self.nodes[self.path] += 1

    def ops(self, op_type: str, outputs: int, *inputs: OnnxValue, **attributes: object) -> tuple[None, ...]:
        self.nodes[self.path] += 1
        return (None,) * outputs

    def constant(self, value: Array | Sequence[int]) -> None: ...

    def real(self, value: Array | float) -> None: ...

    def narrowed(self, value: OnnxValue) -> None:
        self.nodes[self.path] += self.casts


class _Emitter:
    def __init__(
        self,
        function: Function,
        weights: Mapping[str, ir.TensorProtocol] | None,
        real: ir.DataType,
        swaps: Mapping[type[Op], Swap],
    ) -> None:
        self.swaps = swaps
        self.function = function
        self.builder = _Builder(real)
        self.types: dict[Dtype, ir.DataType] = {
            "float": real,
            "int": ir.DataType.INT64,
            "int32": ir.DataType.INT32,
            "bool": ir.DataType.BOOL,
        }
        self.values: dict[Value, ir.Value] = {}
        self.inputs = [self._input(n) for n in function.inputs]
        self.params: dict[str, ir.Value] = {}
        self.owned: list[ir.Value] = []
        for path, param in parameters(function).items():
            stored = weights[path].dtype if weights is not None else real
            value = ir.Value(name=path, type=ir.TensorType(stored), shape=ir.Shape(param.shape))
            if weights is None:
                self.inputs.append(value)
            else:
                value.const_value = weights[path]
                self.owned.append(value)
            self.builder.enter(path)
            self.params[path] = value if stored == real else self.builder.op("Cast", value, to=int(real))
        for n in function.nodes:
            self._node(n)

    @property
    def opset(self) -> int:
        """The lowest that has all operators: runtimes know the earlier ones better."""
        return max((_LATER.get(n.op_type, OPSET) for n in self.builder.nodes), default=OPSET)

    @property
    def initialisers(self) -> list[ir.Value]:
        return [*self.owned, *self.builder.constants.values()]

    def _input(self, n: Node) -> ir.Value:
        type_ = n.types[0]
        self.values[n[0]] = ir.Value(name=n.name, type=ir.TensorType(self.types[type_.dtype]), shape=_shape(type_))
        return self.values[n[0]]

    def _node(self, n: Node) -> None:
        self.builder.enter(n.name)
        args = tuple(self.values[value] for value in n.inputs)
        params = tuple(self.params[param.name] for param in n.params)
        swap = self.swaps.get(type(n.op))
        results = swap(n.op, self.builder, args, params) if swap else n.op.onnx(self.builder, args, params)
        for i, (result, type_) in enumerate(zip(results, n.types, strict=True)):
            result.name = n[i].name
            result.type, result.shape = ir.TensorType(self.types[type_.dtype]), _shape(type_)
            self.values[n[i]] = result

    def outputs(self) -> list[ir.Value]:
        for name, value in self.function.outputs:
            self.values[value].name = name
        return [self.values[value] for _, value in self.function.outputs]


class _Builder:
    """What an op's ONNX rule receives. Nodes are named after the path of the node that is being lowered."""

    def __init__(self, float_type: ir.DataType) -> None:
        self.float = float_type
        self.nodes: list[ir.Node] = []
        self.domains: set[str] = set()
        self.constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}
        self.path = ""
        self.counts: dict[str, int] = {}

    def enter(self, path: str) -> None:
        self.path, self.counts = path, {}

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        return self.ops(op_type, 1, *inputs, **attributes)[0]

    def ops(
        self, op_type: str, outputs: int, *inputs: ir.Value | None, domain: str = "", **attributes: Any
    ) -> Sequence[ir.Value]:
        count = self.counts[op_type] = self.counts.get(op_type, 0) + 1
        name = f"/{self.path.replace('.', '/')}/{op_type}" + (f"_{count}" if count > 1 else "")
        made = ir.node(op_type, list(inputs), attributes or None, domain=domain, num_outputs=outputs, name=name)
        for i, output in enumerate(made.outputs):
            output.name = f"{name}_output" + (f"_{i}" if i else "")
        self.nodes.append(made)
        self.domains.add(domain)
        return made.outputs

    def constant(self, value: Array | Sequence[int]) -> ir.Value:
        """One initialiser for each distinct constant."""
        array = np.asarray(value)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self.constants:
            name = f"constant_{len(self.constants)}"
            made = ir.Value(name=name, const_value=ir.tensor(array, name=name))
            made.type, made.shape = ir.TensorType(ir.DataType.from_numpy(array.dtype)), ir.Shape(array.shape)
            self.constants[key] = made
        return self.constants[key]

    def real(self, value: Array | float) -> ir.Value:
        return self.constant(np.asarray(value, self.float.numpy()))

    def narrowed(self, value: ir.Value) -> ir.Value:
        return value if self.float == ir.DataType.FLOAT else self.op("Cast", value, to=int(self.float))
