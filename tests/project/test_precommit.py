"""What stands before a commit, and the marks of tests: said in several files, which agree."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from tests.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
(LOCAL,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
HOOKS: dict[str, dict[str, Any]] = {hook["id"]: hook for hook in LOCAL["hooks"]}
OURS = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
PINNED = {
    requirement.name: requirement
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
    for requirement in [Requirement(line)]
}


def test_the_hooks_are_what_lint_runs_and_what_users_get() -> None:
    assert LOCAL["repo"] == "local" and list(HOOKS) == ["ruff-check", "ruff-format", *OURS]
    makefile = (ROOT / "Makefile").read_text()
    for name in ("check", "format"):
        assert HOOKS[f"ruff-{name}"]["entry"].startswith(f"ruff {name} ") and f"$(BIN)/ruff {name} " in makefile
    for name, hook in OURS.items():
        assert HOOKS[name]["entry"] == f".venv/bin/python -m {hook['entry']}"


def test_pinned_versions_are_those_of_the_constraints_and_suit_the_project() -> None:
    given = [Requirement(each) for hook in HOOKS.values() for each in hook.get("additional_dependencies", [])]
    assert [each.name for each in given] == ["ruff", "ruff"]
    assert {str(each) for each in given} == {str(PINNED["ruff"])} and str(PINNED["ruff"]).startswith("ruff==")
    project = PROJECT["project"]
    asked = [Requirement(line) for extra in project["optional-dependencies"].values() for line in extra]
    asked += [Requirement(line) for line in project["dependencies"]]
    for name, pin in PINNED.items():
        (version,) = (each.version for each in pin.specifier)
        assert any(each.name == name for each in asked)
        assert all(each.specifier.contains(version) for each in asked if each.name == name), pin
        assert metadata.version(name).partition("+")[0] == version, "the environment is not that of constraints.txt"


@pytest.mark.parametrize("name", OURS)
def test_our_hooks_pass_on_the_specs_and_fail_on_a_wrong_one(name: str, tmp_path: Path) -> None:
    """As pre-commit calls them: the entry, and the files that it is for."""
    files = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "specs").glob("*")) if path.is_file()]
    assert files and all(re.search(HOOKS[name]["files"], file) for file in files)
    assert not re.search(HOOKS[name]["files"], "tests/bad/BLC101.yaml")
    command = [sys.executable, *shlex.split(HOOKS[name]["entry"])[1:]]
    (tmp_path / "wrong.yaml").write_text("name: a\nblockc: 1\n")
    for given, code in ((files, 0), ([files[0], str(tmp_path / "wrong.yaml")], 1)):
        done = subprocess.run([*command, *given], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr


def test_each_mark_is_registered_and_in_contributing() -> None:
    registered = {re.split(r"[(:]", line)[0] for line in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    said = set(re.findall(r"^\| `(\w+)(?:\(.*?\))?` \| ", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    used = {
        node.attr
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pytest.mark"
    }
    of_pytest = {"filterwarnings", "parametrize", "skipif", "usefixtures"}
    assert used - of_pytest == said == registered | {"no_cover"}
