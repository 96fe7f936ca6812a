"""A build's predictions beside another's: by hand, beside the oracle and onnxruntime's own logits, and as a command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tokenizers import processors

from blockc import api
from blockc.basics.errors import UsageError
from blockc.bench import quality
from blockc.bench.quality import (
    Interval,
    Scores,
    compare,
    cut_windows,
    draw_windows,
    mean_of,
    measure_quality,
    score,
    summarise,
)
from blockc.cli import app, run_guarded
from blockc.graph import interp
from blockc.graph.quant import Quant
from blockc.graph.target import Target
from blockc.ir import Array, Blocks
from blockc.pipeline.compiled import Compiled
from blockc.runtime import SessionError
from tests.checkpoints import parameters_in, save, tensors, twin
from tests.paths import ROOT
from tests.runtime.test_run import characters

NAME, DOWN = "llama3-8b", "model.layers.0.mlp.down_proj.weight"
WINDOW, WORDS = 24, "Down, down, down. There was nothing else to do, so Alice soon began talking again. " * 3
TARGETS = {
    "joined": Target(),
    "joined, last": Target(logits="last"),
    "buffer": Target(cache="buffer"),
    "fused, last": Target("cpu", logits="last"),
    "fused by rows": Target("cpu", padding="right"),
}
# One matrix in codes of 4 bits.
QUANT = Quant("planted", (("layers.0.mlp.down", Blocks(4, 32)),))


def changed() -> dict[str, Array]:
    """The twin's weights, one matrix of them rounded to sixteen values a row."""
    held = tensors(twin(NAME))
    step = np.abs(held[DOWN]).max(1, keepdims=True) / 7
    return held | {DOWN: np.float32(np.round(held[DOWN] / step) * step)}


