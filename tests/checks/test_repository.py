"""Annotations of a service that knows the repository: named from its root, wherever the command runs."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import jsonschema
import pytest

from blockc.cli import app, run_guarded
from blockc.diagnostics.examples import change_base
from tests.paths import ROOT

SCHEMA = json.loads((ROOT / "tests" / "data" / "sarif-2.1.0-rtm.5.json").read_text())
WRONG = change_base("vocab: 0\n")


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "core.quotepath=false")
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def mono(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a package in a folder of it."""
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    root = tmp_path / "mono"
    for name in ("pkg/a/specs/bad.yaml", "pkg/a/specs/é x.yaml", "top.yaml"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(WRONG)
    git(root.parent, "init", "-q", "mono")
    git(root, "add", ".")
    git(root, "commit", "-qm", "specs")
    return root


def named(format_: str, capsys: pytest.CaptureFixture[str], *paths: str) -> set[str]:
    """The files that a format names."""
    assert run_guarded(lambda: app(["check", *paths, "--format", format_], standalone_mode=False)) == 1
    said = capsys.readouterr().out
    if format_ == "github":
        lines = [line for line in said.splitlines() if line.startswith("::")]
        return {unquote(line.split("file=", 1)[1].split(",", 1)[0]) for line in lines}
    document = json.loads(said)
    jsonschema.Draft4Validator(SCHEMA).validate(document)
    places = [place for result in document["runs"][0]["results"] for place in result["locations"]]
    return {unquote(place["physicalLocation"]["artifactLocation"]["uri"]) for place in places}


both = pytest.mark.parametrize("format_", ["github", "sarif"])


@both
@pytest.mark.parametrize("folder", [".", "pkg", "pkg/a", "pkg/a/specs"])
def test_a_file_is_named_as_git_names_it(
    format_: str, folder: str, mono: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(mono / folder)
    below = "" if folder == "." else f"{folder}/"
    tracked = {name for name in git(mono, "ls-files").splitlines() if name.startswith(below)}
    assert tracked and named(format_, capsys, ".") == tracked
    assert named(format_, capsys, str(mono / "top.yaml")) == {"top.yaml"}


@both
def test_a_worktree_has_a_root_too(
    format_: str, mono: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There .git is a file."""
    git(mono, "worktree", "add", "-q", "../other")
    monkeypatch.chdir(mono.parent / "other" / "pkg" / "a")
    assert named(format_, capsys, "specs/bad.yaml") == {"pkg/a/specs/bad.yaml"}


@both
def test_the_workspace_goes_before_git(
    format_: str, mono: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkout below the workspace, and a workspace that a link leads to."""
    monkeypatch.chdir(mono / "pkg" / "a")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(mono.parent))
    assert named(format_, capsys, "specs/bad.yaml") == {"mono/pkg/a/specs/bad.yaml"}
    (mono.parent / "link").symlink_to(mono)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(mono.parent / "link"))
    assert named(format_, capsys, "specs/bad.yaml") == {"pkg/a/specs/bad.yaml"}
    monkeypatch.setenv("GITHUB_WORKSPACE", str(mono.parent / "mon"))  # above nothing, though its text begins alike
    assert named(format_, capsys, "specs/bad.yaml") == {"pkg/a/specs/bad.yaml"}


@both
def test_without_a_repository_the_working_folder_is_the_root(
    format_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "bad.yaml").write_bytes(WRONG)
    monkeypatch.chdir(tmp_path)
    assert named(format_, capsys, "a/bad.yaml") == {"a/bad.yaml"}
    assert named(format_, capsys, str(tmp_path / "a" / "bad.yaml")) == {"a/bad.yaml"}


@both
def test_standard_input_has_a_plain_name(
    format_: str, mono: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a file of that name is the file."""
    monkeypatch.chdir(mono / "pkg")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(WRONG)))
    assert named(format_, capsys, "-") == {"stdin"}
    Path("stdin").write_bytes(WRONG)
    assert named(format_, capsys, "stdin") == {"pkg/stdin"}


def test_a_result_stays_the_same_wherever_the_command_runs(
    mono: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    for folder, path in ((mono, "pkg/a/specs/bad.yaml"), (mono / "pkg" / "a", "specs/bad.yaml")):
        monkeypatch.chdir(folder)
        assert run_guarded(lambda path=path: app(["check", path, "--format", "sarif"], standalone_mode=False)) == 1
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
