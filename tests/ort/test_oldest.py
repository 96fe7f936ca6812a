"""The oldest onnxruntime that each graph is said to run on, each in an environment of its own: `make clients`."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from blockc.basics.opsets import OPSETS
from blockc.graph.shrink import shrink
from blockc.graph.target import Target
from blockc.language.spec import load
from blockc.ort.kernels import OLDEST, OLDEST_HALF, OLDEST_LAST, OLDEST_OWN, oldest_release, parse_release
from blockc.pipeline.compiled import Compiled, compile_spec
from tests.oldest import record
from tests.paths import ROOT

RUN = ROOT / "tests" / "oldest_run.py"
NUMPY = "1.26.4"  # which the oldest were built with, and the newest take
CASES = frozenset({"full", "padded left", "decode"})
TARGETS = (
    *(Target(opset=opset) for opset in OPSETS), Target(opset=17, cache="buffer"), Target(opset=17, dtype="fp16"),
    Target(opset=17, logits="last"), Target(opset=21, logits=4), Target(), Target(cache="buffer"), Target(logits=4),
    Target("cpu"), Target("cpu", logits=4), Target("cpu", "fp16"), Target("cpu", padding="right"),
    Target("cpu", packed=True), Target("cuda", "fp16"), Target("cuda", "bf16", "last"),
)  # fmt: skip
# Sinks and groups of heads; caps, windows and offsets; biases of alibi; neighbours turned; clips, norms without a bias.
SPECS = (("llama3-8b", "attention.sinks=true"), ("gemma2-9b",), ("bloom-560m",), ("gpt-j-6b",), ("olmo1.7-7b",))
OFFLINE = ("NewConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ProxyError", "NameResolutionError")
VERSIONS = sorted({*OLDEST.values(), OLDEST_LAST, OLDEST_HALF, OLDEST_OWN}, key=parse_release)
packaged = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the oldest have packages for Python 3.11")


def twin(name: str, *assignments: str) -> Compiled:
    return compile_spec(shrink(load(ROOT / "specs" / f"{name}.yaml", assignments)))


def python(version: str, folder: Path) -> Path:
    """An environment with this onnxruntime. Skips where no network is, and there alone."""
    venv.create(folder, with_pip=False)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(folder / "bin" / "python"),
        "install",
        "--no-deps",
        "--quiet",
        "--retries=2",
    ]
    packages = [f"onnxruntime=={version}", f"numpy=={NUMPY}"]
    done = subprocess.run([*pip, "--no-compile", *packages], capture_output=True, text=True, timeout=300)
    if offline(done.returncode, done.stderr):
        pytest.skip("no network")
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / "bin" / "python"


def offline(code: int, said: str) -> bool:
    return code != 0 and any(error in said for error in OFFLINE)


def judged(interpreter: Path, folder: Path) -> tuple[str, dict[str, str]]:
    """The version that ran, and for each folder nothing or what is wrong."""
    told = json.loads(subprocess.check_output([interpreter, "-I", RUN, folder], text=True, timeout=300))
    return told["onnxruntime"], told["found"]


@pytest.mark.client
@packaged
@pytest.mark.parametrize("version", VERSIONS)
def test_the_oldest_onnxruntime_computes_what_it_is_said_to(version: str, tmp_path: Path) -> None:
    chosen = [target for target in TARGETS if oldest_release(target) == version]
    assert chosen
    interpreter = python(f"{version}.0", tmp_path / "env")
    for name, *more in SPECS:
        model = twin(name, *more)
        for i, target in enumerate(chosen):
            record(model, target, tmp_path / "graphs" / name / str(i), CASES)
    ran, found = judged(interpreter, tmp_path / "graphs")
    assert ran == f"{version}.0" and len(found) == len(chosen) * len(SPECS)
    assert not {where: (chosen[int(where.rpartition("/")[2])], why) for where, why in found.items() if why}


@pytest.mark.client
@packaged
def test_the_release_before_is_wrong(tmp_path: Path) -> None:
    """So the usual graphs want no more than they must, and a runtime that is wrong is seen."""
    assert oldest_release(Target()) == oldest_release(Target("cpu")) == "1.28"
    interpreter = python("1.27.0", tmp_path / "env")
    model = twin("bloom-560m")
    for i, target in enumerate((Target(), Target("cpu"), Target(opset=22))):
        record(model, target, tmp_path / "graphs" / str(i), CASES)
    _, found = judged(interpreter, tmp_path / "graphs")
    assert found["0"] and found["1"] and not found["2"]


def test_what_is_no_network_is_told_from_a_release_that_is_not_there() -> None:
    retry = "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)': /onnxruntime/"
    missing = "ERROR: No matching distribution found for onnxruntime==1.15.0"
    assert offline(1, f"{retry}\n{missing}") and not offline(1, missing) and not offline(0, retry)
