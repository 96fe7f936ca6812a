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
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from blockc import folder, interp
from blockc.adapter import open_adapter
from blockc.checking import check_file, check_text, misses
from blockc.checkpoint import has_weights, open_checkpoint
from blockc.compile import PORTABLE, Compiled, compiled, compiled_tree
from blockc.distribution import specs
from blockc.errors import BlockcError
from blockc.importing import config_file, read_config
from blockc.importtext import spec_text
from blockc.ir import Function, Value, called, is_call
from blockc.ops import Add, Array
from blockc.plan import Mode, Plan, plan
from blockc.progress import Progress, silent
from blockc.proof import Proof, prove, targets_of
from blockc.report import Report, report
from blockc.shrink import shrink
from blockc.source import Finding, Mapping, SpecError, override, read
from blockc.spec import from_tree
from blockc.target import Target
from blockc.weights import CheckpointError, group_sizes, layout, matched, misfit, random_parameters, rules

__all__ = [
    "Built",
    "ImportedSpec",
    "NotProvedError",
    "Step",
    "build",
    "bundled",
    "check",
    "check_text",
    "compile",
    "figures",
    "has_weights",
    "import_spec",
    "imported_spec",
    "show",
    "spec_files",
    "trace",
    "twin",
    "verify",
]


def compile(path: Path | str, assignments: Sequence[str] = ()) -> Compiled:  # noqa: A001
    """The spec at `path`, with `key.path=value` assignments laid over it, as a verified graph.

    A config.json, or a folder with one, is imported.
    Raises SpecError also where a figure of `expect` or the checkpoint's layout does not hold. `expect` speaks of the
    spec as it is written, so with assignments it is not compared.
    """
    tree, warnings = _tree(Path(path))
    for assignment in assignments:
        tree = override(tree, assignment)
    model = replace(compiled_tree(tree), warnings=warnings)
    if found := misses(model, expectations=not assignments):
        raise SpecError(found)
    return model


def _tree(path: Path) -> tuple[Mapping, tuple[Finding, ...]]:
    """(The spec; the warnings of its import, where it is one.)"""
    config = config_file(path)
    if config is None:
        return read(path), ()
    imported = read_config(config)
    return imported.tree, imported.warnings


@dataclass(frozen=True)
class ImportedSpec:
    """The text of an imported spec; the warnings are of keys that are taken otherwise than they say."""

    text: str
    warnings: tuple[Finding, ...]


def import_spec(path: Path | str) -> str:
    """The text of a spec for a config.json, or for the folder of a checkpoint, as a person would write it.

    Raises SpecError naming every key and value of config.json that is not understood, by line and column. What the
    folder's weights are named and shaped is compared with the spec; CheckpointError names all that does not fit.
    """
    return imported_spec(path).text


def imported_spec(path: Path | str) -> ImportedSpec:
    """The same, with what is to be known of it."""
    file = config_file(Path(path)) or Path(path)
    imported = read_config(file)
    model = compiled(from_tree(imported.tree))
    if found := misses(model):
        raise SpecError(found)
    weighed = Path(path).is_dir() and any(file.parent.glob("*.safetensors"))
    if weighed:
        _fits(model, file.parent)
    return ImportedSpec(spec_text(imported, model, weighed), imported.warnings)


def _fits(model: Compiled, folder: Path) -> None:
    """Raises CheckpointError where the headers of a folder's weights are not those of the model; no tensor is read."""
    if model.spec.top.checkpoint is None:
        raise CheckpointError(
            f"{folder}: no layout reads how such a model's tensors lie in files: import config.json alone"
        )
    held = open_checkpoint(folder)
    says = held.unlike(model.function, model.spec.top.context)
    named = layout(model.spec.top.checkpoint or "")
    match = matched(rules(named, model.function, group_sizes(model.function)), held.tensors)
    if faults := [*says, *match.faults]:
        raise misfit(faults)


def bundled() -> dict[str, Path]:
    """The specs that come with blockc, by name."""
    return specs()


def spec_files(path: Path) -> list[Path]:
    """The spec files at a path: itself, or every .yaml and .yml below a folder."""
    if not path.is_dir():
        return [path]
    return sorted(p for p in path.rglob("*") if p.suffix in (".yaml", ".yml") and p.is_file())


def check(path: Path | str, assignments: Sequence[str] = ()) -> tuple[Finding, ...]:
    """All findings of one spec file, errors and warnings, by place; empty where it is clean."""
    return check_file(str(path), assignments)


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


class NotProvedError(BlockcError):
    """The proof failed, or could not be made where it was required; nothing was written."""

    def __init__(self, proof: Proof) -> None:
        super().__init__(proof.line)
        self.proof = proof


