"""The formats of `check`, held against those who read them: the published schema, an XML parser, GitHub's escapes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jsonschema
import pytest

import blockc
from blockc import api
from blockc.checks.formats import FORMATS, Checked, github
from blockc.cli import app, run_guarded
from blockc.diagnostics.advice import WIDTH
from blockc.diagnostics.code import Code
from blockc.diagnostics.examples import BASE, change_base
from blockc.diagnostics.words import TOO_SMALL
from blockc.source import Place, finding
from tests.paths import ROOT

SCHEMA = json.loads((ROOT / "tests" / "data" / "sarif-2.1.0-rtm.5.json").read_text())
WIDE = change_base("mlp: {type: swiglu, width: 170}\n")
WRONG = change_base("attention: {heads: 4, kv_heads: 3, rope: {theta: 10000, pairing: half}}\nvocab: 0\n")
NASTY = "a\x1b[31m\r\n%: , <&>\"' \ud800\ufffe b"


def of(text: bytes, file: str, strict: bool = False) -> Checked:
    return Checked(file, api.check_text(text, file), strict)


def several(strict: bool = False) -> list[Checked]:
    return [of(WRONG, "b.yaml", strict), of(WIDE, "a/w.yaml", strict), of(BASE.encode(), "ok.yaml", strict)]


def nasty() -> Checked:
    place = Place(f"d é/{NASTY}#?.yaml", 3, 2, 4, f"x{NASTY}")
    others = [(NASTY, Place("other file.yaml", 1, 1))]
    return Checked(
        place.file, (finding(TOO_SMALL, place, NASTY, expected=NASTY, got=NASTY, hint=NASTY, others=others),)
    )


def many(code: Code, count: int, file: str = "m.yaml") -> Checked:
    return Checked(file, tuple(finding(code, Place(file, i + 1, 1), f"number {i}") for i in range(count)))


# Each format

CASES = {"none": [], "some": several(), "all": several(strict=True), "odd": [nasty()]}
each_case = pytest.mark.parametrize("checked", CASES.values(), ids=CASES)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "checked", [[], several(), several(strict=True), [nasty()]], ids=["none", "some", "all", "odd"]
)
def test_any_format_writes_anything_inert(name: str, checked: list[Checked]) -> None:
    text = FORMATS[name](checked)
    text.encode("utf-8")
    assert not set(text) & set("\x1b\r")
    assert FORMATS[name](checked) == text


def test_json() -> None:
    document = json.loads(FORMATS["json"](several()))
    assert (document["version"], document["tool"]) == (1, {"name": "blockc", "version": blockc.__version__})
    assert document["summary"] == {"files": 3, "errors": 2, "warnings": 1, "notes": 0, "wrong": 1}
    first = document["findings"][1]
    assert first == {
        "code": "BLC202",
        "severity": "error",
        "file": "b.yaml",
        "line": 7,
        "column": 33,
        "end_line": 7,
        "end_column": 34,
        "message": "attention.kv_heads 3 does not divide attention.heads 4",
        "expected": "a divisor of 4: each key-value head serves heads / kv_heads query heads",
        "got": "3",
        "hint": "",
        "related": [
            {"file": "b.yaml", "line": 7, "column": 20, "end_line": 7, "end_column": 21, "message": "heads"},
        ],
    }
    page = (ROOT / "docs" / "diagnostics.md").read_text()
    assert all(f'"{key}":' in page for key in (*document, *first, *document["summary"]))
    assert json.loads(FORMATS["json"](several(strict=True)))["summary"]["wrong"] == 2


def commands(checked: list[Checked]) -> list[tuple[str, dict[str, str], str]]:
    """Read as the runner reads them: name, unescaped properties, unescaped message."""
    found: list[tuple[str, dict[str, str], str]] = []
    for line in FORMATS["github"](checked).splitlines():
        if line.startswith("::"):
            head, _, message = line[2:].partition("::")
            name, _, rest = head.partition(" ")
            properties = dict(part.split("=", 1) for part in rest.split(","))
            found.append((name, {key: unquote(value) for key, value in properties.items()}, unquote(message)))
    return found


def test_github() -> None:
    found = commands(list(reversed(several())))
    assert [name for name, _, _ in found] == ["error", "error", "warning"]
    _, properties, message = found[1]
    assert properties == {
        "file": "b.yaml",
        "line": "7",
        "endLine": "7",
        "col": "33",
        "endColumn": "33",
        "title": "BLC202",
    }
    assert message.splitlines()[0] == "attention.kv_heads 3 does not divide attention.heads 4"
    assert message.splitlines()[-1] == "got: 3"


def test_github_shows_ten_of_a_severity_and_counts_the_rest() -> None:
    checked = [many(WIDTH, 11), many(TOO_SMALL, 25), many(TOO_SMALL, 10, "n.yaml")]
    found = commands(checked)
    assert [name for name, _, _ in found] == ["error"] * 10 + ["warning"] * 10
    text = FORMATS["github"](checked)
    assert "25 more of severity error: GitHub shows 10 for a step\n" in text
    assert "1 more of severity warning: GitHub shows 10 for a step\n" in text
    assert "more of" not in FORMATS["github"]([many(TOO_SMALL, github.SHOWN)])


def test_github_escapes_what_it_splits_at() -> None:
    ((_, properties, message),) = commands([nasty()])
    assert properties["file"].startswith("d é/a") and properties["file"].endswith("#?.yaml")
    assert "%: , <&>" in properties["file"] and "%: , <&>" in message
    assert FORMATS["github"]([nasty()]).count("\n") == 2


def sarif(checked: list[Checked]) -> dict[str, Any]:
    document = json.loads(FORMATS["sarif"](checked))
    jsonschema.Draft4Validator(SCHEMA).validate(document)
    (run,) = document["runs"]
    return run


@pytest.mark.parametrize(
    "checked", [[], several(), several(strict=True), [nasty()]], ids=["none", "some", "all", "odd"]
)
def test_sarif_is_what_the_schema_says(checked: list[Checked]) -> None:
    run = sarif(checked)
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == sorted({result["ruleId"] for result in run["results"]})
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    for rule in rules:
        assert all(rule[key]["text"] for key in ("shortDescription", "fullDescription", "help"))


def test_the_schema_refuses_what_is_not_sarif() -> None:
    document = json.loads(FORMATS["sarif"](several()))
    document["runs"][0]["results"][0]["level"] = "fatal"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft4Validator(SCHEMA).validate(document)


def test_sarif_says_where() -> None:
    result = sarif(several())["results"][1]
    (place,) = result["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "b.yaml", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 7, "startColumn": 33, "endLine": 7, "endColumn": 34},
    }
    assert result["level"] == "error"
    assert result["relatedLocations"][0]["message"] == {"text": "heads"}


def test_uris_are_relative_and_encoded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    inside = f"{tmp_path}{os.sep}a b{os.sep}é%#.yaml"
    uris = [
        result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        for result in sarif([many(TOO_SMALL, 1, inside), many(TOO_SMALL, 1, "<stdin>"), nasty()])["results"]
    ]
    assert uris[0] == "a%20b/%C3%A9%25%23.yaml"
    assert uris[1] == "stdin"
    assert all(uri.isascii() and not set(uri) & set(' <>"\\?#') for uri in uris)
    for name in ("json", "github", "sarif", "junit"):
        assert str(tmp_path) not in FORMATS[name]([many(TOO_SMALL, 1, inside)])


def prints(text: bytes) -> list[str]:
    return [
        result["partialFingerprints"]["primaryLocationLineHash"] for result in sarif([of(text, "s.yaml")])["results"]
    ]


def test_fingerprints_stay_when_lines_come_and_go() -> None:
    assert prints(WRONG) == prints(WRONG.replace(b"name:", b"# a line\n\nname:"))
    assert len(set(prints(WRONG))) == 2
    assert prints(WRONG)[1] != prints(WRONG.replace(b"kv_heads: 3", b"kv_heads: 5"))[1]
    twice = sarif([many(TOO_SMALL, 3)])["results"]
    assert len({result["partialFingerprints"]["primaryLocationLineHash"] for result in twice}) == 3


@pytest.mark.parametrize("strict", [False, True])
def test_junit(strict: bool) -> None:
    root = ElementTree.fromstring(FORMATS["junit"](several(strict)).encode())
    (suite,) = root.findall("testsuite")
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == ["b.yaml", "a/w.yaml", "ok.yaml"]
    failed = [case.get("name") for case in cases if case.find("failure") is not None]
    assert failed == (["b.yaml", "a/w.yaml"] if strict else ["b.yaml"])
    assert (suite.get("tests"), suite.get("failures")) == ("3", str(len(failed)))
    failure = cases[0].find("failure")
    assert failure is not None and failure.text is not None
    assert failure.get("message") == "BLC106: vocab: too small (and 1 more)"
    assert failure.text.startswith("b.yaml:3:8: vocab: too small [BLC106]\n  3 | vocab: 0\n")
    beside = cases[1].find("system-out" if not strict else "failure")
    assert beside is not None and "warning: mlp.width 170" in (beside.text or "")


def test_junit_holds_what_xml_cannot_write() -> None:
    (case,) = ElementTree.fromstring(FORMATS["junit"]([nasty()]).encode()).iter("testcase")
    assert "%: , <&>\"'" in (case.get("name") or "")


def test_text() -> None:
    text = FORMATS["text"](several())
    assert text.startswith("b.yaml:3:8: vocab: too small [BLC106]\n")
    assert "a/w.yaml:8:28: warning: mlp.width 170 is no multiple of 64 [BLC402]\n" in text
    assert text.endswith("a/w.yaml: ok\nok.yaml: ok\nblockc: 1 of 3 specs are wrong\n")


# The command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name, text in {"b.yaml": WRONG, "a.yml": BASE, "deep/w.yaml": WIDE, "deep/er/c.yaml": BASE}.items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    (tmp_path / "notes.txt").write_text(BASE)
    return tmp_path


def check(*arguments: str) -> int:
    return run_guarded(lambda: app(["check", *arguments], standalone_mode=False))


def checked_files(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    check("--format", "junit", *arguments)
    return [case.get("name") or "" for case in ElementTree.fromstring(capsys.readouterr().out).iter("testcase")]


@pytest.mark.parametrize(
    ("paths", "files"),
    [
        (["."], ["a.yml", "b.yaml", "deep/er/c.yaml", "deep/w.yaml"]),
        (["deep", "b.yaml"], ["deep/er/c.yaml", "deep/w.yaml", "b.yaml"]),
        (["b.yaml", "./b.yaml", "b*"], ["b.yaml"]),
        (["*.yaml"], ["b.yaml"]),
        (["**/*.yaml"], ["b.yaml", "deep/er/c.yaml", "deep/w.yaml"]),
        (["**"], ["a.yml", "b.yaml", "deep/er/c.yaml", "deep/w.yaml"]),
        (["*.txt"], ["notes.txt"]),
        (["notes.txt"], ["notes.txt"]),
        (["deep/[vw].yaml"], ["deep/w.yaml"]),
    ],
)
def test_paths(paths: list[str], files: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked_files(capsys, *paths) == files


def test_a_name_with_the_marks_of_a_glob_is_a_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "[b].yaml").write_text(BASE)
    assert checked_files(capsys, "[b].yaml") == ["[b].yaml"]


@pytest.mark.parametrize(
    "arguments",
    [["*.nothing"], ["no-such.yaml"], ["b.yaml", "no-such.yaml"], ["b.yaml", "--format", "xml"], [], ["deep/er/*.md"]],
)
def test_wrong_usage(arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(*arguments) == 2
    assert capsys.readouterr().err.strip()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["a.yml"], 0), (["deep"], 0), (["deep", "--strict"], 1), (["a.yml", "--strict"], 0), (["b.yaml"], 1),
        (["."], 1), (["b.yaml", "--format", "json"], 1), (["deep", "--format", "sarif", "--strict"], 1),
    ],
)  # fmt: skip
def test_exit_codes(arguments: list[str], code: int, folder: Path) -> None:
    assert check(*arguments) == code


def test_warnings_are_shown_beside_ok(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("deep") == 0
    said = capsys.readouterr()
    assert said.out == f"deep{os.sep}er{os.sep}c.yaml: ok\ndeep{os.sep}w.yaml: ok\n"
    assert "warning: mlp.width 170" in said.err and "are wrong" not in said.err
    assert check("deep", "--strict") == 1
    said = capsys.readouterr()
    assert "w.yaml: ok" not in said.out and "1 of 2 specs are wrong" in said.err


def test_stdin(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(WRONG)))
    assert check("-", "a.yml") == 1
    said = capsys.readouterr()
    assert said.err.startswith("<stdin>:3:8: vocab: too small [BLC106]\n")
    assert said.out == "a.yml: ok\n"


def test_stdin_is_capped(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"#" * 1_000_001)))
    assert check("-") == 1
    assert capsys.readouterr().err.startswith("<stdin>:1:1: larger than 1000000 bytes [BLC001]\n")


@pytest.mark.parametrize("name", FORMATS)
def test_output_is_what_would_be_printed(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("deep", "b.yaml", "--format", name, "-o", "out") == 1
    assert capsys.readouterr() == ("", "")
    written = (folder / "out").read_text(encoding="utf-8")
    assert check("deep", "b.yaml", "--format", name) == 1
    said = capsys.readouterr()
    assert sorted(written.splitlines()) == sorted((said.out + said.err).splitlines())
    assert sorted(path.name for path in folder.iterdir()) == ["a.yml", "b.yaml", "deep", "notes.txt", "out"]


def test_output_replaces_a_link_and_follows_none(folder: Path) -> None:
    (folder / "kept").write_text("kept")
    (folder / "out").symlink_to("kept")
    assert check("a.yml", "--format", "json", "-o", "out") == 0
    assert (folder / "kept").read_text() == "kept"
    assert not (folder / "out").is_symlink()
    assert (folder / "out").stat().st_mode & 0o777 == (folder / "a.yml").stat().st_mode & 0o777


def test_output_that_cannot_be_written_leaves_the_old(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "out").write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "out")

    monkeypatch.setattr(os, "replace", full)
    assert check("a.yml", "-o", "out") == 3
    assert (folder / "out").read_text() == "old"
    assert sorted(path.name for path in folder.iterdir()) == ["a.yml", "b.yaml", "deep", "notes.txt", "out"]
    assert check("a.yml", "-o", "no-such-folder/out") == 2


def test_output_to_a_device_goes_there(folder: Path) -> None:
    assert check("a.yml", "-o", os.devnull) == 0
    assert not Path(os.devnull).is_file()


def test_nothing_heavy_is_imported_to_say_it(tmp_path: Path) -> None:
    script = """
import sys, blockc.checks.formats, blockc.diagnostics.pages
heavy = ("numpy", "pydantic", "onnx", "torch", "jinja2", "typer")
print(*[name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "\n"
