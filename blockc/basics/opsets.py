"""Opsets of ai.onnx: those that a graph can be said in."""

OPSETS = range(17, 26)
USUAL = 23  # of a graph that no other is asked for: the one with attention, rope and RMS norms as operators
