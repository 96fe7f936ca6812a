"""Functions to ONNX: the inlined graph, node by node, in the ai.onnx operators of one opset.

The graph is built directly, not traced. That needs no torch and reads no weight, so a graph of any size takes
milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from blockc.basics import floats
from blockc.basics.opsets import USUAL
from blockc.ir import (
    Array,
    B,
    Dim,
    Dtype,
    Function,
    M,
    Node,
    OnnxBranch,
    OnnxBuilder,
    OnnxLoopBody,
    OnnxValue,
    Op,
    P,
    S,
    T,
    Type,
    Value,
    parameters_of,
)

_IR_VERSION = 11  # of the file's format; an older opset has an older one
_NAMES = {
    B: "batch_size",
    S: "sequence_length",
    P: "past_sequence_length",
    T: "total_sequence_length",
    M: "cache_length",
}
Swap = Callable[[Any, OnnxBuilder, tuple[OnnxValue, ...], tuple[OnnxValue, ...]], Sequence[OnnxValue]]


def emit_onnx(
    function: Function,
    metadata: Mapping[str, str],
    weights: Mapping[str, TensorProto] | None = None,
    dtype: floats.FloatType = "fp32",
    swaps: Mapping[type[Op], Swap] | None = None,
    opset: int | None = None,
) -> onnx.ModelProto:
    """The model of an inlined function, in one float type.

    Without weights, parameters are graph inputs after the runtime's; with them, they are initialisers in the model or
    in a file beside it. A parameter stored in another type is cast. `metadata` goes into the file, so it has no paths
    or dates. `swaps` are lowerings that replace those of ops. `opset` is by default the usual one, or the lowest later
    one that has all operators, since runtimes support earlier opsets better.
    """
    opset = opset or max((USUAL, *(n.op.since for n in function.nodes)))
    emitter = _Emitter(function, weights, dtype, swaps or {}, opset)
    builder, outputs = emitter.builder, emitter.outputs()
    emitter.drop_unread()
    graph = helper.make_graph(
        [n.proto() for n in builder.nodes],
        function.name,
        [value.proto() for value in emitter.inputs],
        [value.proto() for value in outputs],
        initializer=emitter.initialisers,
        value_info=[value.proto() for value in emitter.inner(outputs)],
    )
    opsets = {"": opset} | dict.fromkeys(sorted(builder.domains - {""}), 1)
    model = helper.make_model(
        graph,
        producer_name="blockc",
        ir_version=min(_IR_VERSION, helper.find_min_ir_version_for([helper.make_opsetid("", opset)], True)),
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in opsets.items()],
    )
    helper.set_model_props(model, dict(metadata))
    return model


def serialise(model: onnx.ModelProto) -> bytes:
    return model.SerializeToString(deterministic=True)


def embed_arrays(weights: Mapping[str, Array], dtype: floats.FloatType = "fp32") -> dict[str, TensorProto]:
    """Arrays as initialisers inside the model: floats in one type, integers in their own."""
    as_numpy = helper.tensor_dtype_to_np_dtype(floats.FLOATS[dtype].onnx)
    return {path: _make_tensor(a.astype(as_numpy) if a.dtype.kind == "f" else a, path) for path, a in weights.items()}


def _make_tensor(array: Array, name: str) -> TensorProto:
    return numpy_helper.from_array(np.asarray(array, order="C"), name)


@dataclass(eq=False)
class _Value:
    """A value, which may be renamed until the graph is made. `type` is onnx's number of it; 0: unknown."""

    name: str
    type: int = 0
    shape: tuple[int | str, ...] = ()

    def proto(self) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(self.name, self.type, self.shape)


@dataclass(frozen=True, eq=False)
class _OnnxNode:
    op_type: str
    inputs: Sequence[_Value | None]
    outputs: Sequence[_Value]
    name: str
    domain: str
    attributes: Mapping[str, Any]

    @property
    def bodies(self) -> Sequence[_Body]:
        return [value for value in self.attributes.values() if isinstance(value, _Body)]

    def may_lack(self, output: int, opset: int) -> bool:
        """Whether an output may be absent. A provider's own operators have those behind the first as they are asked."""
        if self.domain:
            return output > 0
        told = onnx.defs.get_schema(self.op_type, opset).outputs
        return output < len(told) and told[output].option == onnx.defs.OpSchema.FormalParameterOption.Optional

    def proto(self) -> onnx.NodeProto:
        names, outputs = ([value.name if value else "" for value in each] for each in (self.inputs, self.outputs))
        while names and not names[-1]:
            names.pop()
        attributes: dict[str, Any] = {k: v.proto() if isinstance(v, _Body) else v for k, v in self.attributes.items()}
        return helper.make_node(self.op_type, names, outputs, self.name, domain=self.domain or None, **attributes)


