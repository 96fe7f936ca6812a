"""The worker of models without a cache: python -m blockc.bench.encoders DIR [--provider cuda] [--no-prepack]

A build, or another tool's model.onnx with the usual names of inputs:

input_ids                                        (B, S), int64 or int32
attention_mask, token_type_ids, position_ids     the same, where the graph has them

Its outputs may have any names. Both are fed by the same code, so a comparison is of the graphs. A foreign graph says
nothing of its vocabulary and context: a config.json beside it does.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blockc.basics.jsonfile import FileError, read_json_object
from blockc.bench.candidate import as_handler
from blockc.bench.opening import graph_of, is_build, weights_of
from blockc.bench.protocol import UnableError, draw_tokens, memory, serve
from blockc.graph.contract import IDS, MASK, POSITIONS, SEGMENTS, past_of
from blockc.graph.target import Provider
from blockc.ir import Array
from blockc.language.spec import load
from blockc.products.manifest import MODEL, SPEC
from blockc.runtime import SessionError
from blockc.runtime.opening import manifest_of, open_encoder, session_at

CONFIG = "config.json"
INPUTS = (IDS, MASK, SEGMENTS, POSITIONS)
_TYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
_FIRST = 16  # tokens of the text after which memory is measured


def is_encoder(folder: Path) -> bool:
    """Whether a model has no cache, so that it reads whole texts. Raises SessionError."""
    if is_build(folder):
        return not manifest_of(folder).contract.held
    return not any(past_of(value.name) for value in graph_of(folder).input)


@dataclass(frozen=True)
class Sizes:
    """How many tokens there are, and how many a text may have; None where no file says it."""

    vocab: int | None
    context: int | None


def sizes_of(folder: Path) -> Sizes:
    """Raises SessionError for a file that is there and cannot be read."""
    if is_build(folder):
        top = load(folder / SPEC).top
        return Sizes(top.vocab, top.context)
    try:
        said = read_json_object(folder / CONFIG)
    except FileNotFoundError:
        return Sizes(None, None)
    except FileError as error:
        raise SessionError(str(error)) from None
    vocab, context = (said.get(key) for key in ("vocab_size", "max_position_embeddings"))
    return Sizes(*(n if type(n) is int and n > 0 else None for n in (vocab, context)))


class EncoderWorker:
    """One model, opened by `load`."""

    def __init__(self, folder: Path, provider: Provider, prepack: bool = True) -> None:
        self.folder, self.prepack = folder, prepack
        self.provider: Provider = provider
        self.session: Any = None

    def load(self, threads: int) -> dict[str, Any]:
        """Opens the model; the time does not count imports. Memory is measured after one text."""
        import onnx
        import onnxruntime

        sizes = sizes_of(self.folder)
        start = time.perf_counter()
        session = self._open(threads)
        seconds = time.perf_counter() - start
        self._refuse_inputs(session)
        self.session = session
        self.encode(min(_FIRST, sizes.context or _FIRST), 1, 0, sizes.vocab or 1)
        return {
            "seconds": seconds,
            "memory": memory(),
            "weights": weights_of(self.folder),
            "versions": {"onnxruntime": onnxruntime.__version__, "onnx": onnx.__version__},
            **{key: n for key, n in (("context", sizes.context), ("vocab", sizes.vocab)) if n is not None},
        }

    def _open(self, threads: int) -> Any:
        if is_build(self.folder):
            return open_encoder(self.folder, self.provider, threads, self.prepack).session
        return session_at(self.folder / MODEL, self.provider, threads, self.prepack)

    def encode(self, tokens: int, rows: int, repeat: int, vocab: int) -> dict[str, Any]:
        """Batches of texts without padding, from the ids in the host's memory to all outputs there."""
        if self.session is None:
            raise UnableError("nothing is loaded")
        feeds = self._feeds(np.array(draw_tokens(rows * tokens, vocab)).reshape(rows, tokens))
        taken: list[float] = []
        for _ in range(repeat + 1):
            start = time.perf_counter()
            self.session.run(None, feeds)
            taken.append(1000 * (time.perf_counter() - start))
        return {"ms": taken[1:]}

    def _feeds(self, ids: Array) -> dict[str, Array]:
        positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
        held = {IDS: ids, MASK: np.ones_like(ids), SEGMENTS: np.zeros_like(ids), POSITIONS: positions}
        kinds = {value.name: _TYPES[value.type] for value in self.session.get_inputs()}
        return {name: np.ascontiguousarray(held[name], kind) for name, kind in kinds.items()}

    def _refuse_inputs(self, session: Any) -> None:
        given = {value.name: value.type for value in session.get_inputs()}
        path = self.folder / MODEL
        if unknown := [name for name in given if name not in INPUTS]:
            raise SessionError(f"{path}: unknown inputs {', '.join(unknown[:3])}: {', '.join(INPUTS)} are fed")
        if odd := [name for name, kind in given.items() if kind not in _TYPES]:
            raise SessionError(f"{path}: {odd[0]} is {given[odd[0]]}, expected int64 or int32")
        if IDS not in given:
            raise SessionError(f"{path}: no input is called {IDS}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--provider", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--no-prepack", action="store_true")
    said = parser.parse_args()
    worker = EncoderWorker(said.folder, said.provider, not said.no_prepack)
    methods = {"load": worker.load, "encode": worker.encode}
    serve({name: as_handler(method) for name, method in methods.items()} | {"memory": lambda: memory() or {}})


if __name__ == "__main__":
    main()
