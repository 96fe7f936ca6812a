"""Nobody's files are lost, nothing of a build's folder is believed unchecked, and a copy is the build it is of."""

from __future__ import annotations

import errno
import json
import operator
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockc import api, cli
from blockc.graph.target import Target
from blockc.products import folder
from blockc.products.manifest import MANIFEST, MODEL, PROOF, SPEC, FolderError, file_names, read_manifest
from blockc.products.staging import staging
from blockc.proof import Proof
from blockc.runtime import Session, SessionError
from blockc.weights.plan import DATA
from tests.checkpoints import ROOT, save, save_sharded, tensors, twin
from tests.tiny_encoders import build, save_embedder

HOLDS = Proof("twin", ())


def run(*arguments: str) -> int:
    return cli.run_guarded(lambda: cli.app(list(arguments), standalone_mode=False))


def held(out: Path) -> dict[str, bytes]:
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "twin.yaml"
    path.write_text(twin("llama3-8b").resolved_yaml())
    return path


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return save(tmp_path / "in" / "model.safetensors", tensors(twin("llama3-8b")))


@pytest.fixture
def unproved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof is another test's."""
    monkeypatch.setattr(folder, "prove", lambda *_, **__: HOLDS)


# What an output folder held before


def of_the_users_own(out: Path) -> dict[str, bytes]:
    """Names that a build writes, names that none does, and a manifest of something else that lists them all."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("model.py", "thesis.txt", DATA, PROOF):
        (out / name).write_text(f"my {name}")
    files = {path.name: folder.digest(path.read_bytes()) for path in out.iterdir()}
    (out / MANIFEST).write_text(json.dumps({"files": files, "short_name": "my site"}))
    return held(out)


def test_a_folder_of_the_users_own_is_refused_whole(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    mine = of_the_users_own(out)
    for arguments in ((), ("--no-verify",)):
        assert run("build", str(spec), "--out", str(out), *arguments) == 1
        said = capsys.readouterr().err
        assert "would be lost" in said and "model.py" in said and MANIFEST in said and "--force" in said
        assert held(out) == mine
    assert run("build", str(spec), "--out", str(out), "--no-verify", "--force") == 0
    now = held(out)
    for name in ("thesis.txt", DATA, PROOF):  # of which no build is written over: the first no build writes at all
        assert now[name] == mine[name]
    assert now["model.py"] != mine["model.py"] and read_manifest(out)
    here = tmp_path / "here"
    of_the_users_own(here)
    monkeypatch.chdir(here)
    capsys.readouterr()
    assert run("build", str(spec), "--out", "", "--no-verify") == 2
    assert capsys.readouterr().err == "blockc: --out is empty: name a folder, or say . for the one you are in\n"
    with pytest.raises(FolderError, match="empty name"):
        api.build(api.compile(spec), "", proof=False)
    assert held(here) == of_the_users_own(tmp_path / "again")


@pytest.mark.parametrize("name", ["model.py", "report.json", PROOF, MODEL])
def test_what_was_edited_since_the_build_is_refused_and_forced(
    name: str, spec: Path, tmp_path: Path, unproved: None
) -> None:
    """Whether the next build writes it or, as of verify.json, does not."""
    out, model = tmp_path / "out", api.compile(spec)
    folder.write_build(model, out, Target(), HOLDS)
    with (out / name).open("ab") as file:
        file.write(b"# mine")
    (out / "notes.txt").write_text("mine")
    mine = held(out)
    with pytest.raises(FolderError, match=f"would be lost(.|\n)*{name}"):
        api.build(model, out, proof=False)
    assert held(out) == mine
    api.build(model, out, proof=False, force=True)
    assert held(out).keys() == mine.keys() - {PROOF} and (out / "notes.txt").read_text() == "mine"
    assert api.verify(out).proof is HOLDS


def test_what_a_build_left_is_replaced_and_goes(spec: Path, weights: Path, tmp_path: Path) -> None:
    out, model = tmp_path / "out", api.compile(spec)
    folder.write_build(model, out, Target(), HOLDS)
    (weights.parent / "tokenizer.json").write_text("{}")
    for mode in ("pack", "link", None):
        api.build(model, out, proof=False, weights=weights if mode else None, mode=mode)
        assert held(out).keys() == {*read_manifest(out).names, MANIFEST}


def test_bytes_that_would_be_the_same_are_no_loss(spec: Path, tmp_path: Path) -> None:
    """As in a clone of the repository, whose generated/ holds the text files of every spec and no manifest."""
    out = tmp_path / "out"
    out.mkdir()
    model = api.compile(spec)
    for name, text in folder.texts(model).items():
        (out / name).write_text(text)
    api.build(model, out, proof=False)
    (out / MANIFEST).unlink()
    (out / "graph.txt").write_text("mine")
    (out / MODEL).unlink()
    with pytest.raises(FolderError, match="graph.txt"):
        api.build(model, out, proof=False)


def test_a_manifest_of_an_earlier_format_wants_force(spec: Path, weights: Path, tmp_path: Path) -> None:
    """Then what it lists goes as it would have gone, where its bytes are those that it lists."""
    out, model = tmp_path / "out", api.compile(spec)
    folder.write_build(model, out, Target(), HOLDS)
    said = json.loads((out / MANIFEST).read_text())
    del said["blockc_build"]
    (out / MANIFEST).write_text(json.dumps(said))
    with pytest.raises(FolderError, match=MANIFEST):
        api.build(model, out, proof=False)
    with pytest.raises(FolderError, match="an older blockc .* wrote it, in format 1, and this one reads 2: build the"):
        api.verify(out)
    api.build(model, out, proof=False, force=True)
    assert not (out / PROOF).exists() and read_manifest(out)


def test_the_last_name_of_weights_is_not_replaced_by_other_weights(spec: Path, weights: Path, tmp_path: Path) -> None:
    """Not even by force: they may be of a training that nobody can repeat."""
    out, model = tmp_path / "out", api.compile(spec)
    api.build(model, out, proof=False, weights=weights, mode="link")
    mine = weights.read_bytes()
    weights.unlink()
    again = save(tmp_path / "other" / "model.safetensors", tensors(twin("llama3-8b"), 4))
    for force in (False, True):
        with pytest.raises(FolderError, match="have no other name, and are not those of this build"):
            api.build(model, out, proof=False, weights=again, mode="link", force=force)
        assert (out / "model.safetensors").read_bytes() == mine
    again.write_bytes(mine)  # a copy of them
    api.build(model, out, proof=False, weights=again, mode="link")
    assert (out / "model.safetensors").samefile(again)


@pytest.mark.parametrize(
    ("out", "of", "why"),
    [
        ("in", "in", "the checkpoint's own folder"),
        ("in", "in/model.safetensors", "the checkpoint's own folder"),
        ("in/built", "in", "lies in the checkpoint's folder"),
        ("link/built", "in", "lies in the checkpoint's folder"),
        (".", "in/model.safetensors", "the checkpoint lies in it"),
        (".", "in", "the checkpoint lies in it"),
    ],
)
def test_an_output_that_would_mix_with_the_weights_is_refused(
    out: str, of: str, why: str, spec: Path, weights: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "in")
    before = held(tmp_path)
    with pytest.raises(FolderError, match=why):
        api.build(api.compile(spec), tmp_path / out, weights=tmp_path / of)
    assert held(tmp_path) == before and not (tmp_path / "in" / "built").exists()


def test_an_output_that_can_be_no_folder_is_named_with_what_to_do(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to("nowhere")
    for out, said in (
        ("file", f"{tmp_path / 'file'}: a file, not a folder: choose another with --out"),
        ("file/x/y", f"{tmp_path / 'file'}: a file, not a folder: choose another with --out"),
        (
            "dangling",
            f"{tmp_path / 'dangling'}: a link to nowhere, which does not exist: remove it, or choose a folder",
        ),
    ):
        assert run("build", str(spec), "--out", str(tmp_path / out)) == 3
        assert capsys.readouterr().err == f"blockc: {said}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "file", "twin.yaml"]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_system_that_refuses_is_told_of_with_the_path_and_advice(
    number: int, spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = Path.write_bytes

    def refuses(path: Path, data: bytes) -> int:
        if path.name == MODEL:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", refuses)
    assert run("build", str(spec), "--out", str(tmp_path / "a" / "b"), "--no-verify") == 3
    said = capsys.readouterr().err
    assert said.startswith(f"blockc: {tmp_path / 'a' / 'b' / MODEL}: {os.strerror(number)}: ") and "--out DIR" in said
    assert [path.name for path in tmp_path.iterdir()] == ["twin.yaml"]


# What a killed build left, or what looks as if


def test_a_planted_folder_of_new_files_moves_nothing(spec: Path, tmp_path: Path) -> None:
    """It names what a build writes, and yet not what lay there when a build decided."""
    out = tmp_path / "out"
    mine = of_the_users_own(out)
    names = ["model.py", MANIFEST]
    there = {name: [1, 2, 3] for name in names}
    for order in (
        {"names": names, "gone": [DATA], "there": there},
        {"names": names, "gone": ["thesis.txt"], "there": {}},
        {"names": ["thesis.txt", MANIFEST], "gone": [], "there": {}},
        {"names": names, "gone": [], "there": {"model.py": [1e30, 2, 3]}},
        {"names": "model.py", "gone": [], "there": {}},
        {"names": names, "gone": [], "there": {}, "more": 1},
    ):
        planted(out / ".blockc.next", json.dumps(order))
        before = held(out)
        for what in (lambda: api.verify(out), lambda: api.build(api.compile(spec), out, proof=False, force=True)):
            with pytest.raises(FolderError):
                what()
        assert held(out) == before
        shutil.rmtree(out / ".blockc.next")
    assert held(out) == mine


def planted(decided: Path, order: str) -> None:
    decided.mkdir()
    for name in ("model.py", "thesis.txt", MANIFEST):
        (decided / name).write_text("planted")
    (decided / ".order.json").write_text(order)


@pytest.mark.parametrize("how", ["symlink", "huge", "fifo", "file", "member", "owner"])
def test_what_is_no_folder_of_a_build_is_not_followed(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, decided = tmp_path / "out", tmp_path / "out" / ".blockc.next"
    out.mkdir()
    if how == "symlink":
        planted(tmp_path / "elsewhere", json.dumps({"names": [MANIFEST], "gone": [], "there": {}}))
        decided.symlink_to(tmp_path / "elsewhere")
    elif how == "file":
        decided.write_text("")
    else:
        planted(decided, json.dumps({"names": ["model.py", MANIFEST], "gone": [], "there": {}}))
    if how in ("huge", "fifo"):
        (decided / ".order.json").unlink()
        if how == "fifo":
            os.mkfifo(decided / ".order.json")
        else:
            with (decided / ".order.json").open("wb") as file:
                file.truncate(1 << 40)
    if how == "member":
        (decided / "model.py").unlink()
        (decided / "model.py").symlink_to("/etc/passwd")
    if how == "owner":
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(FolderError, match="not what a build leaves: remove it"), staging(out):
        pass
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_folder_that_only_looks_abandoned_is_left(tmp_path: Path) -> None:
    for name in (".blockc-notes", ".blockc-abcdefgh"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".blockc-abcdefgi").symlink_to("elsewhere")
    (tmp_path / ".blockc-abcdefgj").mkdir()
    (tmp_path / ".blockc-abcdefgj" / ".stage").write_text("")
    with staging(tmp_path):
        pass
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {".blockc-notes", ".blockc-abcdefgh", ".blockc-abcdefgi", "elsewhere"}
    assert (tmp_path / ".blockc-abcdefgh" / "mine").exists()


# What a manifest states


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds by what they hold, made once; a copy of each time."""
    root = tmp_path_factory.mktemp("builds")

    @cache
    def made(kind: str) -> Path:
        model, at = twin("llama3-8b"), root / "in"
        if not at.exists():
            save_sharded(at, tensors(model), 2)
        target = Target() if kind == "bare" else Target("cpu")
        mode = "pack" if kind == "packed" else "link"
        given = None if kind == "bare" else at
        api.build(
            model,
            root / kind,
            target=target,
            proof=False,
            weights=given,
            mode=mode if given else None,
            deep=kind == "linked",
        )
        return root / kind

    def copied(kind: str) -> Path:
        copy = Path(shutil.copytree(made(kind), root / f"{kind}-{len(list(root.iterdir()))}"))
        return copy

    return copied


