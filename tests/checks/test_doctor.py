"""blockc doctor: what it says of a machine, with machines made up, and of this one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockc import cli
from blockc.checks import doctor
from blockc.checks.doctor import CPU, CUDA
from tests.paths import ROOT


def run(*arguments: str) -> int:
    return cli.run_guarded(lambda: cli.app(["doctor", *arguments], standalone_mode=False))


class Fake:
    """An onnxruntime: the providers that it lists, those that a session gets, and what is done to its numbers."""

    def __init__(
        self,
        listed: list[str],
        started: list[str] | None = None,
        wrong: Callable[[Any], Any] = lambda out: out,
        log: bytes = b"",
    ) -> None:
        import onnxruntime

        self.real, self.listed, self.started, self.wrong, self.log = onnxruntime, listed, started, wrong, log
        self.SessionOptions = onnxruntime.SessionOptions

    def get_available_providers(self) -> list[str]:
        return self.listed

    def preload_dlls(self) -> None:
        print("noise of a library")

    def InferenceSession(self, model: bytes, options: Any, providers: list[str]) -> Fake:
        os.write(2, self.log)
        self.asked = providers
        self.session = self.real.InferenceSession(model, options, providers=[CPU])
        return self

    def get_providers(self) -> list[str]:
        return self.started or [*self.asked, CPU]

    def run(self, names: list[str], feeds: dict[str, Any]) -> list[Any]:
        return [self.wrong(out) for out in self.session.run(names, feeds)]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def put(*listed: str, **how: Any) -> None:
        made = Fake(list(listed), **how)
        monkeypatch.setattr(doctor, "onnxruntime_", lambda: made)
        monkeypatch.setattr(doctor, "runtimes", lambda: ["onnxruntime-gpu" if CUDA in listed else "onnxruntime"])

    return put


def test_this_machine_is_well(capfd: pytest.CaptureFixture[str]) -> None:
    """What the tests run with, they run with: the real packages, and the known answer in the real onnxruntime."""
    if len(doctor.runtimes()) > 1:
        assert run() == 3
        return
    assert run("--json") == 0
    said = json.loads(capfd.readouterr().out)
    assert said["format"] == 1 and said["problems"] == []
    assert {p["name"]: p["works"] for p in said["providers"]}[CPU] is True
    versions = {p["name"]: p["version"] for p in said["packages"]}
    assert versions["numpy"] == np.__version__ and all(p["use"] for p in said["packages"])
    assert run() == 0
    text = capfd.readouterr().out
    assert f"{CPU}: works, " in text and text.endswith("no problem found\n")


def test_nothing_heavy_is_imported_to_ask() -> None:
    script = "import sys; from blockc import cli; from blockc.checks import doctor; "
    script += "print([m for m in ('numpy', 'onnx', 'torch', 'onnxruntime') "
    script += "if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", script], cwd=ROOT, text=True) == "[]\n"


def test_both_onnxruntimes_at_once_are_named_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "runtimes", lambda: ["onnxruntime", "onnxruntime-gpu"])
    assert run() == 3
    said = capsys.readouterr().out
    assert "problem: onnxruntime and onnxruntime-gpu are both installed: they overwrite each other's files" in said
    assert (
        "    fix: `pip uninstall onnxruntime onnxruntime-gpu`, then one of them alone: "
        "`pip install 'onnxruntime-gpu[cuda,cudnn]'` for CUDA, `pip install onnxruntime` without\n"
    ) in said


def test_whatever_brings_the_module_counts(tmp_path: Path) -> None:
    """Two packages as pip leaves them, found by a process of its own."""
    for name in ("onnxruntime_rocm", "onnxruntime"):
        info = tmp_path / f"{name}-1.30.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.30.0\n")
        (info / "top_level.txt").write_text("onnxruntime\n")
    script = "from importlib import metadata; from blockc.checks import doctor; print(*doctor.runtimes())"
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    said = subprocess.check_output([sys.executable, "-c", script], cwd=tmp_path, env=env, text=True)
    assert {"onnxruntime", "onnxruntime-rocm"} <= set(said.split())


def test_the_least_versions_are_those_of_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: lines)
    least = doctor.least_versions()
    assert least["onnxruntime"] == least["onnxruntime-gpu"] == "1.28" and least["numpy"] == "1.26"
    said = [line.partition(">=")[::2] for line in lines if line.startswith("onnxruntime") and "genai" not in line]
    assert {version for _, version in said} == {least["onnxruntime"]}
    used = {line.partition(">=")[0] for line in project["dependencies"] if ">=" in line}
    assert doctor.CORE.keys() == used
    beside = [line for line in project["dependencies"] if ">=" not in line]
    assert all(re.fullmatch(r"[\w.-]+!=[\d.]+", line) for line in beside), (
        "a version of another's package that is left out"
    )
    assert doctor.OPTIONAL.keys() <= least.keys()


@pytest.mark.parametrize(
    ("version", "old"), [("1.27.9", True), ("1.9", True), ("1.28", False), ("1.28.0", False), ("1.100.2+cpu", False)]
)
def test_an_onnxruntime_before_1_28_is_a_problem(
    version: str, old: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = doctor.installed_version
    monkeypatch.setattr(doctor, "runtimes", list)
    monkeypatch.setattr(doctor, "installed_version", lambda name: version if name == "onnxruntime" else real(name))
    assert run() == (3 if old else 0)
    what = f"problem: onnxruntime is {version}, and blockc needs 1.28 or later\n"
    assert (what + "    fix: `pip install -U 'onnxruntime>=1.28'`\n" in capsys.readouterr().out) is old


def test_what_is_not_installed_is_no_problem_unless_nothing_works_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "runtimes", list)
    monkeypatch.setattr(doctor, "installed_version", lambda name: "99" if name in doctor.CORE else None)
    assert run() == 0
    assert "\ntorch              -             proves model.py\n" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "installed_version", lambda name: None if name == "onnx" else "99")
    assert run() == 3
    assert "problem: onnx is missing\n    fix: `pip install 'onnx>=1.21'`\n" in capsys.readouterr().out


def test_a_package_that_cannot_be_imported_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> Any:
        raise ImportError("libfoo.so: cannot open shared object file")

    monkeypatch.setattr(doctor, "runtimes", lambda: ["onnxruntime"])
    monkeypatch.setattr(doctor, "onnxruntime_", broken)
    assert run() == 3
    assert "onnxruntime cannot be imported: libfoo.so: cannot open shared object file" in capsys.readouterr().out


def test_a_provider_that_is_listed_and_does_not_start_is_a_problem(
    fake: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    log = (
        b"2026 [E:onnxruntime:Default, x.cc:1 Get] /src/x.cc:1 [ONNXRuntimeError] : 1 : FAIL : Failed to load library "
    )
    fake(CUDA, CPU, started=[CPU], log=log + b"libx.so with error: libcudart.so.13: no such file\n")
    assert run() == 3
    said = capfd.readouterr()
    assert said.err == "" and "noise" not in said.out
    why = "onnxruntime would run on CPUExecutionProvider: Failed to load library libx.so with error: libcudart.so.13"
    assert f"{CUDA}: does not work: {why}" in said.out
    assert f"problem: {CUDA} does not work: {why}" in said.out
    assert "    fix: it needs an NVIDIA driver (see nvidia-smi), CUDA and cuDNN" in said.out


def test_a_provider_is_judged_by_its_numbers(fake: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    fake(CPU, wrong=lambda out: out + np.float32(1e-3))
    assert run("--json") == 3
    (provider,) = json.loads(capsys.readouterr().out)["providers"]
    assert provider["works"] is False and abs(provider["error"] - 1e-3) < 1e-5
    fake(CPU, wrong=lambda out: out * np.float32("nan"))
    assert run() == 3
    fake(CPU)
    assert run() == 0


def test_a_session_that_raises_is_a_problem(fake: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    def failing(_: Any) -> Any:
        raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : CUDA error: no kernel image is available\nmore lines")

    fake(CUDA, wrong=failing)
    assert run() == 3
    assert f"problem: {CUDA} does not work: CUDA error: no kernel image is available\n" in capsys.readouterr().out


def test_a_provider_that_blockc_does_not_use_is_only_listed(
    fake: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    fake("TensorrtExecutionProvider", CPU)
    assert run() == 0
    assert "TensorrtExecutionProvider: available, but blockc does not use it\n" in capsys.readouterr().out


def test_the_known_answer_in_half_precision_is_close_enough_for_its_tolerance(fake: Callable[..., None]) -> None:
    """The graph for CUDA, in fp16 on the CPU; a wrong mask or a wrong weight would change it by a sixth at least."""
    fake(CUDA)
    found = doctor.try_provider(CUDA)
    assert found.works and found.error is not None and found.error < doctor.TOLERANCE[CUDA] / 2


def test_a_folder_without_hard_links_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.why_no_links(tmp_path) == ""
    assert not list(tmp_path.iterdir())

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr(doctor, "runtimes", list)
    health = doctor.examine(tmp_path)
    assert health.hard_links == "Operation not permitted"
    assert "hard links in the working folder: not possible (Operation not permitted): --weights packs" in health.text()
    assert not health.problems and not list(tmp_path.iterdir())
