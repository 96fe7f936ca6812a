"""A build's folder whatever happens: killed, a full disk, two builds at once, links in the way."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockc.weights.data
from blockc import api, cli
from blockc.basics.errors import SHOWN, CheckpointError
from blockc.graph.target import Target
from blockc.language.spec import load
from blockc.products import folder
from blockc.products import staging as module
from blockc.products.manifest import MANIFEST, PROOF, FolderError, digest_of, read_manifest
from blockc.products.staging import staging
from blockc.proof import Proof
from blockc.weights.plan import DATA
from tests.checkpoints import ROOT, save, tensors, twin

# Builds of small files alone, of which this process kills its children: at any moment, and before every single step.
LIGHT = """
import itertools, json, os, random, signal, sys, time
from pathlib import Path
from hashlib import sha256
from blockc.products.manifest import MANIFEST, MODEL, TEXTS, Manifest, LinkedFile, Weights, read_manifest
from blockc.products.ownership import OutputFolder
from blockc.weights.safetensors import locate_in_files
from blockc.products.staging import commit, staging, is_unfinished
from blockc.graph.contract import Contract
from blockc.graph.target import Target
how, out, weights = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
linked = Weights(mode="link", sources=tuple(map(LinkedFile.of, locate_in_files([weights])[1])), data=None)
versions = {"blockc": "0", "numpy": "0", "onnx": "0"}
contract = Contract((), (), (), "joined", False, None, ())
def settle(out):
    with staging(out):
        pass
def names(version):
    return [*TEXTS, MODEL, "tokenizer.json" if version % 2 else "generation_config.json"]
def build(version):
    with staging(out) as stage:
        data = str(version).encode()
        for name in names(version):
            (stage / name).write_bytes(data)
        os.link(weights, stage / weights.name)
        said = Manifest(
            blockc_build=2, versions=versions, name="light", semantic_hash="0" * 64, parameters=version,
            target=Target(), contract=contract, products=(), weights=linked,
            files=dict.fromkeys(names(version), sha256(data).hexdigest()),
        )
        files = {**dict.fromkeys(names(version), data), MANIFEST: said.to_bytes()}
        (stage / MANIFEST).write_bytes(files[MANIFEST])
        commit(stage, OutputFolder(out, {weights.name: weights, **files}), [weights.name, *files])
def found():
    version = read_manifest(out).parameters
    assert all((out / name).read_text() == str(version) for name in names(version)), version
    assert (out / weights.name).samefile(weights)
    assert {p.name for p in out.iterdir() if p.name[:7] != ".blockc"} == {weights.name, *names(version), MANIFEST}
    return version
def after_a_kill(old):
    if (out / MANIFEST).exists():
        found()
    assert is_unfinished(out) or (out / MANIFEST).exists()
    settle(out)
    version = found()
    assert version >= old
    build(old + 1)
    assert found() == old + 1
    assert not list(out.glob(".blockc*"))
    return version
def child(work):
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    return pid
def deadly(left):
    def before(real):
        def call(*arguments, **named):
            if next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)
        return call
    for step in ("replace", "rename", "unlink", "rmdir", "mkdir", "link"):
        setattr(os, step, before(getattr(os, step)))
build(0)
if how == "moments":
    chance = random.Random(20)
    for kill in range(50):
        old = found()
        pid = child(lambda: [build(version) for version in itertools.count(old + 1)])
        time.sleep(chance.uniform(0.001, 0.02))
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        after_a_kill(old)
elif how == "steps":
    seen = []
    for steps in itertools.count():
        pid = child(lambda: (deadly(itertools.count(steps, -1)), build(1)))
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
            break
        seen.append(after_a_kill(0))
        build(0)
    print(*seen)
else:
    builders = [child(lambda: [build(100 * i + turn) for turn in range(20)]) for i in range(4)]
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in builders] == [0] * 4
    assert found() % 100 == 19
    assert not list(out.glob(".blockc*"))
