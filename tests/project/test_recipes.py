"""The guides of CONTRIBUTING and docs/guides.md, followed to the letter in a copy of the project."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import save, tensors, twin
from tests.paths import ROOT

PAGES = ("CONTRIBUTING.md", "docs/guides.md")
ABOUT = "What a change touches"  # the one section of them that is none
MOST = 5  # files of blockc that a recipe may touch
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")

STEP = re.compile(
    r"^(?:The new file `(?P<new>[^`]+)`|In `(?P<file>[^`]+)`, "
    r"(?:at the end|after `(?P<after>[^`]+)`|in place of `(?P<old>[^`]+)`)):\n\n"
    r"```\w+\n(?P<text>.*?)^```$|^```console\n(?P<commands>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def sections() -> dict[str, str]:
    """What stands under each heading of the pages."""
    found: dict[str, str] = {}
    for page in PAGES:
        for text in re.split(r"^## ", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            title, _, body = text.partition("\n")
            assert title not in found
            found[title] = body
    return found


RECIPES = {title: body for title, body in sections().items() if title != ABOUT}


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
                self.insert(self.root / step["file"], step["after"], step["old"], step["text"])
        return commands

    def insert(self, path: Path, after: str | None, old: str | None, text: str) -> None:
        lines = path.read_text().split("\n")
        line = after or old
        if line is None:
            path.write_text("\n".join(lines) + "\n\n" + text)
            return
        assert lines.count(line) == 1, f"{path.name} has {lines.count(line)} lines {line!r}"
        at = lines.index(line)
        lines[at : at + 1] = [*([line] if after else []), text.rstrip("\n")]
        path.write_text("\n".join(lines))

    def texts(self) -> dict[str, str]:
        """Each Python file of blockc."""
        found = sorted((self.root / "blockc").rglob("*.py"))
        return {path.relative_to(self.root / "blockc").as_posix(): path.read_text() for path in found}

    def run(self, command: str, rc: int = 0) -> str:
        """What a command prints; on standard error, where it is to fail."""
        words = shlex.split(command)
        program = [sys.executable, "-m", "blockc"] if words[0] == "blockc" else [sys.executable]
        done = subprocess.run(
            [*program, *words[1:]],
            cwd=self.root,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert done.returncode == rc, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stderr if rc else done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Project:
    for folder in ("blockc", "templates", "specs", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return Project(tmp_path)


def touched(recipe: str) -> list[str]:
    """The files of blockc that a recipe makes or changes."""
    files = [step["new"] or step["file"] for step in STEP.finditer(recipe) if not step["commands"]]
    return list(dict.fromkeys(file.removeprefix("blockc/") for file in files if file.startswith("blockc/")))


def row(title: str, files: list[str]) -> str:
    return f"| {title} | {len(files)} |{''.join(f' `{file}`,' for file in files).rstrip(',')} |"


def test_what_a_change_touches() -> None:
    """The table is what the recipes' own steps come to, and none comes to more than a few."""
    files = {title: touched(body) for title, body in RECIPES.items()}
    assert [line for line in sections()[ABOUT].splitlines() if line.startswith(("| A ", "| The "))] == [
        row(title, of) for title, of in files.items()
    ]
    with_kernel = {*files["A new op"], *files["A kernel of onnxruntime"]}
    assert max(len(with_kernel), *map(len, files.values())) <= MOST
    assert f"There are {WORDS[len(files)]} things to add" in (ROOT / PAGES[0]).read_text(encoding="utf-8")


def test_every_recipe_runs() -> None:
    """Each has a test below, and whatever stands in a fence is a step of it."""
    assert set(re.findall(r'RECIPES\["([^"]+)"\]', Path(__file__).read_text(encoding="utf-8"))) == set(RECIPES)
    for title, body in RECIPES.items():
        assert 2 * len(STEP.findall(body)) == len(re.findall(r"^```", body, re.MULTILINE)), title


def test_a_new_architecture(project: Project) -> None:
    check, show, verify = map(project.run, project.follow(RECIPES["A new architecture"]))
    assert check == "specs/example.yaml: ok\n"
    assert "18 near" in show
    assert "proved: oracle = torch = onnxruntime" in verify


def test_a_new_op_and_a_new_part_of_it(project: Project) -> None:
    (tested,) = map(project.run, project.follow(RECIPES["A new op"]))
    assert re.search(r"[1-9]\d* passed", tested)
    (verified,) = map(project.run, project.follow(RECIPES["A new part"]))
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
from blockc.language.fmt import format_spec
from blockc.language.spec import load
from blockc.language.spec.schema import language_schema

spec = load("specs/example-scaled.yaml")
mixed = b"blockc: 1\\nmlp: {zzz: 1, scale: 0.5, type: relu, bias: [], width: 8}\\n"
print(json.dumps({
    "twin": shrink(spec).layers[0].keys.mlp.scale,
    "text": format_spec(mixed, "s").decode().splitlines()[1],
    "schema": language_schema()["definitions"]["Mlp"]["properties"]["scale"]["description"],
}))
"""


def test_a_new_key_of_an_old_part(project: Project) -> None:
    before = project.texts()
    form, verified = map(project.run, project.follow(RECIPES["A new key of an old part"]))
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
    (tested,) = map(project.run, project.follow(RECIPES["A pass that makes parameters"]))
    assert "1 passed" in tested
    touched = [path for path, text in project.texts().items() if before.get(path) != text]
    assert touched == ["graph/target.py", "passes/turned.py", "pipeline/recipes.py"]


def test_a_new_checkpoint_layout(project: Project) -> None:
    (verified,) = map(project.run, project.follow(RECIPES["A new checkpoint layout"]))
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
    imported, check, verify = map(project.run, project.follow(RECIPES["The import of a model type"]))
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


# Of the twin: the operators of the CPU's graph, and how far onnxruntime, which may fuse nothing, is from the oracle.
LOWERED = """
import json
import numpy as np
import onnx
import onnxruntime
from blockc import api
from blockc.basics.floats import FLOATS
from blockc.graph import interp
from blockc.graph.target import Target
from blockc.weights.rules import random_parameters

