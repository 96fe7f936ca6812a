"""How what is missing is installed: one name of the distribution, and one place that says so."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from blockc.basics import distribution
from blockc.checks import doctor
from tests.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENV = os.environ | {"PYTHONPATH": str(ROOT)}
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]


def test_the_name_is_that_of_the_project() -> None:
    """Extras that take others name it too."""
    assert PROJECT["name"] == distribution.NAME
    own = [line for lines in EXTRAS.values() for line in lines if re.match(r"[\w.-]+\[", line)]
    of_others = [distribution.WITH_CUDA]
    assert all(line.startswith((f"{distribution.NAME}[", *of_others)) for line in own)


def test_each_package_is_in_its_extra() -> None:
    for package, extra in distribution.EXTRAS.items():
        assert any(line.startswith(package.replace("_", "-")) for line in EXTRAS[extra]), package
    assert [line.startswith(distribution.WITH_CUDA) for line in EXTRAS["cuda"]] == [True]


def test_until_it_is_published_an_extra_is_installed_from_a_clone() -> None:
    assert not distribution.PUBLISHED
    assert distribution.extra_command("run") == "`pip install '.[run]'` in a clone of blockc"
    assert distribution.extra_command("torch", "cpu") == "`pip install '.[torch,cpu]'` in a clone of blockc"
    assert distribution.missing_message("jinja2") == (
        "the package jinja2 is missing, which comes with blockc: `pip install .` in a clone of blockc"
    )


def test_one_constant_changes_every_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "PUBLISHED", True)
    monkeypatch.setattr(distribution, "NAME", "another-name")
    assert (
        distribution.missing_message("tokenizers")
        == "the package tokenizers is missing: `pip install 'another-name[run]'`"
    )
    assert distribution.missing_message("jinja2").endswith("comes with another-name: `pip install another-name`")


def test_no_message_spells_the_command_itself() -> None:
    """Nor asks for the distribution by another name than the constant."""
    found: list[str] = []
    for path in sorted((ROOT / "blockc").rglob("*.py")):
        if path == Path(distribution.__file__):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "pip install" in node.value:
                found.append(f"{path.name}:{node.lineno}")
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("metadata."):
                found += [f"{path.name}:{node.lineno}" for given in node.args if isinstance(given, ast.Constant)
                          and given.value == distribution.NAME]  # fmt: skip
    assert found == []
    texts = [path for path in (ROOT / "templates").rglob("*.*") if "pip install" in path.read_text(encoding="utf-8")]
    assert texts == []


def test_the_doctor_asks_for_the_versions_of_this_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(metadata, "requires", lambda name: asked.append(name) or ["onnx>=9"])
    assert doctor.least_versions()["onnx"] == "9" and asked == [distribution.NAME]


def test_pages_install_extras_that_there_are_from_a_clone_until_it_is_published() -> None:
    wanted = rf"(?:{re.escape(distribution.NAME) if distribution.PUBLISHED else re.escape('.')})(?:\[([\w,]+)\])?"
    found = 0
    for page in PAGES:
        for line in re.findall(r"pip install (.*)", page.read_text(encoding="utf-8")):
            if line.startswith('"git+$BLOCKC_REPOSITORY"'):
                continue
            match = re.match(rf"'?{wanted}'?(?=[ `]|$)", line)
            assert match, f"{page.name}: pip install {line}"
            assert set((match[1] or "run").split(",")) <= EXTRAS.keys(), line
            found += 1
    assert found >= 5


def test_a_package_that_is_missing_is_named_with_what_brings_it(tmp_path: Path) -> None:
    script = "import sys; sys.modules['gguf'] = None; sys.argv = ['blockc', 'build', 'gpt2', '--weights', 'x.gguf']; "
    script += "from blockc.cli import main; main()"
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + bytes(100))
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=ENV, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr == "blockc: the package gguf is missing: `pip install '.[gguf]'` in a clone of blockc\n"
