"""A build's folder whatever happens: killed, a full disk, two builds at once, links in the way."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import blockc.plan
from blockc import api, cli
from blockc.folder import PROOF
from blockc.plan import DATA
from blockc.spec import load
from blockc.staging import MANIFEST, FolderError, staging
from tests.checkpoints import ROOT, save, tensors, twin

# A build that ends its own process: before the n-th write of data, or before the n-th file takes its name.
KILLED = """
import os, signal, sys
from pathlib import Path
import blockc.plan as plan
from blockc import api
where, count, spec, weights, out, dtype = sys.argv[1:]
left = int(count)
def deadly(real):
    def call(*arguments):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)
    return call
if where == "data":
    plan._put = deadly(plan._put)
elif where == "name":
    os.replace = deadly(os.replace)
model = api.compile(spec)
api.build(model, out, proof=False, weights=weights, mode="pack", dtype=dtype)
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A twin as a spec of its own."""
    path = tmp_path / "twin.yaml"
    path.write_text(twin("llama3-8b").resolved_yaml())
    assert load(path).top.vocab == twin("llama3-8b").spec.top.vocab
    return path


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return save(tmp_path / "in" / "model.safetensors", tensors(twin("llama3-8b")))


def whole(out: Path) -> bool:
    """The build verifies, but for its proof."""
    from blockc import folder

    said = folder._manifest(out)  # pyright: ignore[reportPrivateUsage]
    same = all(folder._digest_of(out / name) == hash_ for name, hash_ in said["files"].items())  # pyright: ignore
    return same and not folder._changed_weights(out, said["weights"])  # pyright: ignore[reportPrivateUsage]


def process(where: str, count: int, spec: Path, weights: Path, out: Path, dtype: str) -> subprocess.Popen[bytes]:
    arguments = [where, str(count), str(spec), str(weights), str(out), dtype]
    return subprocess.Popen([sys.executable, "-c", KILLED, *arguments], cwd=ROOT)


@pytest.mark.parametrize(("where", "count"), [("data", 0), ("data", 9), ("name", 0), ("name", 3), ("name", 6)])
def test_a_killed_build_leaves_the_previous_one_or_no_manifest(
    where: str, count: int, spec: Path, weights: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    api.build(api.compile(spec), out, proof=False, weights=weights, mode="pack")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert process(where, count, spec, weights, out, "fp16").wait() == -signal.SIGKILL
    assert list(out.glob(".blockc-*"))
    if where == "data":
        assert {name: (out / name).read_bytes() for name in before} == before
    else:
        assert not (out / MANIFEST).exists()
        with pytest.raises(FolderError, match="no finished build"):
            api.verify(out)
    assert process("none", 0, spec, weights, out, "fp16").wait() == 0
    assert whole(out)
    assert {path.name for path in out.iterdir()} == before.keys()


def test_of_two_builds_into_one_folder_one_wins_whole(spec: Path, weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for _ in range(2):
        running = [process("none", 0, spec, weights, out, dtype) for dtype in ("fp32", "fp16")]
        assert [p.wait() for p in running] == [0, 0]
        assert whole(out)
        assert not list(out.glob(".blockc-*"))


def test_a_living_builds_staging_folder_is_not_cleared(tmp_path: Path) -> None:
    with staging(tmp_path) as first, staging(tmp_path) as second:
        assert first.is_dir() and second.is_dir()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("previous", [True, False])
def test_a_full_disk_is_3_and_the_previous_build_stands(
    previous: bool, spec: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "out"
    if previous:
        api.build(api.compile(spec), out, proof=False, weights=weights, mode="pack")
    before = {path.name: path.read_bytes() for path in out.iterdir()} if previous else {}

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(blockc.plan, "_put", full)
    arguments = ["build", str(spec), "--weights", str(weights), "--out", str(out), "--no-verify", "--pack"]
    assert cli.guarded(lambda: cli.app(arguments, standalone_mode=False)) == 3  # pyright: ignore
    assert "No space left on device" in capsys.readouterr().err
    assert ({path.name: path.read_bytes() for path in out.iterdir()} if out.exists() else {}) == before
    assert out.exists() is previous


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symlink", "hard link"])
def test_what_an_output_is_a_link_of_is_not_written(link: object, spec: Path, weights: Path, tmp_path: Path) -> None:
    assert callable(link)
    out, victim = tmp_path / "out", tmp_path / "victim"
    out.mkdir()
    for name in ("model.onnx", DATA, MANIFEST, "model.py", PROOF):
        victim.with_suffix(f".{name}").write_text(f"precious {name}")
        link(victim.with_suffix(f".{name}"), out / name)
    api.build(api.compile(spec), out, proof=False, weights=weights, mode="pack")
    assert whole(out)
    for name in ("model.onnx", DATA, MANIFEST, "model.py", PROOF):
        assert victim.with_suffix(f".{name}").read_text() == f"precious {name}"
        assert not (out / name).is_symlink()


def test_a_build_over_its_own_links_leaves_the_source_alone(spec: Path, weights: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "out", weights.read_bytes()
    for mode in ("link", "link", "pack", "link"):
        api.build(api.compile(spec), out, proof=False, weights=weights, mode=mode)
        assert whole(out)
        assert weights.read_bytes() == data
    shutil.rmtree(out)
    assert weights.read_bytes() == data


def test_the_command_says_what_it_did(spec: Path, weights: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "blockc", "build", str(spec), "--no-verify", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    done = run("--weights", str(weights.parent), "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path / 'out' / 'model.safetensors'}  " in done.stdout
    for wrong in (
        ("--pack",),
        ("--dtype", "fp16"),
        ("--weights", "nowhere"),
        ("--weights", str(weights), "--dtype", "x"),
    ):
        assert run("--out", str(tmp_path / "no"), *wrong).returncode == 2
    bad = save(tmp_path / "bad" / "model.safetensors", {"stray": tensors(twin("llama3-8b"))["lm_head.weight"]})
    done = run("--out", str(tmp_path / "no"), "--weights", str(bad))
    assert done.returncode == 1
    assert done.stderr.count("missing: ") == len(tensors(twin("llama3-8b"))) and "extra: stray" in done.stderr
    assert not (tmp_path / "no").exists()
