"""A mixture of experts in ONNX: the Loop of the standard dialect beside onnxruntime's own kernel, turn by turn.

python -m benchmarks.experts [TURNS [QUANT]]     9 turns, 2 at least; W 1024, F 512, 8 of 64 experts, one thread

A turn is A B, the next one B A, in one process on one thread, the route included. Medians in milliseconds, and of the
turns' ratios. With a recipe such as int4, both multiply by codes: the kernel by QMoE, the Loop in floats.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import onnxruntime

from blockc.emit.onnx import embed_arrays, emit_onnx, serialise
from blockc.graph.quant import Quant, parse_quant
from blockc.graph.target import Target
from blockc.ir import Array, B, Function, Input, Node, S, node, parameters_of, tensor
from blockc.ir.derive import PassResult, add_derived
from blockc.ops import Experts, Route, Silu
from blockc.ort.fuse import fuse
from blockc.ort.lowering import swaps_for
from blockc.ort.quantise import QuantiseMatrices
from blockc.weights.rules import random_parameters

WIDTH, INNER, COUNT, ACTIVE = 1024, 512, 64, 8
ROWS, SECONDS = (1, 8, 64), 0.4  # rows of a call; the least time of a turn


def make_layer() -> Function:
    """x, logits -> the sum of the chosen experts."""
    x, logits = (Node(Input(tensor("float", B, S, n)), (), name) for name, n in (("x", WIDTH), ("logits", COUNT)))
    route = node(Route(COUNT, ACTIVE, "softmax", normalise=True), logits[0], name="route")
    experts = node(Experts(COUNT, WIDTH, INNER, Silu()), x[0], route[0], route[1], name="experts")
    return Function("Layer", (x, logits), (("y", experts[0]),))


def open_graphs(layer: Function, quant: Quant | None) -> dict[str, onnxruntime.InferenceSession]:
    """The two graphs with the same random weights."""
    drawn = {path: a.astype(np.float32) for path, a in random_parameters(layer, 0).items()}
    made = fuse(layer, Target("cpu", packed=True))
    drawn = add_derived(drawn, made.derived)
    return {"loop": _open(layer, drawn, quant), "kernel": _open(made.function, drawn, quant)}


def _open(function: Function, drawn: dict[str, Array], quant: Quant | None) -> onnxruntime.InferenceSession:
    made = PassResult(function) if quant is None else QuantiseMatrices(quant)(function)
    held = parameters_of(made.function)
    weights = {path: a for path, a in add_derived(drawn, made.derived).items() if path in held}
    weights = {path: a.astype(np.float32) if a.dtype.kind == "f" else a for path, a in weights.items()}
    model = serialise(emit_onnx(made.function, {}, embed_arrays(weights), swaps=swaps_for(Target("cpu"))))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def time_turn(call: Callable[[], object]) -> float:
    """Milliseconds of a call, the median of a turn."""
    taken: list[float] = []
    start = time.perf_counter()
    while len(taken) < 3 or time.perf_counter() - start < SECONDS:
        begin = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - begin))
    return statistics.median(taken)


def main() -> None:
    turns = max(2, int(sys.argv[1])) if len(sys.argv) > 1 else 9
    sessions = open_graphs(make_layer(), parse_quant(sys.argv[2]) if len(sys.argv) > 2 else None)
    for rows in ROWS:
        random = np.random.RandomState(rows)
        feeds = {
            name: random.standard_normal((1, rows, n)).astype(np.float32)
            for name, n in (("x", WIDTH), ("logits", COUNT))
        }
        outputs = {name: np.asarray(session.run(None, feeds)[0]) for name, session in sessions.items()}
        off = np.abs(outputs["loop"] - outputs["kernel"]).max() / outputs["kernel"].std()
        taken: dict[str, list[float]] = {name: [] for name in sessions}
        for turn in range(turns):
            for name in list(sessions)[:: 1 if turn % 2 == 0 else -1]:
                taken[name].append(time_turn(partial(sessions[name].run, None, feeds)))
        ratios = [a / b for a, b in zip(taken["loop"], taken["kernel"], strict=True)]
        low, mid, high = statistics.quantiles(ratios, n=4)
        loop, kernel = (statistics.median(taken[name]) for name in ("loop", "kernel"))
        print(
            f"{rows} rows: kernel {kernel:.2f} ms, loop {loop:.2f} ms, x {mid:.2f} ({low:.2f} to {high:.2f}), "
            f"they differ by {off:.0e} of the spread",
            flush=True,
        )


if __name__ == "__main__":
    main()
