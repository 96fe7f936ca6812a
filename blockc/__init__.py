"""blockc: a compiler from a YAML spec of a transformer to PyTorch and ONNX, proved to be the same function."""

__version__ = "0.1.0"
