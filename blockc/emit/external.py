"""Initialisers that lie in a file beside the model, and what external data a model names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx
import onnx_ir as ir
from google.protobuf.message import Message

from blockc.plan import Reference

_TYPES = {
    "F16": ir.DataType.FLOAT16,
    "F32": ir.DataType.FLOAT,
    "F64": ir.DataType.DOUBLE,
    "BF16": ir.DataType.BFLOAT16,
}


def external(references: Mapping[str, Reference]) -> dict[str, ir.TensorProtocol]:
    """By path, as `emit` takes them. No file is opened."""
    return {
        path: ir.ExternalTensor(r.location, r.offset, r.length, _TYPES[r.word], shape=ir.Shape(r.shape), name=path)
        for path, r in references.items()
    }


def locations(model: bytes) -> set[str]:
    """The files that a model names, in whatever corner of it."""
    tensors = _tensors(onnx.load_from_string(model))
    return {e.value for t in tensors for e in t.external_data if e.key == "location"}


def _tensors(message: Message) -> Iterator[onnx.TensorProto]:
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in [value] if isinstance(value, Message) else value:
                yield from _tensors(inner)
