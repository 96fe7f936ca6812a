"""What a terminal shows: messages of several lines, streams of any kind, exit codes whoever reads, options anywhere."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import blockc
from blockc import api
from blockc.authoring.specfiles import write_whole
from blockc.cli import app, run_guarded, terminal
from blockc.weights.rules import random_parameters
from blockc.weights.safetensors import write_safetensors
from tests.paths import ROOT

COMMAND = [sys.executable, "-m", "blockc"]
ENV = {key: value for key, value in os.environ.items() if key not in ("TERM", "PYTHONIOENCODING")}
ENV |= {"PYTHONPATH": str(ROOT)}
BLOCK = "specs/block-4x4.yaml"


def run(*arguments: str, cwd: Path = ROOT, **env: str) -> tuple[int, str, str]:
    done = subprocess.run([*COMMAND, *arguments], cwd=cwd, env=ENV | env, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def shell(line: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A line of bash, in which `b` is blockc."""
    script = f'b() {{ "{sys.executable}" -m blockc "$@"; }}; {line}'
    return subprocess.run(["bash", "-c", script], cwd=ROOT, env=ENV | env, capture_output=True, text=True)


# Messages of several lines


def many(folder: Path, count: int, name: str = "extra.{i}") -> Path:
    """A checkpoint with so many tensors that no spec has."""
    path = folder / "x.safetensors"
    write_safetensors(path, {name.format(i=i): np.zeros(1, np.float32) for i in range(count)})
    return path


def test_a_checkpoint_that_does_not_fit_is_said_in_lines_and_no_more_of_them_than_one_reads(tmp_path: Path) -> None:
    path = many(tmp_path, 200)
    code, out, err = run("build", BLOCK, "--no-verify", "--weights", str(path), "--out", str(tmp_path / "out"))
    lines = err.splitlines()
    assert (code, out, lines[0]) == (1, "", "blockc: the checkpoint does not fit the spec:")
    assert all(line.startswith("  ") for line in lines[1:])
    said = {kind: sum(line.startswith(f"  {kind}: ") for line in lines) for kind in ("missing", "extra")}
    assert said == {"missing": len(lines) - 22, "extra": 20} and said["missing"] <= 20  # of each kind the first twenty
    assert lines[-1] == "  and 180 more"
    assert "\\n" not in err


def test_what_a_folder_holds_otherwise_than_its_manifest_is_a_line_each(tmp_path: Path) -> None:
    assert run("build", BLOCK, "--no-verify", "--out", str(tmp_path))[0] == 0
    for name in ("graph.txt", "report.json"):
        (tmp_path / name).write_text("changed")
    code, _, err = run("verify", str(tmp_path))
    assert (code, err) == (
        1,
        f"blockc: {tmp_path}/graph.txt: changed since it was built\n"
        f"{tmp_path}/report.json: changed since it was built\n",
    )


def test_a_manifest_of_wrong_types_and_wrong_usage_are_said_in_lines() -> None:
    code, out, err = run("show", "gpt2", "--batch", "x")
    assert (code, out) == (2, "")
    assert err.splitlines()[0].startswith("Usage: ") and err.splitlines()[-1].startswith("Error: ")
    assert err.count("\n") == 4 and "\\n" not in err


SPOOF = "a\x1b[31mb\x07\u202ec\u200bd\u2028e"


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", f"{SPOOF}.yaml"),
        (SPOOF,),
        ("show", "gpt2", f"--{SPOOF}"),
        ("show", "gpt2", "--dtype", SPOOF),
        ("trace", "gpt2", "--tokens", SPOOF),
        ("check", "gpt2", "--policy", SPOOF),
        ("build", "gpt2", "--logits", SPOOF),
        ("new", SPOOF, "--like", "gpt2"),
        ("new", "x", "--like", "gpt2", "--parameters", SPOOF),
        ("show", "gpt2", "--set", SPOOF),
        ("diff", "gpt2", "gpt2", "--fail-on", SPOOF),
        ("explain", SPOOF),
    ],
)
def test_no_control_character_of_an_argument_reaches_the_terminal(arguments: tuple[str, ...]) -> None:
    code, _, err = run(*arguments, PYTHONUTF8="1")
    assert code in (1, 2) and err
    assert not [char for char in err if not char.isprintable() and char != "\n"]


