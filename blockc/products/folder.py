"""A build's folder: written all or nothing, and checked against its manifest."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import blockc
from blockc.basics.errors import escape, shorten
from blockc.basics.floats import FloatType
from blockc.basics.jsonfile import dump_json, read_bounded
from blockc.basics.progress import Progress, no_progress
from blockc.graph.shrink import shrink
from blockc.graph.target import Target
from blockc.ir import parameters_of
from blockc.language.spec import load
from blockc.ort.kernels import COMPUTES
from blockc.pipeline.compiled import PORTABLE, Compiled, compile_spec
from blockc.products.manifest import (
    MANIFEST,
    MODEL,
    PROOF,
    SPEC,
    TEXTS,
    Data,
    FolderError,
    LinkedFile,
    Manifest,
    Versions,
    Weights,
    digest_of,
    find_misstated,
    graphs_of,
    is_linked_file,
    read_manifest,
    statements_of,
)
from blockc.products.ownership import OutputFolder
from blockc.products.product import Product, ProductError, ProductInputs, choose_products, make_all_files
from blockc.products.registry import PRODUCTS
from blockc.products.staging import commit, is_unfinished, make_ready, staging
from blockc.proof import Proof, prove, targets_of
from blockc.weights.checkpoint import linked_checkpoint
from blockc.weights.companions import COMPANIONS, MAX_COMPANION, read_companion
from blockc.weights.data import write_data
from blockc.weights.inspection import inspect_codes
from blockc.weights.plan import (
    DATA,
    Reference,
    WeightPlan,
    cannot_link,
    link_files,
    place_joined,
    place_packed,
    plan_weights,
)
from blockc.weights.safetensors import StoredTensor
from blockc.weights.special import CONFIG

COUNTED = {"portable": Target(), "cpu": Target("cpu"), "cuda": Target("cuda", "fp16")}
MAX_MODEL = 1 << 31  # bytes of model.onnx; as many as the format allows
RUNNABLE = 30_000_000  # most parameters of a build whose own files are run; a larger build runs its twin


def texts(model: Compiled, target: Target = PORTABLE) -> dict[str, str]:
    """The texts of a build that depend on the spec alone: no versions, times, measured errors or options.

    Only for quantised weights the report has their bytes too, by the target's recipe.
    """
    from blockc.report import make_report

    figures = make_report(model.spec, model.decoder, model.function).json()
    if target.quant is not None:
        figures["storage"] = model.storage(target.quant, target.dtype).json()
    figures["onnx_nodes"] = {
        name: model.count_nodes(target) for name, target in COUNTED.items() if not model.refuses(target)
    }
    return {
        "model.py": model.model_py(),
        "graph.txt": model.graph_txt(),
        "report.json": json.dumps(figures, indent=2) + "\n",
        "spec.resolved.yaml": model.resolved_yaml(),
    }


@dataclass(frozen=True)
class BuildFiles:
    """The files of a build, and notes for the user."""

    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def refuse_place(out: Path, weights: Path | None) -> None:
    """Raises OSError where no folder can be made, FolderError where the build and the checkpoint would mix.

    It is called before anything is read.
    """
    if out.is_symlink() and not out.exists():
        raise FileNotFoundError(
            errno.ENOENT, f"a link to {os.readlink(out)}, which does not exist: remove it, or choose a folder", str(out)
        )
    stands = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not stands.is_dir():
        why = "a file, not a folder: choose another with --out"
        raise NotADirectoryError(errno.ENOTDIR, why, str(stands))
    if weights is None:
        return
    here, held = out.resolve(), (weights if weights.is_dir() else weights.absolute().parent).resolve()
    if here == held:
        raise FolderError(f"{out}: is the checkpoint's own folder: build elsewhere, with --out DIR")
    if held.is_relative_to(here):
        raise FolderError(f"{out}: the checkpoint lies in it, at {weights}: build elsewhere, with --out DIR")
    if weights.is_dir() and here.is_relative_to(held):
        raise FolderError(f"{out}: lies in the checkpoint's folder {weights}: build elsewhere, with --out DIR")


def prepare_output(
    model: Compiled,
    out: Path,
    plan: WeightPlan | None,
    proof: bool,
    products: Sequence[Product],
    force: bool = False,
    target: Target = PORTABLE,
    step: bool = False,
) -> OutputFolder:
    """The output folder of a build, with the files that are known before anything is proved or packed.

    `step`: the build has a graph of one new token too. Raises FolderError if files would be lost.
    """
    coming: dict[str, bytes | Path | None] = {name: text.encode() for name, text in texts(model, target).items()}
    coming |= dict.fromkeys(
        [*graphs_of(target, step), *([PROOF] if proof else []), *(name for each in products for name in each.names)]
    )
    if plan is not None:
        coming |= plan.checkpoint.companions
        coming |= _link_names(plan) | (dict.fromkeys([DATA]) if plan.packed else {})
    output = OutputFolder(out, coming | {MANIFEST: None}, force)
    make_ready(output)
    return output


def _link_names(plan: WeightPlan) -> dict[str, Path]:
    return {facts.path.name: facts.path for facts in plan.links}


def write_build(
    model: Compiled,
    out: Path | OutputFolder,
    target: Target,
    proof: Proof | None,
    plan: WeightPlan | None = None,
    products: Sequence[Product] = (),
    deep: bool = False,
    progress: Progress = no_progress,
    step: bool = False,
) -> BuildFiles:
    """Writes the build, its weights by the plan if there is one, and the files of its products, all or nothing.

    With `deep`, the manifest gets the digest of each linked tensor, and codes are compared with the weights. `step`:
    the build has a graph of one new token too. Raises FolderError if files would be lost.
    """
    proved = proof is not None
    output = (
        out
        if isinstance(out, OutputFolder)
        else prepare_output(model, out, plan, proved, products, target=target, step=step)
    )
    files = {name: data for name in TEXTS if isinstance(data := output.coming[name], bytes)}
    if proof is not None:
        files[PROOF] = dump_json(proof.data())
    files |= make_product_files(products, model, target, plan)
    with staging(output.folder) as stage:
        plan, weights = (None, None) if plan is None else _write_weights(plan, stage, output.folder, deep, progress)
        references = None if plan is None else plan.references
        files |= {name: _make_onnx(model, of, references) for name, of in graphs_of(target, step).items()}
        files |= plan.checkpoint.companions if plan else {}
        said: dict[str, Any] = statements_of(model, target) | {
            "versions": versions(),
            "products": tuple(product.name for product in products),
            "files": {name: digest(data) for name, data in sorted(files.items())},
            **({} if weights is None else {"weights": weights}),
        }
        manifest = Manifest(**said)
        files[MANIFEST] = manifest.to_bytes()
        large: dict[str, Path | None] = {} if plan is None else {**_link_names(plan)}
        large |= {DATA: None} if manifest.data else {}
        for name, data in files.items():
            with _name_in_errors(output.folder / name):
                (stage / name).parent.mkdir(exist_ok=True)
                (stage / name).write_bytes(data)
        names = (*large, *files)
        commit(stage, replace(output, coming={**large, **files}), names)
    return BuildFiles(tuple(output.folder / name for name in (*files, *large)), plan.notes if plan else ())


def _write_weights(
    plan: WeightPlan, stage: Path, out: Path, deep: bool, progress: Progress
) -> tuple[WeightPlan, Weights]:
    """Links and packs weights into the staging folder. (The plan as carried out; its statements in the manifest.)"""
    try:
        link_files(plan, stage)
    except OSError as error:
        if not cannot_link(error):
            raise
        for facts in plan.links:
            (stage / facts.path.name).unlink(missing_ok=True)
        why = f"the weights cannot be linked from their folder ({error.strerror}): packed"
        plan = replace(plan, mode="pack", notes=(*plan.notes, why))
    digests: dict[str, str] | None = {} if deep else None
    with _name_in_errors(out / DATA):
        written = write_data(plan, stage / DATA, digests, progress)
        if deep and written is not None:
            plan = replace(plan, notes=(*plan.notes, *inspect_codes(plan, stage / DATA, progress)))
    data = Data(name=DATA, size=written.size, sha256=written.sha256) if written else None
    sources = tuple(map(LinkedFile.of, plan.links))
    made = Weights(mode=plan.mode, sources=sources, data=data)
    return plan, made if digests is None else Weights(mode=plan.mode, sources=sources, data=data, tensors=digests)


@contextmanager
def _name_in_errors(path: Path) -> Generator[None]:
    """Names this file in an OSError that names none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, error.filename or str(path)) from None