def edited(out: Path, *path: str | int, value: Any) -> None:
    said = json.loads((out / MANIFEST).read_text())
    at = said
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value(at[path[-1]]) if callable(value) else value
    (out / MANIFEST).write_text(json.dumps(said))


STATEMENTS: list[tuple[tuple[str | int, ...], Any]] = [
    (("contract", "feeding"), "rows"),
    (("contract", "sides"), [{"original": 8, "grows": False}]),
    (("contract", "one_row"), operator.not_),
    (("contract", "vocab"), 95),
    (("contract", "held", 0, "in_place"), operator.not_),
    (("contract", "held", 0, "shape", 1), 1),
    (("name",), "another"),
    (("parameters",), 1),
    (("semantic_hash",), "0" * 64),
    (("versions", "blockc"), "0.0.1"),
    (("target", "logits"), "last"),
    (("target", "logits"), 10**9),
    (("target", "dtype"), "fp16"),
]


def spelled(path: Any) -> str | None:
    return ".".join(map(str, path)) if isinstance(path, tuple) else None


@pytest.mark.parametrize("kind", ["bare", "linked", "packed"])
@pytest.mark.parametrize(("path", "value"), STATEMENTS, ids=spelled)
def test_verify_recomputes_each_statement(
    kind: str, path: tuple[str, ...], value: Any, builds: Callable[[str], Path], unproved: None
) -> None:
    out = builds(kind)
    assert folder.check_build(out).proof is HOLDS
    edited(out, *path, value=value)
    found = folder.check_build(out)
    assert found.outdated and found.proof is None
    if path[0] not in ("target", "versions"):
        assert found.outdated == (f"{MANIFEST}: {path[0]}",)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("packed", ("target", "packed"), False),
        ("linked", ("target", "packed"), True),
        ("linked", ("target", "provider"), None),
        ("packed", ("weights", "data", "size"), 12),
        ("linked", ("weights", "sources", 0, "size"), 12),
        ("linked", ("weights", "sources", 0, "header_sha256"), "0" * 64),
        ("linked", ("weights", "tensors"), {}),
        ("linked", ("weights", "mode"), "pack"),
    ],
)
def test_so_it_does_with_what_is_said_of_weights(
    kind: str, path: tuple[str | int, ...], value: Any, builds: Callable[[str], Path], unproved: None
) -> None:
    out = builds(kind)
    edited(out, *path, value=value)
    try:
        found = folder.check_build(out)
        assert found.proof is None and (found.changed or found.outdated)
    except FolderError as error:
        assert MANIFEST in str(error)