def test_nor_one_of_a_name_in_a_file(tmp_path: Path) -> None:
    path = many(tmp_path, 2, SPOOF + "{i}")
    code, _, err = run("build", BLOCK, "--no-verify", "--weights", str(path), "--out", str(tmp_path / "out"))
    assert code == 1
    assert not [char for char in err if not char.isprintable() and char != "\n"]


def test_lines_are_lines() -> None:
    assert terminal.clean_lines("one\ntwo\r\x1b\tx") == "one\ntwo\\r\\x1b\\tx"
    assert terminal.clean_lines("x" * 3000) == "x" * 1997 + "..."
    assert terminal.clean_lines("\n".join(map(str, range(500)))).splitlines()[-1] == "and 440 more"


# Streams


@pytest.mark.parametrize(
    ("env", "line"),
    [
        ({"PYTHONIOENCODING": "utf-8"}, "  ├──→ attention_norm ──→ attention ──┐"),
        ({"PYTHONIOENCODING": "ascii"}, "  +--> attention_norm --> attention --+"),
        ({"PYTHONIOENCODING": "cp1252"}, "  +--> attention_norm --> attention --+"),
        ({"PYTHONIOENCODING": "latin-1:strict"}, "  +--> attention_norm --> attention --+"),
        ({"PYTHONIOENCODING": "utf-8", "TERM": "dumb"}, "  +--> attention_norm --> attention --+"),
    ],
)
def test_show_draws_with_what_the_terminal_has(env: dict[str, str], line: str) -> None:
    done = subprocess.run([*COMMAND, "show", BLOCK], cwd=ROOT, env=ENV | env, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    drawn = done.stdout.decode(env["PYTHONIOENCODING"].partition(":")[0]).splitlines()
    assert line in drawn
    if "--" in line:
        assert all(text.isascii() for text in drawn)


def test_an_ascii_drawing_has_the_shape_of_the_other() -> None:
    """Character by character, so that nothing is shifted; and every character of any drawing is known."""
    for path in api.bundled().values():
        text = api.show(api.compile(path))
        ascii_ = text.translate(terminal.ASCII)
        assert [len(line) for line in text.splitlines()] == [len(line) for line in ascii_.splitlines()]
        drawing = [line for line in ascii_.splitlines() if "-->" in line]
        assert drawing and all(line.isascii() for line in drawing)


def test_what_an_encoding_lacks_is_escaped_in_findings(tmp_path: Path) -> None:
    (tmp_path / "é.yaml").write_text("blockc: 1\nname: ünïx\n", encoding="utf-8")
    code, out, err = run("check", ".", cwd=tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="1")
    assert (code, out) == (1, "")
    assert "\\xe9.yaml:2:7: name: not a name" in err and err.isascii()


@pytest.mark.parametrize("command", [("import", "config.json"), ("fmt", "-"), ("check", "-", "--format", "junit")])
def test_what_may_become_a_file_is_utf_8_whatever_the_locale(command: tuple[str, ...], tmp_path: Path) -> None:
    """An XML that says UTF-8 is UTF-8."""
    text = "blockc: 1\nname: x\ndescription: é\nwidth: ü\n"
    (tmp_path / "config.json").write_text((ROOT / "tests/data/cases2/yarn.json").read_text())
    env = ENV | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"}
    done = subprocess.run([*COMMAND, *command], cwd=tmp_path, env=env, capture_output=True, input=text.encode())
    assert b"\\x" not in done.stdout and b"\\u" not in done.stdout
    assert done.stdout.decode("utf-8")
    assert ("ü" in done.stdout.decode()) == (command[0] != "import")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (f"b show {BLOCK} >&-", 0),
        (f"b show {BLOCK} 2>&-", 0),
        (f"b show {BLOCK} >&- 2>&- <&-", 0),
        ("b show nope 2>&-", 2),
        ("b check nope >&- 2>&-", 2),
        ("b check - <&-", 1),
        (f"b check {BLOCK} --format json >&-", 0),
        ("b list >&-", 0),
        ("b --version >&-", 0),
        ("b --help >&-", 0),
        (f"b show {BLOCK} > /dev/full", 3),
    ],
)
def test_a_closed_stream_is_quiet_and_no_fault(line: str, code: int) -> None:
    done = shell(line)
    assert done.returncode == code, done.stderr
    assert "fault of blockc" not in done.stderr and "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_stream_that_is_full_is_named_and_so_is_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell(f"b show {BLOCK} > /dev/full").stderr == "blockc: standard output: No space left on device\n"
    assert (
        run_guarded(lambda: app(["check", BLOCK, "--format", "json", "--output", "/dev/full"], standalone_mode=False))
        == 3
    )
    assert capsys.readouterr().err == "blockc: /dev/full: No space left on device\n"


