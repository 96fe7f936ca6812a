"""A build's folder: written all or nothing, and checked against its manifest."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import blockc
from blockc.checkpoint import linked_checkpoint
from blockc.compile import Compiled, compiled
from blockc.genai import files as genai_files
from blockc.ir import parameters
from blockc.plan import DATA, Plan, Reference, cannot_link, joined_references, link, packed_references
from blockc.plan import plan as make_plan
from blockc.plan import write as write_data
from blockc.proof import Proof, prove, targets_of
from blockc.safetensors import Stored, shown
from blockc.shrink import shrink
from blockc.spec import load
from blockc.staging import MANIFEST, FolderError, commit, settle, staging
from blockc.target import Dtype, Target, target_of
from blockc.weights import CheckpointError

Runtime = Literal["genai"]
PROOF = "verify.json"
COUNTED = {"portable": Target(), "cpu": Target("cpu"), "cuda": Target("cuda", "fp16")}
MAX_MANIFEST = 1 << 24  # bytes
RUNNABLE = 30_000_000  # parameters up to which a build's own files are run; above, its twin's


def texts(model: Compiled) -> dict[str, str]:
    """The files that are committed: free of versions, times, measured errors, and of what any flag says."""
    from blockc.report import report

    figures = report(model.spec, model.decoder, model.function).json()
    figures["onnx_nodes"] = {name: model.nodes(target) for name, target in COUNTED.items() if not model.refuses(target)}
    return {
        "model.py": model.model_py(),
        "graph.txt": model.graph_txt(),
        "report.json": json.dumps(figures, indent=2) + "\n",
        "spec.resolved.yaml": model.resolved_yaml(),
    }


@dataclass(frozen=True)
class Written:
    """The files of a build, and what its user should know."""

    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def write(
    model: Compiled,
    out: Path,
    target: Target,
    proof: Proof | None,
    plan: Plan | None = None,
    runtime: Runtime | None = None,
    deep: bool = False,
) -> Written:
    """Writes the build, its weights by the plan if there is one, and what a runtime wants beside it. All or nothing.

    `deep` writes the digest of each linked tensor down.
    """
    if plan is not None and out.exists() and out.samefile(plan.checkpoint.folder):
        raise FolderError(f"{out} is the checkpoint's own folder: build elsewhere")
    files: dict[str, bytes] = {name: text.encode() for name, text in texts(model).items()}
    if proof is not None:
        files[PROOF] = _json(proof.data())
    if runtime is not None:
        files |= _for_genai(model, target, plan)
    with staging(out) as stage:
        plan, weights = (None, None) if plan is None else _weights(plan, stage, deep)
        files["model.onnx"] = _onnx(model, target, None if plan is None else plan.references)
        files |= plan.checkpoint.companions if plan else {}
        manifest = {
            "versions": versions(),
            "name": model.spec.name,
            "semantic_hash": model.decoder.semantic_hash,
            "parameters": model.parameters,
            "target": asdict(target),
            "padding": model.padding(target),
            "by_length": [asdict(side) for side in model.sides],
            "files": {name: digest(data) for name, data in sorted(files.items())},
        }
        large = [facts.path.name for facts in plan.links] if plan else []
        if weights is not None:
            manifest["weights"] = weights
            large += [DATA] if weights["data"] else []
        files[MANIFEST] = _json(manifest)
        for name, data in files.items():
            (stage / name).write_bytes(data)
        commit(stage, out, [*large, *files], surplus=(PROOF, DATA))
    return Written(tuple(out / name for name in (*files, *large)), plan.notes if plan else ())


def _weights(plan: Plan, stage: Path, deep: bool) -> tuple[Plan, dict[str, Any]]:
    """Links and packs into the staging folder. (The plan as it went; what the manifest says of it.)"""
    try:
        link(plan, stage)
    except OSError as error:
        if not cannot_link(error):
            raise
        for facts in plan.links:
            (stage / facts.path.name).unlink(missing_ok=True)
        why = f"the weights cannot be linked from where they lie ({error.strerror}): packed"
        plan = replace(plan, mode="pack", notes=(*plan.notes, why))
    digests: dict[str, str] | None = {} if deep else None
    data = write_data(plan, stage / DATA, digests)
    sources = [facts.facts for facts in plan.links]
    return plan, {
        "mode": plan.mode,
        "sources": sources,
        "data": {"name": DATA, "size": data.size, "sha256": data.sha256} if data else None,
    } | ({} if digests is None else {"tensors": digests})


def _for_genai(model: Compiled, target: Target, plan: Plan | None) -> dict[str, bytes]:
    """What genai reads, from the graph as it will be: what it does not run is refused before any weight moves."""
    graph = _onnx(model, target, plan.references if plan else None)
    return genai_files(graph, plan.checkpoint.companions if plan else {}, genai_context(model), target.provider)


def genai_context(model: Compiled) -> int:
    """As far as a cache goes on as it began: genai never reads a prompt anew."""
    return min((model.spec.top.context, *(side.original for side in model.sides)))


def _onnx(model: Compiled, target: Target, references: Mapping[str, Reference] | None) -> bytes:
    """The graph; with weights as a manifest has them, its parameters are references into files beside it."""
    from blockc.emit.external import external

    return model.lowered(target, None if references is None else external(references))


def _json(data: Any) -> bytes:
    return (json.dumps(data, indent=2, allow_nan=False) + "\n").encode()


def versions() -> dict[str, str]:
    """Of blockc and of what model.onnx is computed and written with: another one may give other bytes."""
    return {"blockc": blockc.__version__} | {name: version(name) for name in ("numpy", "onnx")}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Checked:
    """What a folder's files say: which are not those of the manifest, which its spec no longer gives, and the proof."""

    changed: tuple[str, ...]
    outdated: tuple[str, ...]
    proof: Proof | None