@pytest.mark.parametrize(("path", "value"), [each for each in STATEMENTS if each[0][0] != "versions"], ids=spelled)
def test_run_believes_no_statement_that_its_model_does_not_bear_out(
    path: tuple[str, ...], value: Any, builds: Callable[[str], Path]
) -> None:
    out = builds("linked")
    said = list(Session(out).generate([[3, 1, 4]], 4))
    edited(out, *path, value=value)
    with pytest.raises(SessionError, match=MANIFEST):
        print(said, list(Session(out).generate([[3, 1, 4]], 4)))


def test_run_reads_the_spec_and_the_graph_that_were_built(builds: Callable[[str], Path]) -> None:
    """The report is read by nobody: vocabulary and context are the spec's."""
    out = builds("linked")
    (out / "report.json").write_text('{"context": Infinity, "vocab": 1e30}')
    assert Session(out).context == twin("llama3-8b").spec.top.context
    for name in (SPEC, MODEL):
        again = builds("linked")
        with (again / name).open("ab") as file:
            file.write(b"\n")
        with pytest.raises(SessionError, match=f"{name}: changed since it was built"):
            Session(again)


ODD: list[tuple[tuple[str | int, ...], Any]] = [
    (("weights", "data", "name"), None),
    (("weights", "data", "name"), "/etc/passwd"),
    (("weights", "data", "name"), "model.py"),
    (("weights", "data", "size"), 1e30),
    (("weights", "data", "size"), -1),
    (("weights", "data"), None),
    (("weights", "more"), 1),
    (("files", "thesis.txt"), "0" * 64),
    (("files", "../x"), "0" * 64),
    (("files", "model.py"), "0"),
    (("files",), {}),
    (("target",), {}),
    (("target", "more"), 1),
    (("target", "packed"), 1),
    (("contract", "sides"), [{"original": float("inf"), "grows": False}]),
    (("contract", "sides"), [{"original": 1}]),
    (("contract", "held"), None),
    (("contract", "held", 0, "shape"), [1.5]),
    (("contract", "held", 0, "grows"), "2"),
    (("contract", "feeding"), "guessed"),
    (("contract", "outputs"), [{"name": "logits"}]),
    (("parameters",), float("nan")),
    (("parameters",), "1"),
    (("versions",), None),
    (("blockc_build",), 3),
    (("blockc_build",), True),
    (("more",), 1),
]