def test_a_file_that_is_built_is_not_what_was_printed_to_a_closed_stream(tmp_path: Path) -> None:
    """A descriptor that is free would be given to the first file that is opened."""
    assert shell(f"b build {BLOCK} --no-verify --out {tmp_path} >&- 2>&-").returncode == 0
    assert run("verify", str(tmp_path))[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("check {bad} --format json", 1),
        ("check {bad} --format github", 1),
        ("check {bad}", 1),
        ("check {bad} specs -q", 1),
        (f"check {BLOCK}", 0),
        ("check {bad} 2>&1", 1),
        ("fmt --check {bad}", 1),
        ("diff gpt2 {other} --fail-on CHECKPOINT", 1),
        ("show gpt2", 0),
        ("list", 0),
        ("schema", 0),
        ("--help", 0),
        ("show nope 2>&1", 2),
    ],
)
def test_the_exit_code_is_the_verdict_whoever_closed_the_pipe(arguments: str, code: int, tmp_path: Path) -> None:
    bad, other = tmp_path / "bad.yaml", tmp_path / "other.yaml"
    bad.write_text("blockc:  1\n" + "\n".join(f"key{i}: 1" for i in range(3000)))
    other.write_text((ROOT / "specs/gpt2.yaml").read_text().replace("vocab: 50257", "vocab: 50256").split("expect:")[0])
    line = arguments.format(bad=bad, other=other)
    done = shell(f"b {line} | true; exit ${{PIPESTATUS[0]}}")
    assert done.returncode == code, done.stderr
    assert "Broken pipe" not in done.stderr and "Exception ignored" not in done.stderr


# Options that stand anywhere


@pytest.mark.parametrize(
    "arguments", [("--debug", "show", "gpt2"), ("show", "gpt2", "--debug"), ("show", "--debug", "gpt2")]
)
def test_debug_stands_before_a_command_or_behind(arguments: tuple[str, ...]) -> None:
    _, _, err = run(*arguments, "--set", "attention.heads=5")
    assert "Traceback" in err


def test_debug_as_a_value_is_no_option() -> None:
    """It is the value of --set here."""
    code, _, err = run("show", "gpt2", "--set", "--debug")
    assert code == 1 and "Traceback" not in err


def commands() -> list[str]:
    return [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]


def test_every_command_takes_the_global_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(commands()) > 12
    for name in commands():
        assert run_guarded(lambda name=name: app([name, "--version"], standalone_mode=False)) == 0
        assert run_guarded(lambda name=name: app([name, "--help"], standalone_mode=False)) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"blockc {blockc.__version__}\n") and "--debug" in said, name


