"""Whole models with random weights: a graph and model.py in turn, on the same weights in the same memory."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_matrix import TOLERANCE
from benchmarks.gpu_session import Bound, opened, real, settled

DTYPE = "fp16"


@dataclass(frozen=True)
class Work:
    """B rows of S new tokens on P past ones."""

    batch: int
    past: int
    tokens: int

    def __str__(self) -> str:
        what = f"decode at {self.past}" if self.past else f"prefill {self.tokens}"
        return f"{what}, batch {self.batch}"


FULL = [Work(b, p, s) for p, s in ((0, 128), (0, 512), (128, 1), (1024, 1)) for b in (1, 8)]
QUICK = [Work(b, p, s) for p, s in ((0, 6), (8, 1)) for b in (1, 2)]
COMPILED = [Work(1, 1024, 1), Work(1, 0, 512)]  # last of all: compiling takes most of the time


@dataclass
class Race:
    """One model's programs on one piece of work: model.py and its graph with the same weights in the same memory."""

    compiled: Any  # blockc's
    model: Any  # torch's
    dtype: str
    provider: str
    work: Work

    def __post_init__(self) -> None:
        import torch

        device, b, p, s = self.provider, self.work.batch, self.work.past, self.work.tokens
        seeded = torch.Generator(device=device).manual_seed(0)
        vocab = self.compiled.spec.top.vocab
        self.ids = torch.randint(0, vocab, (b, s), generator=seeded, device=device)
        self.mask = torch.ones(b, p + s, dtype=torch.int64, device=device)
        self.positions = torch.arange(p, p + s, device=device).repeat(b, 1)
        with torch.inference_mode():
            held = self.model(self.ids[:1, :1], use_cache=True).past_key_values
        self.past = [
            [torch.randn(b, k.shape[1], p, k.shape[3], generator=seeded, device=device).to(k.dtype) for k in layer]
            for layer in held
        ]
        self.logits = torch.zeros(b, s, vocab, dtype=held[0][0].dtype, device=device)

    def torch(self, model: Any) -> Callable[[], Any]:
        import torch

        past = tuple(tuple(layer) for layer in self.past) if self.work.past else None

        def call() -> Any:
            with torch.inference_mode():
                logits = model(self.ids, self.mask, self.positions, past).logits
            settled(self.provider)
            return logits

        return call

    def onnxruntime(self, captured: bool) -> Callable[[], Any]:
        """Past and present are one buffer, as long as the sequence: nothing is copied, and every address stays."""
        import torch

        from blockc.graph.target import Target

        model = self.compiled.onnx(Target("cuda", self.dtype))
        bound = Bound(opened(model, self.provider, captured=captured))
        bound.bind(dict(self.model.named_parameters()))
        bound.bind({"input_ids": self.ids, "attention_mask": self.mask, "position_ids": self.positions})
        for i, layer in enumerate(self.past):
            for what, past in zip(("key", "value"), layer, strict=True):
                room = past.new_zeros(past.shape[0], past.shape[1], self.work.tokens, past.shape[3])
                buffer = torch.cat((past, room), dim=2)
                bound.bind({f"past_key_values.{i}.{what}": buffer})
                bound.bind({f"present.{i}.{what}": buffer}, out=True)
        logits = torch.zeros_like(self.logits)
        bound.bind({"logits": logits}, out=True)
        settled(self.provider)

        def call() -> Any:
            bound.run()
            return logits

        return call

    def programs(self, compiling: bool) -> Iterator[tuple[str, Callable[[], Callable[[], Any]]]]:
        """By name, each yet to be made. torch.compile is among them where it is asked for."""
        import torch

        graphs = self.provider == "cuda"
        yield "torch, eager", lambda: self.torch(self.model)
        yield "onnxruntime", lambda: self.onnxruntime(captured=False)
        if graphs:
            yield "onnxruntime, CUDA graph", lambda: self.onnxruntime(captured=True)
        for mode in ("default", "reduce-overhead") if graphs else ("default",):
            name = "torch.compile, CUDA graph" if mode == "reduce-overhead" else "torch.compile"
            if compiling:
                yield name, lambda m=mode: self.torch(torch.compile(self.model, fullgraph=True, dynamic=False, mode=m))

    def times(self, rounds: int, compiling: bool, until: float) -> Iterator[tuple[bool, str]]:
        """(same logits as eager torch, a line) for each program."""
        calls: dict[str, Callable[[], Any]] = {}
        right: dict[str, tuple[bool, str]] = {}
        truth: Any = None
        for name, make in self.programs(compiling):
            if time.perf_counter() > until:
                right[name] = (True, "not measured: out of time")
                continue
            try:
                call = make()
                for _ in range(3):  # compiles, allocates, captures
                    logits = call().float()
            except Exception as failed:
                right[name] = (False, f"WRONG: {str(failed).splitlines()[0][:160]}")
                continue
            truth = logits.clone() if truth is None else truth
            error = float((logits - truth).abs().max() / truth.std())
            right[name] = (error <= 3 * TOLERANCE[self.dtype], f"differs by {error:.0e}")
            calls[name] = call
        took: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                took[name].append(1000 * (time.perf_counter() - start))
        medians = {name: statistics.median(values) for name, values in took.items()}
        eager = medians.get("torch, eager", float("nan"))
        for name, (holds, words) in right.items():
            said = f"{medians[name]:9.3f} ms  {eager / medians[name]:6.2f} x eager  " if name in medians else ""
            yield holds, f"{self.work!s:28} {name:26} {said}{words}{'' if holds else '  WRONG'}"


def speed(name: str, compiling: bool, provider: str, quick: bool, until: float) -> Iterator[tuple[bool, str]]:
    import torch

    from blockc import api
    from blockc.graph.target import Target
    from blockc.proof.runners import load_module

    compiled = api.compile(api.bundled()[name])
    compiled = api.twin(compiled) if quick else compiled
    if compiled.contract(Target("cuda", DTYPE)).feeding != "rows":
        yield True, f"{compiled.spec.name:16} not measured: its attention is not fused"
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.py"
        path.write_text(compiled.model_py(), encoding="utf-8")
        module = load_module(path)
        torch.manual_seed(0)
        with torch.device(provider):
            model = module.Model().to(real(DTYPE)).eval()
        model.init_weights()
        works = (QUICK[-2:-1] if compiling else QUICK) if quick else (COMPILED if compiling else FULL)
        for work in works:
            if compiling:
                torch.compiler.reset()
            race = Race(compiled, model, DTYPE, provider, work)
            for holds, line in race.times(3 if quick else 30, compiling, until):
                yield holds, f"{compiled.spec.name:17} {line}"
