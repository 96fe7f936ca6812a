"""The same input gives the same bytes, whatever the process that builds is like."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from blockc.products import folder
from tests.checkpoints import ROOT, save, tensors, twin

# Every form of a build, by one process: the graph alone, linked weights and packed ones. (A proof is a measurement.)
BUILDS = """
import locale, os, sys, time
from pathlib import Path
from blockc import api
from blockc.graph.target import Target
mask, spec, weights, out = sys.argv[1:]
os.umask(int(mask, 8))
locale.setlocale(locale.LC_ALL, "")
model = api.compile(spec)
out = Path(out)
api.build(model, out / "bare", proof=False, target=Target("cpu"))
api.build(model, out / "linked", proof=False, weights=weights)
api.build(model, out / "packed", proof=False, weights=weights, mode="pack", target=Target("cuda", "fp16"))
print(time.tzname[0], sys.getfilesystemencoding(), hash("x"))
"""
MACHINES: tuple[dict[str, str], ...] = (
    {"PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONHASHSEED": "4711", "TZ": "Asia/Kathmandu", "LC_ALL": "C.UTF-8", "COLUMNS": "40", "OMP_NUM_THREADS": "1"},
)


def test_bytes_do_not_depend_on_the_machine(tmp_path: Path) -> None:
    """Other hash seeds, folders, time zones, locales with their encodings, umasks, threads, and dates of the files."""
    model = twin("gemma2-9b")
    held = tensors(model)
    found: list[dict[str, bytes]] = []
    said: list[str] = []
    for i, machine in enumerate(MACHINES):
        here = tmp_path / ("a" if i else "another folder")
        here.mkdir()
        spec = here / "twin.yaml"
        spec.write_text(model.resolved_yaml())
        os.utime(spec, (1e9 + i, 1e9 + i))
        weights = save(here / "model.safetensors", held)
        os.utime(weights, (1e9 + i, 1e9 + i))
        arguments = ["022" if i else "077", "twin.yaml", "model.safetensors", str(here / "out")]
        env = {k: v for k, v in os.environ.items() if k != "LANG"} | machine | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", BUILDS, *arguments], cwd=here, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
        found.append({p.relative_to(here).as_posix(): p.read_bytes() for p in (here / "out").rglob("*") if p.is_file()})
    assert all(a != b for a, b in zip(*(line.split() for line in said), strict=True)), said
    first, second = found
    assert first.keys() == second.keys() and len(first) >= 18
    assert [name for name in first if first[name] != second[name]] == []


def test_the_manifest_holds_what_tells_builds_apart(tmp_path: Path) -> None:
    """The hash of each file, the meaning's, the versions, and of a checkpoint what shows that it is another."""
    from blockc import api

    model = twin("llama3-8b")
    weights = save(tmp_path / "model.safetensors", tensors(model))
    api.build(model, tmp_path / "out", proof=False, weights=weights, deep=True)
    said: dict[str, Any] = json.loads((tmp_path / "out" / folder.MANIFEST).read_text())
    assert said["versions"].keys() == {"blockc", "numpy", "onnx"} and all(said["versions"].values())
    assert said["semantic_hash"] == model.decoder.semantic_hash
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert said["files"].keys() == files - {folder.MANIFEST, "model.safetensors"}
    for name, digest in said["files"].items():
        assert folder.digest((tmp_path / "out" / name).read_bytes()) == digest
    (source,) = said["weights"]["sources"]
    assert source.keys() == {"name", "size", "header_sha256"} and source["size"] == weights.stat().st_size
    assert said["weights"]["tensors"].keys() == tensors(model).keys()
    text = json.dumps(said)
    assert str(tmp_path) not in text and os.uname().nodename not in text