@dataclass(frozen=True, eq=False)
class _Body:
    """The graph inside of a Loop or an If. The types of carried values follow from what the node reads."""

    name: str
    inputs: Sequence[_Value]
    nodes: Sequence[_OnnxNode]
    outputs: Sequence[_Value]

    def proto(self) -> onnx.GraphProto:
        nodes = [n.proto() for n in self.nodes]
        inputs, outputs = ([_describe(value) for value in each] for each in (self.inputs, self.outputs))
        return helper.make_graph(nodes, self.name, inputs, outputs)


def _describe(value: _Value) -> onnx.ValueInfoProto:
    """The name of a value in a body, and its type where that is known."""
    return value.proto() if value.type else onnx.ValueInfoProto(name=value.name)


def _walk(nodes: Sequence[_OnnxNode]) -> Iterator[_OnnxNode]:
    """The nodes and those of their bodies."""
    for n in nodes:
        yield n
        for body in n.bodies:
            yield from _walk(body.nodes)


def _shape_of(type_: Type) -> tuple[int | str, ...]:
    return tuple(_size_text(size) for size in type_.shape)


def _size_text(size: Dim) -> int | str:
    return size.value if size.value is not None else _NAMES.get(size, str(size))


def count_operators(
    function: Function, dtype: floats.FloatType, swaps: Mapping[type[Op], Swap], opset: int | None = None
) -> Counter[str]:
    """The number of operators that each node of an inlined function becomes, by the node's name."""
    nodes: Counter[str] = Counter()
    known: dict[tuple[Op, int, int], int] = {}  # equal nodes have equal counts
    for n in function.nodes:
        key = (n.op, len(n.inputs), len(n.params))
        if key not in known:
            counter = _CountingBuilder(dtype, opset)
            _lower(n, counter, swaps)
            known[key] = counter.nodes
        nodes[n.name] += known[key]
    return nodes


def _lower(n: Node, builder: OnnxBuilder, swaps: Mapping[type[Op], Swap]) -> None:
    """Lowers a node with a builder that makes nothing."""
    lower = swaps.get(type(n.op), type(n.op).onnx)
    lower(n.op, builder, tuple(None for _ in n.inputs), tuple(None for _ in n.params))


class _CountingBuilder:
    """A builder that makes nothing and counts operators, those of bodies too."""

    def __init__(self, dtype: floats.FloatType, opset: int | None = None) -> None:
        self.nodes, self.casts, self.opset = 0, int(dtype != "fp32"), opset or USUAL

    def op(self, op_type: str, *inputs: OnnxValue, **attributes: object) -> None:
        self.nodes += 1

    def ops(self, op_type: str, outputs: int, *inputs: OnnxValue, **attributes: object) -> tuple[None, ...]:
        self.nodes += 1
        return (None,) * outputs

    def loop(self, trip: OnnxValue, carried: Sequence[OnnxValue], body: OnnxLoopBody) -> Sequence[None]:
        self.nodes += 2  # the Loop itself, and what passes its condition on
        body(self, None, (None,) * len(carried))
        return (None,) * len(carried)

    def choose(self, condition: OnnxValue, then: OnnxBranch, otherwise: OnnxBranch) -> Sequence[None]:
        self.nodes += 1
        otherwise(self)
        return (None,) * len(then(self))

    def constant(self, value: Array | Sequence[int]) -> None: ...

    def real(self, value: Array | float) -> None: ...

    def narrow(self, value: OnnxValue) -> None:
        self.nodes += self.casts

    def widen(self, value: OnnxValue) -> None:
        self.nodes += self.casts


def find_lost(
    function: Function, dtype: floats.FloatType, swaps: Mapping[type[Op], Swap]
) -> Iterator[tuple[Node, float]]:
    """The constants of a function that become 0 or infinity in a float type, each with its node."""
    known: dict[tuple[Op, int, int], list[float]] = {}
    for n in function.nodes:
        key = (n.op, len(n.inputs), len(n.params))
        if key not in known:
            reals = _RangeBuilder(dtype)
            _lower(n, reals, swaps)
            known[key] = reals.lost
        yield from ((n, number) for number in known[key])


