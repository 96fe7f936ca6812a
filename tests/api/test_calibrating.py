"""Scales chosen on a text: its tokens by the checkpoint's tokenizer, and every text that gives none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from blockc import api
from blockc.api.calibrating import CalibrationError, read_rows
from blockc.basics.errors import BlockcError, CheckpointError
from blockc.cli import app, run_guarded
from blockc.graph.quant import parse_quant
from blockc.graph.target import Target
from blockc.runtime import SessionError
from blockc.weights import calibration
from tests.checkpoints import save, tensors, twin

LLAMA = twin("llama3-8b")
FOUR, EIGHT = (Target("cpu", quant=parse_quant(word)) for word in ("int4", "int8"))
TEXT = "We hold these truths to be self-evident. " * 20


def tokenizer(first: int = 0) -> bytes:
    """Each printable letter is a token, from `first` on."""
    vocab = {letter: first + i for i, letter in enumerate(["[UNK]", "Ġ", *map(chr, range(33, 123))])}
    made: Any = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.enable_truncation(8)
    made.enable_padding(length=64)
    return made.to_str().encode()


def checkpoint(folder: Path, own: bytes | None = None) -> Path:
    save(folder / "model.safetensors", tensors(LLAMA))
    (folder / "tokenizer.json").write_bytes(own or tokenizer())
    return folder


def text_of(folder: Path, data: str | bytes = TEXT) -> Path:
    path = folder / "text.txt"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def build(tmp_path: Path, name: str, **arguments: Any) -> tuple[bytes, api.Built]:
    given: dict[str, Any] = {"target": FOUR, "weights": tmp_path / "in", "proof": False} | arguments
    built = api.build(LLAMA, tmp_path / name, **given)
    return (tmp_path / name / "model.onnx.data").read_bytes(), built


def test_the_first_tokens_of_a_text_are_rows_of_the_context(tmp_path: Path) -> None:
    companions = {"tokenizer.json": tokenizer()}
    whole = tokenizers.Tokenizer.from_str(tokenizer().decode())
    whole.no_truncation()
    whole.no_padding()
    wanted = whole.encode(TEXT * 10, add_special_tokens=False).ids
    assert len(wanted) > 2048
    rows = read_rows(text_of(tmp_path, "\ufeff" + TEXT * 10), companions, LLAMA)  # without its byte order mark
    step = min(512, LLAMA.spec.top.context)
    assert {row.shape for row in rows} <= {(1, step), (1, 2048 % step)}
    assert np.concatenate(rows, 1)[0].tolist() == wanted[:2048]


def test_the_text_takes_the_place_of_drawn_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint(tmp_path / "in")
    drawn, without = build(tmp_path, "drawn")
    fitted, few = build(tmp_path, "fitted", calibrate=text_of(tmp_path, TEXT[:41]))
    again, _ = build(tmp_path, "again", calibrate=text_of(tmp_path, TEXT[:41]))
    assert drawn != fitted == again
    assert few.notes[0] == (f"calibrated on the 41 tokens of {tmp_path / 'text.txt'}: 512 or more are better")
    assert not any("calibrated" in note for note in without.notes)
    seen: list[Any] = []
    plain = calibration.calibrate
    monkeypatch.setattr(
        "blockc.weights.data.calibrate", lambda f, p, r, texts, g: seen.extend(texts) or plain(f, p, r, texts, g)
    )
    build(tmp_path, "watched", calibrate=text_of(tmp_path))
    rows = read_rows(text_of(tmp_path), {"tokenizer.json": tokenizer()}, LLAMA)
    assert [row.tolist() for row in seen] == [row.tolist() for row in rows]


REFUSED: list[tuple[str | bytes, type[BlockcError], str]] = [
    ("", CalibrationError, "is empty, expected a text"),
    (" \n\t\n", CalibrationError, "is empty, expected a text"),
    (b"one\ntwo \xff\n", CalibrationError, "line 2 is not a text in UTF-8"),
    (b"cut \xe2\x82", CalibrationError, "line 1 is not a text in UTF-8"),
]


@pytest.mark.parametrize(("text", "error", "said"), REFUSED)
def test_a_text_without_tokens_is_refused(
    text: str | bytes, error: type[BlockcError], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said):
        read_rows(text_of(tmp_path, text), {"tokenizer.json": tokenizer()}, LLAMA)


def test_a_folder_or_a_tokenizer_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = text_of(tmp_path)
    with pytest.raises(CalibrationError, match="not a file"):
        read_rows(tmp_path, {"tokenizer.json": tokenizer()}, LLAMA)
    with pytest.raises(CheckpointError, match=r"the checkpoint has no tokenizer\.json"):
        read_rows(path, {}, LLAMA)
    with pytest.raises(SessionError, match="not a tokenizer"):
        read_rows(path, {"tokenizer.json": b"{}"}, LLAMA)
    with pytest.raises(CheckpointError, match="has a token 1087, and the model"):
        read_rows(path, {"tokenizer.json": tokenizer(first=1000)}, LLAMA)


def test_a_character_that_is_cut_at_the_end_of_what_is_read_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blockc.api.calibrating.MAX_TEXT", 4)
    rows = read_rows(text_of(tmp_path, "abc\u20acdef"), {"tokenizer.json": tokenizer()}, LLAMA)
    assert np.concatenate(rows, 1).size == 3


def test_nothing_is_calibrated_that_has_no_such_scale(tmp_path: Path) -> None:
    checkpoint(tmp_path / "in")
    text = text_of(tmp_path)
    for target in (EIGHT, Target("cpu")):
        with pytest.raises(api.UsageError, match="give a recipe that has such"):
            build(tmp_path, "out", target=target, calibrate=text)
    with pytest.raises(api.UsageError, match="weights"):
        build(tmp_path, "out", weights=None, calibrate=text)
    assert not (tmp_path / "out").exists()


SAID: list[tuple[Callable[[Path], list[str]], int, str]] = [
    (lambda folder: ["--calibrate", str(folder / "text.txt")], 2, "give a recipe that has such"),
    (lambda folder: ["--quant", "int4", "--calibrate", str(folder / "none")], 2, "no such file or folder"),
    (lambda folder: ["--quant", "int4", "--calibrate", str(folder)], 1, "not a file, expected a text"),
]


@pytest.mark.parametrize(("words", "code", "said"), SAID)
def test_the_command_line_says_what_is_wrong(
    words: Callable[[Path], list[str]], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(tmp_path / "in")
    text_of(tmp_path)
    spec = tmp_path / "spec.yaml"
    spec.write_text(LLAMA.resolved_yaml())
    line = ["build", str(spec), "--weights", str(tmp_path / "in"), "--ep", "cpu", "--no-verify", *words(tmp_path)]
    assert run_guarded(lambda: app([*line, "--out", str(tmp_path / "out")], standalone_mode=False)) == code
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
