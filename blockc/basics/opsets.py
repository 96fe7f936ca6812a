"""Opsets of ai.onnx: those that a graph can be said in."""

OPSETS = range(17, 29)
USUAL = 23  # of a graph that no other is asked for: the one with attention, rope and RMS norms as operators
BUFFERED = 24  # of one with a cache of fixed length: the one with TensorScatter