"""

# A build that ends its own process: before the n-th write of data, or before the n-th file takes its name.
KILLED = """
import os, signal, sys
from pathlib import Path
import blockc.weights.data as plan
from blockc import api
from blockc.graph.target import Target
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
    plan._Ahead._write = deadly(plan._Ahead._write)
elif where == "name":
    os.replace = deadly(os.replace)
model = api.compile(spec)
api.build(model, out, proof=False, weights=weights, mode="pack", target=Target(dtype=dtype))
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
    said = read_manifest(out)
    same = all(digest_of(out / name) == hash_ for name, hash_ in said.files.items())
    return same and not folder._find_changed_weights(out, said)  # pyright: ignore[reportPrivateUsage]


def settle(out: Path) -> None:
    with staging(out):
        pass


def process(where: str, count: int, spec: Path, weights: Path, out: Path, dtype: str) -> subprocess.Popen[bytes]:
    arguments = [where, str(count), str(spec), str(weights), str(out), dtype]
    return subprocess.Popen([sys.executable, "-c", KILLED, *arguments], cwd=ROOT)


@pytest.mark.parametrize("how", ["moments", "race"])
def test_what_is_found_is_the_old_build_or_the_new_one(how: str, tmp_path: Path) -> None:
    """Killed at fifty moments, or four builds at once."""
    assert light(how, tmp_path) == ""


def test_one_step_decides(tmp_path: Path) -> None:
    """Killed before each of its steps: up to the rename of all the old build stands, from there on the new one."""
    found = light("steps", tmp_path).split()
    decided = found.index("1")
    assert decided >= 4 and len(found) - decided >= 9
    assert found == ["0"] * decided + ["1"] * (len(found) - decided)