def check(folder: Path, deep: bool = False) -> Checked:
    """The manifest, then the proof: of a build small enough the model.onnx is run as it lies there.

    A larger one, and one with weights, must be, byte for byte, what its spec gives now, and its twin is run in its
    stead; with weights it must also open. model.py must be that of its spec always: no other Python is run. `deep`
    reads every linked tensor too, and compares what it holds.
    """
    settle(folder)
    manifest = _manifest(folder)
    files, weights, target = manifest["files"], manifest.get("weights"), manifest["target"]
    changed = [name for name, hash_ in files.items() if _digest_of(folder / name) != hash_]
    if weights is not None:
        changed += _changed_weights(folder, weights)
    if deep and weights is not None and not changed:
        changed += _changed_tensors(folder, weights)
    if changed:
        return Checked(tuple(changed), (), None)
    _refuse_strange(folder, weights)
    model = compiled(load(folder / "spec.resolved.yaml"))
    if digest(model.model_py().encode()) != files["model.py"]:
        return Checked((), ("model.py",), None)
    if weights is None and model.parameters <= RUNNABLE:
        onnx = (folder / "model.onnx").read_bytes()
        return Checked((), (), prove(model, folder / "model.py", (target, onnx), targets_of(target)))
    references = None if weights is None else _references(model, folder, weights, target)
    now = {name: text.encode() for name, text in texts(model).items()}
    now["model.onnx"] = _onnx(model, target, references)
    unlike = tuple(name for name, data in now.items() if name in files and digest(data) != files[name])
    if not unlike and weights is not None:
        _open(folder / "model.onnx", target.dtype)
    return Checked((), unlike, None if unlike else prove(compiled(shrink(model.spec))))


def _changed_weights(folder: Path, weights: dict[str, Any]) -> list[str]:
    """Files of weights that are not those of the manifest. What was linked goes by its size, time and header."""
    changed: list[str] = []
    for facts in weights["sources"]:
        try:
            (now,) = linked_checkpoint(folder, [facts["name"]]).files
        except CheckpointError:
            changed.append(facts["name"])
        else:
            changed += [] if now.facts == facts else [facts["name"]]
    if (data := weights["data"]) is not None and _digest_of(folder / data["name"]) != data["sha256"]:
        changed.append(data["name"])
    return changed


def _changed_tensors(folder: Path, weights: dict[str, Any]) -> list[str]:
    """What a linked file's size, time and header do not tell: the tensors whose bytes are others."""
    if not isinstance(weights.get("tensors"), dict):
        raise FolderError(f"{folder / MANIFEST}: holds no digests of linked tensors: build the folder with --deep")
    tensors = linked_checkpoint(folder, [source["name"] for source in weights["sources"]]).tensors
    changed: list[str] = []
    for name, hash_ in weights["tensors"].items():
        stored, now = tensors.get(name), hashlib.sha256()
        for part in stored.raw() if isinstance(stored, Stored) else ():
            now.update(part.data)
        if now.hexdigest() != hash_:
            changed.append(f"{stored.path.name}: {shown(name)}" if isinstance(stored, Stored) else shown(name))
    return changed


def _refuse_strange(folder: Path, weights: dict[str, Any] | None) -> None:
    """A model may name no file but those of its build, and those lie in its folder. Raises FolderError."""
    from blockc.emit.external import locations

    known = {source["name"] for source in weights["sources"]} if weights else set[str]()
    known |= {DATA} if weights and weights["data"] else set()
    for location in sorted(locations((folder / "model.onnx").read_bytes())):
        if location not in known:
            raise FolderError(f"{folder / 'model.onnx'}: names external data that is not of the build: {location!r}")
        if (folder / location).resolve().parent != folder.resolve():
            raise FolderError(f"{folder / location}: a link that leaves the folder")


def _references(model: Compiled, folder: Path, weights: dict[str, Any], target: Target) -> dict[str, Reference]:
    """Where the parameters must lie: by the headers of what was linked, else one after another."""
    if weights["mode"] == "pack":
        shapes = {path: param.shape for path, param in parameters(model.function).items()}
        parts = model.parts(target)
        laid = packed_references(shapes, target.dtype, parts)
        return laid | joined_references(laid, parts)
    checkpoint = linked_checkpoint(folder, [source["name"] for source in weights["sources"]])
    return make_plan(model.function, checkpoint, model.spec.top.checkpoint, "link", target.dtype).references


def _open(path: Path, dtype: Dtype) -> None:
    """The model with its weights in a session. onnxruntime's CPU kernels take no bf16, so that is not tried."""
    if importlib.util.find_spec("onnxruntime") is None or dtype == "bf16":
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


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        if (folder / MANIFEST).stat().st_size > MAX_MANIFEST:
            raise FolderError(f"{folder / MANIFEST}: larger than {MAX_MANIFEST} bytes")
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        named = {str(name) for name in manifest["files"]}
        manifest["target"] = target_of(manifest["target"])
        weights = manifest.get("weights")
        if weights is not None:
            large = [*weights["sources"], *([weights["data"]] if weights["data"] else [])]
            named |= {str(entry["name"]) for entry in large}
    except FileNotFoundError:
        raise FolderError(f"{folder}: no {MANIFEST}, so no finished build") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FolderError(f"{folder / MANIFEST}: not a manifest") from None
    if strange := sorted(name for name in named if Path(name).name != name):
        raise FolderError(f"{folder / MANIFEST}: names a file outside the folder: {strange[0]}")
    if absent := sorted({"model.py", "model.onnx", "spec.resolved.yaml"} - named):
        raise FolderError(f"{folder / MANIFEST}: names no {absent[0]}")
    return manifest


def _digest_of(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
