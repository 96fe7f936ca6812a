"""The wheel alone: installed with its hard dependencies and nothing else, it does what the repository does.

For what these do not suffice, its message names the extra and the command that installs it.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

import blockc
from blockc.cli import app, run_guarded
from blockc.language.spec import resolve_to_yaml
from tests.checkpoints import save, tensors, twin
from tests.paths import ROOT
from tests.wheels import built, environment

CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COVERAGE", "BLOCKC"))}
IN_A_CLONE = "in a clone of blockc"
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 64,
    "intermediate_size": 128, "max_position_embeddings": 256, "num_attention_heads": 4, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "vocab_size": 256,
}  # fmt: skip

# What the wheel says as the repository does, to the letter, and every file of it; in this order.
SAME = {
    "check own.yaml": 0,
    "check wrong.yaml": 1,
    "check wrong.yaml --format sarif": 1,
    "show gpt2": 0,
    "show own.yaml --json": 0,
    "list": 0,
    "schema": 0,
    "explain BLC202": 0,
    "fmt own.yaml --check": 0,
    "new mine --like gpt2 --parameters 350M": 0,
    "diff own.yaml mine.yaml": 0,
    "import published -o imported.yaml": 0,
    "check imported.yaml": 0,
    "trace block-4x4 --tokens 1,2,3": 0,
    "build gpt2 --no-verify --out portable": 0,
    "build gemma2-9b --no-verify --ep cpu --out cpu": 0,
    "build twin.yaml --no-verify --weights twin --ep cpu --target genai --out weights": 0,
}
NOT_PROVED = f"not proved: torch missing, onnxruntime missing: `pip install '.[torch,cpu]'` {IN_A_CLONE}"
# What wants more: the code it ends with, and the end of what is said.
LACKING = {
    "build block-4x4 --out unproved": (0, NOT_PROVED),
    "build block-4x4 --out strict --require-proof": (3, f"{NOT_PROVED}; nothing was written"),
    "verify block-4x4": (3, NOT_PROVED),
    "verify portable": (3, NOT_PROVED),
    "verify cpu": (3, NOT_PROVED),
    "verify weights --quiet": (3, NOT_PROVED),
    "run weights --prompt a": (3, f"the package onnxruntime is missing: `pip install '.[run]'` {IN_A_CLONE}"),
    "bench portable": (3, f"the package onnxruntime is missing: `pip install '.[cpu]'` {IN_A_CLONE}"),
    "bench portable --plot x.png": (3, f"the package matplotlib is missing: `pip install '.[bench]'` {IN_A_CLONE}"),
    "build gpt2 --weights x.gguf --out gguf": (
        3,
        f"the package gguf is missing: `pip install '.[gguf]'` {IN_A_CLONE}",
    ),
}  # fmt: skip
COMMANDS = [*SAME, *LACKING, "doctor"]

# All commands in one process of the environment; a process for each would take as long as all else.
SCRIPT = """
import contextlib, io, json, sys
import blockc
from blockc.cli import app, run_guarded
said = {}
for line in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_guarded(lambda: app(line.split(), standalone_mode=False))
    said[line] = code, out.getvalue(), err.getvalue()
print(json.dumps([blockc.__file__, said]))
"""


@dataclass(frozen=True)
class Alone:
    """What the wheel has said and written in a folder, in an environment whose commands lie in `commands`."""

    commands: Path
    folder: Path
    said: dict[str, tuple[int, str, str]]


def inputs(folder: Path) -> None:
    folder.mkdir()
    own = (ROOT / "specs" / "llama3-8b.yaml").read_text()
    (folder / "own.yaml").write_text(own)
    (folder / "wrong.yaml").write_text(own.replace("kv_heads: 8", "kv_heads: 5"))
    (folder / "published").mkdir()
    (folder / "published" / "config.json").write_text(json.dumps(CONFIG))
    (folder / "x.gguf").write_bytes(b"GGUF" + bytes(100))
    small = twin("llama3-8b")
    (folder / "twin.yaml").write_text(resolve_to_yaml(small.spec))
    save(folder / "twin" / "model.safetensors", tensors(small))
    (folder / "twin" / "generation_config.json").write_text('{"eos_token_id": 2}')


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    root = tmp_path_factory.mktemp("alone")
    commands = environment(root / "environment", built(root / "wheel"))
    inputs(root / "work")
    done = subprocess.run(
        [str(commands / "python"), "-c", SCRIPT],
        cwd=root / "work", env=CLEAN, input=json.dumps(COMMANDS), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    where, said = json.loads(done.stdout)
    assert Path(where).is_relative_to(commands.parent)
    return Alone(commands, root / "work", {line: (code, out, err) for line, (code, out, err) in said.items()})


def test_the_wheel_alone_says_and_writes_what_the_repository_does(
    alone: Alone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs(tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    for line, wanted in SAME.items():
        code = run_guarded(lambda line=line: app(line.split(), standalone_mode=False))
        ours = capsys.readouterr()
        assert alone.said[line] == (code, ours.out, ours.err), line
        assert code == wanted, line
    written = sorted(str(path.relative_to(tmp_path / "work")) for path in Path.cwd().rglob("*") if path.is_file())
    assert {"imported.yaml", "mine.yaml", "portable/model.onnx", "weights/genai_config.json"} <= set(written)
    assert [name for name in written if (alone.folder / name).read_bytes() != Path(name).read_bytes()] == []


@pytest.mark.parametrize("line", LACKING)
def test_what_the_wheel_lacks_is_named_with_the_extra_that_brings_it(alone: Alone, line: str) -> None:
    code, message = LACKING[line]
    found, out, err = alone.said[line]
    assert (found, (out + err).rstrip("\n")[-len(message) :]) == (code, message)
    assert "Traceback" not in out + err
    made = [word for word in line.split() if word in ("strict", "gguf", "x.png")]
    assert not [name for name in made if (alone.folder / name).exists()]


def test_verify_says_what_was_run_and_what_was_not(alone: Alone) -> None:
    """The oracle against itself is: cached, in chunks and fused."""
    for line in ("verify block-4x4", "verify portable", "verify cpu"):
        *_, torch, onnxruntime, last = alone.said[line][1].splitlines()
        assert (torch, onnxruntime, last) == ("torch: missing, not run", "onnxruntime: missing, not run", NOT_PROVED)
        rows = [row for row in alone.said[line][1].splitlines() if row.startswith("oracle")]
        assert len(rows) > 10 and all(row.endswith("ok") for row in rows)


def test_the_doctor_finds_the_environment_whole(alone: Alone) -> None:
    code, out, _ = alone.said["doctor"]
    assert code == 0 and "no problem found" in out
    assert {line.split()[0] for line in out.splitlines() if line.split()[1:2] == ["-"]} >= {"torch", "onnxruntime"}


def test_the_command_is_installed(alone: Alone) -> None:
    """As a process of its own, with the exit codes of the command line."""
    for words, code, said in (
        (["--version"], 0, f"blockc {blockc.__version__}\n"),
        (["check", "wrong.yaml", "-q"], 1, ""),
        (["check", "nothing.yaml"], 2, ""),
        (["verify", "block-4x4", "-q"], 3, ""),
    ):
        done = subprocess.run([alone.commands / "blockc", *words], cwd=alone.folder, env=CLEAN, capture_output=True)
        assert (done.returncode, done.stdout.decode()) == (code, said), done.stderr
