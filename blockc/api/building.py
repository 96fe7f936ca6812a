"""Builds a model into a folder of files, and proves either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from blockc.api.calibrating import read_rows, too_few
from blockc.api.carrying import carry_codes
from blockc.api.models import compile, twin  # noqa: A004
from blockc.basics.distribution import require_packages
from blockc.basics.errors import BlockcError, UsageError
from blockc.basics.progress import Progress, no_progress
from blockc.graph.target import Target
from blockc.ir import Array
from blockc.pipeline.compiled import PORTABLE, Compiled
from blockc.pipeline.refusal import NO_LEVEL, NO_LINK
from blockc.products import folder
from blockc.products.manifest import graphs_of
from blockc.products.product import Product, choose_products
from blockc.products.registry import PRODUCTS
from blockc.proof import Proof, prove, targets_of
from blockc.report import Storage
from blockc.weights.adapter import open_adapter
from blockc.weights.calibration import draw_tokens
from blockc.weights.checkpoint import open_checkpoint
from blockc.weights.data import calibrate_plan
from blockc.weights.plan import Mode, WeightPlan, plan_weights


@dataclass(frozen=True)
class Built:
    """The files of a build, and its proof."""

    files: tuple[Path, ...]
    proof: Proof | None
    notes: tuple[str, ...] = ()
    storage: Storage | None = None  # of quantised weights

    def __repr__(self) -> str:
        at = f" in {self.files[0].parent}" if self.files else ""
        return f"<Built: {len(self.files)} files{at}, {self.line}>"

    @property
    def line(self) -> str:
        return self.proof.line if self.proof else "not proved: the proof was not asked for"


class NotProvedError(BlockcError):
    """The proof failed, or was required and could not be made; nothing was written."""

    def __init__(self, proof: Proof) -> None:
        super().__init__(proof.line)
        self.proof = proof


@require_packages()
def build(
    model: Compiled,
    out: Path | str | None = None,
    *,
    target: Target = PORTABLE,
    proof: bool = True,
    require_proof: bool = False,
    weights: Path | str | None = None,
    mode: Mode | None = None,
    products: Sequence[str] = (),
    deep: bool = False,
    adapters: Sequence[Path | str] = (),
    calibrate: Path | str | None = None,
    dequantise: bool = False,
    step: bool | None = None,
    force: bool = False,
    progress: Progress = no_progress,
) -> Built:
    """Writes model.py, model.onnx, graph.txt, report.json, spec.resolved.yaml, verify.json, manifest.json to `out`.

    The twin is proved first. Raises NotProvedError, with nothing written, if a backend is wrong, and with
    `require_proof` also if torch or onnxruntime is missing. `out` is generated/<name> by default.

    `weights` is a checkpoint: a .safetensors or .gguf file, or a folder. model.onnx then has its parameters as
    references: with mode "link" into the checkpoint's own files, which are hard-linked beside it, with "pack" into
    model.onnx.data. The default is "link" if most weights are in the model's float type. With `deep` the manifest gets
    the digest of each linked tensor, for `verify` to compare. Raises CheckpointError naming everything that does not
    fit. `adapters` are folders of LoRA adapters as PEFT saves them, merged into the weights one after another.

    With a recipe of quantising in `target`, scales that it wants calibrated are chosen on drawn tokens, or on the first
    tokens of the text in `calibrate`.

    A checkpoint that holds codes, as most GGUF files, keeps them in a graph for a provider: `target.quant` is made of
    it. With `dequantise` the weights are floats, or are quantised anew where `target.quant` says how.

    `target` says what model.onnx is for: any runtime, or a provider of onnxruntime in its own operators; its float
    type; which logits it returns; and how it keeps its cache. `products` names runtimes whose files are added, such as
    genai; raises ProductError if one of them would not load the folder. During the proof and while weights are read,
    `progress` is called with the name of the work, how much is done, and how much there is.

    `step` adds step.onnx, a graph of one new token, which `run` takes for long texts: it reads the same weights, and
    the same cache. By default a build with weights for the CPU in fp32 has it, if the model can be one.

    Files in `out` that no build wrote are not replaced unless `force` is given: raises FolderError. A file whose name
    no build writes is never touched.
    """
    if weights is None:
        idle = {
            "mode": mode is not None,
            "deep": deep,
            "adapters": adapters,
            "calibrate": calibrate is not None,
            "dequantise": dequantise,
            "step": step is True,
        }
        _refuse_idle(idle)
    if calibrate is not None and not (target.quant and target.quant.calibrates):
        raise UsageError("is for scales that are calibrated: give a recipe that has such, as int4 has", "calibrate")
    wanted = choose_products(products, PRODUCTS)
    if require_proof and not proof:
        raise UsageError("proof=False and require_proof=True say opposite things")
    if out is not None and not str(out):
        raise folder.FolderError("the folder to build into has an empty name: say . for the one you are in")
    place = Path(out) if out else Path("generated") / model.spec.name
    folder.refuse_place(place, None if weights is None else Path(weights))
    if target.quant is not None:
        if weights is None:
            raise UsageError("is for weights: give them with weights=PATH", "quant")
        if target.quant.level != 4:
            raise UsageError(NO_LEVEL, "quant")
    if why := model.refuses(target):
        raise folder.FolderError(why)
    if target.quant is not None:
        if mode == "link":
            raise folder.FolderError(NO_LINK)
        mode = "pack"
    planned = None if weights is None else _plan(model, Path(weights), mode, target, adapters)
    carried: tuple[str, ...] = ()
    if planned is not None:
        target, carried = carry_codes(model, target, planned, dequantise)
    if planned is not None and planned.mode == "pack" and target.provider is not None:
        target = replace(target, packed=True)
    if planned is not None:
        planned = replace(planned, result=model.run_recipe(target))
    two = planned is not None and _has_step(model, target, step, planned.mode == "pack")
    rows, few = _rows_of(planned, model, target, calibrate)
    output = folder.prepare_output(model, place, planned, proof, wanted, force, target, two)
    targets = targets_of(*graphs_of(target, two).values())
    proved = prove(twin(model), targets=targets, progress=progress, whole=model) if proof else None
    if proved is not None and (not proved.holds or (require_proof and not proved.complete)):
        raise NotProvedError(proved)
    if planned is not None and rows:
        planned = calibrate_plan(planned, model.function, rows, progress)
    written = folder.write_build(model, output, target, proved, planned, wanted, deep, progress, two)
    notes = (
        *written.notes,
        *few,
        *carried,
        *_untested_notes(target),
        *_unfused_notes(model, target),
        *_product_notes(wanted, model, target),
    )
    storage = None if target.quant is None else model.storage(target.quant, target.dtype)
    return Built(written.files, proved, notes, storage)


def _has_step(model: Compiled, target: Target, asked: bool | None, copied: bool) -> bool:
    """Whether the build gets a graph of one new token. Raises FolderError if it is asked for, and there can be none."""
    if asked is False:
        return False
    try:
        why = model.refuses(target.one_token, copied)
    except UsageError as error:  # of what no model can have
        why = f"a graph of one new token {error.message}"
    if why and asked:
        raise folder.FolderError(f"step: {why}")
    return not why


def _rows_of(
    planned: WeightPlan | None, model: Compiled, target: Target, calibrate: Path | str | None
) -> tuple[list[Array], list[str]]:
    """(The rows of tokens to calibrate on, if any; a note where they are few.)"""
    if planned is None or target.quant is None or not target.quant.calibrates:
        return [], []
    if calibrate is None:
        return [draw_tokens(model.spec.top.vocab, model.spec.top.context)], []
    with require_packages("run"):
        rows = read_rows(Path(calibrate), planned.checkpoint.companions, model)
    return rows, too_few(Path(calibrate), rows)


def _refuse_idle(said: Mapping[str, object]) -> None:
    """Raises UsageError for an argument about weights where there are none."""
    if idle := [name for name, on in said.items() if on]:
        raise UsageError("is for weights, and there are none: give them with weights=PATH", idle[0])


def _untested_notes(target: Target) -> list[str]:
    """A note for a graph that cannot run here, and was proved on the CPU only."""
    return ["cuda: built, not run here"] if target.provider == "cuda" else []


def _product_notes(products: Sequence[Product], model: Compiled, target: Target) -> list[str]:
    beside = folder.product_inputs(model, target, {})
    return [note for product in products for note in product.notes(beside)]


def _unfused_notes(model: Compiled, target: Target) -> list[str]:
    """A note for each reason why ops are not fused, with the first op and the number of others."""
    names: dict[str, list[str]] = {}
    for left in model.unfused(target):
        names.setdefault(left.reason, []).append(left.node)
    more = {reason: f" and {len(nodes) - 1} more" if len(nodes) > 1 else "" for reason, nodes in names.items()}
    return [f"left unfused: {nodes[0]}{more[reason]}: {reason}" for reason, nodes in names.items()]


def _plan(
    model: Compiled, weights: Path, mode: Mode | None, target: Target, adapters: Sequence[Path | str]
) -> WeightPlan:
    top, opened = model.spec.top, [open_adapter(Path(folder_)) for folder_ in adapters]
    return plan_weights(
        model.function, open_checkpoint(weights), top.checkpoint, mode, target.dtype, top.context, opened
    )


@require_packages()
def verify(
    path: Path | str, assignments: Sequence[str] = (), *, deep: bool = False, progress: Progress = no_progress
) -> folder.CheckResult:
    """Runs the golden matrix of a spec's twin, or of the files in a build's folder.

    With `deep` it also compares each linked tensor with its digest.

    `progress` is called as in `build`.
    """
    if Path(path).is_dir():
        return folder.check_build(Path(path), deep, progress)
    return folder.CheckResult((), (), prove(twin(compile(path, assignments)), progress=progress))
