"""Each peer's model, written from the checkpoint by the peer itself: how long that takes, and how much memory."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.candidates import Export, filled
from benchmarks.peers.environments import HERE, Missing, python

TIMES, LONG = 3, 5.0  # what is made anew each time is made so often, where once takes fewer seconds


def exported(
    name: str, export: Export, cache: Path, out: Path, paths: Mapping[str, Path | str], pinned: Sequence[int]
) -> dict[str, Any]:
    """{"seconds", "peak", "disk", "nodes"} of a folder that is there afterwards. Raises Missing.

    Seconds are those of the whole command. What the folder shares with the checkpoint is not counted as its own.
    """
    figures = out.with_name(f"{out.name}.json")
    if export.kept and figures.is_file() and out.is_dir():
        return {**json.loads(figures.read_text()), **nodes(out)}
    interpreter = python(cache, export.environment)
    print(f"exporting {name}", flush=True)
    given = dict(paths) | {"out": out, "cache": cache / "builder"}
    command = [interpreter, str(HERE / "exports" / "measured.py"), "PEAK", *filled(export.command, "exports", given)]
    taken = [once(command, out, pinned)]
    while not export.kept and len(taken) < TIMES and taken[0]["seconds"] < LONG:
        taken.append(once(command, out, pinned))
    made = {key: statistics.median(each[key] for each in taken) for key in ("seconds", "peak")}
    made["disk"] = size(out, Path(paths["checkpoint"]))
    made |= nodes(out)
    figures.write_text(json.dumps(made))
    return made


def once(command: list[str], out: Path, pinned: Sequence[int]) -> dict[str, float]:
    """{"seconds", "peak"} of an export by measured.py, where PEAK stands for its file. Raises Missing."""
    shutil.rmtree(out, ignore_errors=True)
    peak, log = out.with_name(f"{out.name}.peak"), out.with_name(f"{out.name}.log")
    peak.parent.mkdir(parents=True, exist_ok=True)
    peak.unlink(missing_ok=True)
    with log.open("w") as said:
        start = time.perf_counter()
        code = subprocess.run(
            [str(peak) if word == "PEAK" else word for word in command],
            stdout=said,
            stderr=said,
            preexec_fn=(lambda: os.sched_setaffinity(0, pinned)) if pinned else None,
        ).returncode
        seconds = time.perf_counter() - start
    if code:
        shutil.rmtree(out, ignore_errors=True)
        lines = log.read_text(errors="replace").strip().splitlines() or [f"exit {code}"]
        raise Missing(f"its export failed: {lines[-1][:200]}")
    return {"seconds": seconds, "peak": json.loads(peak.read_text())["peak"]}


def size(out: Path, checkpoint: Path) -> int:
    """Bytes of a folder's files, but for those that are files of the checkpoint too."""
    shared = {file.stat().st_ino for file in checkpoint.rglob("*")}
    return sum(file.stat().st_size for file in out.rglob("*") if file.is_file() and file.stat().st_ino not in shared)


def nodes(out: Path) -> dict[str, float]:
    """{"nodes": those of a layer} of a folder with a graph: from one attention to the next, constants apart.

    The files are in the order of computation, so between the attention of two layers stands as much as a layer has.
    """
    import onnx

    for path in sorted(out.rglob("*.onnx")):
        graph = onnx.load(path, load_external_data=False).graph
        kinds = [n.op_type for n in graph.node if n.op_type != "Constant"]
        kind = next(
            kind for kind in ("GroupQueryAttention", "MultiHeadAttention", "Attention", "Softmax") if kind in kinds
        )
        at = [i for i, held in enumerate(kinds) if held == kind]
        return {"nodes": statistics.median_low(b - a for a, b in itertools.pairwise(at))}
    return {}
