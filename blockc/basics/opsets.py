"""Opsets of ai.onnx: those that a graph can be written in."""

OPSETS = range(17, 29)
USUAL = 23  # the default: the first with attention, rope and RMS norms as operators
BUFFERED = 24  # for a cache of fixed length: the first with TensorScatter
