"""The command line as its users meet it: a process, its output, its exit code, and the files it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from blockc.basics import distribution
from tests.paths import ROOT

LLAMA = "specs/llama3-8b.yaml"
FILES = {"model.py", "model.onnx", "graph.txt", "report.json", "spec.resolved.yaml", "verify.json", "manifest.json"}

# What stands before a command that must do without a package.
WITHOUT = "import sys; [sys.modules.__setitem__(name, None) for name in {names!r}]; "
WITHOUT += "import importlib.util as u; found = u.find_spec; "
WITHOUT += "u.find_spec = lambda name, package=None: None if name in {names!r} else found(name, package); "


def run(*arguments: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "blockc", *arguments]
    return subprocess.run(command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True)


def run_without(names: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    script = (
        WITHOUT.format(names=names)
        + f"sys.argv = ['blockc', *{list(arguments)!r}]; from blockc.cli import main; main()"
    )
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)


def test_help_imports_nothing_heavy() -> None:
    script = "import sys; from blockc.cli import app, run_guarded; "
    script += "run_guarded(lambda: app(['--help'], standalone_mode=False)); "
    script += "print(','.join(sorted(m for m in sys.modules if m in ('numpy', 'pydantic', 'onnx', 'torch'))))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == ""
    for command in ("check", "build", "show", "verify", "trace", "schema"):
        assert command in done.stdout


def test_check_all_specs_is_clean() -> None:
    done = run("check", "specs/")
    assert done.returncode == 0
    assert done.stdout.count(": ok") == len(list((ROOT / "specs").glob("*.yaml"))) > 0


def test_check_points_at_the_value(tmp_path: Path) -> None:
    text = (ROOT / LLAMA).read_text().replace("kv_heads: 8", "kv_heads: 5")
    spec = tmp_path / "x.yaml"
    spec.write_text(text)
    done = run("check", str(spec))
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0].startswith(f"{spec}:7:34: attention.kv_heads 5 does not divide attention.heads 32")
    assert lines[1].endswith(text.splitlines()[6])
    assert lines[2].index("^") == lines[1].index("kv_heads: 5") + len("kv_heads: ")
    assert any(line.strip().startswith("expected:") for line in lines)
    assert "Traceback" not in done.stderr


def test_check_goes_on_after_a_wrong_spec(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("blockc: 1\n")
    (tmp_path / "b.yaml").write_text((ROOT / LLAMA).read_text())
    done = run("check", str(tmp_path))
    assert done.returncode == 1
    assert "b.yaml: ok" in done.stdout
    assert "a.yaml:1:1" in done.stderr
    assert "1 of 2 specs are wrong" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("check",),
        ("check", "no-such-file.yaml"),
        ("build", "specs"),
        ("build", LLAMA, "--logits", "some"),
        ("build", LLAMA, "--logits", "last:0"),
        ("build", LLAMA, "--no-verify", "--require-proof"),
        ("build", LLAMA, "--set", "depth=2"),
        ("show", LLAMA, "--json", "--graph"),
        ("show", LLAMA, "--device-memory", "much"),
        ("trace", LLAMA, "--tokens", "a,b"),
        ("trace", LLAMA, "--tokens", "1000000"),
        ("nonsense",),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stderr.strip()
    assert "Traceback" not in done.stderr


@pytest.mark.costly
def test_build_writes_everything_and_ends_with_the_proof(tmp_path: Path) -> None:
    done = run("build", LLAMA, "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    last = done.stdout.splitlines()[-1]
    assert last.startswith("proved: oracle = torch = onnxruntime on llama3-8b-twin")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert set(manifest["files"]) == FILES - {"manifest.json"}
    again = run("verify", str(tmp_path / "out"))
    assert again.returncode == 0, again.stderr


@pytest.mark.costly
@pytest.mark.parametrize("missing", ["torch", "onnxruntime"])
def test_build_without_a_backend_says_so(missing: str, tmp_path: Path) -> None:
    done = run_without((missing,), "build", LLAMA, "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    line = f"not proved: {missing} missing: {distribution.extra_command(distribution.EXTRAS[missing])}"
    assert done.stdout.splitlines()[-1] == line
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    strict = run_without((missing,), "build", LLAMA, "--out", str(tmp_path / "strict"), "--require-proof")
    assert strict.returncode == 3
    assert strict.stderr == f"blockc: {line}; nothing was written\n"
    assert not (tmp_path / "strict").exists()


@pytest.mark.costly
def test_check_show_and_build_need_neither_torch_nor_onnxruntime(tmp_path: Path) -> None:
    """Nor anything of the extras: the core install is light."""
    gone = ("torch", "onnxruntime", "safetensors", "transformers")
    assert run_without(gone, "check", "specs/").returncode == 0
    assert run_without(gone, "show", LLAMA).returncode == 0
    done = run_without(gone, "build", LLAMA, "--no-verify", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES - {"verify.json"}


def test_a_wrong_spec_leaves_no_file(tmp_path: Path) -> None:
    done = run("build", LLAMA, "--set", "attention.kv_heads=5", "--out", str(tmp_path / "out"))
    assert done.returncode == 1
    assert done.stderr.startswith("--set 'attention.kv_heads=5':1:20:")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("build", LLAMA, "--no-verify", "--out", str(tmp_path / "file" / "out"))
    assert done.returncode == 3
    assert "file" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.costly
def test_two_builds_are_byte_identical(tmp_path: Path) -> None:
    """Whatever the hash seed, the time zone, the locale and the working folder."""
    other = {"PYTHONHASHSEED": "12345", "TZ": "Asia/Kolkata", "LC_ALL": "C"}
    spec = str(ROOT / "specs" / "gemma2-9b.yaml")
    assert run("build", spec, "--no-verify", "--out", str(tmp_path / "a"), env={"PYTHONHASHSEED": "1"}).returncode == 0
    assert run("build", spec, "--no-verify", "--out", str(tmp_path / "b"), env=other, cwd=tmp_path).returncode == 0
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_show_json_has_the_promised_keys() -> None:
    done = run("show", LLAMA, "--json", "--context", "8192", "--device-memory", "192GB")
    figures = json.loads(done.stdout)
    assert figures["parameters"]["total"] == 8_030_261_248
    assert figures["parameters"]["active"] == 8_030_261_248
    assert figures["parameters"]["embedding"] == 1_050_673_152
    assert figures["kv_cache"]["bytes_per_token"] == 131_072
    assert figures["flops"]["matmul_per_token"] == 15_009_316_864
    assert figures["flops"]["attention_per_token"] == 4_294_967_296
    assert {"per_token", "prefill", "train_per_token"} <= set(figures["flops"])
    assert {"weights", "kv_cache", "activations"} <= set(figures["memory"])


def test_show_says_it_in_text() -> None:
    text = run("show", LLAMA).stdout
    for fact in ("attention_norm", "norm(x')", "silu(gate) * up", "8,030,261,248", "28,628", "concatenated heads"):
        assert fact in text
    many = run("show", LLAMA, "specs/gpt2.yaml").stdout
    assert "llama3-8b" in many
    assert "124,439,808" in many
    assert "residual" in run("show", LLAMA, "--expanded").stdout
    assert "for N in 0..31:" in run("show", LLAMA, "--graph").stdout
    assert "8,030,261,248" in run("show", LLAMA, "--set", "norm.placement=parallel_two").stdout


@pytest.mark.costly
def test_verify_json_is_the_golden_matrix() -> None:
    done = run("verify", "specs/block-4x4.yaml", "--json")
    assert done.returncode == 0
    data = json.loads(done.stdout)
    assert data["complete"]
    assert {"backend", "variant", "dtype", "error", "agreement", "tolerance", "holds"} <= set(data["rows"][0])


def test_trace_prints_the_stream_after_each_addition() -> None:
    done = run("trace", "specs/block-4x4.yaml", "--tokens", "1,2,3")
    assert done.returncode == 0
    names = [line.split()[0] for line in done.stdout.splitlines()[2:]]
    assert names == ["embedding"] + [f"layers.{n}.after_{part}" for n in range(2) for part in ("attention", "mlp")]


def test_schema_is_json_schema_of_the_language() -> None:
    data = json.loads(run("schema").stdout)
    assert {"blockc", "width", "attention", "norm", "block"} <= set(data["properties"])
    assert data["additionalProperties"] is False


@pytest.mark.costly
def test_debug_shows_a_traceback_and_nothing_else_does(tmp_path: Path) -> None:
    bad = tmp_path / "x.yaml"
    bad.write_text("a: [\n")
    assert "Traceback" not in run("check", str(bad)).stderr
    quiet, loud = run("show", str(bad)), run("--debug", "show", str(bad))
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr
