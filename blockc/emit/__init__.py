"""Emitters: from a graph to model.py or model.onnx. An emitter never reads the spec."""
