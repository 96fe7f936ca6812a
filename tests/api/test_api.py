"""The Python API beside the command line: every command, names of specs, what objects say of themselves, errors."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import blockc
from blockc import api
from blockc.basics.errors import BlockcError
from blockc.bench.protocol import UnableError
from blockc.cli import app, run_guarded
from blockc.ort.fuse.rewrite import Mismatch
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
NAME, TINY = "llama3-8b", "block-4x4"
COMMANDS = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}


def test_each_command_has_its_functions_and_the_page_says_which() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE, re.MULTILINE)
    paired = {command: re.findall(r"`(\w+)`", functions) for command, functions in rows if command in COMMANDS}
    assert paired.keys() == COMMANDS
    assert all(inspect.isfunction(getattr(api, name)) for names in paired.values() for name in names)
    assert all(command in names for command, names in paired.items() if command not in ("import", "list", "show"))
    public = {name for name in api.__all__ if inspect.isfunction(getattr(api, name))}
    assert public - {name for names in paired.values() for name in names} == {"has_weights"}


def test_what_is_exported_is_there_and_said_once() -> None:
    """Three lists in blockc/api/__init__.py: for people, for the type checker, and for Python."""
    tree = ast.parse(Path(api.__file__).read_text(encoding="utf-8"))
    typed = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("blockc")
        for alias in node.names
    }
    assert typed == api._HOME  # pyright: ignore[reportPrivateUsage]
    assert sorted(typed) == sorted(api.__all__) and len(set(api.__all__)) == len(api.__all__)
    assert set(api.__all__) <= set(dir(api))
    with pytest.raises(AttributeError, match="nothing"):
        _ = getattr(api, "nothing")  # noqa: B009


def test_the_examples_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    assert len(blocks) >= 10
    shared: dict[str, Any] = {}
    for block in blocks:
        line = PAGE[: block.start(1)].count("\n")
        exec(compile("\n" * line + block[1], "docs/api.md", "exec"), shared)
    asked = set(re.findall(r"\bapi\.(\w+)\(", "".join(block[1] for block in blocks)))
    functions = {name for name in api.__all__ if inspect.isfunction(getattr(api, name))}
    assert functions - asked == {
        "bench",
        "embed",
        "quality",
        "rerank",
        "run",
        "has_weights",
        "imported_spec",
    }  # those want weights, or a minute


# What a spec is named by


def _found_and_wrong(name: str) -> None:
    """A spec that is found, and none of which a proof is run."""
    with pytest.raises(api.SpecError, match=r"width"):
        api.verify(name, ["width=0"])


TAKES: dict[str, Callable[[str], object]] = {
    "compile": api.compile,
    "check": api.check,
    "check_files": lambda name: list(api.check_files([name])),
    "spec_files": api.spec_files,
    "diff": lambda name: api.diff("gpt2", name),
    "diff, from": lambda name: api.diff(name, "gpt2"),
    "fmt": lambda name: api.fmt(name, write=False),
    "new": lambda name: api.new("x", name),
    "verify": _found_and_wrong,
}


@pytest.mark.parametrize("function", TAKES)
def test_names_go_wherever_a_path_does(function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    TAKES[function](NAME)
    with pytest.raises(api.NoSpecError, match=r"^llama3-8: no such file or folder; did you mean llama3-8b\?$"):
        TAKES[function]("llama3-8")
    assert list(tmp_path.iterdir()) == []


CONFIGS: dict[str, Callable[[Path], object]] = {
    "check": api.check,
    "check_files": lambda path: list(api.check_files([path])),
    "spec_files": api.spec_files,
}


@pytest.mark.parametrize("function", CONFIGS)
def test_where_a_config_lies_and_no_spec_the_word_that_imports_it_is_said(function: str, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama"}')
    for path in (tmp_path, config):
        with pytest.raises(api.NoSpecError) as raised:
            CONFIGS[function](path)
        assert str(raised.value).startswith(f"{path}: ")
        assert str(raised.value).endswith(f": `blockc import {path}` writes its spec")
    (tmp_path / "own.yaml").write_text("blockc: 1\n")
    assert api.spec_files(tmp_path) == [tmp_path / "own.yaml"]


def test_what_reads_a_gguf_file_is_said_where_a_config_is_wanted(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(b"GGUF")
    for path in (tmp_path, file):
        with pytest.raises(api.NoSpecError, match=f"`blockc build SPEC --weights {path}`$"):
            api.import_spec(path)
    file.unlink()
    with pytest.raises(api.NoSpecError, match=r"no config\.json, nor a folder with one$"):
        api.import_spec(tmp_path)


def test_a_file_beside_is_meant_by_a_path_nearly_right(tmp_path: Path) -> None:
    (tmp_path / "own-model.yaml").write_text("blockc: 1\n")
    with pytest.raises(api.NoSpecError, match=r"did you mean .*own-model\.yaml\?$"):
        api.compile(tmp_path / "own-modle.yaml")


def test_no_spec_that_comes_with_blockc_is_written_over() -> None:
    before = (path := api.bundled()[TINY]).read_bytes()
    with pytest.raises(api.UsageError, match="comes with blockc"):
        api.fmt(TINY)
    assert path.read_bytes() == before


# The same answers as the command line


def test_what_the_commands_print_is_what_the_functions_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    said = {
        "schema": lambda: api.schema(),
        "list --json": lambda: api.list().data(),
        f"show {NAME} --json": lambda: api.figures(api.compile(NAME)).json(),
        f"diff {NAME} gpt2 --json": lambda: api.diff(NAME, "gpt2").data(),
    }
    for words, answer in said.items():
        assert run_guarded(lambda words=words: app(words.split(), standalone_mode=False)) == 0
        assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(answer()))
    for words, text in {
        "explain BLC012": api.explain("blc012"),
        f"show {NAME}": api.show(api.compile(NAME)),
        f"show {NAME} gpt2": api.table([api.figures(api.compile(name)) for name in (NAME, "gpt2")]),
        f"diff {NAME} gpt2": api.diff(NAME, "gpt2").text(),
    }.items():
        assert capsys.readouterr() == ("", "")
        assert run_guarded(lambda words=words: app(words.split(), standalone_mode=False)) == 0
        assert capsys.readouterr().out == text + "\n"


def test_the_api_prints_nothing_and_ends_nothing() -> None:
    for path in sorted((ROOT / "blockc" / "api").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
            assert named not in ("print", "exit", "sys.stdout", "sys.stderr", "sys.exit", "typer"), path.name


# What objects say of themselves


def test_objects_say_in_a_line_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, tiny = api.compile(NAME), api.compile(TINY)
    Path("team.yaml").write_text("policy: 1\nparameters: {max: 1e9}\nhead_dims: [64]\n")
    built = api.build(tiny, "out")
    shown: list[tuple[object, str]] = [
        (model, "<Compiled llama3-8b: a causal decoder of 32 layers, 4096 wide, 8,030,261,248 parameters>"),
        (model.spec, "llama3-8b"),
        (model.decoder, "32 layers"),
        (model.function, "<function Model>"),
        (model.spec.layers[0], "attention, mlp, norm"),
        (api.figures(model), "8,030,261,248 parameters, 16,060,522,496 bytes in bf16, at 1 x 8,192 tokens"),
        (built, f"files in out, {built.line}"),
        (built.proof, built.line),
        (built.proof and built.proof.rows[0], "float64"),
        (api.verify("out"), "proved: "),
        (api.check(NAME, policy="team.yaml")[0], "<Finding BLC"),
        (next(api.check_files([NAME], policy="team.yaml")), "2 errors"),
        (next(api.check_files([TINY])), "clean"),
        (api.policy("team.yaml"), "<Policy team.yaml: head_dims, parameters>"),
        (api.trace(tiny, [1])[0], "1 tokens, 4 wide"),
        (api.diff(NAME, "gpt2"), "CHECKPOINT"),
        (api.diff(NAME, "gpt2").changes[0], "<Change CHECKPOINT: "),
        (api.list(), f"{len(api.bundled())} specs"),
        (api.list().specs[0], "parameters"),
        (api.new("x", NAME, "350M"), "<NewSpec x: "),
        (api.fmt(NAME, write=False), "in its form already"),
        (api.doctor(), f"<Health of blockc {blockc.__version__}"),
    ]
    for made, what in shown:
        said = repr(made)
        assert what in said and "\n" not in said and len(said) < 250, said


def test_errors_say_in_a_line_what_they_are() -> None:
    with pytest.raises(api.SpecError) as raised:
        api.compile(TINY, ["width=five", "depth=none"])
    assert repr(raised.value).startswith("SpecError(<Finding BLC") and "\n" not in repr(raised.value)
    assert len(raised.value.findings) > 1 and f"and {len(raised.value.findings) - 1} more" in repr(raised.value)


# Errors


def test_every_error_is_a_blockc_error() -> None:
    for module in pkgutil.walk_packages(blockc.__path__, "blockc."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    todo: list[type[BaseException]] = [BaseException]
    own: set[type[BaseException]] = set()
    while todo:
        for each in todo.pop().__subclasses__():
            todo.append(each)
            own |= {each} if each.__module__.partition(".")[0] == "blockc" else set()
    assert len(own) > 15
    assert {each for each in own if not issubclass(each, BlockcError)} == {
        Mismatch,
        UnableError,
    }  # neither a pass nor a worker lets it out
    assert all(getattr(api, name) in own for name in api.__all__ if name.endswith("Error"))


ASKED: dict[str, Callable[[], object]] = {
    "context 0": lambda: api.figures(api.compile(TINY), context=0),
    "no dtype": lambda: api.figures(api.compile(TINY), dtype="fp7"),
    "no size": lambda: api.figures(api.compile(TINY), device_memory="80 apples"),
    "no token": lambda: api.trace(api.compile(TINY), [10**6]),
    "no tokens": lambda: api.trace(api.compile(TINY), []),
    "no code": lambda: api.explain("BLC999"),
    "no format": lambda: api.written([], "xml"),
    "no budget": lambda: api.new("x", TINY, "many"),
    "no name": lambda: api.new("a/b", TINY),
    "one spec": lambda: api.diff(TINY),
    "three sides": lambda: api.diff(TINY, TINY, against="git:HEAD"),
    "no revision": lambda: api.diff(TINY, against="svn:1"),
    "no logits": lambda: api.Target(logits=0),
    "idle knobs of weights": lambda: api.build(api.compile(TINY), deep=True),
    "opposites": lambda: api.build(api.compile(TINY), proof=False, require_proof=True),
    "nothing to measure": lambda: api.bench("x", prefill=(), decode=()),
    "no turns": lambda: api.bench("x", turns=0),
    "operators of no step": lambda: api.bench("x", decode=(), ops=True),
    "operators on a GPU": lambda: api.bench("x", provider="cuda", ops=True),
    "lookup of no text": lambda: api.bench("x", lookup=3),
    "tokens of no text": lambda: api.bench("x", tokens=9),
    "a draft of less than none": lambda: api.bench("x", text="y", lookup=-1),
    "a text of one token": lambda: api.bench("x", text="y", tokens=1),
    "idle knobs of drawing": lambda: api.run("x", ["a"], top_k=3),
    "a text for texts": lambda: api.run("x", "a"),
    "no config": lambda: api.import_spec(TINY),
}


@pytest.mark.parametrize("asked", ASKED)
def test_what_cannot_be_asked_for_is_said_to_be_so(asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(api.UsageError) as raised:
        ASKED[asked]()
    assert isinstance(raised.value, BlockcError) and isinstance(raised.value, ValueError)
    assert str(raised.value) and list(tmp_path.iterdir()) == []


def test_a_package_that_is_missing_is_told_with_the_way_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blockc.runtime", None)  # as where what it imports is missing
    with pytest.raises(api.MissingPackageError, match=r"is missing: `pip install '\.\[run\]'`") as raised:
        api.run("x", ["a"])
    assert isinstance(raised.value, ImportError) and isinstance(raised.value, BlockcError)


# What it costs


def test_the_import_of_the_api_brings_nothing_heavy() -> None:
    """`doctor` must answer where packages are broken."""
    script = (
        "import sys; from blockc import api; api.doctor; api.explain('BLC012'); "
        "print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    heavy = {"torch", "onnx", "onnxruntime", "numpy", "pydantic", "jinja2", "typer", "transformers", "safetensors"}
    assert heavy.isdisjoint(done.stdout.split())


def test_specs_are_compiled_and_shown_without_frameworks() -> None:
    script = "import sys; from blockc import api; api.show(api.compile('gpt2')); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert {"torch", "onnx", "onnxruntime"}.isdisjoint(done.stdout.split())
