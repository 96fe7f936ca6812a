"""What the command line does, as Python. Where a spec is wrong every function raises SpecError and touches no file.

from blockc import api
model = api.compile("specs/llama3-8b.yaml")            # the line, to a verified graph
print(api.show(model))                                 # the block drawn, its matrices, its budget
built = api.build(model, "out/llama3-8b")              # model.py, model.onnx, ...: all or nothing
print(built.line)                                      # proved: oracle = torch = onnxruntime ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from blockc import folder, interp
from blockc.checkpoint import open_checkpoint
from blockc.compile import Compiled, Dialect, Logits, compiled
from blockc.ir import Function, Value, called, is_call
from blockc.ops import Add, Array
from blockc.plan import Float, Mode, Plan, plan
from blockc.proof import Proof, prove
from blockc.report import Report, expect_misses, report
from blockc.shrink import shrink
from blockc.source import Finding, SpecError, finding, key_place
from blockc.spec import load
from blockc.weights import LayoutError, group_sizes, layout, patterns, random_parameters

__all__ = [
    "Built",
    "NotProvedError",
    "Step",
    "build",
    "bundled",
    "check",
    "compile",
    "figures",
    "show",
    "spec_files",
    "trace",
    "twin",
    "verify",
]


def compile(path: Path | str, assignments: Sequence[str] = ()) -> Compiled:  # noqa: A001
    """The spec at `path`, with `key.path=value` assignments laid over it, as a verified graph.

    Raises SpecError also where a figure of `expect` or the checkpoint's layout does not hold. `expect` speaks of the
    spec as it is written, so with assignments it is not compared.
    """
    model = compiled(load(path, tuple(assignments)))
    if misses := _misses(model, expectations=not assignments):
        raise SpecError(misses)
    return model


def _misses(model: Compiled, expectations: bool) -> list[Finding]:
    found = expect_misses(model.spec, model.decoder, model.function) if expectations else []
    if name := model.spec.top.checkpoint:
        try:
            patterns(layout(name), model.function, group_sizes(model.function))
        except LayoutError as error:
            place = key_place(model.spec.tree, ("checkpoint",))
            found.append(
                finding(place, " ".join(str(error).split()), hint="leave checkpoint out for a model of no family")
            )
    return found


def bundled() -> dict[str, Path]:
    """The specs that come with blockc, by name."""
    inside = Path(__file__).parent / "specs"
    folder_ = inside if inside.is_dir() else Path(__file__).parent.parent / "specs"
    return {path.stem: path for path in sorted(folder_.glob("*.yaml"))}


def spec_files(path: Path) -> list[Path]:
    """The spec files at a path: itself, or every .yaml and .yml below a folder."""
    if not path.is_dir():
        return [path]
    return sorted(p for p in path.rglob("*") if p.suffix in (".yaml", ".yml") and p.is_file())


def check(path: Path | str, assignments: Sequence[str] = ()) -> tuple[Finding, ...]:
    """All that is wrong with one spec file; empty where it is right."""
    try:
        compile(path, assignments)
    except SpecError as error:
        return error.findings
    return ()


def figures(
    model: Compiled,
    *,
    context: int | None = None,
    batch: int = 1,
    dtype: str = "bf16",
    device_memory: int | None = None,
) -> Report:
    """Parameters, FLOPs, cache and memory at a context (of the spec by default), a batch and a dtype."""
    return report(
        model.spec,
        model.decoder,
        model.function,
        context=context,
        batch=batch,
        dtype=dtype,
        device_memory=device_memory,
    )


def show(model: Compiled, figured: Report | None = None) -> str:
    """The block drawn in text, the table of its matrices, and its figures."""
    from blockc.show import text

    return text(model.spec, model.decoder, figured or figures(model))


def twin(model: Compiled) -> Compiled:
    """The model small enough to run: its tiny twin, or itself where it is one."""
    return compiled(shrink(model.spec))


@dataclass(frozen=True)
class Built:
    """The files of a build, and its proof."""

    files: tuple[Path, ...]
    proof: Proof | None
    notes: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        return self.proof.line if self.proof else "not proved: the proof was not asked for"


class NotProvedError(Exception):
    """The proof failed, or could not be made where it was required; nothing was written."""

    def __init__(self, proof: Proof) -> None:
        super().__init__(proof.line)
        self.proof = proof


def build(
    model: Compiled,
    out: Path | str | None = None,
    *,
    logits: Logits = "all",
    proof: bool = True,
    require_proof: bool = False,
    weights: Path | str | None = None,
    mode: Mode = "link",
    dtype: Float = "fp32",
    dialect: Dialect = "standard",
) -> Built:
    """Writes model.py, model.onnx, graph.txt, report.json, spec.resolved.yaml, verify.json, manifest.json to `out`.

    Proves the twin first; raises NotProvedError, with nothing written, where a backend is wrong, and with
    `require_proof` also where torch or onnxruntime is missing. `out` is generated/<name> by default.

    `weights` is a checkpoint: a .safetensors or .gguf file, or a folder. The model then has its parameters,
    as references: with `link` into the checkpoint's own files, hard-linked beside it, with `pack` into
    model.onnx.data. It computes in `dtype`. Raises CheckpointError naming all that does not fit.

    `dialect` is standard, which any runtime takes, or ort: onnxruntime's own operators, for its CPU provider.
    """
    planned = None if weights is None else _planned(model, Path(weights), mode, dtype)
    proved = prove(twin(model)) if proof or require_proof else None
    if proved is not None and (not proved.holds or (require_proof and not proved.complete)):
        raise NotProvedError(proved)
    written = folder.write(
        model, Path(out) if out else Path("generated") / model.spec.name, logits, proved, planned, dialect
    )
    return Built(written.files, proved, (*written.notes, *(_left_unfused(model) if dialect == "ort" else ())))


def _left_unfused(model: Compiled) -> list[str]:
    """Each reason for which an op is not fused, and how often it holds."""
    counts = Counter(left.reason for left in model.fused.unfused)
    return [f"left unfused, {count} times: {reason}" for reason, count in counts.items()]


def _planned(model: Compiled, weights: Path, mode: Mode, dtype: Float) -> Plan:
    return plan(model.function, open_checkpoint(weights), model.spec.top.checkpoint, mode, dtype)


def verify(path: Path | str, assignments: Sequence[str] = ()) -> folder.Checked:
    """The golden matrix of a spec's twin, or of the files in a build's folder."""
    if Path(path).is_dir():
        return folder.check(Path(path))
    return folder.Checked((), (), prove(twin(compile(path, assignments))))


@dataclass(frozen=True)
class Step:
    """The stream (S, width) after one addition."""

    name: str
    stream: Array

    @property
    def rms(self) -> Array:
        """sqrt(mean(x^2)) of each token"""
        return np.sqrt(np.mean(self.stream**2, axis=-1))


def trace(model: Compiled, tokens: Sequence[int], seed: int = 0) -> list[Step]:
    """The stream before the first layer and after each addition, in float64, with random parameters of the seed.

    Raises ValueError for a token outside the vocabulary.
    """
    if bad := [t for t in tokens if not 0 <= t < model.spec.top.vocab]:
        raise ValueError(f"token {bad[0]} is outside the vocabulary of {model.spec.top.vocab}")
    ids = np.array([tokens], np.int64)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(len(tokens))[None]}
    wanted = list(_additions(model.function))
    seen: dict[str, Array] = {}
    interp.run(model.function, inputs, random_parameters(model.function, seed), seen.__setitem__)
    return [Step(name, seen[name][0]) for name in wanted]


def _additions(root: Function) -> Iterator[str]:
    """The value that enters the first layer, then every sum that a block hands on."""
    layers = [n for n in root.nodes if is_call(n)]
    if layers:
        yield layers[0].inputs[0].name
    for layer in layers:
        function = called(layer)
        inner = {v.node for n in function.nodes if isinstance(n.op, Add) for v in n.inputs if _only_summed(function, v)}
        for n in function.nodes:
            if isinstance(n.op, Add) and n not in inner:
                yield f"{layer.name}.{n.name}"


def _only_summed(function: Function, value: Value) -> bool:
    """A sum of branches on its way into the residual: no stream yet."""
    users = [n for n in function.nodes if value in n.inputs]
    ends = [v for _, v in function.outputs]
    return isinstance(value.node.op, Add) and len(users) == 1 and value not in ends
