"""A build's folder: written all or nothing, and checked against its manifest."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blockc
from blockc.compile import Compiled, Logits, compiled
from blockc.proof import Proof, prove
from blockc.shrink import shrink
from blockc.spec import load

MANIFEST, PROOF = "manifest.json", "verify.json"
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


def write(model: Compiled, out: Path, logits: Logits, proof: Proof | None) -> list[Path]:
    """Writes the build. Every file is complete under another name before the first takes its own, the manifest last."""
    files: dict[str, bytes] = {name: text.encode() for name, text in texts(model).items()}
    files["model.onnx"] = model.onnx(logits)
    if proof is not None:
        files[PROOF] = _json(proof.data())
    manifest = {
        "blockc": blockc.__version__,
        "name": model.spec.name,
        "semantic_hash": model.decoder.semantic_hash,
        "parameters": model.parameters,
        "logits": logits,
        "files": {name: digest(data) for name, data in sorted(files.items())},
    }
    _replace(out, files | {MANIFEST: _json(manifest)}, stale=[] if proof else [PROOF])
    return [out / name for name in (*files, MANIFEST)]


def _json(data: Any) -> bytes:
    return (json.dumps(data, indent=2, allow_nan=False) + "\n").encode()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _replace(out: Path, files: Mapping[str, bytes], stale: list[str]) -> None:
    """A folder without a manifest is no build, so the manifest goes first and comes last."""
    out.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".blockc-", dir=out))
    try:
        for name, data in files.items():
            (staging / name).write_bytes(data)
        for name in (MANIFEST, *stale):
            (out / name).unlink(missing_ok=True)
        for name in files:  # the manifest is the last of them
            os.replace(staging / name, out / name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@dataclass(frozen=True)
class Checked:
    """What a folder's files say: which are not those of the manifest, which its spec no longer gives, and the proof."""

    changed: tuple[str, ...]
    outdated: tuple[str, ...]
    proof: Proof | None


class FolderError(Exception):
    """A folder that is no build."""


def check(folder: Path) -> Checked:
    """The manifest, then the proof: a build small enough is run as it lies there, file by file.

    A larger one must be, byte for byte, what its spec gives now, and its twin is run in its stead.
    """
    manifest = _manifest(folder)
    files: dict[str, str] = manifest["files"]
    changed = [name for name, hash_ in files.items() if _digest_of(folder / name) != hash_]
    if changed:
        return Checked(tuple(changed), (), None)
    model = compiled(load(folder / "spec.resolved.yaml"))
    if model.parameters <= RUNNABLE:
        return Checked((), (), prove(model, folder / "model.py", (folder / "model.onnx").read_bytes()))
    now = {name: text.encode() for name, text in texts(model).items()} | {"model.onnx": model.onnx(manifest["logits"])}
    unlike = tuple(name for name, data in now.items() if name in files and digest(data) != files[name])
    return Checked((), unlike, None if unlike else prove(compiled(shrink(model.spec))))


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        named = {str(name) for name in manifest["files"]}
    except FileNotFoundError:
        raise FolderError(f"{folder}: no {MANIFEST}, so no finished build") from None
    except (ValueError, KeyError, TypeError):
        raise FolderError(f"{folder / MANIFEST}: not a manifest") from None
    if strange := sorted(name for name in named if Path(name).name != name):
        raise FolderError(f"{folder / MANIFEST}: names a file outside the folder: {strange[0]}")
    if absent := sorted({"model.py", "model.onnx", "spec.resolved.yaml"} - named):
        raise FolderError(f"{folder / MANIFEST}: names no {absent[0]}")
    return manifest


def _digest_of(path: Path) -> str:
    return digest(path.read_bytes()) if path.is_file() else ""