def build(
    folder: Path, held: dict[str, Array], target: Target, tokenizer: Any = None, model: Compiled | None = None
) -> Path:
    save(folder / "in" / "model.safetensors", held)
    (tokenizer or characters()).save(str(folder / "in" / "tokenizer.json"))
    api.build(model or twin(NAME), folder / "out", target=target, proof=False, weights=folder / "in")
    return folder / "out"


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The twin itself, and changed in each form; and with a matrix in codes."""
    root = tmp_path_factory.mktemp("quality")
    made = {name: build(root / name, changed(), target) for name, target in TARGETS.items()}
    made["own"] = build(root / "own", tensors(twin(NAME)), Target("cpu", logits="last"))
    made["codes"] = build(root / "codes", tensors(twin(NAME)), Target("cpu", quant=QUANT))
    made["top"] = build(root / "top", tensors(twin(NAME)), Target("cpu", logits=3))
    return made


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "down.txt"
    path.write_text(WORDS)
    return path


def windows() -> Array:
    return cut_windows([], list(characters().encode(WORDS).ids), WINDOW)


def by_oracle(held: dict[str, Array]) -> Array:
    """Logits (N, S, V) of the windows, each whole."""
    ids = windows()
    feeds = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.tile(np.arange(WINDOW), (len(ids), 1)),
    }
    return interp.interpret(twin(NAME).function, feeds, parameters_in(twin(NAME), held))["logits"]


def by_onnxruntime(folder: Path) -> Array:
    """The same from a build with logits of every token."""
    session: Any = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    ids = windows()
    given = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.tile(np.arange(WINDOW), (len(ids), 1)),
    }
    for each in session.get_inputs():
        if each.name not in given:
            given[each.name] = np.zeros((len(ids), each.shape[1], 0, each.shape[3]), np.float32)
    return session.run(["logits"], {each.name: given[each.name] for each in session.get_inputs()})[0]


def figures(logits: Array, against: Array) -> dict[str, float]:
    """From the definitions, with probabilities."""
    q, p = (np.exp(each[:, :-1].astype(np.float64)) for each in (logits, against))
    q, p = q / q.sum(-1, keepdims=True), p / p.sum(-1, keepdims=True)
    kl = (p * np.log(p / q)).sum(-1)
    taken = np.take_along_axis(q, windows()[:, 1:, None], -1)
    before = np.take_along_axis(p, windows()[:, 1:, None], -1)
    return {
        "kl": kl.mean(),
        "kl_median": np.median(kl),
        "same": (q.argmax(-1) == p.argmax(-1)).mean(),
        "perplexity": np.prod(taken ** (-1 / taken.size)),
        "perplexity_against": np.prod(before ** (-1 / taken.size)),
        "ratio": np.prod((before / taken) ** (1 / taken.size)),
    }


def values(made: quality.Quality) -> dict[str, float]:
    return {key: value["value"] for key, value in made.data().items() if isinstance(value, dict)}


# The arithmetic


def test_kl_by_hand() -> None:
    """p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2): KL = 1/2 log 2 - 1/4 log 2. Logits may be off by any number."""
    p, q = np.log([[2.0, 1, 1], [1, 2, 1]]) + 100, np.log([[1.0, 1, 2], [2, 4, 2]]) - 3
    kl, same, loss, before = compare(q.astype(np.float32), p.astype(np.float32), np.array([0, 1]))
    np.testing.assert_allclose(kl, [math.log(2) / 4, 0], atol=1e-6)
    assert same.tolist() == [0, 1]
    np.testing.assert_allclose(loss, [math.log(4), math.log(2)], atol=1e-6)
    np.testing.assert_allclose(before, [math.log(2), math.log(2)], atol=1e-6)


def test_far_logits_give_numbers() -> None:
    """A probability that no float holds counts nothing where it is p's, and by its logit where it is q's."""
    far = np.array([[0, 5000.0]], np.float32)
    assert compare(far, far, np.array([0]))[:, 0].tolist() == [0, 1, 5000, 5000]
    assert compare(far, -far, np.array([0]))[:, 0].tolist() == [5000, 0, 5000, 0]


def test_windows_begin_as_every_text_and_leave_the_rest() -> None:
    assert cut_windows([9], [1, 2, 3, 4, 5], 3).tolist() == [[9, 1, 2], [9, 3, 4]]
    assert cut_windows([], [1, 2, 3, 4, 5], 2).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(("first", "scored"), [(0, [2, 3, 12, 13]), (1, [2, 3, 12, 13]), (2, [3, 13])])
def test_tokens_that_begin_a_text_are_read_and_not_scored(first: int, scored: list[int]) -> None:
    """A model whose logits say which token it has read: the losses tell which predictions counted."""

    def step(tokens: Array, starts: bool) -> Array:
        assert starts == (tokens[0] == 1)
        return np.log(np.where(np.arange(20) == tokens[:, None] + 1, tokens[:, None] + 1.0, 1.0))

    made = score(step, step, np.array([[1, 2, 3], [11, 12, 13]]), first)
    expected = [math.log((19 + token) / token) for token in scored]
    np.testing.assert_allclose(made.loss.ravel(), expected)
    assert not made.kl.any() and made.same.all()


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """Of 12 windows whose KLs scatter around 1 and are skewed: 95 % of many, and at least 90 % of a thousand."""
    held = 0
    for kl in np.random.RandomState(1).gamma(4, 1 / 4, (1000, 12)):
        made = mean_of(kl, draw_windows(12))
        assert made.low < made.value < made.high
        held += made.low <= 1 <= made.high
    assert 900 <= held < 980


def test_the_interval_of_a_ratio_is_paired() -> None:
    """Two builds that lose alike, window by window: each perplexity is uncertain, and their ratio is not."""
    loss = np.random.RandomState(0).normal(3, 1, (20, 50)) + np.arange(20)[:, None] / 5
    made = summarise(Scores(loss, loss, loss + 0.1, loss), "a", "b", "t", 51)
    assert made.perplexity.high > 1.3 * made.perplexity.low
    assert made.ratio == Interval(*[pytest.approx(math.exp(0.1))] * 3)


# Builds


@pytest.mark.parametrize("name", TARGETS)
def test_a_build_of_any_form_gives_the_figures_of_the_oracle(builds: dict[str, Path], text: Path, name: str) -> None:
    made = measure_quality(builds[name], builds["own"], text, WINDOW, threads=1)
    assert (made.windows, made.window, made.predictions) == (10, WINDOW, 10 * (WINDOW - 1))
    expected = figures(by_oracle(changed()), by_oracle(tensors(twin(NAME))))
    assert values(made) == pytest.approx(expected, rel=1e-4)
    assert made.kl.value > 1e-4, "the change is felt"


def test_codes_give_the_kl_of_what_onnxruntime_says(builds: dict[str, Path], text: Path) -> None:
    made = measure_quality(builds["codes"], builds["own"], text, WINDOW, threads=1)
    own = by_oracle(tensors(twin(NAME)))
    assert values(made) == pytest.approx(figures(by_onnxruntime(builds["codes"]), own), rel=1e-4)
    assert made.kl.value > 1e-4


def test_a_build_against_itself_differs_by_nothing(builds: dict[str, Path], text: Path) -> None:
    made = api.quality(builds["codes"], builds["codes"], text, window=WINDOW)
    assert made.kl == made.kl_median == Interval(0, 0, 0)
    assert made.same == made.ratio == Interval(1, 1, 1)
    assert made.perplexity == made.perplexity_against and made.perplexity.low < made.perplexity.high


def test_the_folder_of_another_tool_is_compared_too(builds: dict[str, Path], text: Path, tmp_path: Path) -> None:
    for name in ("model.onnx", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).symlink_to(builds["joined"] / name)
    made = measure_quality(tmp_path, builds["joined"], text, WINDOW, threads=1)
    assert made.kl == Interval(0, 0, 0) and made.windows == 10


def test_without_a_text_the_book_is_read(builds: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """In windows of the model's context, which is less than 256. (More of them at once, as a twin is small.)"""
    monkeypatch.setattr(quality, "_ROWS", 200)
    made = api.quality(builds["own"], builds["own"], threads=1)
    assert (made.text, made.window) == ("alice.txt", 128) and made.windows > 160 and made.kl.value == 0


