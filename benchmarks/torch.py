"""model.py beside transformers' class, on the same weights: a training step, a prompt, one token; A B, B A, and so on.

python -m benchmarks.torch [--turns 16] [--layers 4] [--threads 1] [SPEC ...]

A model has its spec's own layers, fewer of them, a smaller vocabulary, and random weights: transformers makes and saves
them, model.py loads them. Nothing is measured where logits, losses or gradients of the two differ. A run of all specs
writes benchmarks/results/torch-DATE.json and the tables of docs/performance.md; `--render` writes the tables again.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import datetime
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers

import blockc
from benchmarks.peers.__main__ import machine_facts
from benchmarks.peers.render import DOCS, ROOT, digits, laid, markdown
from benchmarks.ratios import compare
from blockc import api
from blockc.bench.turns import order_of_turn
from blockc.language.spec import resolve_spec
from blockc.pipeline.compiled import Compiled
from blockc.proof.runners import load_module
from tests.reference.models import OUTSIDE

FORMAT = 1
RESULTS = ROOT / "benchmarks" / "results"
SPECS = ("smollm2-135m", "qwen3-0.6b", "gemma3-1b")  # plain; norms of queries and keys; windows, and a gain of 1 + w
VOCAB = 8192  # with the spec's own, the head of so few layers would be most of what is timed
TRAINED, PROMPT, PASTS, STEPS = 256, 512, (128, 1024), 16
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
OURS, THEIRS = "model.py", "transformers"
# Of fp32 that is summed in another order.
CLOSENESS = {"logits": 1e-4, "loss": 1e-5, "gradient": 1e-4}
Call = Callable[[], object]
Ready = Callable[[], Call]
Figures = dict[str, Any]


@dataclass
class Side:
    """A model, and what the two call the cache: an argument, and a field of what comes back."""

    model: Any
    cache: str
    optimizer: Any = field(init=False)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6)

    def train(self, ids: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        self.optimizer.step()
        return loss

    def prefill(self, ids: torch.Tensor) -> Any:
        """The cache behind a prompt, of which the last token's logits are computed."""
        with torch.inference_mode():
            return getattr(self.model(input_ids=ids, use_cache=True, logits_to_keep=1), self.cache)

    def decode(self, token: torch.Tensor, cache: Any) -> Any:
        with torch.inference_mode():
            for _ in range(STEPS):
                said = self.model(input_ids=token, use_cache=True, **{self.cache: cache})
                cache = getattr(said, self.cache)
            return said.logits

    def answers(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Logits of a prompt at once, and of a token behind a cache; the loss; the norm of all gradients."""
        with torch.inference_mode():
            whole = self.model(input_ids=ids).logits
        last = self.decode(ids[:, -1:], self.prefill(ids[:, :-1]))
        loss = self.model(input_ids=ids, labels=ids).loss
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters()])
        self.optimizer.zero_grad()
        return {"logits": torch.cat((whole, last), dim=1), "loss": loss.detach(), "gradient": norm}


def sides(model: Compiled, folder: Path) -> dict[str, Side]:
    """transformers' class with new weights, and model.py, which loads what that saved."""
    config = OUTSIDE[model.spec.top.name].config
    if config is None:
        raise SystemExit(f"{model.spec.top.name}: transformers has no class of it")
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(config(resolve_spec(model.spec)), attn_implementation="sdpa")
    theirs.save_pretrained(folder)
    (folder / "model.py").write_text(model.model_py(), encoding="utf-8")
    ours = load_module(folder / "model.py").Model.load(folder)
    return {OURS: Side(ours.eval(), "past_key_values"), THEIRS: Side(theirs.eval(), "cache")}


def differences(made: Mapping[str, Side], ids: torch.Tensor) -> dict[str, float]:
    """By answer, the largest error over the spread of transformers'. Raises SystemExit where one is no rounding."""
    ours, theirs = (made[name].answers(ids) for name in (OURS, THEIRS))
    found: dict[str, float] = {}
    for name, truth in theirs.items():
        spread = truth.std() if truth.dim() else truth
        found[name] = float((ours[name] - truth).abs().max() / spread)
        if not found[name] <= CLOSENESS[name]:
            raise SystemExit(
                f"{name} differ by {found[name]:.1e}, where {CLOSENESS[name]:.0e} is rounding: not measured"
            )
    return found


def measures(
    made: Mapping[str, Side], vocab: int, prompt: int, pasts: Iterable[int], trained: int
) -> Iterator[tuple[str, int, dict[str, Ready]]]:
    """(What is measured, how many pieces a call is of, and by side what readies a call that is timed.)"""
    ids = torch.randint(vocab, (1, max(prompt, trained, *pasts)), generator=torch.Generator().manual_seed(1))
    yield f"prefill {prompt}", 1, {n: partial(partial, side.prefill, ids[:, :prompt]) for n, side in made.items()}
    for past in pasts:
        caches = {n: side.prefill(ids[:, :past]) for n, side in made.items()}

        def ready(side: Side, cache: Any) -> Call:
            held = copy.deepcopy(cache)  # transformers' grows in place
            return lambda: side.decode(ids[:, :1], held)

        yield f"decode at {past}", STEPS, {n: partial(ready, side, caches[n]) for n, side in made.items()}
    yield f"training step {trained}", 1, {n: partial(partial, side.train, ids[:, :trained]) for n, side in made.items()}


def timed(ready: Mapping[str, Ready], pieces: int, turns: int) -> Figures:
    """Milliseconds of a piece by clock, after a turn that is not counted."""
    times: dict[str, dict[str, list[float]]] = {name: {clock: [] for clock in CLOCKS} for name in ready}
    for turn in range(-1, turns):
        for name in order_of_turn(ready, turn):
            call = ready[name]()
            gc.collect()
            before = {clock: now() for clock, now in CLOCKS.items()}
            call()
            after = {clock: now() for clock, now in CLOCKS.items()}
            if turn >= 0:
                for clock, taken in times[name].items():
                    taken.append(1000 * (after[clock] - before[clock]) / pieces)
    return {clock: compared(times[OURS][clock], times[THEIRS][clock]) for clock in CLOCKS}


def compared(ours: Sequence[float], theirs: Sequence[float]) -> Figures:
    """Both medians, and the ratios of the turns."""
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    return {
        OURS: statistics.median(ours), THEIRS: statistics.median(theirs), **compare(ours, theirs), "ratios": ratios,
    }  # fmt: skip


def measured(name: str, layers: int, turns: int) -> Figures:
    model = reduced(name, layers, VOCAB)
    with tempfile.TemporaryDirectory(prefix="blockc-") as folder:
        made = sides(model, Path(folder))
    differs = differences(made, torch.randint(VOCAB, (2, 96), generator=torch.Generator().manual_seed(2)))
    found: Figures = {
        "class": type(made[THEIRS].model).__name__, "layers": model.spec.top.depth,
        "parameters": sum(p.numel() for p in made[THEIRS].model.parameters()), "differs": differs, "measures": {},
    }  # fmt: skip
    pasts = [past for past in PASTS if past + STEPS <= model.spec.top.context]
    for what, pieces, ready in measures(made, VOCAB, PROMPT, pasts, TRAINED):
        found["measures"][what] = timed(ready, pieces, turns)
        print(f"{name:14} " + "  ".join(row(what, found["measures"][what])), flush=True)
    return found


def reduced(name: str, layers: int, vocab: int) -> Compiled:
    """The spec with so many layers, or as many as its pattern has."""
    path = api.bundled()[name]
    pattern = resolve_spec(api.compile(path).spec).get("layers", {}).get("pattern", [])
    once = sum(1 if isinstance(kind, str) else sum(kind.values()) for kind in pattern)
    return api.compile(path, [f"depth={max(layers, once)}", f"vocab={vocab}"])


def row(what: str, found: Figures) -> list[str]:
    wall, cpu = found["wall"], found["cpu"]
    ratios = [f"{each['ratio']:.3f} ({each['low']:.3f} to {each['high']:.3f})" for each in (wall, cpu)]
    return [what, *(digits(wall[side]) for side in (OURS, THEIRS)), *ratios]


def page(found: Figures, docs: Path = DOCS) -> None:
    """docs/performance.md between its marks."""
    threads = f"{found['threads']} thread{'s' if found['threads'] > 1 else ''}"
    facts = (
        f"{found['date']}, {found['cpu']}, {threads}, {found['turns']} turns, a vocabulary of {found['vocab']}; "
        f"blockc {found['blockc']}, torch {found['torch']}, transformers {found['transformers']}."
    )
    head = ["", f"{OURS}, ms", f"{THEIRS}, ms", "ratio", "ratio of processor time"]
    tables = [
        f"{name}, {case['layers']} layers, beside `{case['class']}`:\n\n"
        + markdown([head, *(row(what, timed) for what, timed in case["measures"].items())])
        for name, case in found["cases"].items()
    ]
    laid(docs / "performance.md", {OURS: "\n\n".join([facts, *tables])})


def keep_memory() -> None:
    """What is freed stays in the process, as an allocator for servers has it: what new pages cost is no model's."""
    mmap_threshold, trim_threshold, top_pad = -3, -1, -2  # malloc.h
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for what, size in ((mmap_threshold, 1 << 25), (trim_threshold, 1 << 30), (top_pad, 1 << 26)):
            libc.mallopt(what, size)


def run(specs: Sequence[str], layers: int, turns: int, threads: int) -> Figures:
    torch.set_num_threads(threads)
    transformers.utils.logging.disable_progress_bar()
    return {
        "format": FORMAT, "date": datetime.date.today().isoformat(), "blockc": blockc.__version__,
        **{name: version(name) for name in ("torch", "transformers")}, **machine_facts(range(threads)),
        "turns": turns, "vocab": VOCAB, "cases": {name: measured(name, layers, turns) for name in specs},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.torch", description=__doc__.splitlines()[0])
    parser.add_argument("specs", nargs="*", metavar="SPEC", help=f"by default {', '.join(SPECS)}")
    parser.add_argument("--turns", type=int, default=16)
    parser.add_argument("--layers", type=int, default=4, help="at least; a pattern of layers is laid once in any case")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--render", action="store_true", help="write the tables of the newest results again")
    said = parser.parse_args()
    if said.render:
        page(json.loads(sorted(RESULTS.glob("torch-*.json"))[-1].read_text()))
        return
    keep_memory()
    found = run(said.specs or SPECS, said.layers, said.turns, said.threads)
    if not said.specs:
        (RESULTS / f"torch-{found['date']}.json").write_text(json.dumps(found, indent=1) + "\n")
        page(found)


if __name__ == "__main__":
    main()