def make_product_files(
    products: Sequence[Product], model: Compiled, target: Target, plan: WeightPlan | None
) -> dict[str, bytes]:
    """The files that the products' runtimes read. Raises ProductError, before any weights are written."""
    if not products:
        return {}
    if plan is None:
        raise ProductError(f"{products[0].runtime} needs a model with weights: build with --weights PATH")
    checkpoint = plan.checkpoint
    config = read_companion(checkpoint.folder, CONFIG)
    return make_all_files(products, product_inputs(model, target, checkpoint.companions, config))


def product_inputs(
    model: Compiled, target: Target, companions: Mapping[str, bytes], config: bytes | None = None
) -> ProductInputs:
    """What products may read of a model and a target."""
    return ProductInputs(model.spec, target, model.contract(target), companions, config)


def _make_onnx(model: Compiled, target: Target, references: Mapping[str, Reference] | None) -> bytes:
    """model.onnx as bytes; with references, its parameters are in files beside it."""
    from blockc.emit.external import external_tensors

    return model.lower(target, None if references is None else external_tensors(references))


def versions() -> Versions:
    return Versions(blockc=blockc.__version__, numpy=version("numpy"), onnx=version("onnx"))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class CheckResult:
    """Files that differ from the manifest, files that differ from what the spec gives now, and the proof."""

    changed: tuple[str, ...]
    outdated: tuple[str, ...]
    proof: Proof | None

    def __repr__(self) -> str:
        said = [f"changed {', '.join(shorten(self.changed))}"] if self.changed else []
        said += [f"outdated {', '.join(shorten(self.outdated))}"] if self.outdated else []
        said += [self.proof.line] if self.proof else []
        return f"<CheckResult: {'; '.join(said)}>"


