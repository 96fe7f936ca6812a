"""Where step.onnx, the graph of one new token, becomes faster than model.onnx: a step of each at several lengths.

python -m benchmarks.long DIR [TURNS]     a build with both graphs; 8 turns

A turn is A B, the next one B A, in one process on two threads, each session with a cache of its own. Medians of the
steps in milliseconds, and of the turns' ratios.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

from blockc.bench.protocol import draw_tokens
from blockc.runtime import Session
from blockc.runtime.opening import open_model

PASTS, STEPS = (128, 256, 512, 768, 1024, 1536, 2048, 3072), 10


def steps(session: Session, past: int) -> list[float]:
    """Milliseconds of steps after so many tokens; the first two are not counted."""
    taken: list[float] = []
    for token in draw_tokens(STEPS + 2, session.model.vocab):
        start = time.perf_counter()
        session.decode([token])
        taken.append(1000 * (time.perf_counter() - start))
    session.rewind(past)
    return taken[2:]


def main() -> None:
    folder, turns = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 8
    model = open_model(folder, "cpu", 2, None)
    assert model.step is not None, "the build has no step.onnx"
    opened = model.step()
    sessions = {
        "model": Session.of(replace(model, long=1 << 30)),
        "step": Session.of(replace(model, step=lambda: opened, long=0)),
    }
    for past in PASTS:
        if past + STEPS + 2 > model.context:
            break
        for session in sessions.values():
            session.reset()
            session.prefill([draw_tokens(past, model.vocab)], room=STEPS + 2)
        taken: dict[str, list[float]] = {name: [] for name in sessions}
        ratios: list[float] = []
        for turn in range(turns):
            now = {name: steps(sessions[name], past) for name in list(sessions)[:: 1 if turn % 2 == 0 else -1]}
            ratios.append(statistics.median(now["step"]) / statistics.median(now["model"]))
            for name, ms in now.items():
                taken[name] += ms
        low, mid, high = statistics.quantiles(ratios, n=4)
        model_ms, step_ms = (statistics.median(taken[name]) for name in ("model", "step"))
        least = min(taken["step"]) / min(taken["model"])
        print(
            f"{past}: model {model_ms:.2f} ms, step {step_ms:.2f} ms, x {mid:.3f} ({low:.3f} to {high:.3f}), "
            f"of the least {least:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
