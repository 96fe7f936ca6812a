"""The worker over onnxruntime: python -m blockc.bench.candidate DIR [--provider cuda] [--shared] [--no-prepack]"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from blockc.bench.opening import open_session, weights_of
from blockc.bench.protocol import UnableError, draw_tokens, memory, serve
from blockc.graph.target import Provider
from blockc.runtime import ProviderError, Session, SessionError


class SessionWorker:
    """One model, opened by `load`. Every request starts with an empty cache."""

    def __init__(self, folder: Path, provider: Provider, shared: bool, prepack: bool = True) -> None:
        self.folder, self.shared, self.prepack = folder, shared, prepack
        self.provider: Provider = provider
        self.loaded: Session | None = None

    @property
    def session(self) -> Session:
        if self.loaded is None:
            raise UnableError("nothing is loaded")
        return self.loaded

    def load(self, threads: int) -> dict[str, Any]:
        """Opens the model; the time does not count imports. Memory is measured after one prefill and one step."""
        import onnx
        import onnxruntime

        start = time.perf_counter()
        self.loaded = open_session(self.folder, self.provider, threads, self.shared, self.prepack)
        seconds = time.perf_counter() - start
        self._steps(1, 1)
        return {
            "seconds": seconds,
            "memory": memory(),
            "weights": weights_of(self.folder),
            "versions": {"onnxruntime": onnxruntime.__version__, "onnx": onnx.__version__},
            "context": self.loaded.context,
        }

    def prefill(self, tokens: int, repeat: int) -> dict[str, Any]:
        return {"ms": [self._prefill(tokens, 0) for _ in range(repeat + 1)][1:]}

    def decode(self, context: int, steps: int) -> dict[str, Any]:
        return {"ms": self._steps(context, steps + 1)[1:]}

    def _prefill(self, count: int, room: int) -> float:
        ids = draw_tokens(count, self.session.model.vocab)
        self.session.reset()
        return _time(partial(self.session.prefill, [ids], room))

    def _steps(self, context: int, steps: int) -> list[float]:
        self._prefill(context, steps)
        ids = draw_tokens(steps, self.session.model.vocab)
        return [_time(partial(self.session.decode, [token])) for token in ids]


def _time(call: Callable[[], object]) -> float:
    """The duration of a call, in milliseconds."""
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)


def as_handler(method: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A handler that turns a session's errors into the protocol's."""

    def answer(**request: Any) -> dict[str, Any]:
        try:
            return method(**request)
        except SessionError as error:
            raise UnableError(str(error), isinstance(error, ProviderError)) from None

    return answer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--provider", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--no-prepack", action="store_true")
    said = parser.parse_args()
    candidate = SessionWorker(said.folder, said.provider, said.shared, not said.no_prepack)
    methods = {"load": candidate.load, "prefill": candidate.prefill, "decode": candidate.decode}
    serve({name: as_handler(method) for name, method in methods.items()} | {"memory": lambda: memory() or {}})


if __name__ == "__main__":
    main()
