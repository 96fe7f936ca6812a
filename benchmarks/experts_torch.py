"""A mixture of experts in model.py beside transformers' own forms of it, eager and grouped, turn by turn.

python -m benchmarks.experts_torch [TURNS]     7 turns; W 1024, F 512, one thread

All get the same experts and weights of each token. In a turn each form is called once, in the next one in the opposite
order. Medians in milliseconds, and of the turns' ratios to the faster form of transformers.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from blockc.language.spec import from_tree
from blockc.pipeline.compiled import compile_spec
from blockc.proof.runners import load_module
from blockc.source import parse

WIDTH, INNER = 1024, 512
SIZES = ((8, 2), (64, 8), (128, 8))  # experts, and those of a token
ROWS = (1, 8, 64, 512)
SPEC = """\
blockc: 1
name: experts
vocab: 16
width: {width}
depth: 1
context: 1024
attention: {{heads: 8, rope: {{theta: 10000, pairing: half}}}}
mlp:
  type: swiglu
  width: {inner}
  experts: {{count: {count}, active: {active}, router: {{scores: softmax, normalise: true}}}}
norm: {{type: rms, eps: 1e-5, placement: pre}}
head: {{tied: true}}
"""


def make_ours(count: int, active: int, folder: Path) -> Any:
    """The module of experts of an emitted model.py."""
    text = SPEC.format(width=WIDTH, inner=INNER, count=count, active=active)
    path = folder / f"model_{count}.py"
    path.write_text(compile_spec(from_tree(parse(text, "experts.yaml"))).model_py(), encoding="utf-8")
    return load_module(path).Model().layers[0].mlp.experts


def make_theirs(ours: Any, count: int, active: int, form: str) -> Any:
    """transformers' module with the same matrices."""
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    config = MixtralConfig(
        hidden_size=WIDTH, intermediate_size=INNER, num_local_experts=count, num_experts_per_tok=active
    )
    config._experts_implementation = form
    module = MixtralExperts(config).to(ours.gate.device, ours.gate.dtype)
    with torch.no_grad():
        module.gate_up_proj.copy_(torch.cat((ours.gate, ours.up), 1))
        module.down_proj.copy_(ours.down)
    return module


def time_call(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - begin)


def compare(ours: Any, theirs: dict[str, Any], rows: int, turns: int) -> str:
    like = ours.gate
    x = torch.randn(1, rows, WIDTH, device=like.device, dtype=like.dtype)
    weights, chosen = torch.randn(1, rows, len(like), device=like.device).softmax(-1).topk(theirs["active"])
    weights = weights.to(like.dtype)
    calls: dict[str, Callable[[], Any]] = {"blockc": partial(ours, x, chosen, weights)}
    for form in ("eager", "grouped_mm"):
        calls[form] = partial(theirs[form], x[0], chosen[0], weights[0])
    outputs = {name: call().view(rows, WIDTH) for name, call in calls.items()}
    off = max(float((outputs["blockc"] - each).abs().max() / each.std()) for each in outputs.values())
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns):
        for name in list(calls)[:: 1 if turn % 2 == 0 else -1]:
            taken[name].append(time_call(calls[name]))
    faster = min(("eager", "grouped_mm"), key=lambda form: statistics.median(taken[form]))
    ratios = [own / other for own, other in zip(taken["blockc"], taken[faster], strict=True)]
    medians = "  ".join(f"{name} {statistics.median(each):8.2f}" for name, each in taken.items())
    return f"{medians}  ratio {statistics.median(ratios):.2f}  off by {off:.0e}"


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    torch.set_num_threads(1)
    for line in compare_forms(turns):
        print(line, flush=True)


def compare_forms(turns: int, device: str = "cpu", quick: bool = False) -> Iterator[str]:
    """A line for each size and number of rows: in fp32 on the CPU, in bf16 on a GPU."""
    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for count, active in SIZES[:1] if quick else SIZES:
            ours = make_ours(count, active, Path(folder)).to(device, dtype)
            theirs = {form: make_theirs(ours, count, active, form) for form in ("eager", "grouped_mm")}
            for rows in ROWS[:2] if quick else ROWS:
                found = compare(ours, {**theirs, "active": active}, rows, turns)
                yield f"E {count:3} k {active} rows {rows:3}:  {found}"


if __name__ == "__main__":
    main()