class _RangeBuilder(_CountingBuilder):
    """A builder that makes nothing and notes constants outside of a float type's range."""

    def __init__(self, dtype: floats.FloatType) -> None:
        super().__init__(dtype)
        self.type = helper.tensor_dtype_to_np_dtype(floats.FLOATS[dtype].onnx)
        self.lost: list[float] = []

    def op(self, op_type: str, *inputs: OnnxValue, **attributes: object) -> None:
        self._scale(attributes)

    def ops(self, op_type: str, outputs: int, *inputs: OnnxValue, **attributes: object) -> tuple[None, ...]:
        self._scale(attributes)
        return (None,) * outputs

    def _scale(self, attributes: Mapping[str, object]) -> None:
        """An attention multiplies by its scale in the model's own float type; an epsilon is added in fp32."""
        if isinstance(scale := attributes.get("scale"), float):
            self.real(scale)

    def real(self, value: Array | float) -> None:
        if isinstance(value, float) and np.isfinite(value):
            with np.errstate(over="ignore", under="ignore"):
                held = float(np.asarray(value, self.type))
            self.lost += [] if np.isfinite(held) and (held or not value) else [value]


class _Emitter:
    def __init__(
        self,
        function: Function,
        weights: Mapping[str, TensorProto] | None,
        dtype: floats.FloatType,
        swaps: Mapping[type[Op], Swap],
        opset: int,
    ) -> None:
        self.swaps = swaps
        self.function = function
        self.builder = _GraphBuilder(floats.FLOATS[dtype].onnx, opset)
        self.types: dict[Dtype, int] = {word: floats.format_of(word, dtype).onnx for word in get_args(Dtype)}
        self.values: dict[Value, _Value] = {}
        self.inputs = [self._input(n) for n in function.inputs]
        self.params: dict[str, _Value] = {}
        self.owned: list[TensorProto] = []
        self.apart: dict[str, TensorProto] = {}  # in the graph's own type, in a file beside it
        self.read: set[str] = set()
        for path, param in parameters_of(function).items():
            own = self.types[param.dtype]
            stored = weights[path].data_type if weights is not None else own
            value = _Value(path, stored, param.shape)
            if weights is None:
                self.inputs.append(value)
            else:
                self.owned.append(weights[path])
                if stored == own and weights[path].data_location == TensorProto.EXTERNAL:
                    self.apart[path] = weights[path]
            self.builder.enter(path)
            self.params[path] = value if stored == own else self.builder.op("Cast", value, to=own)
        for n in function.nodes:
            self._node(n)

    @property
    def initialisers(self) -> list[TensorProto]:
        return [*self.owned, *self.builder.constants.values()]

    def drop_unread(self) -> None:
        """Takes the names of outputs that no op of the function has and nothing reads: a kernel then computes none."""
        nodes = list(_walk(self.builder.nodes))
        read = {id(value) for n in nodes for each in (n.inputs, *(b.outputs for b in n.bodies)) for value in each}
        for n in nodes:
            for i, value in enumerate(n.outputs):
                if not value.type and id(value) not in read and n.may_lack(i, self.builder.opset):
                    value.name = ""

    def inner(self, outputs: Iterable[_Value]) -> Iterable[_Value]:
        """Values with known types: those of the function, except inputs and outputs."""
        ends = {id(value) for value in (*self.inputs, *outputs)}
        return (value for n in self.builder.nodes for value in n.outputs if value.type and id(value) not in ends)

    def _input(self, n: Node) -> _Value:
        type_ = n.types[0]
        self.values[n[0]] = _Value(n.name, self.types[type_.dtype], _shape_of(type_))
        return self.values[n[0]]

    def _node(self, n: Node) -> None:
        self.builder.enter(n.name)
        args = tuple(self.values[value] for value in n.inputs)
        params = tuple(self._param(n, param.name) for param in n.params)
        swap = self.swaps.get(type(n.op))
        results = swap(n.op, self.builder, args, params) if swap else n.op.onnx(self.builder, args, params)
        for i, (result, type_) in enumerate(zip(results, n.types, strict=True)):
            result.name, result.type, result.shape = n[i].name, self.types[type_.dtype], _shape_of(type_)
            self.values[n[i]] = result

    def _param(self, n: Node, path: str) -> _Value:
        """A tied parameter in a file beside the graph becomes an initialiser for each node that reads it.

        All of them point to the same bytes. A runtime prepacks a matrix only if nothing else reads it.
        """
        if path not in self.read or path not in self.apart:
            self.read.add(path)
            return self.params[path]
        again = TensorProto()
        again.CopyFrom(self.apart[path])
        again.name = f"{n.name}.{path.rpartition('.')[2]}"
        self.owned.append(again)
        return _Value(again.name, again.data_type, tuple(again.dims))

    def outputs(self) -> list[_Value]:
        """The graph's outputs, renamed to the function's output names."""
        for name, value in self.function.outputs:
            self.values[value].name = name
        return [self.values[value] for _, value in self.function.outputs]