def test_version() -> None:
    assert run("--version") == (0, f"blockc {blockc.__version__}\n", "")


# Numbers and choices on the command line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "gpt2", "--batch", "x"), "Invalid value for '--batch': expected an integer, got x"),
        (("show", "gpt2", "--batch", "1.5"), "expected an integer, got 1.5"),
        (("show", "gpt2", "--batch", "0"), "expected at least 1, got 0"),
        (("show", "gpt2", "--batch", "9" * 5000), "expected a smaller integer, got 99"),
        (("show", "gpt2", "--dtype", "int2"), "fp8"),
        (("run", ".", "--prompt", "x", "--temperature", "hot"), "expected a number, got hot"),
        (("check", "gpt2", "--policy", "nope"), "nope"),
    ],
)
def test_pydantic_says_nothing_on_the_command_line(arguments: Sequence[str], said: str) -> None:
    code, _, err = run(*arguments)
    assert code == 2 and said in err
    assert "Input should" not in err and "Value error" not in err and "parse" not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "gpt2", "--device-memory", "x"), "--device-memory x: expected a size such as 80GB or 80GiB"),
        (("new", "x", "--like", "gpt2", "--parameters", "many"), "--parameters many: expected "),
        (("trace", BLOCK, "--tokens", "999999"), "--tokens 999999: outside the vocabulary of 16"),
        (("run", ".", "--prompt", "x", "--top-k", "5"), "--top-k is for drawing"),
    ],
)
def test_an_option_that_the_api_refuses_is_named_as_it_is_typed(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_guarded(lambda: app([*arguments], standalone_mode=False)) == 2
    assert capsys.readouterr().err.startswith(f"blockc: {said}")


# How far a command is


@pytest.mark.costly
def test_progress_is_said_to_whoever_asks_and_by_nobody_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[tuple[str, int, int]] = []
    model = api.compile(ROOT / BLOCK)
    api.build(model, tmp_path / "a", progress=lambda *said: heard.append(said))
    assert {what for what, _, _ in heard} == {"proving block-4x4-twin"}
    (whole,) = {whole for _, _, whole in heard}
    assert [done for _, done, _ in heard] == list(range(whole)) and whole > 50  # each step once, and no other
    assert capsys.readouterr() == ("", "")


def test_packing_says_how_far_it_is(tmp_path: Path) -> None:
    model = api.compile(ROOT / BLOCK)
    heard: list[tuple[str, int, int]] = []
    params = {name: array.astype(np.float32) for name, array in random_parameters(model.function, 1).items()}
    write_safetensors(tmp_path / "w.safetensors", params)
    api.build(
        model, tmp_path / "a", proof=False, weights=tmp_path / "w.safetensors", mode="pack",
        progress=lambda *said: heard.append(said),
    )  # fmt: skip
    assert {what for what, _, _ in heard} == {"packing weights"}
    assert heard[-1][1] == heard[-1][2]


def on_a_terminal(*arguments: str, **env: str) -> str:
    """What a terminal gets on standard error."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=ROOT, env=ENV | env, stdout=subprocess.DEVNULL, stderr=theirs
    )
    os.close(theirs)
    got = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # so Linux says that the other side is closed
            break
        if not part:
            break
        got += part
    assert process.wait() == 0
    os.close(ours)
    return got.decode()


def test_a_terminal_sees_one_line_that_goes_away(tmp_path: Path) -> None:
    said = on_a_terminal("verify", BLOCK, TERM="xterm")
    assert "\rblockc: proving block-4x4-twin: " in said and "\n" not in said
    assert said.split("\r")[-1] == "" and not said.split("\r")[-2].strip()
    assert on_a_terminal("verify", BLOCK, "--quiet", TERM="xterm") == ""
    assert on_a_terminal("verify", BLOCK, TERM="dumb") == ""


def test_quiet_leaves_errors_alone(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("blockc: 1\n")
    code, out, err = run("check", "-q", BLOCK, str(tmp_path))
    assert (code, out) == (1, "") and "bad.yaml:1:1: missing key" in err
    assert run("check", "--quiet", BLOCK) == (0, "", "")
    assert run("build", BLOCK, "-q", "--no-verify", "--out", str(tmp_path / "out")) == (0, "", "")
    assert run("verify", str(tmp_path / "out"), "-q") == (0, "", "")


# Completion


def completed(words: str) -> list[str]:
    env = {"_BLOCKC_COMPLETE": "complete_bash", "COMP_WORDS": f"blockc {words}", "COMP_CWORD": "2"}
    script = "import sys; sys.argv[0] = 'blockc'; from blockc.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=ENV | env, capture_output=True, text=True)
    return done.stdout.split()


@pytest.mark.parametrize("command", ["check", "show", "build", "verify", "trace", "diff", "fmt"])
def test_the_shell_completes_names_of_specs(command: str) -> None:
    assert completed(f"{command} llama3-") == ["llama3-70b", "llama3-8b"]


def test_streams_that_are_no_files_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    held = io.StringIO()
    monkeypatch.setattr(sys, "stdout", held)
    terminal.write_text("é")
    assert held.getvalue() == "é" and not terminal.reader_gone()


def test_the_json_of_a_manifest_is_refused_in_words_of_ours(tmp_path: Path) -> None:
    from pydantic import BaseModel

    from blockc.basics.jsonfile import FileError, read_typed

    class Wanted(BaseModel, extra="forbid"):
        count: int
        names: list[str]
        flag: bool

    path = tmp_path / "x.json"
    path.write_text(json.dumps({"count": "1", "names": {}, "other": 1}))
    with pytest.raises(FileError) as raised:
        read_typed(path, Wanted)
    assert str(raised.value).splitlines()[1:] == [
        "  count: expected an integer",
        "  names: expected a list",
        "  flag: expected a value",
        "  other: expected no such key",
    ]


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ({"weight_map": {"a": "x.bin", "b": 3}}, 'for each tensor; tensor a has "x.bin"'),
        ({"weight_map": {"b": ["y"]}}, 'for each tensor; tensor b has ["y"]'),
        ({"weight_map": {}}, "has no weight_map, which names a .safetensors file beside it for each tensor"),
        ({"weight_map": []}, "has no weight_map, which names a .safetensors file beside it for each tensor"),
    ],
)
def test_a_broken_index_of_shards_is_said_without_python(index: dict[str, object], said: str, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    path = weights / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    code, _, err = run("build", BLOCK, "--no-verify", "--weights", str(weights), "--out", str(tmp_path / "out"))
    assert code == 1 and err.startswith(f"blockc: {path}: ") and err.endswith(f"{said}\n")
    assert "'" not in err


def test_a_file_that_cannot_be_written_is_named_before_any_work(tmp_path: Path) -> None:
    """For every command that writes one."""
    wanted = "cannot be written, since there is no folder no/such\n"
    for words in (
        ("check", "gpt2", "--format", "sarif", "-o", "no/such/x.sarif"),
        ("import", "config.json", "-o", "no/such/x.sarif"),
        ("new", "x", "--like", "gpt2", "--out", "no/such/x.sarif"),
        ("bench", ".", "-o", "no/such/x.sarif"),
        ("bench", ".", "--plot", "no/such/x.sarif"),
    ):
        assert run(*words, cwd=tmp_path) == (2, "", f"blockc: no/such/x.sarif: {wanted}")


def test_a_folder_that_is_shut_is_said_by_the_name_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shut(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / ".x.sarif-ab12"))

    monkeypatch.setattr("tempfile.mkstemp", shut)
    with pytest.raises(OSError) as raised:
        write_whole(tmp_path / "x.sarif", "")
    assert raised.value.filename == str(tmp_path / "x.sarif")
