"""The golden matrix: backend x variant x dtype, each compared with the float64 oracle on random weights."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from blockc.basics import floats
from blockc.basics.distribution import EXTRAS, extra_command
from blockc.basics.floats import FloatType
from blockc.basics.progress import Progress, no_progress
from blockc.graph.contract import LOGITS
from blockc.graph.target import Target
from blockc.ir import GraphError, inline
from blockc.ort.kernels import COMPUTES
from blockc.pipeline.compiled import PORTABLE, Compiled
from blockc.proof.cases import Case, cases
from blockc.proof.comparison import TOLERANCE, Row, Truth, compare_run
from blockc.proof.expert_probes import ExpertProbe, expert_probes_of
from blockc.proof.probes import KERNEL, Probe, probes_of, why_not_probed
from blockc.proof.probes import TOLERANCE as OF_KERNELS
from blockc.proof.routes import Routes, routes_of, widen_margins
from blockc.proof.runners import Onnx, Oracle, Runner, Torch
from blockc.weights.rules import random_parameters

SEED = 20
# NumPy's name of each float type in which graphs run on this machine.
RUN_AS = {word: np.dtype(one.numpy).name for word, one in floats.FLOATS.items() if word in COMPUTES["cpu"]}
TARGETS = (PORTABLE, Target("cpu"))  # every build is proved on these, and on its own target


@dataclass(frozen=True)
class Proof:
    """All runs, and what could not be run."""

    name: str
    rows: tuple[Row, ...]
    missing: dict[str, str] = field(default_factory=dict[str, str])
    inapplicable: dict[str, str] = field(default_factory=dict[str, str])  # what a backend cannot run, and why
    routes: Routes | None = None  # of a model with experts

    def __repr__(self) -> str:
        return f"<Proof {self.name}: {self.line}>"

    @property
    def holds(self) -> bool:
        return all(row.holds for row in self.rows)

    @property
    def complete(self) -> bool:
        return self.holds and not self.missing

    @property
    def line(self) -> str:
        """The one line that a build ends with."""
        failed = [row for row in self.rows if not row.holds]
        if failed:
            worst = max(failed, key=lambda row: row.error)
            at = f"; first at {worst.differs}" if worst.differs else ""
            of = "the product's size" if worst.backend == KERNEL else "the logits' spread"
            return (
                f"wrong: {worst.backend} differs from the oracle in {len(failed)} of {len(self.rows)} runs, "
                f"by {worst.error:.1e} of {of} ({worst.variant}){at}"
            )
        if self.missing:
            absent = ", ".join(f"{package} {why}" for package, why in self.missing.items())
            return f"not proved: {absent}: {extra_command(*(EXTRAS[package] for package in self.missing))}"
        backends = list(dict.fromkeys(row.backend.partition(",")[0] for row in self.rows))
        half, single, kernels = self._worst("float16"), self._worst("float64", "float32"), self._worst("int8")
        return (
            f"proved: {' = '.join(backends)} on {self.name}, {len(self.rows)} runs, largest error {single:.1e} "
            f"of the logits' spread (tolerance {TOLERANCE['float32']:.0e})"
            + (f", in fp16 {half:.1e} ({TOLERANCE['float16']:.0e})" if half else "")
            + (f", kernels of int8 {kernels:.1e} ({OF_KERNELS:.0e})" if kernels else "")
            + (f"; {self.routes}" if self.routes else "")
        )

    def _worst(self, *dtypes: str) -> float:
        return max((row.error for row in self.rows if row.dtype in dtypes), default=0.0)

    def table(self) -> str:
        """The golden matrix as text, and the line that sums it up."""
        head = ("backend", "variant", "dtype", "max error", "argmax", "tolerance", "")
        lines = [head, *(row.cells for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        texts = ["  ".join(f"{cell:{w}}" for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        told = {**{package: f"{why}, not run" for package, why in self.missing.items()}, **self.inapplicable}
        absent = [f"{what}: {why}" for what, why in told.items()]
        return "\n".join([*texts, *absent, self.line])

    def data(self) -> dict[str, Any]:
        """As JSON has it, which knows no infinity."""
        rows = [
            {**asdict(row), "error": row.error if np.isfinite(row.error) else None, "holds": row.holds}
            for row in self.rows
        ]
        return {
            "name": self.name,
            "holds": self.holds,
            "complete": self.complete,
            "missing": self.missing,
            "inapplicable": self.inapplicable,
            "routes": asdict(self.routes) if self.routes else None,
            "rows": rows,
        }


def targets_of(target: Target, *others: Target) -> tuple[Target, ...]:
    """The targets that a build is proved on: portable, CPU, its own with all logits, and its own with only some.

    `others` are those of further graphs of the build.
    """
    some = [target] if target.top or target.last > 1 else []
    return tuple(dict.fromkeys((*TARGETS, replace(target, logits="all", last=1), *some, *others)))


def prove(
    twin: Compiled,
    model_py: Path | None = None,
    given: tuple[Target, bytes] | None = None,
    targets: tuple[Target, ...] = TARGETS,
    progress: Progress = no_progress,
    only: Collection[str] | None = None,
    whole: Compiled | None = None,
) -> Proof:
    """Runs every backend on every case of a model that is small enough, or on the cases named in `only`.

    `whole` is the model that the twin is of: each kind of product with codes in it is run. `model_py` and `given`, a
    target with its model.onnx, are proved instead of what is emitted now. Graphs in bf16 are not run, because
    onnxruntime's CPU kernels do not take bf16.
    """
    rows: list[Row] = []
    inapplicable: dict[str, str] = {}
    targets = tuple(target for target in targets if _has_graph(twin, target, inapplicable))
    chosen = _choose_cases(twin, inapplicable, only, any(target.step for target in targets))
    sequences = {(row.tobytes(), case.first): (row, case.first) for case in chosen for row in case.rows}
    params, routes = widen_margins(
        twin.function, random_parameters(twin.function, SEED), list(sequences.values()), SEED
    )
    truth = Truth(twin, params)
    missing = {package: "missing" for package in ("torch", "onnxruntime") if importlib.util.find_spec(package) is None}
    with tempfile.TemporaryDirectory(prefix="blockc-") as folder:
        makers = list(_runner_makers(twin, Path(folder), missing, model_py, given, targets))
        for made, maker in enumerate(makers):
            runner = maker()  # one by one, so that memory holds one graph
            compared = not routes_of(inline(runner.function))  # whether the experts that it chooses were compared
            for ran, case in enumerate(chosen):
                progress(f"proving {twin.spec.name}", made * len(chosen) + ran, len(makers) * len(chosen))
                if case.labels and not _takes_labels(runner):
                    continue
                if not (case.masked or isinstance(runner, Torch)):
                    continue  # a graph always takes a mask
                if case.by_token and not runner.contract.one_token:
                    continue  # a decode has such calls too, and is a case of every other graph
                if runner.contract.one_token and not case.by_token and case.chunks != (1,):
                    inapplicable[f"{runner.name}, calls of several tokens"] = "it takes one new token of each row"
                elif why := _why_inapplicable(runner, case):
                    inapplicable[f"{runner.name}, {case.name}"] = why
                else:
                    rows.append(compare_run(truth, runner, case, choices=not compared))
                    compared = True
    if "onnxruntime" not in missing:
        rows.extend(_probe_kernels(whole or twin, targets, inapplicable))
    return Proof(twin.spec.name, tuple(rows), missing, inapplicable, routes)


def _probe_kernels(model: Compiled, targets: Sequence[Target], inapplicable: dict[str, str]) -> Iterator[Row]:
    """A run of each kind of product with codes that the targets' graphs have, at the level of a build."""
    for target in (target for target in targets if target.quant):
        flat = model.flatten(target)
        probes = [*probes_of(flat), *expert_probes_of(flat)]
        if probes and (why := why_not_probed(target)):
            inapplicable[KERNEL] = why
            continue
        for probe in probes:
            yield run_probe(probe)