def check_build(folder: Path, deep: bool = False, progress: Progress = no_progress) -> CheckResult:
    """Checks all statements of the manifest, then runs the proof. Nothing is written. Raises FolderError.

    The model.onnx of a small build without weights is run itself. Any other must equal, byte for byte, what its spec
    gives now, and the twin is run instead; with weights it must also open. Text files must always equal those of the
    spec, so that no other Python code is run. With `deep`, every linked tensor is compared with its digest.
    """
    if is_unfinished(folder):
        raise FolderError(f"{folder}: a build was interrupted here: run `blockc build` into it again to finish it")
    manifest = read_manifest(folder)
    weights, target = manifest.weights, manifest.target
    changed = [name for name, hash_ in manifest.files.items() if digest_of(folder / name) != hash_]
    changed += _find_changed_weights(folder, manifest)
    if deep and weights is not None and not changed:
        changed += _find_changed_tensors(folder, weights, progress)
    if changed:
        return CheckResult(tuple(changed), (), None)
    graphs = {name: read_bounded(folder / name, MAX_MODEL) for name in manifest.graph_names}
    for name, graph in graphs.items():
        _refuse_foreign_data(folder, manifest, name, graph)
    onnx = graphs[MODEL]
    model = compile_spec(load(folder / SPEC))
    unlike = [name for name, text in texts(model, target).items() if digest(text.encode()) != manifest.files[name]]
    unlike += [f"{MANIFEST}: {key}" for key in _find_misstated(manifest, model, onnx)]
    unlike += [] if unlike else _find_unlike_products(folder, manifest, model)
    if unlike:
        return CheckResult((), tuple(unlike), None)
    if weights is None and model.parameters <= RUNNABLE:
        return _run_files(model, folder, target, onnx, progress)
    references, unlike = (None, []) if weights is None else _expected_references(model, folder, manifest, onnx)
    if unlike:
        return CheckResult((), tuple(f"{MANIFEST}: weights.{key}" for key in unlike), None)
    made = {name: digest(_make_onnx(model, of, references)) for name, of in manifest.graphs.items()}
    if unlike := [name for name, digest_ in made.items() if digest_ != manifest.files[name]]:
        return CheckResult((), tuple(unlike), None)
    if weights is not None:
        for name in graphs:
            _try_session(folder / name, target.dtype)
    small = compile_spec(shrink(model.spec))
    targets = targets_of(*manifest.graphs.values())
    return CheckResult((), (), prove(small, targets=targets, progress=progress, whole=model))


def _run_files(model: Compiled, folder: Path, target: Target, onnx: bytes, progress: Progress) -> CheckResult:
    """Runs the build's own files. They are fed by the target's contract, so model.onnx must have its signature."""
    from blockc.emit.external import operators_of, signature_of

    wanted = _make_onnx(model, target, None)
    if signature_of(onnx) != signature_of(wanted):
        return CheckResult((), (MODEL,), None)
    proof = prove(model, folder / "model.py", (target, onnx), targets_of(target), progress)
    other = proof.holds and operators_of(onnx) != operators_of(wanted)
    return CheckResult((), (MODEL,), None) if other else CheckResult((), (), proof)


def _find_misstated(manifest: Manifest, model: Compiled, onnx: bytes) -> list[str]:
    """The keys of the manifest that differ from the spec, the target or model.onnx."""
    from blockc.emit.external import metadata_of

    found = list(find_misstated(manifest, model))
    if metadata_of(onnx).get("blockc.version") != manifest.versions.blockc:
        found.append("versions.blockc")
    return found