def test_the_book_is_complete_and_nothing_else() -> None:
    book = (ROOT / "blockc" / "texts" / "alice.txt").read_text(encoding="utf-8")
    assert book.startswith("CHAPTER I.\nDown the Rabbit-Hole\n\nAlice was beginning")
    assert book.endswith("and the whole party swam to the shore.\n")
    assert len(book.split()) == 4245 and len(book.split("\n\n")) == 52
    assert {c for c in book if not c.isascii()} == set("“”‘’—ù")
    assert not set("_*<>[]#") & set(book) and "  " not in book and "Gutenberg" not in book


# What is refused


def test_what_cannot_be_compared_is_refused_with_words(builds: dict[str, Path], text: Path, tmp_path: Path) -> None:
    short, latin = tmp_path / "short.txt", tmp_path / "latin.txt"
    short.write_text(WORDS[: 2 * WINDOW - 1])
    latin.write_bytes(b"caf\xe9")
    more, begun = characters(), characters()
    more.add_tokens(["Alice"])
    begun.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fewer = api.twin(api.compile(NAME, ["vocab=80"]))
    held = tensors(twin(NAME))
    bare = build(tmp_path / "bare", held, Target(logits="last"))
    (bare / "tokenizer.json").unlink()
    refused: list[tuple[dict[str, Any], str]] = [
        ({"folder": tmp_path}, f"{tmp_path}: not a finished build, for it has no manifest.json"),
        ({"against": tmp_path / "none"}, "not a finished build, for it has no manifest.json"),
        ({"folder": builds["top"]}, "gives the 3 highest logits alone: build it with --logits last or all"),
        ({"folder": build(tmp_path / "more", held, Target(), more)}, "their vocabularies differ"),
        ({"folder": build(tmp_path / "begun", held, Target(), begun)}, "their tokens of the text differ"),
        ({"folder": build(tmp_path / "fewer", tensors(fewer), Target(), None, fewer)}, "one of 80 tokens and .* of 96"),
        ({"folder": bare}, "no tokenizer.json, so no text"),
        ({"text": short}, "short.txt: 47 tokens, and an interval takes two windows of 24 at least"),
        ({"text": latin}, "latin.txt: not a text in UTF-8"),
        ({"text": tmp_path / "none.txt"}, "none.txt: No such file"),
        ({"text": tmp_path}, "not a regular file"),
    ]
    for given, why in refused:
        with pytest.raises(SessionError, match=why):
            measure_quality(
                **{"folder": builds["own"], "against": builds["joined"], "text": text, "window": WINDOW} | given
            )
    for window in (1, 129):
        with pytest.raises(UsageError, match=f"^window {window}: expected from 2 tokens to the model's context, 128"):
            measure_quality(builds["own"], builds["own"], text, window)


