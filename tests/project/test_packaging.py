"""The wheel: what is in it, and that it works without the repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.wheels import built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_templates_specs_layouts_and_texts(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, pattern in (("templates", "*.j2"), ("templates", "*.py"), ("specs", "*.yaml")):
        for path in (ROOT / folder).rglob(pattern):
            assert f"blockc/{path.relative_to(ROOT)}" in names
    for path in (*(ROOT / "blockc" / "layouts").rglob("*.yaml"), *(ROOT / "blockc" / "texts").iterdir()):
        assert f"{path.relative_to(ROOT)}" in names
    assert {"blockc/py.typed", "blockc/texts/alice.txt", "blockc/texts/README.md"} <= names
    assert not [name for name in names if re.search(r"\.onnx|\.safetensors|tests/|generated/", name)]


def test_the_core_install_is_light(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        (metadata,) = (file.read(n).decode() for n in file.namelist() if n.endswith("METADATA"))
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:")]
    core = {
        re.split(r"[ !<>=\[;]", line.removeprefix("Requires-Dist: "))[0] for line in required if "extra ==" not in line
    }
    assert core == {"jinja2", "ml-dtypes", "numpy", "onnx", "pydantic", "pyyaml", "typer"}
    for needed in ("onnx>=1.21", "jinja2>=3.1.6"):
        assert any(needed in line for line in required)
    assert any(line.startswith("Requires-Dist: torch>=2.10") for line in required)
    assert any(line.startswith("Requires-Dist: onnxruntime-gpu[cuda,cudnn]") for line in required)
    assert "License-Expression: Apache-2.0" in metadata


@pytest.mark.costly
def test_the_wheel_works_alone(wheel: Path, tmp_path: Path) -> None:
    """Unpacked elsewhere and run from there: nothing of the repository is in reach."""
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "site")
    script = "import blockc, sys; assert 'site' in blockc.__file__; from blockc.cli import main; main()"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); {script}"]
    for arguments in (["show", "llama3-8b"], ["build", "gemma2-9b", "--no-verify", "--out", "out"], ["verify", "gpt2"]):
        done = subprocess.run(
            [*command, *arguments], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""}
        )
        assert done.returncode == 0, done.stderr
    for file in ("model.py", "graph.txt", "report.json", "spec.resolved.yaml"):
        assert (tmp_path / "out" / file).read_text() == (ROOT / "generated" / "gemma2-9b" / file).read_text()