@pytest.mark.parametrize(("path", "value"), ODD, ids=lambda v: str(v)[:40])
def test_an_odd_manifest_is_one_error_of_every_command(
    path: tuple[str, ...], value: Any, builds: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    out = builds("packed")
    edited(out, *path, value=value)
    before = held(out)
    for command in (["verify"], ["run", "--prompt", "a"], ["bench", "--threads", "1"]):
        assert run(*command, str(out)) == 1
        said = capsys.readouterr().err
        assert f"{out / MANIFEST}: not a manifest of this version of blockc" in said and "Traceback" not in said
    assert held(out) == before
    (out / "model.py").write_text("mine")
    with pytest.raises(FolderError, match="would be lost"):
        api.build(twin("llama3-8b"), out, proof=False)


@pytest.mark.parametrize("name", [MANIFEST, "report.json", SPEC, MODEL, DATA, "genai_config.json"])
@pytest.mark.parametrize("how", ["huge", "zero", "fifo", "folder", "loop"])
def test_a_file_that_has_no_end_is_not_read(
    name: str, how: str, builds: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of each command that reads the folder; run does not read the report, nor anyone a foreign configuration."""
    out = builds("packed")
    (out / name).unlink(missing_ok=True)
    if how == "huge":
        with (out / name).open("wb") as file:
            file.truncate(300 << 20 if name == MANIFEST else 1 << 20)
    elif how == "zero":
        (out / name).symlink_to("/dev/zero")
    elif how == "fifo":
        os.mkfifo(out / name)
    elif how == "folder":
        (out / name).mkdir()
    else:
        (out / name).symlink_to(name)
    for command in (["verify"], ["run", "--prompt", "a"]):
        if name == "genai_config.json" or (command[0] == "run" and name == "report.json"):
            continue
        assert run(*command, str(out)) in ((1, 3) if how == "loop" else (1,))
        said = capsys.readouterr().err
        assert name in said and "fault of blockc" not in said


def test_a_foreign_configuration_is_read_with_the_same_suspicion(tmp_path: Path, builds: Callable[[str], Path]) -> None:
    from blockc.bench import opening

    at = tmp_path / "genai_config.json"
    count = opening._genai_count  # pyright: ignore[reportPrivateUsage]
    for said, found in (('{"model": {"context_length": 8}}', 8), ('{"model": {"context_length": 1e30}}', None),
                        ('{"model": {"context_length": true}}', None), ('{"model": []}', None)):  # fmt: skip
        at.write_text(said)
        assert count(tmp_path, "context_length") == found
    at.write_text('{"model": {"context_length": Infinity}}')
    with pytest.raises(SessionError, match="Infinity is no number"):
        count(tmp_path, "context_length")


@pytest.mark.parametrize("kind", ["bare", "linked", "packed"])
def test_verify_writes_nothing(kind: str, builds: Callable[[str], Path]) -> None:
    """Of a build that holds, and of one that was interrupted, which it only tells of."""
    out = builds(kind)

    def state() -> dict[str, tuple[int, ...]]:
        return {str(p): (p.lstat().st_ino, p.lstat().st_size, p.lstat().st_mtime_ns) for p in [out, *out.rglob("*")]}

    before = state()
    checked = api.verify(out)
    assert checked.proof is not None and checked.proof.holds and state() == before
    planted(out / ".blockc.next", json.dumps({"names": [MANIFEST], "gone": [MODEL, "model.py"], "there": {}}))
    before = state()
    with pytest.raises(
        FolderError, match="a build was interrupted here: run `blockc build` into it again to finish it"
    ):
        api.verify(out)
    assert state() == before


# Copies


def by_cp(out: Path, to: Path, *options: str) -> None:
    subprocess.run(["cp", *options, str(out), str(to)], check=True)


def by_tar(out: Path, to: Path) -> None:
    with tarfile.open(to.with_suffix(".tar"), "w") as archive:
        archive.add(out, to.name)
    with tarfile.open(to.with_suffix(".tar")) as archive:
        archive.extractall(to.parent, filter="data")
    for path in to.iterdir():
        os.utime(path, (0, 0))


def by_zip(out: Path, to: Path) -> None:
    with zipfile.ZipFile(to.with_suffix(".zip"), "w") as archive:
        for path in out.iterdir():
            archive.write(path, path.name)
    with zipfile.ZipFile(to.with_suffix(".zip")) as archive:
        archive.extractall(to)


def by_cache(out: Path, to: Path) -> None:
    """As a hub's cache has it: each file a link to a blob that is named by its digest."""
    (to.parent / "blobs").mkdir()
    to.mkdir()
    for path in out.iterdir():
        blob = to.parent / "blobs" / folder.digest(path.read_bytes())
        shutil.copyfile(path, blob)
        (to / path.name).symlink_to(f"../blobs/{blob.name}")


COPIES: dict[str, Callable[[Path, Path], object]] = {
    "cp -r": lambda out, to: by_cp(out, to, "-r"),
    "cp -a": lambda out, to: by_cp(out, to, "-a"),
    "tar": by_tar,
    "zip": by_zip,
    "touch": lambda out, to: (by_cp(out, to, "-a"), [os.utime(path, (1, 1)) for path in to.iterdir()]),
    "links": by_cache,
    "a link": lambda out, to: to.symlink_to(out),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("kind", ["bare", "linked", "packed"])
def test_a_copy_is_the_build_it_is_of(
    kind: str, how: str, builds: Callable[[str], Path], tmp_path: Path, unproved: None
) -> None:
    out, to = builds(kind), tmp_path / "copy"
    COPIES[how](out, to)
    assert folder.check_build(to, deep=kind == "linked") == folder.CheckResult((), (), HOLDS)
    if kind != "bare":
        said = list(Session(out).generate([[3, 1, 4]], 4))
        assert list(Session(to).generate([[3, 1, 4]], 4)) == said
    api.build(twin("llama3-8b"), to, proof=False)
    weights = {path.name for path in to.glob("*.safetensors")}  # of a copy they are the last name
    assert held(to).keys() == {*read_manifest(to).names, MANIFEST} | weights


def test_a_touched_source_is_the_one_that_was_linked(spec: Path, weights: Path, tmp_path: Path, unproved: None) -> None:
    out = tmp_path / "out"
    api.build(api.compile(spec), out, proof=False, weights=weights, mode="link", deep=True)
    os.utime(weights, (1, 1))
    assert Session(out) and folder.check_build(out, deep=True) == folder.CheckResult((), (), HOLDS)
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert folder.check_build(out) == folder.CheckResult((), (), HOLDS)
    (changed,) = folder.check_build(out, deep=True).changed
    assert changed.startswith("model.safetensors: ")


def test_a_bench_opens_a_copy(builds: Callable[[str], Path], tmp_path: Path) -> None:
    by_cp(builds("linked"), tmp_path / "copy", "-r")
    done = subprocess.run(
        [sys.executable, "-m", "blockc.bench.candidate", str(tmp_path / "copy")], cwd=ROOT, text=True,
        input='{"do": "load", "threads": 1}\n', capture_output=True,
    )  # fmt: skip
    assert "seconds" in json.loads(done.stdout)


def test_what_a_build_may_write_is_what_builds_write(spec: Path, weights: Path, tmp_path: Path, unproved: None) -> None:
    """The list by which files are owned holds the names of every kind of build."""
    from blockc.weights.companions import COMPANIONS

    for name in COMPANIONS:
        (weights.parent / name).write_text('{"eos_token_id": 1}')
    model, found = api.compile(spec), set[str]()
    for runtime, mode in (("genai", "pack"), (None, "link")):
        built = api.build(model, tmp_path / mode, weights=weights, mode=mode, products=[runtime] if runtime else [])  # pyright: ignore
        found |= {path.name for path in built.files}
    proved = folder.write_build(model, tmp_path / "proved", Target(), HOLDS)
    found |= {path.name for path in proved.files}
    long = api.build(model, tmp_path / "step", target=Target("cpu"), weights=weights)
    found |= {path.name for path in long.files}
    save_embedder(tmp_path / "embedder")
    out = build(tmp_path / "embedder", tmp_path / "sentence", products=["sentence-transformers"])
    found |= {name for name in read_manifest(out).files if (out / name).is_file()}
    assert found == {*file_names(), MANIFEST, DATA, "model.safetensors"}


@pytest.mark.parametrize("mode", ["link", "pack"])
def test_what_an_adapter_changed_is_verified_too(mode: Any, tmp_path: Path, unproved: None) -> None:
    """It is packed beside what is linked, and no manifest says which that is: the graph does."""
    model = twin("llama3-8b")
    save(tmp_path / "in" / "model.safetensors", tensors(model))
    at, width = "base_model.model.model.layers.0.self_attn.q_proj", model.spec.top.width
    low = {
        f"{at}.lora_A.weight": np.ones((2, width), np.float32),
        f"{at}.lora_B.weight": np.ones((width, 2), np.float32),
    }
    save(tmp_path / "adapter" / "adapter_model.safetensors", low)
    said = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(said))
    out = tmp_path / "out"
    api.build(model, out, proof=False, weights=tmp_path / "in", mode=mode, adapters=[tmp_path / "adapter"], deep=True)
    assert folder.check_build(out, deep=mode == "link") == folder.CheckResult((), (), HOLDS)
    build = api.build(model, tmp_path / "plain", proof=False, weights=tmp_path / "in", mode=mode)
    assert build.files and (tmp_path / "plain" / DATA).exists() == (mode == "pack")
