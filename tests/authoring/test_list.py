"""blockc list, and names of specs wherever a spec is wanted: held against the specs themselves, compiled."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from blockc import api
from blockc.cli import app, run_guarded
from blockc.cli.common import SpecPath
from blockc.importing.maps import load_map
from blockc.ir import parameters_of
from blockc.layouts import load_layout
from tests.paths import ROOT

BLOCK = "block-4x4"
Ran = tuple[int, str, str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """In an empty folder, far from any spec."""
    monkeypatch.chdir(tmp_path)

    def ran(*arguments: str) -> Ran:
        code = run_guarded(lambda: app(list(arguments), standalone_mode=False))
        return code, *capsys.readouterr()

    return ran


def test_the_list_says_what_the_specs_are(run: Callable[..., Ran]) -> None:
    code, out, _ = run("list", "--json")
    said = json.loads(out)
    assert code == 0 and said["format"] == 1
    assert [row["name"] for row in said["specs"]] == sorted(path.stem for path in (ROOT / "specs").glob("*.yaml"))
    for row in said["specs"]:
        top = (model := api.compile(ROOT / "specs" / f"{row['name']}.yaml")).spec.top
        counted = sum(param.learned for param in parameters_of(model.function).values())
        assert list(row.values()) == [top.name, counted, top.width, top.depth, top.context]


def test_the_layouts_and_model_types_that_are_listed_can_be_read(run: Callable[..., Ran]) -> None:
    said = json.loads(run("list", "--json")[1])
    folder = ROOT / "blockc" / "layouts"
    assert said["layouts"] == sorted(path.stem for path in folder.glob("*.yaml"))
    assert [load_layout(name).name for name in said["layouts"]] == said["layouts"]
    assert all(load_map(name) for name in said["model_types"]) and "_common" not in said["model_types"]


def test_the_list_as_text(run: Callable[..., Ran]) -> None:
    code, out, err = run("list")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].split() == ["Specs", "parameters", "width", "depth", "context"]
    assert ["gpt2", "124,439,808", "768", "12", "1,024"] in [line.split() for line in lines]
    assert any("stablelm-parallel" in line for line in lines) and any("gemma3_text" in line for line in lines)
    assert max(map(len, lines)) <= 110


NAMED = [
    ("check", "{}"),
    ("show", "{}"),
    ("show", "{}", "gpt2"),
    ("diff", "{}", "{}"),
    ("fmt", "--check", "{}"),
    ("fmt", "--diff", "{}"),
    ("trace", "{}", "--tokens", "1,2"),
    ("build", "{}", "--no-verify"),
]
WANTED = [*NAMED, ("verify", "{}"), ("new", "x", "--like", "{}")]


@pytest.mark.parametrize("words", WANTED, ids=" ".join)
def test_a_name_goes_wherever_a_spec_does(words: tuple[str, ...], run: Callable[..., Ran]) -> None:
    name = "gpt2" if words[0] == "new" else BLOCK
    code, out, err = run(*(word.format(name) for word in words))
    assert (code, err) == (0, "")
    assert out or words[0] == "fmt"


@pytest.mark.parametrize("words", WANTED, ids=" ".join)
def test_a_name_nearly_right_is_answered_with_the_right_one(words: tuple[str, ...], run: Callable[..., Ran]) -> None:
    code, out, err = run(*(word.format("llama3-8") for word in words))
    assert (code, out, err) == (2, "", "blockc: llama3-8: no such file or folder; did you mean llama3-8b?\n")


def test_what_is_like_no_name_is_told_where_the_names_are(run: Callable[..., Ran]) -> None:
    said = "no such file or folder; `blockc list` names the specs that come with blockc\n"
    assert run("show", "zzz") == (2, "", f"blockc: zzz: {said}")
    assert "did you mean qwen3-0.6b?" in run("show", "qwen3-8b")[2]


def test_a_file_nearly_right_is_answered_with_its_neighbour(run: Callable[..., Ran]) -> None:
    Path("specs").mkdir()
    shutil.copy(ROOT / "specs" / "gpt2.yaml", "specs/own-model.yaml")
    for command in ("check", "show"):
        code, _, err = run(command, "specs/own-modle.yaml")
        assert code == 2 and err.endswith(
            "specs/own-modle.yaml: no such file or folder; did you mean specs/own-model.yaml?\n"
        )
    assert run("show", "none/x.yaml")[2] == "blockc: none/x.yaml: no such file or folder\n"


@pytest.mark.parametrize("command", ["check", "show", "build", "verify", "trace"])
def test_a_file_of_the_name_goes_first(command: str, run: Callable[..., Ran]) -> None:
    Path(BLOCK).write_text("blockc: 1\n")
    code, _, err = run(command, BLOCK, *(["--tokens", "1"] if command == "trace" else []))
    assert code == 1 and err.startswith(f"{BLOCK}:1:1: missing key")


def test_a_folder_of_the_name_is_a_build_and_no_spec(run: Callable[..., Ran]) -> None:
    """Where a spec is wanted, a folder is none: `build gpt2 --out gpt2` takes no name away."""
    assert run("build", BLOCK, "--no-verify", "--out", BLOCK)[0] == 0
    assert run("show", BLOCK)[0] == 0
    (Path(BLOCK) / "graph.txt").write_text("changed")
    assert run("verify", BLOCK)[0] == 1
    assert "is a folder" in run("show", ".")[2]


def test_fmt_writes_over_no_spec_that_comes_with_blockc(run: Callable[..., Ran]) -> None:
    before = (ROOT / "specs" / f"{BLOCK}.yaml").read_bytes()
    assert run("fmt", BLOCK)[0] == 2
    assert (ROOT / "specs" / f"{BLOCK}.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ("350M", 350e6),
        ("350m", 350e6),
        ("7.5B", 7.5e9),
        ("7.5e9", 7.5e9),
        ("100B", 100e9),
        ("100e9", 100e9),
        ("1T", 1e12),
        ("124439808", 124439808),
        ("7,500,000,000", 7.5e9),
    ],
)
def test_a_budget_is_said_as_people_say_it(said: str, number: float, run: Callable[..., Ran]) -> None:
    code, out, err = run("new", "x", "--like", "gpt2", "--parameters", said)
    assert (code, err) == (0, "")
    counted = int(out.split(": ")[1].split(" ")[0].replace(",", ""))
    assert abs(counted / number - 1) <= 0.03
    assert run("check", "x.yaml")[0] == 0


@pytest.mark.parametrize("said", ["", "B", "1e400", "-1", "1e3e3", "7.5BB", "inf", "0x10", "٣B", "1e99", "1.B"])
def test_what_is_no_budget_is_refused(said: str, run: Callable[..., Ran]) -> None:
    code, out, err = run("new", "x", "--like", "gpt2", "--parameters", said)
    assert (code, out) == (2, "") and "such as 350M, 7.5B or 100e9" in err
    assert not Path("x.yaml").exists()


def test_a_design_that_would_be_wrong_has_no_place_in_a_file_that_nobody_wrote(run: Callable[..., Ran]) -> None:
    code, out, err = run("new", "x", "--like", "opt-350m", "--parameters", "1M")
    assert (code, out) == (1, "")
    assert err.startswith("blockc: a design of opt-350m's ratios and width 512 would be wrong: embedding: ")
    assert err.count("\n") == 1 and not Path("x.yaml").exists()


def test_spec_arguments_complete_names() -> None:
    (option,) = SpecPath.__metadata__  # pyright: ignore[reportAttributeAccessIssue]
    assert option.autocompletion("smollm") == ["smollm2-135m", "smollm3-3b"]
    assert option.autocompletion("./") == []