def test_a_text_begins_as_its_tokenizer_begins_one(builds: dict[str, Path], text: Path, tmp_path: Path) -> None:
    """A first token is read in each window and is not scored; what a tokenizer adds at the end is not read."""
    begun = characters()
    begun.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    own = build(tmp_path / "own", tensors(twin(NAME)), Target(logits="last"), begun)
    read: list[Array] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quality, "cut_windows", lambda *given: read.append(cut_windows(*given)) or read[0])
        made = measure_quality(own, own, text, WINDOW)
    ids = [token for row in read[0] for token in row[1:].tolist()]
    assert not read[0][:, 0].any() and ids == list(characters().encode(WORDS).ids)[: len(ids)]
    assert made.predictions == made.windows * (WINDOW - 1) == len(ids)


def test_logits_that_are_no_numbers_are_refused(builds: dict[str, Path], text: Path, tmp_path: Path) -> None:
    held = tensors(twin(NAME))
    head = held["lm_head.weight"]
    huge = head / np.abs(head).max() * np.float32(3e38)
    broken = build(tmp_path / "broken", held | {"lm_head.weight": huge}, Target(logits="last"))
    with pytest.raises(SessionError, match=f"^{broken}: its logits are not all numbers"):
        measure_quality(broken, builds["own"], text, WINDOW)


# The command


def verify(*arguments: str | Path) -> int:
    return run_guarded(lambda: app(["verify", *map(str, arguments)], standalone_mode=False))


def test_the_most_that_kl_may_be_decides_the_exit_code(
    builds: dict[str, Path], text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (builds["codes"], "--quality", "--against", builds["own"], "--text", text, "--window", WINDOW)
    assert verify(*map(str, given), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    kl = found["kl"]["value"]
    assert values(measure_quality(builds["codes"], builds["own"], text, WINDOW)) == pytest.approx(
        {key: value["value"] for key, value in found.items() if isinstance(value, dict)}
    )
    assert verify(*map(str, given), "--max-kl", str(1.01 * kl)) == 0
    out, err = capsys.readouterr()
    assert f"{kl:.4g}" in out and "95 % interval" in out and not err
    for most in (str(0.99 * kl), "0"):
        assert verify(*map(str, given), "--max-kl", most, "--quiet") == 1
        out, err = capsys.readouterr()
        assert not out and f"KL is {kl:.4g} nats, and --max-kl is" in err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--quality"], "--quality compares with another build: give --against DIR"),
        (["--quality", "--against", "x", "--deep"], "leave --deep out"),
        (["--quality", "--against", "x", "--set", "depth=2"], "leave --set out"),
        (["--quality", "--against", "no-such-folder"], "no-such-folder: no such file or folder"),
        (["--max-kl", "1"], "--max-kl is for --quality"),
        (["--text", "x"], "--text is for --quality"),
        (["--against", "x"], "--against is for --quality"),
        (["--window", "9"], "--window is for --quality"),
        (["--ep", "cpu"], "--ep is for --quality"),
    ],
)
def test_options_that_do_not_go_together(
    builds: dict[str, Path], options: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(builds["own"], *options) == 2
    assert why in capsys.readouterr().err


def test_a_folder_that_is_no_build_is_an_error_of_the_folder(
    builds: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(tmp_path, "--quality", "--against", builds["own"]) == 1
    assert f"{tmp_path}: not a finished build" in capsys.readouterr().err
