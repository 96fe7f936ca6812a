"""A build's folder: written all or nothing, and checked against its manifest."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import blockc
from blockc.checkpoint import linked_checkpoint
from blockc.compile import Compiled, Dialect, Logits, compiled
from blockc.ir import parameters
from blockc.plan import DATA, Plan, Reference, cannot_link, link, packed_references
from blockc.plan import plan as make_plan
from blockc.plan import write as write_data
from blockc.proof import Proof, prove
from blockc.shrink import shrink
from blockc.spec import load
from blockc.staging import MANIFEST, FolderError, commit, staging
from blockc.weights import CheckpointError

PROOF = "verify.json"
RUNNABLE = 30_000_000  # parameters up to which a build's own files are run; above, its twin's


def texts(model: Compiled) -> dict[str, str]:
    """The files that are committed: free of versions, times, measured errors, and of what any flag says."""
    from blockc.report import report

    figures = report(model.spec, model.decoder, model.function)
    return {
        "model.py": model.model_py(),
        "graph.txt": model.graph_txt(),
        "report.json": json.dumps(figures.json(), indent=2) + "\n",
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
    logits: Logits,
    proof: Proof | None,
    plan: Plan | None = None,
    dialect: Dialect = "standard",
) -> Written:
    """Writes the build, its weights by the plan if there is one. All or nothing."""
    if plan is not None and out.exists() and out.samefile(plan.checkpoint.folder):
        raise FolderError(f"{out} is the checkpoint's own folder: build elsewhere")
    files: dict[str, bytes] = {name: text.encode() for name, text in texts(model).items()}
    if proof is not None:
        files[PROOF] = _json(proof.data())
    with staging(out) as stage:
        plan, weights = (None, None) if plan is None else _weights(plan, stage)
        files["model.onnx"] = _onnx(model, logits, dialect, None if plan is None else plan.references, weights)
        files |= plan.checkpoint.companions if plan else {}
        manifest = {
            "blockc": blockc.__version__,
            "name": model.spec.name,
            "semantic_hash": model.decoder.semantic_hash,
            "parameters": model.parameters,
            "logits": logits,
            "dialect": dialect,
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


def _weights(plan: Plan, stage: Path) -> tuple[Plan, dict[str, Any]]:
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
    data = write_data(plan, stage / DATA)
    sources = [facts.facts for facts in plan.links]
    return plan, {
        "mode": plan.mode,
        "dtype": plan.dtype,
        "sources": sources,
        "data": {"name": DATA, "size": data.size, "sha256": data.sha256} if data else None,
    }


def _onnx(
    model: Compiled,
    logits: Logits,
    dialect: Dialect,
    references: Mapping[str, Reference] | None,
    weights: Mapping[str, Any] | None,
) -> bytes:
    """The graph; with weights as a manifest has them, its parameters are references into files beside it."""
    from blockc.emit.external import external

    if references is None or weights is None:
        return model.onnx(logits, dialect=dialect)
    return model.lowered(external(references), logits, weights["dtype"], dialect)


def _json(data: Any) -> bytes:
    return (json.dumps(data, indent=2, allow_nan=False) + "\n").encode()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Checked:
    """What a folder's files say: which are not those of the manifest, which its spec no longer gives, and the proof."""

    changed: tuple[str, ...]
    outdated: tuple[str, ...]
    proof: Proof | None


def check(folder: Path) -> Checked:
    """The manifest, then the proof: a build small enough is run as it lies there, file by file.

    A larger one, and one with weights, must be, byte for byte, what its spec gives now, and its twin is run in its
    stead; with weights it must also open.
    """
    manifest = _manifest(folder)
    files, weights = manifest["files"], manifest.get("weights")
    changed = [name for name, hash_ in files.items() if _digest_of(folder / name) != hash_]
    if weights is not None:
        changed += _changed_weights(folder, weights)
    if changed:
        return Checked(tuple(changed), (), None)
    _refuse_strange(folder, weights)
    model = compiled(load(folder / "spec.resolved.yaml"))
    if weights is None and model.parameters <= RUNNABLE:
        onnx = (folder / "model.onnx").read_bytes()
        return Checked((), (), prove(model, folder / "model.py", onnx, manifest.get("dialect", "standard")))
    references = None if weights is None else _references(model, folder, weights)
    now = {name: text.encode() for name, text in texts(model).items()}
    now["model.onnx"] = _onnx(model, manifest["logits"], manifest.get("dialect", "standard"), references, weights)
    unlike = tuple(name for name, data in now.items() if name in files and digest(data) != files[name])
    if not unlike and weights is not None:
        _open(folder / "model.onnx", weights["dtype"])
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


def _references(model: Compiled, folder: Path, weights: dict[str, Any]) -> dict[str, Reference]:
    """Where the parameters must lie: by the headers of what was linked, else one after another."""
    if weights["mode"] == "pack":
        shapes = {path: param.shape for path, param in parameters(model.function).items()}
        return packed_references(shapes, weights["dtype"])
    checkpoint = linked_checkpoint(folder, [source["name"] for source in weights["sources"]])
    return make_plan(model.function, checkpoint, model.spec.top.checkpoint, "link", weights["dtype"]).references


def _open(path: Path, dtype: str) -> None:
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
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        named = {str(name) for name in manifest["files"]}
        weights = manifest.get("weights")
        if weights is not None:
            weights["dtype"] = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16"}[weights["dtype"]]
            large = [*weights["sources"], *([weights["data"]] if weights["data"] else [])]
            named |= {str(entry["name"]) for entry in large}
    except FileNotFoundError:
        raise FolderError(f"{folder}: no {MANIFEST}, so no finished build") from None
    except (ValueError, KeyError, TypeError, AttributeError):
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
