"""The worker over onnxruntime: python -m blockc.bench.candidate DIR [--provider cuda] [--shared] [--no-prepack]"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from blockc.bench.opening import open_session, weights_of
from blockc.bench.profiling import RunClock, TimedRuns, cost_by_operator, read_runs
from blockc.bench.protocol import UnableError, draw_tokens, memory, serve
from blockc.graph.target import Provider
from blockc.products.manifest import MODEL, STEP
from blockc.runtime import ProviderError, Session, SessionError
from blockc.runtime.lookup import Drafts
from blockc.runtime.opening import OpenModel, session_at


class SessionWorker:
    """One model, opened by `load`. Every request starts with an empty cache."""

    def __init__(self, folder: Path, provider: Provider, shared: bool, prepack: bool = True) -> None:
        self.folder, self.shared, self.prepack = folder, shared, prepack
        self.provider: Provider = provider
        self.opened: OpenModel | None = None
        self.loaded: Session | None = None
        self.threads, self.clock = 1, RunClock()

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
        opened = open_session(self.folder, self.provider, threads, self.shared, self.prepack)
        seconds = time.perf_counter() - start
        self.threads = threads
        self.opened = opened.model
        self._start(opened.model)
        self._steps(1, 1)
        return {
            "seconds": seconds,
            "memory": memory(),
            "weights": weights_of(self.folder),
            "versions": {"onnxruntime": onnxruntime.__version__, "onnx": onnx.__version__},
            "context": self.session.context,
        }

    def prefill(self, tokens: int, repeat: int) -> dict[str, Any]:
        return {"ms": [self._prefill(tokens, 0) for _ in range(repeat + 1)][1:]}

    def decode(self, context: int, steps: int) -> dict[str, Any]:
        taken = self._steps(context, steps + 1)[1:]
        return {"ms": [ms for ms, _ in taken], "loop_ms": [loop for _, loop in taken]}

    def ops(self, context: int, steps: int) -> dict[str, Any]:
        """Profiles steps. It opens the model again, since only a new session can be profiled; the old one is freed."""
        with tempfile.TemporaryDirectory(prefix="blockc-") as folder:
            if self.opened is None:
                raise UnableError("nothing is loaded")
            model = self.opened = replace(self.opened, session=None)
            self.loaded = None
            profiled: list[Any] = []  # a row is long only at its end, so that the runs of model.onnx are the first ones

            def open_profiled(name: str) -> Any:
                profile = Path(folder) / name
                opened = session_at(self.folder / name, self.provider, self.threads, self.prepack, profile=profile)
                profiled.append(opened)
                return opened

            def step(opened: Callable[[], OpenModel]) -> OpenModel:
                return replace(opened(), session=open_profiled(STEP))

            long = model.step and partial(step, model.step)
            self._start(replace(model, session=open_profiled(MODEL), step=long))
            taken = self._steps(context, steps + 1)[1:]
            files = [Path(each.end_profiling()) for each in profiled]
            runs = [run for file in files for run in read_runs(file.read_text(encoding="utf-8", errors="replace"))]
        if len(runs) != self.clock.runs:
            raise UnableError(f"onnxruntime's profile has {len(runs)} of {self.clock.runs} runs, so it was cut short")
        return {"ms": [ms for ms, _ in taken], "ops": cost_by_operator(runs[-steps:])}

    def drafts(self, most: int) -> dict[str, Any]:
        """Why the model cannot check a draft of so many tokens, by a try; empty if it can."""
        try:
            list(self.session.generate([draw_tokens(1, self.session.model.vocab)], 1, lookup=most))
        except SessionError as error:
            return {"lacks": str(error), "rounds": self.session.rounds}
        return {"lacks": "", "rounds": self.session.rounds}

    def write(self, ids: list[int], new: int, stop: list[int], lookup: int) -> dict[str, Any]:
        """Writes on from a prompt. The time begins with the first token."""
        tokens: list[int | None] = []
        start = end = 0.0
        for step in self.session.generate([ids], new, stop, lookup=lookup):
            end = time.perf_counter()
            start = start or end
            tokens += step
        drafts = self.session.drafts if lookup else Drafts(steps=len(tokens))
        return {"tokens": tokens, "ms": 1000 * (end - start), "drafts": [drafts.steps - 1, drafts.drafted, drafts.kept]}

    def _start(self, model: OpenModel) -> None:
        self.clock = RunClock()
        step = model.step and partial(self._open_step, model.step)
        self.loaded = Session.of(replace(model, session=TimedRuns(model.session, self.clock), step=step))

    def _open_step(self, opened: Callable[[], OpenModel]) -> OpenModel:
        """The graph for long pasts, with the same clock around its runs."""
        model = opened()
        return replace(model, session=TimedRuns(model.session, self.clock))

    def _prefill(self, count: int, room: int) -> float:
        ids = draw_tokens(count, self.session.model.vocab)
        self.session.reset()
        return _time(partial(self.session.prefill, [ids], room))

    def _steps(self, context: int, steps: int) -> list[tuple[float, float]]:
        self._prefill(context, steps)
        return [self._step(token) for token in draw_tokens(steps, self.session.model.vocab)]

    def _step(self, token: int) -> tuple[float, float]:
        """Milliseconds of a step, and those of them outside onnxruntime's run."""
        before = self.clock.seconds
        ms = _time(partial(self.session.decode, [token]))
        return ms, ms - 1000 * (self.clock.seconds - before)


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
    methods = {
        "load": candidate.load,
        "prefill": candidate.prefill,
        "decode": candidate.decode,
        "ops": candidate.ops,
        "drafts": candidate.drafts,
        "write": candidate.write,
    }
    serve({name: as_handler(method) for name, method in methods.items()} | {"memory": lambda: memory() or {}})


if __name__ == "__main__":
    main()
