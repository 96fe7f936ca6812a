"""onnxruntime on the CPU: the portable graph against its own dialect, in one run, A B A B, medians.

python benchmarks/dialects.py [SPEC]        smollm2-135m by default, with random weights
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import numpy as np
import onnxruntime

from blockc import api
from blockc.compile import Compiled, Dialect
from blockc.weights import random_parameters

CASES = (("prefill 128", 0, 128), ("prefill 512", 0, 512), ("decode at 128", 128, 1), ("decode at 1024", 1024, 1))
ROUNDS = 9


def session(model: Compiled, dialect: Dialect, params: dict[str, Any]) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    data = model.onnx("last", weights=params, dialect=dialect)
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def feeds(session: Any, past: int, new: int) -> dict[str, Any]:
    given: dict[str, Any] = {
        "input_ids": np.arange(new)[None] % 50,
        "attention_mask": np.ones((1, past + new), np.int64),
        "position_ids": np.arange(past, past + new)[None],
    }
    for value in session.get_inputs():
        if value.name.startswith("past_key_values."):
            given[value.name] = np.zeros((1, value.shape[1], past, value.shape[3]), np.float32)
    known = {value.name for value in session.get_inputs()}
    return {name: array for name, array in given.items() if name in known}


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    model = api.compile(api.bundled()[name])
    params = random_parameters(model.function, 0)
    sessions = {dialect: session(model, dialect, params) for dialect in ("standard", "ort")}
    print(f"{name}, onnxruntime {onnxruntime.__version__}, 2 threads, logits of the last token, milliseconds")
    for label, past, new in CASES:
        times: dict[str, list[float]] = {dialect: [] for dialect in sessions}
        for _ in range(ROUNDS):
            for dialect, opened in sessions.items():
                given = feeds(opened, past, new)
                start = time.perf_counter()
                opened.run(None, given)
                times[dialect].append(1000 * (time.perf_counter() - start))
        standard, ort = (statistics.median(times[dialect][1:]) for dialect in ("standard", "ort"))
        print(f"{label:15}  standard {standard:7.1f}  ort {ort:7.1f}  ratio {standard / ort:5.2f}")


if __name__ == "__main__":
    main()