class _GraphBuilder:
    """The builder that an op's ONNX rule receives. It names nodes after the path of the node being lowered."""

    def __init__(self, float_type: int, opset: int) -> None:
        self.float, self.opset = float_type, opset
        self.nodes: list[_OnnxNode] = []
        self.domains: set[str] = set()
        self.constants: dict[tuple[str, tuple[int, ...], bytes], TensorProto] = {}
        self.path = ""
        self.counts: dict[str, int] = {}

    def enter(self, path: str) -> None:
        self.path, self.counts = f"/{path.replace('.', '/')}", {}

    def op(self, op_type: str, *inputs: _Value | None, **attributes: Any) -> _Value:
        return self.ops(op_type, 1, *inputs, **attributes)[0]

    def ops(
        self, op_type: str, outputs: int, *inputs: _Value | None, domain: str = "", **attributes: Any
    ) -> Sequence[_Value]:
        return self._add(self._name(op_type), op_type, outputs, inputs, domain, attributes)

    def _name(self, op_type: str) -> str:
        count = self.counts[op_type] = self.counts.get(op_type, 0) + 1
        return f"{self.path}/{op_type}" + (f"_{count}" if count > 1 else "")

    def _add(
        self,
        name: str,
        op_type: str,
        outputs: int,
        inputs: Sequence[_Value | None],
        domain: str,
        attributes: Mapping[str, Any],
    ) -> Sequence[_Value]:
        made = [_Value(f"{name}_output" + (f"_{i}" if i else "")) for i in range(outputs)]
        self.nodes.append(_OnnxNode(op_type, inputs, made, name, domain, attributes))
        self.domains.add(domain)
        return made

    def loop(self, trip: _Value, carried: Sequence[_Value], body: OnnxLoopBody) -> Sequence[_Value]:
        name = self._name("Loop")
        inner = self._nest(name)
        turn, again = _Value(f"{name}/turn", TensorProto.INT64), _Value(f"{name}/condition", TensorProto.BOOL)
        values = [_Value(f"{name}/carried_{i}") for i in range(len(carried))]
        results = body(inner, turn, values)
        whole = inner.finish("body", [turn, again, *values], [inner.op("Identity", again), *results])
        return self._add(name, "Loop", len(results), (trip, None, *carried), "", {"body": whole})

    def choose(self, condition: _Value, then: OnnxBranch, otherwise: OnnxBranch) -> Sequence[_Value]:
        name = self._name("If")
        branches: dict[str, _Body] = {}
        for key, make in (("then_branch", then), ("else_branch", otherwise)):
            inner = self._nest(f"{name}/{key.partition('_')[0]}")
            branches[key] = inner.finish(key, [], make(inner))
        outputs = len(branches["then_branch"].outputs)
        return self._add(name, "If", outputs, (condition,), "", branches)

    def _nest(self, path: str) -> _GraphBuilder:
        """A builder of the nodes of a body, which shares the constants."""
        inner = _GraphBuilder(self.float, self.opset)
        inner.path, inner.domains, inner.constants = path, self.domains, self.constants
        return inner

    def finish(self, name: str, inputs: Sequence[_Value], outputs: Sequence[_Value]) -> _Body:
        """The body of what was built. Each of its outputs must be one of a node of its own."""
        own = {id(value) for n in self.nodes for value in n.outputs}
        assert {id(value) for value in outputs} <= own and len({*map(id, outputs)}) == len(outputs), self.path
        return _Body(name, inputs, self.nodes, outputs)

    def constant(self, value: Array | Sequence[int]) -> _Value:
        """One initialiser for each distinct constant."""
        array = np.asarray(value)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = _make_tensor(array, f"constant_{len(self.constants)}")
        return _Value(self.constants[key].name)

    def real(self, value: Array | float) -> _Value:
        return self.constant(np.asarray(value, helper.tensor_dtype_to_np_dtype(self.float)))

    def narrow(self, value: _Value) -> _Value:
        return value if self.float == TensorProto.FLOAT else self.op("Cast", value, to=self.float)

    def widen(self, value: _Value) -> _Value:
        return value if self.float == TensorProto.FLOAT else self.op("Cast", value, to=TensorProto.FLOAT)
