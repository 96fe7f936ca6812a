"""GGUF files, through the `gguf` package: tensors, and from the metadata the tokenizer and figures of the model."""

from blockc.weights.gguf.metadata import Metadata as Metadata
from blockc.weights.gguf.reader import GGUF as GGUF
from blockc.weights.gguf.reader import find_models as find_models
from blockc.weights.gguf.reader import is_gguf as is_gguf
from blockc.weights.gguf.reader import read_gguf as read_gguf
from blockc.weights.gguf.tokenizer import tokenizer_json as tokenizer_json