model, target = api.twin(api.compile("specs/{spec}.yaml")), Target({target})
params = random_parameters(model.function, 1)
data = model.onnx(target, params)
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
ids = np.array([[3, 14, 15, 9, 26]])
feeds = {{"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(5)[None]}}
wanted = interp.interpret(model.function, feeds, params)["logits"]
kinds = {{value.name: value.type for value in session.get_inputs()}}
for held in model.contract(target).held:
    feeds[held.past] = np.zeros(held.shape_for(1, 0), FLOATS[target.dtype].numpy)
(got,) = session.run(["logits"], {{name: feeds[name] for name in kinds}})
graph = onnx.load_from_string(data).graph
print(json.dumps({{
    "operators": sorted({{f"{{n.domain}}.{{n.op_type}}" for n in graph.node}}),
    "types": sorted({{*kinds.values(), *(out.type for out in session.get_outputs())}}),
    "error": float(np.abs(got - wanted).max() / wanted.std()),
}}))
"""


def lowered(project: Project, spec: str, target: str) -> dict[str, Any]:
    (project.root / "lowered.py").write_text(LOWERED.format(spec=spec, target=target))
    return json.loads(project.run("python lowered.py"))


def test_a_kernel_of_onnxruntime(project: Project) -> None:
    (verified,) = map(project.run, project.follow(RECIPES["A kernel of onnxruntime"]))
    assert "proved: oracle = torch = onnxruntime" in verified
    found = lowered(project, "falcon-7b", '"cpu"')
    assert "com.microsoft.Gelu" in found["operators"] and ".Gelu" not in found["operators"]
    assert found["error"] < 1e-5
    assert ".Gelu" in lowered(project, "falcon-7b", '"cpu", "fp16"')["operators"]


# What a session of a build makes of two rows of unlike lengths, and what the oracle makes of each.
CARRIED = """
import json
from pathlib import Path
import numpy as np
from blockc import api
from blockc.graph import interp
from blockc.runtime import Session
from blockc.weights.rules import random_parameters
from tests.checkpoints import save

model = api.compile("specs/example-shift.yaml")
params = random_parameters(model.function, 5)
save(Path("weights/model.safetensors"), params)
api.build(model, "out", weights="weights", proof=False)
session = Session("out")
rows = [[3, 14, 15, 9, 26], [8, 9]]
made = [list(row) for row in zip(*session.generate(rows, 8))]
for row in rows:
    for _ in range(8):
        ids = np.array([row])
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(len(row))[None]}
        row.append(int(interp.interpret(model.function, feeds, params)["logits"][0, -1].argmax()))
states = [held.shape for held in session.model.contract.held if held.grows is None]
print(json.dumps({"made": made, "wanted": [row[-8:] for row in rows], "states": states}))
"""


def test_a_state_of_one_size(project: Project) -> None:
    """A session of a build goes on from it, rows of unlike lengths side by side."""
    tested, verified = map(project.run, project.follow(RECIPES["A state of one size"]))
    assert re.search(r"[1-9]\d* passed", tested)
    assert "proved: oracle = torch = onnxruntime" in verified
    (project.root / "carried.py").write_text(CARRIED)
    found = json.loads(project.run("python carried.py"))
    assert found["states"] == [["B", 1, 64]] * 2
    assert found["made"] == found["wanted"]


def test_a_product(project: Project) -> None:
    commands = project.follow(RECIPES["A product"])
    model = twin("gpt2")
    (project.root / "specs" / "example.yaml").write_text(model.resolved_yaml())
    save(project.root / "weights" / "model.safetensors", tensors(model))
    (project.root / "weights" / "generation_config.json").write_text('{"eos_token_id": 0}')
    built, verified = map(project.run, commands)
    assert "loop.json" in built and "genai_config.json" in built and "proved" in verified
    said = json.loads((project.root / "out" / "loop.json").read_text())
    assert said["inputs"] == ["input_ids", "attention_mask", "position_ids"]
    assert said["states"]["past_key_values.1.value"] == "present.1.value"
    refused = project.run(commands[0].replace("--logits last ", ""), rc=1)
    assert "a decoding loop: it reads the last token's logits: build with --logits last" in refused


def test_a_float_type(project: Project) -> None:
    """Doubles, which onnxruntime has kernels of where no rope is turned: nearer to the oracle than fp32 can be."""
    (built,) = map(project.run, project.follow(RECIPES["A float type"]))
    assert "model.onnx" in built
    double, single = (lowered(project, "gpt2", f'dtype="{dtype}"') for dtype in ("fp64", "fp32"))
    assert double["types"] == ["tensor(double)", "tensor(int64)"]
    assert double["error"] < 3e-8 < single["error"] / 3, (double["error"], single["error"])