def _find_unlike_products(folder: Path, manifest: Manifest, model: Compiled) -> list[str]:
    """Files of products that differ from what spec and companions give now, or belong to no product of the build."""
    companions = {name: read_bounded(folder / name, MAX_COMPANION) for name in manifest.files if name in COMPANIONS}
    products = choose_products(manifest.products, PRODUCTS)
    try:
        config = read_bounded(folder / CONFIG, MAX_COMPANION) if CONFIG in manifest.files else None
        made = make_all_files(products, product_inputs(model, manifest.target, companions, config))
    except ProductError:
        return [f"{MANIFEST}: products"]
    wanted = {name: digest(data) for name, data in made.items()}
    held = manifest.files.keys() & frozenset[str]().union(*(product.names for product in PRODUCTS.values()))
    return [name for name in sorted(wanted.keys() | held) if wanted.get(name) != manifest.files.get(name)]


def _find_changed_weights(folder: Path, manifest: Manifest) -> list[str]:
    """Files of weights that differ from the manifest. Linked files are compared by size and header."""
    changed = [source.name for source in manifest.sources if not is_linked_file(folder, source)]
    if data := manifest.data:
        path = folder / data.name
        if not path.is_file() or path.stat().st_size != data.size or digest_of(path) != data.sha256:
            changed.append(data.name)
    return changed


def _find_changed_tensors(folder: Path, weights: Weights, progress: Progress) -> list[str]:
    """Linked tensors whose bytes changed, which size and header of the file do not show."""
    if weights.mode == "pack":
        return []  # every byte is in the data file, whose digest has been compared
    if weights.tensors is None:
        raise FolderError(f"{folder / MANIFEST}: has no digests of linked tensors: build the folder with --deep")
    tensors = linked_checkpoint(folder, [source.name for source in weights.sources]).tensors
    changed: list[str] = []
    for count, (name, hash_) in enumerate(weights.tensors.items()):
        progress("comparing tensors", count, len(weights.tensors))
        stored, now = tensors.get(name), hashlib.sha256()
        for part in stored.read_raw() if isinstance(stored, StoredTensor) else ():
            now.update(part.data)
        if now.hexdigest() != hash_:
            changed.append(f"{stored.path.name}: {escape(name)}" if isinstance(stored, StoredTensor) else escape(name))
    return changed


def _refuse_foreign_data(folder: Path, manifest: Manifest, name: str, onnx: bytes) -> None:
    """Raises FolderError if a graph names a file that is not of the build, or a link out of the folder.

    In the Hub's cache of links, the folder of the linked graph is allowed too, as in onnxruntime.
    """
    from blockc.emit.external import locations_of

    known = {*manifest.names} - {*manifest.files}
    for location in sorted(locations_of(onnx)):
        if location not in known:
            raise FolderError(f"{folder / name}: names external data that is not part of the build: {location!r}")
        if (folder / location).resolve().parent not in (folder.resolve(), (folder / name).resolve().parent):
            raise FolderError(f"{folder / location}: a link that leaves the folder")


def _expected_references(
    model: Compiled, folder: Path, manifest: Manifest, onnx: bytes
) -> tuple[dict[str, Reference], list[str]]:
    """(Where the parameters must be; the keys of the manifest's weights that differ.)

    Linked parameters are placed by the headers of their files, packed ones in the order of the plan. Which parameters
    are packed beside linked ones is read from the graph, since an adapter may have changed any of them.
    """
    from blockc.emit.external import initialisers_in

    weights, target = manifest.weights, manifest.target
    assert weights is not None
    if weights.mode == "pack":
        made = model.run_recipe(target)
        placed_ = place_packed(parameters_of(model.function), target.dtype, made)
        found, linked = placed_ | place_joined(placed_, made), set[str]()
    else:
        checkpoint = linked_checkpoint(folder, [source.name for source in weights.sources])
        planned = plan_weights(model.function, checkpoint, model.spec.top.checkpoint, "link", target.dtype)
        planned = replace(planned, result=model.run_recipe(target), copied=initialisers_in(onnx, DATA))
        found, linked = planned.references, {planned.sources[path].name for path in planned.linked}
    end = max((r.offset + r.length for r in found.values() if r.location == DATA), default=0)
    unlike = ["data"] if end != (weights.data.size if weights.data else 0) else []
    unlike += ["tensors"] if weights.tensors is not None and weights.tensors.keys() != linked else []
    return found, unlike


def _try_session(path: Path, dtype: FloatType) -> None:
    """Opens the model with its weights in onnxruntime, unless the CPU's kernels lack its float type."""
    if importlib.util.find_spec("onnxruntime") is None or dtype not in COMPUTES["cpu"]:
        return
    import onnxruntime

    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    try:
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common base
        raise FolderError(f"{path}: onnxruntime does not open it: {str(error).splitlines()[0][:300]}") from None