def run_probe(probe: Probe | ExpertProbe) -> Row:
    try:
        error, agreement = probe.run()
    except Exception as failure:  # onnxruntime's errors have no common base
        first = (str(failure).splitlines() or [""])[0]
        return Row(
            KERNEL, probe.name, "int8", float("inf"), 0.0, OF_KERNELS, f"{type(failure).__name__}: {first[:200]}"
        )
    return Row(KERNEL, probe.name, "int8", error, agreement, OF_KERNELS)


def _runner_makers(
    twin: Compiled,
    folder: Path,
    missing: dict[str, str],
    model_py: Path | None,
    given: tuple[Target, bytes] | None,
    targets: tuple[Target, ...],
) -> Iterator[Callable[[], Runner]]:
    """A function for each backend that makes its runner when called."""
    yield lambda: Oracle(twin.served)
    if "torch" not in missing:
        yield lambda: Torch(model_py or _write_model_py(twin, folder), twin.served)
    for target in targets:
        yield from _target_makers(twin, make_exact(target), missing, given)


def _has_graph(twin: Compiled, target: Target, inapplicable: dict[str, str]) -> bool:
    """Whether there is a graph of one new token, if the target wants one: not every attention has that form."""
    if target.step:
        try:
            twin.flatten(target)
        except GraphError as why:
            inapplicable[f"onnxruntime{_target_text(target)}"] = str(why)
            return False
    return True


