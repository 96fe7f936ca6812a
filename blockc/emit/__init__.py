"""Graph to text or ONNX. An emitter never reads the spec."""