def light(how: str, folder: Path) -> str:
    save(folder / "w.safetensors", {"w": np.ones(1, np.float32)})
    arguments = [how, str(folder / "out"), str(folder / "w.safetensors")]
    done = subprocess.run([sys.executable, "-c", LIGHT, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("where", "count"), [("data", 9), ("name", 3)])
def test_a_killed_build_leaves_the_previous_one_or_the_next_that_is_carried_on(
    where: str, count: int, spec: Path, weights: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    api.build(api.compile(spec), out, proof=False, weights=weights, mode="pack")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert process(where, count, spec, weights, out, "fp16").wait() == -signal.SIGKILL
    assert list(out.glob(".blockc*"))
    if where == "data":
        assert {name: (out / name).read_bytes() for name in before} == before
    else:
        assert not (out / MANIFEST).exists()
        settle(out)
        assert whole(out) and json.loads((out / MANIFEST).read_text())["target"]["dtype"] == "fp16"
    assert process("none", 0, spec, weights, out, "fp16").wait() == 0
    assert whole(out)
    assert {path.name for path in out.iterdir()} == before.keys()


def test_of_two_builds_into_one_folder_one_wins_whole(spec: Path, weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    running = [process("none", 0, spec, weights, out, dtype) for dtype in ("fp32", "fp16")]
    assert [p.wait() for p in running] == [0, 0]
    assert whole(out)
    assert not list(out.glob(".blockc*"))


def test_a_living_builds_staging_folder_is_not_cleared(tmp_path: Path) -> None:
    with staging(tmp_path) as first, staging(tmp_path) as second:
        assert first.is_dir() and second.is_dir()
    assert not list(tmp_path.iterdir())


def held(folder: Path) -> int:
    lock = module._lock(folder)  # pyright: ignore[reportPrivateUsage]
    assert lock is not None
    return lock


def test_a_folder_that_another_build_holds_is_waited_for_and_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = held(tmp_path)
    threading.Timer(0.2, os.close, (lock,)).start()
    before = time.monotonic()
    with staging(tmp_path):
        assert time.monotonic() - before > 0.15
    lock = held(tmp_path)
    monkeypatch.setattr(module, "WAIT", 0.1)
    assert run("build", "block-4x4", "--out", str(tmp_path), "--no-verify") == 3
    holder = f", process {os.getpid()}," if Path("/proc/locks").exists() else ""
    said = f"blockc: {tmp_path}: another build{holder} has held this folder's lock for 0.1 s: end it, or wait\n"
    assert capsys.readouterr().err == said
    assert not list(tmp_path.iterdir())
    os.close(lock)


def test_a_lock_ends_with_its_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import sys, time; from pathlib import Path; from blockc.products import staging; "
    script += "staging._lock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    monkeypatch.setattr(module, "WAIT", 0.1)
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(TimeoutError), staging(tmp_path):
            pass
        holder.kill()
        holder.wait()
        with staging(tmp_path):
            pass


def run(*arguments: str) -> int:
    return cli.run_guarded(lambda: cli.app(list(arguments), standalone_mode=False))


def test_a_folder_that_looks_decided_and_is_none_is_left_alone(tmp_path: Path) -> None:
    """It is foreign input too: it may name no file of elsewhere."""
    (tmp_path / "precious").write_text("")
    out = tmp_path / "out"
    orders = [
        '{"names": ["../precious", "manifest.json"], "gone": []}',
        '{"names": ["manifest.json"], "gone": ["../precious"]}',
        '{"names": [], "gone": []}',
        "[",
        None,
    ]
    for order in orders:
        (out / ".blockc.next").mkdir(parents=True)
        (out / ".blockc.next" / MANIFEST).write_text("{}")
        if order is not None:
            (out / ".blockc.next" / ".order.json").write_text(order)
        (out / MANIFEST).write_text("{}")
        with pytest.raises(FolderError, match="not what a build leaves: remove it"):
            settle(out)
        assert (tmp_path / "precious").exists() and (out / MANIFEST).exists()
        shutil.rmtree(out)


def test_a_folder_under_the_name_of_a_file_is_refused_before_anything_changes(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    (out / "graph.txt" / "notes").mkdir(parents=True)
    assert run("build", str(spec), "--out", str(out), "--no-verify") == 3
    assert capsys.readouterr().err == f"blockc: {out / 'graph.txt'}: Is a directory\n"
    assert [path.name for path in out.iterdir()] == ["graph.txt"]


# A disk that is full, and a hand that interrupts


@pytest.fixture
def small(spec: Path, tmp_path: Path) -> dict[str, bytes]:
    """A build without weights in out/: its bytes by name."""
    api.build(api.compile(spec), tmp_path / "out", proof=False)
    return files(tmp_path / "out")


def files(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


def test_wherever_the_disk_is_full_the_previous_build_stands(
    spec: Path, small: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.open
    left = 0

    def full(path: Path, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        nonlocal left
        if "w" in mode:
            left -= 1
            if left < 0:
                with real(path, mode, *arguments, **named) as file:
                    file.write(" " if "b" not in mode else b" ")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(path, mode, *arguments, **named)

    def folder_write(path: Path, data: Any, encoding: str | None = None) -> int:
        with path.open("w" if isinstance(data, str) else "wb", encoding=encoding) as file:
            return file.write(data)

    model = api.compile(spec)
    monkeypatch.setattr(Path, "open", full)
    monkeypatch.setattr(Path, "write_bytes", folder_write)
    monkeypatch.setattr(Path, "write_text", folder_write)
    for left_ in range(len(small) + 1):
        left = left_
        with pytest.raises(OSError, match="No space left on device"):
            api.build(model, tmp_path / "out", proof=False, target=Target(logits="last"))
        assert files(tmp_path / "out") == small
    left = len(small) + 1
    api.build(model, tmp_path / "out", proof=False, target=Target(logits="last"))
    assert files(tmp_path / "out").keys() == small.keys() and files(tmp_path / "out") != small


def test_a_file_that_the_system_lets_grow_no_further_is_3(
    spec: Path, small: dict[str, bytes], weights: Path, tmp_path: Path
) -> None:
    """The kernel's own error, in the middle of the data."""
    command = [sys.executable, "-m", "blockc", "build", str(spec), "--weights", str(weights), "--pack", "--no-verify"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("COV")}  # which writes files too
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], cwd=ROOT, capture_output=True, text=True, env=env,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )  # fmt: skip
    said = f"blockc: {tmp_path / 'out' / DATA}: File too large: a limit of this system (ulimit -f): raise it, or"
    assert (done.returncode, done.stderr) == (3, f"{said} build elsewhere with --out DIR\n")
    assert files(tmp_path / "out") == small


def test_ctrl_c_is_130_and_the_previous_build_stands(
    spec: Path, weights: Path, small: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = blockc.weights.data._Ahead.put  # pyright: ignore[reportPrivateUsage]

    def pressed(*arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        real(*arguments)

    monkeypatch.setattr(blockc.weights.data._Ahead, "put", pressed)  # pyright: ignore[reportPrivateUsage]
    out = str(tmp_path / "out")
    assert run("build", str(spec), "--weights", str(weights), "--pack", "--no-verify", "--out", out) == 130
    assert files(tmp_path / "out") == small


def test_ctrl_c_behind_the_decision_leaves_the_new_build_whole(
    spec: Path, weights: Path, small: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, pressed = os.replace, list[str]()

    def replace(old: Path, new: Path) -> None:
        if not pressed and Path(new).name == "report.json":
            pressed.append("once")
            signal.raise_signal(signal.SIGINT)
        real(old, new)

    monkeypatch.setattr(os, "replace", replace)
    out = tmp_path / "out"
    assert run("build", str(spec), "--weights", str(weights), "--pack", "--no-verify", "--out", str(out)) == 130
    assert pressed and whole(out) and files(out).keys() == small.keys() | {DATA}


def test_a_reader_that_goes_away_is_no_error() -> None:
    """Of output that its buffer holds to the end, and of output that it does not."""
    for words in (("show", "block-4x4"), ("schema",)):
        command = [sys.executable, "-m", "blockc", *words]
        env = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
        with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as shown:
            assert shown.stdout is not None and shown.stderr is not None
            shown.stdout.close()
            assert (shown.stderr.read(), shown.wait()) == (b"", 0)


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

    monkeypatch.setattr(blockc.weights.data._Ahead, "_write", full)
    arguments = ["build", str(spec), "--weights", str(weights), "--out", str(out), "--no-verify", "--pack"]
    assert run(*arguments) == 3
    assert "No space left on device" in capsys.readouterr().err
    assert ({path.name: path.read_bytes() for path in out.iterdir()} if out.exists() else {}) == before
    assert out.exists() is previous


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symlink", "hard link"])
def test_what_an_output_is_a_link_of_is_not_written(link: object, spec: Path, weights: Path, tmp_path: Path) -> None:
    assert callable(link)
    out, victim = tmp_path / "out", tmp_path / "victim"
    out.mkdir()
    names = ("model.onnx", DATA, MANIFEST, "model.py")
    for name in (*names, PROOF):
        victim.with_suffix(f".{name}").write_text(f"precious {name}")
        link(victim.with_suffix(f".{name}"), out / name)
    api.build(api.compile(spec), out, proof=False, weights=weights, mode="pack", force=True)
    assert whole(out)
    for name in (*names, PROOF):
        assert victim.with_suffix(f".{name}").read_text() == f"precious {name}"
        assert (out / name).samefile(victim.with_suffix(f".{name}")) == (name == PROOF)  # which no build wrote


def test_a_build_over_its_own_links_leaves_the_source_alone(spec: Path, weights: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "out", weights.read_bytes()
    for mode in ("link", "link", "pack", "link"):
        api.build(api.compile(spec), out, proof=False, weights=weights, mode=mode)
        assert whole(out)
        assert weights.read_bytes() == data
    shutil.rmtree(out)
    assert weights.read_bytes() == data


def test_the_command_says_what_it_did(
    spec: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(*arguments: str) -> int:
        return run("build", str(spec), "--no-verify", *arguments)

    assert build("--weights", str(weights.parent), "--out", str(tmp_path / "out")) == 0
    assert f"{tmp_path / 'out' / 'model.safetensors'}  " in capsys.readouterr().out
    for wrong in (
        ("--pack",),
        ("--weights-mode", "link"),
        ("--deep",),
        ("--weights", str(weights), "--pack", "--weights-mode", "link"),
        ("--weights", "nowhere"),
        ("--weights", str(weights), "--dtype", "x"),
    ):
        assert build("--out", str(tmp_path / "no"), *wrong) == 2
    bad = save(tmp_path / "bad" / "model.safetensors", {"stray": tensors(twin("llama3-8b"))["lm_head.weight"]})
    capsys.readouterr()
    assert build("--out", str(tmp_path / "no"), "--weights", str(bad)) == 1
    said = capsys.readouterr().err
    assert said.count("missing: ") == SHOWN and f"and {len(tensors(twin('llama3-8b'))) - SHOWN} more" in said
    assert "extra: stray" in said
    assert not (tmp_path / "no").exists()


# What linking reads, and what `verify --deep` reads again


@pytest.mark.parametrize("word", ["F32", "BF16"])
def test_a_change_inside_a_linked_file_is_seen_by_verify_deep(
    word: str, spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its size, time and header stayed, so that nothing else tells."""
    weights, out = save(tmp_path / "in" / "model.safetensors", tensors(twin("llama3-8b")), word), tmp_path / "out"
    api.build(api.compile(spec), out, proof=False, weights=weights, mode="link", deep=True)
    holds = Proof("twin", ())
    monkeypatch.setattr(folder, "prove", lambda *_, **__: holds)
    assert folder.check_build(out, deep=True) == folder.CheckResult((), (), holds)
    status = weights.stat()
    data = weights.read_bytes()
    with weights.open("r+b") as file:  # in place: its other name is in the build
        file.write(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert folder.check_build(out) == folder.CheckResult((), (), holds)
    last = list(tensors(twin("llama3-8b")))[-1]
    assert folder.check_build(out, deep=True).changed == (f"model.safetensors: {last}",)
    assert run("verify", str(out), "--deep") == 1
    assert capsys.readouterr().err == f"blockc: {out / 'model.safetensors'}: {last}: changed since it was built\n"
    assert run("verify", str(spec), "--deep") == 2
    manifest = json.loads((out / MANIFEST).read_text())
    del manifest["weights"]["tensors"]
    (out / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(FolderError, match="has no digests of linked tensors: build the folder with --deep"):
        folder.check_build(out, deep=True)


@pytest.mark.parametrize(("bits", "said"), [
    (0xFFC0, "not finite"), (0x7F80, "not finite"), (0xFF80, "not finite"), (0xC780, "too large.*65536, and fp16"),
    (0x477F, ""), (0xC77F, ""),
])  # fmt: skip
def test_linked_bf16_is_judged_by_its_largest_magnitude(bits: int, said: str, spec: Path, tmp_path: Path) -> None:
    held = tensors(twin("llama3-8b"))
    held["model.norm.weight"] = np.full_like(held["model.norm.weight"], -1.0)
    held["model.norm.weight"][1] = np.array([bits << 16], np.uint32).view(np.float32)[0]
    weights = save(tmp_path / "in" / "model.safetensors", held, "BF16")
    with pytest.raises(CheckpointError, match=said) if said else nullcontext():
        api.build(
            api.compile(spec), tmp_path / "out", proof=False, weights=weights, mode="link", target=Target(dtype="fp16")
        )