def _write_model_py(twin: Compiled, folder: Path) -> Path:
    path = folder / "model.py"
    path.write_text(twin.model_py(), encoding="utf-8")
    return path


def make_exact(target: Target) -> Target:
    """With kernels that multiply in the model's float type. Others round their input: 1e-7 becomes a whole step."""
    return target if target.quant is None else replace(target, quant=replace(target.quant, level=0))


def _target_makers(
    twin: Compiled, target: Target, missing: dict[str, str], given: tuple[Target, bytes] | None
) -> Iterator[Callable[[], Runner]]:
    """Makers for a target: the oracle on its function, if passes changed that, and onnxruntime on its graphs."""
    if target.cache == "buffer" and not twin.contract(PORTABLE).held:
        return
    if twin.flatten(target) is not twin.graph:
        yield lambda: Oracle(twin.flatten(target), f"oracle{_target_text(target)}", derived=twin.derivations(target))
    if "onnxruntime" in missing or target.dtype not in RUN_AS:
        return
    own = target.top or target.last > 1 or target.step or not twin.by_token
    for one in (target,) if own else (replace(target, logits="all"), replace(target, logits="last")):
        yield partial(_make_onnx, twin, one, given[1] if given is not None and given[0] == one else None)
    if target.provider == "cuda" and target.dtype != "fp32":
        # The same nodes in float32, for which the CPU has kernels: the bound is as tight as the portable graph's.
        yield partial(_make_onnx, twin, target, dtype="fp32")


def _make_onnx(twin: Compiled, target: Target, model: bytes | None = None, dtype: FloatType | None = None) -> Onnx:
    """onnxruntime on the given graph, or on the one emitted now, in the target's float type or in `dtype`."""
    real = dtype or target.dtype
    graph = twin.onnx(target, dtype=real) if model is None else model
    return Onnx(
        graph, twin.flatten(target), f"onnxruntime{_target_text(target)}", RUN_AS[real], twin.derivations(target)
    )


def _target_text(target: Target) -> str:
    """How a target differs from the portable one, for the name of a backend."""
    said = {
        "fused": target.provider is not None,
        "for cuda": target.provider == "cuda",
        "by rows": target.padding == "right" and not target.step,
        "packed": target.packed,
        "one token": target.step,
        "buffer": target.cache == "buffer",
        "last token": target.logits == "last" and target.last == 1,
        f"last {target.last} tokens": target.last > 1,
        f"top {target.top}": target.top > 0,
        f"opset {target.opset}": target.opset is not None,
        target.quant.name if target.quant else "": target.quant is not None,
    }
    return "".join(f", {word}" for word, holds in said.items() if holds)


def _takes_labels(runner: Runner) -> bool:
    """An ONNX graph has no labels, and the loss needs all logits."""
    contract = runner.contract
    return not isinstance(runner, Onnx) and contract.last is None and contract.output(LOGITS) is not None


def _why_inapplicable(runner: Runner, case: Case) -> str:
    """Why a backend does not take a case; empty if it does."""
    if isinstance(runner, Onnx) and runner.contract.one_row and case.several_on_a_past:
        return "the kernel takes several new tokens on a past in one row only"
    return ""


def _choose_cases(
    twin: Compiled, inapplicable: dict[str, str], only: Collection[str] | None, by_token: bool
) -> list[Case]:
    """The cases within the context whose calls and sequences all have lengths at which rope is the same."""
    chosen: list[Case] = []
    unlike: list[str] = []
    cached = bool(twin.contract(PORTABLE).held)
    for case in cases(twin.spec.top.vocab, cached, twin.sides, only, by_token):
        if case.first and max(case.lengths) > twin.spec.top.context:
            inapplicable[case.name] = "the context ends before"
        elif all(side.are_alike(case.lengths) for side in twin.sides):
            chosen.append(case)
        else:
            unlike.append(case.name)
    if unlike:
        inapplicable["; ".join(unlike)] = "calls of different lengths, at which rope differs by definition"
    return chosen
