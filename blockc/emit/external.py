"""Initialisers in a file beside the model, and facts of a model.onnx that is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx
from google.protobuf.message import Message

from blockc.basics.floats import FLOATS, INTEGERS
from blockc.weights.plan import Reference

_NUMBERS = (*FLOATS.values(), *INTEGERS.values())
_TYPES = {one.safetensors: one.onnx for one in _NUMBERS} | {"F64": onnx.TensorProto.DOUBLE}


def external_tensors(references: Mapping[str, Reference]) -> dict[str, onnx.TensorProto]:
    """References as external initialisers, by path, as `emit_onnx` takes them. No file is opened."""
    return {path: _make_tensor(path, reference) for path, reference in references.items()}


def _make_tensor(name: str, reference: Reference) -> onnx.TensorProto:
    made = onnx.TensorProto(name=name, data_type=_TYPES[reference.word], dims=reference.shape)
    made.data_location = onnx.TensorProto.EXTERNAL
    for key in ("location", "offset", "length"):
        made.external_data.add(key=key, value=str(getattr(reference, key)))
    return made


def locations_of(model: bytes) -> set[str]:
    """The external files that any tensor of a model names."""
    tensors = _find_tensors(onnx.load_from_string(model))
    return {e.value for t in tensors for e in t.external_data if e.key == "location"}


def initialisers_in(model: bytes, location: str) -> frozenset[str]:
    """The names of the initialisers in an external file."""
    tensors = onnx.load_from_string(model).graph.initializer
    return frozenset(
        t.name for t in tensors if any(e.key == "location" and e.value == location for e in t.external_data)
    )


def metadata_of(model: bytes) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load_from_string(model).metadata_props}


def signature_of(model: bytes) -> tuple[list[bytes], list[bytes]]:
    """(The inputs; the outputs) of a model, each with name, type and shape."""
    graph = onnx.load_from_string(model).graph
    return [v.SerializeToString() for v in graph.input], [v.SerializeToString() for v in graph.output]


def operators_of(model: bytes) -> list[tuple[str, str]]:
    """(Domain, operator) of each node, in order; after a node come those of its bodies."""
    return [(n.domain, n.op_type) for n in _walk_nodes(onnx.load_from_string(model).graph)]


def _walk_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for n in graph.node:
        yield n
        for body in (a.g for a in n.attribute if a.type == onnx.AttributeProto.GRAPH):
            yield from _walk_nodes(body)


def _find_tensors(message: Message) -> Iterator[onnx.TensorProto]:
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in [value] if isinstance(value, Message) else value:
                yield from _find_tensors(inner)
