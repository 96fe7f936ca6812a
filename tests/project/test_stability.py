"""What docs/stability.md promises: of each promise that it is kept, and that the test would see it broken."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import blockc.cli.common
from blockc import api
from blockc.cli import app, run_guarded
from blockc.diagnostics import CODES
from blockc.products.manifest import FORMAT, MANIFEST, read_manifest
from tests import stability
from tests.bad import renew

PAGE = (stability.ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
MANIFESTS = sorted((stability.HERE / "manifests").glob("*.json"))


def run(line: str) -> int:
    return run_guarded(lambda: app(line.split(), standalone_mode=False))


# Promises of names, keys and meanings


def test_a_right_spec_stays_right_and_means_what_it_meant() -> None:
    """The hash, the parameters and their names are those that the release itself computed."""
    meant = stability.frozen("meanings.json")
    assert len(meant) >= 45 and meant.keys() == {path.stem for path in stability.SPECS.glob("*.yaml")}
    assert stability.broken(meant, stability.meanings()) == []


def test_no_error_is_found_in_a_spec_that_was_right() -> None:
    found = {path.name: api.check(path) for path in sorted(stability.SPECS.glob("*.yaml"))}
    assert [name for name, findings in found.items() if any(each.severity == "error" for each in findings)] == []


def test_keys_and_words_of_the_language_stay() -> None:
    assert stability.broken(stability.frozen("language.json"), stability.language()) == []


def test_codes_of_findings_stay() -> None:
    """A code that is no longer given keeps its line, with (gone) behind it."""
    kept = renew.frozen()
    assert len(kept) > 90
    assert {name for name, title in kept.items() if not title.endswith("(gone)")} == CODES.keys()
    assert all(CODES[name].title == title for name, title in kept.items() if name in CODES)


def test_names_of_the_api_stay() -> None:
    assert stability.broken(stability.frozen("api.json"), stability.names()) == []


def test_what_is_promised_of_large_classes_is_what_the_page_says() -> None:
    said = dict(re.findall(r"^\| `(\w+)` \| ((?:`\w+`(?:, )?)+) \|$", PAGE, re.MULTILINE))
    assert {name: tuple(re.findall(r"\w+", has)) for name, has in said.items()} == stability.PARTLY


def test_commands_and_options_stay() -> None:
    assert stability.broken(stability.frozen("commands.json"), stability.commands()) == []


@pytest.mark.costly
def test_outputs_for_programs_keep_their_keys() -> None:
    kept = stability.frozen("outputs.json")
    assert list(kept) == sorted(stability.OUTPUTS)
    assert stability.broken(kept, stability.outputs()) == []


# The exit codes


def test_exit_codes_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    right = (stability.SPECS / "llama3-8b.yaml").read_text()
    Path("own.yaml").write_text(right)
    Path("wrong.yaml").write_text(right.replace("kv_heads: 8", "kv_heads: 5"))
    Path("x.gguf").write_bytes(b"GGUF" + bytes(100))
    monkeypatch.setitem(sys.modules, "gguf", None)
    given = {
        run("check own.yaml"): "clean",
        run("check wrong.yaml"): "a spec or a build is wrong",
        run("check nothing.yaml"): "wrong usage",
        run("build own.yaml --weights x.gguf --out out"): "the environment failed",
    }

    def interrupted() -> None:
        raise KeyboardInterrupt

    given[run_guarded(interrupted)] = "interrupted"
    said = {int(code): what for code, what in re.findall(r"^\| (\d+) \| ([^|]+?) \|$", PAGE, re.MULTILINE)}
    assert said.keys() == given.keys() and all(said[code].startswith(what) for code, what in given.items())
    common = blockc.cli.common
    constants = (common.OK, common.WRONG, common.USAGE, common.ENVIRONMENT, common.INTERRUPTED)
    assert sorted(said) == list(constants) == [0, 1, 2, 3, 130]
    assert "Traceback" not in capsys.readouterr().err


# The folder of a build


def test_a_manifest_of_each_format_is_kept() -> None:
    assert [path.name for path in MANIFESTS] == ["0.1.0.json", *(f"{n}.json" for n in range(2, FORMAT + 1))]


def test_a_build_of_this_format_is_read(tmp_path: Path) -> None:
    shutil.copy(stability.HERE / "manifests" / f"{FORMAT}.json", tmp_path / MANIFEST)
    assert read_manifest(tmp_path).blockc_build == FORMAT


def test_other_keys_of_a_manifest_are_another_format(tmp_path: Path) -> None:
    """A manifest is read exactly: a key more, and an older blockc of the same number refuses the folder."""
    kept = json.loads((stability.HERE / "manifests" / f"{FORMAT}.json").read_text())
    made = json.loads((stability.build(tmp_path) / MANIFEST).read_text())
    for each in (kept, made):
        each["files"] = sorted(each["files"])
    assert stability.shape(made) == stability.shape(kept), "give manifest.FORMAT the next number"


@pytest.mark.parametrize("path", [path for path in MANIFESTS if path.name != f"{FORMAT}.json"], ids=lambda p: p.stem)
def test_an_older_build_is_said_to_be_older_and_what_to_do(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    shutil.copy(path, out / MANIFEST)
    for line in ("verify out", "run out --prompt a"):
        assert run(line) == 1
        said = capsys.readouterr().err
        assert "an older blockc 0.1.0 wrote it, in format 1, and this one reads" in said
        assert "build the folder again: `blockc build SPEC --out out --force`" in said
    model = api.compile("block-4x4")
    with pytest.raises(api.FolderError, match="--force"):
        api.build(model, out, proof=False)
    api.build(model, out, proof=False, force=True)
    assert read_manifest(out).blockc_build == FORMAT


def test_a_newer_build_is_said_to_be_newer(tmp_path: Path) -> None:
    said = json.loads((stability.HERE / "manifests" / f"{FORMAT}.json").read_text())
    said |= {"blockc_build": FORMAT + 1, "versions": {"blockc": "9.1"}, "more": 1}
    (tmp_path / MANIFEST).write_text(json.dumps(said))
    with pytest.raises(
        api.FolderError, match=rf"a newer blockc 9\.1 wrote it, in format {FORMAT + 1}, .* update blockc"
    ):
        read_manifest(tmp_path)


# The page, and what compares


def test_each_promise_names_a_test_and_what_is_frozen() -> None:
    rows = re.findall(r"^\| .+ \| `(test_\w+)` \| (.+) \|$", PAGE, re.MULTILINE)
    tests = {name for name in globals() if name.startswith("test_")}
    assert len(rows) >= 9 and {name for name, _ in rows} <= tests
    named = {file for _, files in rows for file in re.findall(r"`([\w./]+)`", files)}
    assert {str(path.relative_to(stability.HERE)) for path in stability.HERE.glob("*.*")} | {
        "specs/",
        "manifests/",
    } == named


GONE: dict[str, tuple[Any, Any, str]] = {
    "a name": ({"a": 1, "b": 2}, {"a": 1}, "/b: gone"),
    "a word": ({"a": ["x", "y"]}, {"a": ["y", "z"]}, "/a/x: gone"),
    "a value": ({"a": {"b": 1}}, {"a": {"b": 2}}, "/a/b: 2, and was 1"),
    "a call": ({"a": {}}, {"a": {"b": {"required": True}}}, "/a/b: required, and was not there"),
    "a type": ({"a": "number"}, {"a": "null|number"}, "/a: null|number, and was number"),
}
COME: dict[str, tuple[Any, Any, Any]] = {
    "a name": ({"b": 1}, {"a": 2, "b": 1}, {"a": 2, "b": 1}),
    "a word": ({"a": ["x"]}, {"a": ["z", "x"]}, {"a": ["x", "z"]}),
    "an option": ({"a": {}}, {"a": {"b": {"required": False}}}, {"a": {"b": {"required": False}}}),
    "no null this time": ({"a": "null|number"}, {"a": "number"}, {"a": "null|number"}),
}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(stability, "HERE", tmp_path)
    return tmp_path / "x.json"


@pytest.mark.parametrize("what", GONE)
def test_what_is_gone_is_seen_and_no_renewal_hides_it(what: str, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, now, fault = GONE[what]
    kept.write_text(json.dumps(before))
    monkeypatch.setitem(stability.FROZEN, kept.name, lambda: now)
    assert stability.renewed(kept.name) == [f"x.json: {fault}"]
    assert json.loads(kept.read_text()) == before


@pytest.mark.parametrize("what", COME)
def test_what_has_come_is_no_fault_and_is_added(what: str, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, now, wanted = COME[what]
    kept.write_text(json.dumps(before))
    monkeypatch.setitem(stability.FROZEN, kept.name, lambda: now)
    assert stability.renewed(kept.name) == []
    assert json.loads(kept.read_text()) == wanted
