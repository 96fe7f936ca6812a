"""Where onnxruntime runs a graph's nodes when it is asked for CUDA: on the device where a kernel is registered for the
operator and its types, and on the host where all that a node reads is shapes.

The kernels stand in data/cuda_kernels.yaml. The rule of the host is that of onnxruntime's GetCpuPreferredNodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import onnx
import yaml

from tests.paths import DATA

SMALL = 100  # entries of an initialiser that a node on the host may read
HALF = {"float16", "bfloat16"}
BOOLEAN = {"And", "Equal", "GreaterOrEqual", "Less", "LessOrEqual", "Not"}
INTEGER = {"ArgMax", "NonZero", "Shape"}
RESULT = {
    "Where": 1,
    "GatherBlockQuantized": 2,
    "Loop": 2,
    "OneHot": 2,
}  # the input whose type the output has, where it is not the first
SECOND = {"TopK": "int64"}  # the type of the second output, where it is another


@cache
def table() -> Mapping[str, Mapping[str, Any]]:
    """By domain and operator."""
    said = yaml.safe_load((DATA / "cuda_kernels.yaml").read_text(encoding="utf-8"))
    return {"": said["ai.onnx"], "com.microsoft": said["com.microsoft"]}


def word(elem_type: int) -> str:
    """bfloat16, float, int64, ..."""
    return onnx.TensorProto.DataType.Name(elem_type).lower()


def attribute(node: onnx.NodeProto, name: str) -> Any:
    return next(onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name)


def result(node: onnx.NodeProto, types: Mapping[str, str]) -> str:
    """The type of a node's outputs."""
    if node.op_type in BOOLEAN:
        return "bool"
    if node.op_type in INTEGER:
        return "int64"
    if node.op_type == "Cast":
        return word(attribute(node, "to"))
    return types[node.input[RESULT.get(node.op_type, 0)]]


def value_types(graph: onnx.GraphProto) -> dict[str, str]:
    """Of every value; where the graph says one itself, the two must agree."""
    declared = {v.name: word(v.type.tensor_type.elem_type) for v in (*graph.value_info, *graph.output)}
    types = {v.name: word(v.type.tensor_type.elem_type) for v in graph.input}
    types |= {t.name: word(t.data_type) for t in graph.initializer}
    for node in graph.node:
        made = result(node, types)
        for i, name in enumerate(node.output):
            of_one = SECOND.get(node.op_type, made) if i == 1 else made
            assert declared.get(name, of_one) == of_one, name
            types[name] = of_one
    return types


def lacks(node: onnx.NodeProto, opset: int, types: Mapping[str, str]) -> str:
    """Why CUDA has no kernel of a node, or nothing."""
    kernel = table().get(node.domain, {}).get(node.op_type)
    if kernel is None:
        return f"no {node.op_type}"
    changed = 1 if node.domain else onnx.defs.get_schema(node.op_type, opset).since_version
    if changed not in kernel["since"]:
        return f"no {node.op_type} of opset {changed}"
    for i, name in enumerate(node.input):
        wanted = kernel["in"][min(i, len(kernel["in"]) - 1)]
        if name and types[name] not in wanted:
            return f"no {node.op_type} of {types[name]} as input {i}"
    made = types[node.output[0]]
    return f"no {node.op_type} to {made}" if made not in kernel.get("out", [made]) else ""


@dataclass
class Placed:
    """missing: why nodes have no kernel. host: nodes that run on the host. copies: values that go between the two."""

    missing: set[str] = field(default_factory=set[str])
    host: list[onnx.NodeProto] = field(default_factory=list[onnx.NodeProto])
    copies: set[str] = field(default_factory=set[str])


def placed(model: onnx.ModelProto) -> Placed:
    graph = model.graph
    opset = next(i.version for i in model.opset_import if not i.domain)
    types = value_types(graph)
    small = {t.name for t in graph.initializer if len(t.dims) == 0 or _entries(t.dims) <= SMALL}
    given = {v.name for v in graph.input}
    constant = {t.name for t in graph.initializer}
    on_host: set[str] = set()
    found = Placed()
    for node in graph.node:
        if why := lacks(node, opset, types):
            found.missing.add(f"{node.name}: {why}")
            continue
        kernel = table()[node.domain][node.op_type]
        read_there = set(kernel.get("host", ()))
        if any(name in on_host for name in node.input) and all(
            types.get(name) not in HALF and (name in small | given or (name in on_host and i not in read_there))
            for i, name in enumerate(node.input)
        ):
            found.host.append(node)
            on_host.update(node.output)
            found.copies |= {name for name in node.input if name in given}
            continue
        for i, name in enumerate(node.input):
            if name and name not in constant | given and (name in on_host) != (i in read_there):
                found.copies.add(name)
        on_host |= {node.output[i] for i in kernel.get("host_out", ())}
    return found


def _entries(dims: Sequence[int]) -> int:
    count = 1
    for size in dims:
        count *= size
    return count
