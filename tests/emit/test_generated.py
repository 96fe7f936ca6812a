"""The committed files are what the compiler gives now, and what templates and flags may not do."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from blockc import api
from blockc.graph.target import Target
from blockc.language.spec import load
from blockc.pipeline.compiled import compile_spec
from blockc.products import folder
from tests.paths import ROOT

SPECS = sorted(path.stem for path in (ROOT / "specs").glob("*.yaml"))
COMMITTED = {"model.py", "graph.txt", "report.json", "spec.resolved.yaml"}


@pytest.mark.parametrize("name", SPECS)
def test_generated_is_up_to_date(name: str) -> None:
    """If this fails, read the difference, explain it in the commit, and run `make generated`."""
    texts = folder.texts(compile_spec(load(ROOT / "specs" / f"{name}.yaml")))
    assert set(texts) == COMMITTED
    for file, text in texts.items():
        assert (ROOT / "generated" / name / file).read_text(encoding="utf-8") == text, f"{name}/{file}"


def test_nothing_else_is_committed() -> None:
    assert sorted(path.name for path in (ROOT / "generated").iterdir()) == SPECS
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "generated"], cwd=ROOT, capture_output=True, text=True, check=True)
        assert {Path(line).name for line in listed.stdout.splitlines()} <= COMMITTED


@pytest.mark.costly
def test_no_build_flag_changes_a_committed_file(tmp_path: Path) -> None:
    model = api.compile(ROOT / "specs" / "gemma2-9b.yaml")
    api.build(model, tmp_path / "a", proof=False)
    api.build(model, tmp_path / "b", target=Target(logits="last"), require_proof=True)
    for file in COMMITTED:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert (tmp_path / "a" / "model.onnx").read_bytes() != (tmp_path / "b" / "model.onnx").read_bytes()


@pytest.mark.parametrize("name", SPECS)
def test_model_py_stands_alone(name: str) -> None:
    text = (ROOT / "generated" / name / "model.py").read_text(encoding="utf-8")
    tree = ast.parse(text)
    modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)} | {
        alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names
    }
    allowed = {"collections.abc", "dataclasses", "functools", "json", "math", "pathlib", "safetensors.torch", "typing"}
    assert {str(m) for m in modules if str(m).partition(".")[0] != "torch"} <= allowed
    defined = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | {
        n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)
    }
    special = {"Model", "__init__", "_apply", "forward", "load", "init_weights"}
    assert defined - used <= special, "a helper that nothing calls"


def test_templates_only_loop_and_choose() -> None:
    """What is computed is computed of the graph: a template has loops over things, and says if there are any."""
    templates = list((ROOT / "templates").rglob("*.j2"))
    assert templates
    for path in templates:
        text = path.read_text(encoding="utf-8")
        words = set(re.findall(r"{%-?\s*(\w+)", text))
        assert words <= {"for", "endfor", "include", "if", "elif", "else", "endif", "set"}, f"{path.name}: {words}"
        assert not re.search(r"{%-?\s*for _ in", text), f"{path.name}: a loop that stands for an if"
        assert len(text.splitlines()) < 90, path.name


PYTHON = re.compile(r"\bself\.\w+ =|\bdef \w+\(|\bclass \w+\(|^\s*return \w+$|\btorch\.\w+\(|\bnn\.\w+\(")


def test_no_python_source_is_assembled_outside_ops_and_templates() -> None:
    """In blockc/, words of Python stand only in an op's torch rules."""
    for path in (ROOT / "blockc").rglob("*.py"):
        if path.parent.name == "ops":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        remarks = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        for n in ast.walk(tree):
            if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in remarks:
                assert not PYTHON.search(n.value), f"{path.name}:{n.lineno}: {n.value}"


def test_no_model_is_known_by_name() -> None:
    """No code asks for a model's name or family."""
    families = re.compile(r"llama|gpt|gemma|pythia|neox|mistral|qwen|olmo|smollm|\bphi\b", re.IGNORECASE)
    for path in (ROOT / "blockc").rglob("*.py"):
        for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(n, ast.Compare | ast.Match | ast.If):
                for inner in ast.walk(n.test if isinstance(n, ast.If) else n):
                    if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                        assert not families.search(inner.value), f"{path.name}:{inner.lineno}: {inner.value}"


@pytest.mark.parametrize("name", SPECS)
def test_committed_files_hold_no_version_time_or_path(name: str) -> None:
    for file in COMMITTED:
        text = (ROOT / "generated" / name / file).read_text(encoding="utf-8")
        assert not re.search(r"\d\d:\d\d:\d\d|20[2-9]\d-\d\d|blockc \d|/home|/root|/tmp|/work", text), file
