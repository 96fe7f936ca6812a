"""CONTRIBUTING's recipes, followed to the letter in a copy of the project."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoints import save

ROOT = Path(__file__).parent.parent
RECIPES = (
    "A new architecture", "A new op", "A new part", "A new key of an old part", "A pass that makes parameters",
    "A new checkpoint layout", "The import of a model type",
)  # fmt: skip

STEP = re.compile(
    r"^(?:The new file `(?P<new>[^`]+)`|In `(?P<file>[^`]+)`, (?:at the end|after `(?P<after>[^`]+)`)):\n\n"
    r"```\w+\n(?P<text>.*?)^```$|^```console\n(?P<commands>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Project:
    """A copy in which a recipe is followed."""

    root: Path

    def follow(self, recipe: str) -> list[str]:
        """Makes the recipe's edits; the commands that it ends with."""
        commands: list[str] = []
        for step in STEP.finditer(recipe):
            if step["commands"]:
                commands += [
                    line.removeprefix("$ ").partition("#")[0].strip() for line in step["commands"].splitlines()
                ]
            elif step["new"]:
                assert not (self.root / step["new"]).exists()
                (self.root / step["new"]).write_text(step["text"])
            else:
                self.insert(self.root / step["file"], step["after"], step["text"])
        return commands

    def insert(self, path: Path, after: str | None, text: str) -> None:
        lines = path.read_text().split("\n")
        if after is None:
            path.write_text("\n".join(lines) + "\n\n" + text)
            return
        assert lines.count(after) == 1, f"{path.name} has {lines.count(after)} lines {after!r}"
        lines.insert(lines.index(after) + 1, text.rstrip("\n"))
        path.write_text("\n".join(lines))

    def texts(self) -> dict[str, str]:
        """Each Python file of blockc."""
        found = sorted((self.root / "blockc").rglob("*.py"))
        return {path.relative_to(self.root / "blockc").as_posix(): path.read_text() for path in found}

    def run(self, command: str) -> str:
        words = command.split()
        program = [sys.executable, "-m", "blockc"] if words[0] == "blockc" else [sys.executable]
        done = subprocess.run(
            [*program, *words[1:]],
            cwd=self.root,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Project:
    for folder in ("blockc", "templates", "specs", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return Project(tmp_path)


def recipe(title: str) -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.split(r"^## ", text, flags=re.MULTILINE)[1 + RECIPES.index(title)].removeprefix(title)


def test_the_recipes_are_these() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^## (.+)$", text, flags=re.MULTILINE)) == RECIPES


def test_a_new_architecture(project: Project) -> None:
    check, show, verify = map(project.run, project.follow(recipe("A new architecture")))
    assert check == "specs/example.yaml: ok\n"
    assert "18 near" in show
    assert "proved: oracle = torch = onnxruntime" in verify


def test_a_new_op_and_a_new_part_of_it(project: Project) -> None:
    (tested,) = map(project.run, project.follow(recipe("A new op")))
    assert re.search(r"[1-9]\d* passed", tested)
    (verified,) = map(project.run, project.follow(recipe("A new part")))
    assert "proved: oracle = torch = onnxruntime" in verified
    expanded = project.run("blockc show specs/example-gain.yaml --expanded")
    assert "layer_gain: {per: channel}" in expanded
    built = project.run("blockc build specs/example-gain.yaml --no-verify --out out")
    assert "model.py" in built
    assert "layer_gain: {per: channel}" in (project.root / "out" / "spec.resolved.yaml").read_text()


# What the key's field says, in all the places that ask: nothing but the part's file was touched.
ASKED = """
import json
from blockc.graph.shrink import shrink
from blockc.language.fmt import formatted
from blockc.language.spec import load
from blockc.language.spec.schema import schema

spec = load("specs/example-scaled.yaml")
mixed = b"blockc: 1\\nmlp: {zzz: 1, scale: 0.5, type: relu, bias: [], width: 8}\\n"
print(json.dumps({
    "twin": shrink(spec).layers[0].keys.mlp.scale,
    "text": formatted(mixed, "s").decode().splitlines()[1],
    "schema": schema()["definitions"]["Mlp"]["properties"]["scale"]["description"],
}))
"""


def test_a_new_key_of_an_old_part(project: Project) -> None:
    before = project.texts()
    form, verified = map(project.run, project.follow(recipe("A new key of an old part")))
    assert [path for path, text in project.texts().items() if before.get(path) != text] == ["language/parts/mlp.py"]
    assert form == ""
    assert "proved: oracle = torch = onnxruntime" in verified
    (project.root / "asked.py").write_text(ASKED)
    assert json.loads(project.run("python asked.py")) == {
        "twin": 0.75,
        "text": "mlp: {type: relu, width: 8, bias: [], scale: 0.5, zzz: 1}",
        "schema": "Number that what down makes is multiplied by. A number above 0. Absent or none: 1.",
    }
    project.run("blockc build specs/example-scaled.yaml --no-verify --out out")
    assert "\n  bias: []\n  scale: 0.01\n" in (project.root / "out" / "spec.resolved.yaml").read_text()


def test_a_pass_that_makes_parameters(project: Project) -> None:
    before = project.texts()
    (tested,) = map(project.run, project.follow(recipe("A pass that makes parameters")))
    assert "1 passed" in tested
    touched = [path for path, text in project.texts().items() if before.get(path) != text]
    assert touched == ["graph/target.py", "passes/turned.py", "pipeline/recipes.py"]


def test_a_new_checkpoint_layout(project: Project) -> None:
    (verified,) = map(project.run, project.follow(recipe("A new checkpoint layout")))
    assert "proved: oracle = torch = onnxruntime" in verified
    project.run("blockc build specs/gpt2.yaml --set checkpoint=gpt2-linear --no-verify --out out")
    assert '"transformer.h.{i}.attn.c_attn.weight"' in (project.root / "out" / "model.py").read_text()


# What a checkpoint of the recipe's family holds, a layer by a layer
TENSORS: dict[str, tuple[int, ...]] = {"embed.weight": (1024, 256), "norm_out.weight": (256,)}
LAYER: dict[str, tuple[int, ...]] = {
    "norm_in.weight": (256,), "qkv.weight": (512, 256), "out.weight": (256, 256), "norm_mid.weight": (256,),
    "gate_up.weight": (1280, 256), "down.weight": (256, 640),
}  # fmt: skip


def test_the_import_of_a_model_type(project: Project) -> None:
    """And its checkpoint's own names are those of the layout."""
    imported, check, verify = map(project.run, project.follow(recipe("The import of a model type")))
    assert (imported, check) == ("", "specs/example.yaml: ok\n")
    assert "proved: oracle = torch = onnxruntime" in verify
    spec = (project.root / "specs" / "example.yaml").read_text()
    assert "pattern: [{local: 2}, global]" in spec and "mlp: {type: swiglu, width: 640}" in spec
    layers = {f"blocks.{i}.{name}": shape for i in range(6) for name, shape in LAYER.items()}
    held = {name: np.ones(shape, np.float32) for name, shape in {**TENSORS, **layers}.items()}
    (project.root / "held").mkdir()
    shutil.move(project.root / "config.json", project.root / "held")
    save(project.root / "held" / "model.safetensors", held)
    count = sum(array.size for array in held.values())
    assert f"have them\nexpect: {{parameters: {count}," in project.run("blockc import held")