def build(
    model: Compiled,
    out: Path | str | None = None,
    *,
    target: Target = PORTABLE,
    proof: bool = True,
    require_proof: bool = False,
    weights: Path | str | None = None,
    mode: Mode | None = None,
    runtime: folder.Runtime | None = None,
    deep: bool = False,
    adapters: Sequence[Path | str] = (),
    force: bool = False,
    progress: Progress = silent,
) -> Built:
    """Writes model.py, model.onnx, graph.txt, report.json, spec.resolved.yaml, verify.json, manifest.json to `out`.

    Proves the twin first; raises NotProvedError, with nothing written, where a backend is wrong, and with
    `require_proof` also where torch or onnxruntime is missing. `out` is generated/<name> by default.

    `weights` is a checkpoint: a .safetensors or .gguf file, or a folder. The model then has its parameters,
    as references: with `link` into the checkpoint's own files, hard-linked beside it, with `pack` into
    model.onnx.data; where neither is said, `link` if most of them are in the model's float type. With `deep` the
    digest of each linked tensor is written down, for `verify` to compare. Raises CheckpointError naming all that does
    not fit. `adapters` are folders of LoRA adapters as PEFT saves them, merged into these weights one after another.

    `target` says what model.onnx is for: any runtime, or a provider of onnxruntime in its own operators; the float type
    that it computes in; whose logits it gives; and how it holds its cache. `runtime` genai adds the files with which
    onnxruntime-genai loads the folder; raises GenaiError where it would not run. `progress` is called while the proof
    runs and while weights are read, with what is done, how much of it, and of how much.

    Files in `out` that no build left there are not replaced, unless `force` is given: raises FolderError. Whatever is
    given, no file is touched whose name no build writes.
    """
    if out is not None and not str(out):
        raise folder.FolderError("the folder to build into has an empty name: say . for the one you are in")
    place = Path(out) if out else Path("generated") / model.spec.name
    folder.refuse_place(place, None if weights is None else Path(weights))
    if target.provider == "cuda":
        _refuse_far(model.spec.top.context)
    if why := model.refuses(target):
        raise folder.FolderError(why)
    planned = None if weights is None else _planned(model, Path(weights), mode, target, adapters)
    if planned is not None and planned.mode == "pack" and target.provider is not None:
        target = replace(target, packed=True)
        planned = replace(planned, joined=model.parts(target))
    proof = proof or require_proof
    output = folder.prepared(model, place, planned, proof, runtime, force)
    proved = prove(twin(model), targets=targets_of(target), progress=progress) if proof else None
    if proved is not None and (not proved.holds or (require_proof and not proved.complete)):
        raise NotProvedError(proved)
    written = folder.write(model, output, target, proved, planned, runtime, deep, progress)
    notes = (*written.notes, *_not_run(target), *_left_unfused(model, target), *_cut_short(model, runtime))
    return Built(written.files, proved, notes)


def _refuse_far(context: int) -> None:
    from blockc.emit.ort import CUDA_CONTEXT

    if context > CUDA_CONTEXT:
        raise folder.FolderError(f"context {context}: a graph for CUDA tells positions apart up to {CUDA_CONTEXT}")


def _not_run(target: Target) -> list[str]:
    """What was proved on the CPU's kernels alone."""
    return ["cuda: built, not run here"] if target.provider == "cuda" else []


def _cut_short(model: Compiled, runtime: folder.Runtime | None) -> list[str]:
    """A context that onnxruntime-genai, which goes on with its cache, is not told."""
    context, least = model.spec.top.context, folder.genai_context(model)
    if runtime is None or least == context:
        return []
    return [f"genai: context_length is {least} of {context}, for beyond it rope turns what the cache holds otherwise"]


def _left_unfused(model: Compiled, target: Target) -> list[str]:
    """Each reason for which an op is not fused, and how often it holds."""
    counts = Counter(left.reason for left in model.unfused(target))
    return [f"left unfused, {count} times: {reason}" for reason, count in counts.items()]


def _planned(model: Compiled, weights: Path, mode: Mode | None, target: Target, adapters: Sequence[Path | str]) -> Plan:
    top, opened = model.spec.top, [open_adapter(Path(folder_)) for folder_ in adapters]
    return plan(model.function, open_checkpoint(weights), top.checkpoint, mode, target.dtype, top.context, opened)


def verify(
    path: Path | str, assignments: Sequence[str] = (), *, deep: bool = False, progress: Progress = silent
) -> folder.Checked:
    """The golden matrix of a spec's twin, or of the files in a build's folder; `deep` reads its linked tensors too.

    `progress` is called as in `build`.
    """
    if Path(path).is_dir():
        return folder.check(Path(path), deep, progress)
    return folder.Checked((), (), prove(twin(compile(path, assignments)), progress=progress))


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
