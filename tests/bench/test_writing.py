"""blockc bench --text: what is written is greedy text, timed from its first token, and set beside that by lookup."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from blockc import api
from blockc.bench import tables
from blockc.bench.candidate import SessionWorker
from blockc.bench.measure import Bench, BenchEntry, Candidate
from blockc.bench.turns import WorkerError, start_workers
from blockc.bench.writing import (
    Prompt,
    Start,
    Writing,
    Written,
    encode_prompt,
    find_difference,
    read_prompt,
    write_by_turns,
)
from blockc.cli import app, run_guarded
from blockc.graph.quant import parse_quant
from blockc.graph.target import Target
from blockc.runtime import Session, SessionError, TopLogits
from blockc.runtime.text import Tokenizer
from tests.checkpoints import save, tensors, twin
from tests.runtime.test_run import characters

NAME, TEXT = "llama3-8b", "the cat and the cat"
NO_DRAFT = (
    "a draft of 7 tokens is checked by logits of 8, and it gives those of the last one: build it with --logits la"
)
NO_REWIND = "its cache is not a buffer in which a token can be written over"
TARGETS = {
    "fused": Target("cpu", logits="last", last=8),
    "every": Target("cpu"),
    "last": Target("cpu", logits="last"),
    "codes": Target("cpu", logits="last", last=8, quant=parse_quant("int4")),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Builds of a twin with a tokenizer, and the graph and the weights of one as another's folder."""
    root = tmp_path_factory.mktemp("writing")
    save(root / "in" / "model.safetensors", tensors(twin(NAME)))
    characters().save(str(root / "in" / "tokenizer.json"))
    for name, target in TARGETS.items():
        api.build(twin(NAME), root / name, target=target, proof=False, weights=root / "in")
    (root / "alone").mkdir()
    for file in ("model.onnx", "model.safetensors"):
        shutil.copy(root / "every" / file, root / "alone")
    return {path.name: path for path in root.iterdir()}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "cat.txt"
    path.write_text(TEXT)
    return path


def bench(*arguments: str | Path) -> int:
    return run_guarded(lambda: app(["bench", *map(str, arguments)], standalone_mode=False))


def alone(*arguments: str | Path) -> int:
    return bench(*arguments, "--prefill", "", "--decode", "", "--threads", "1", "--turns", "2")


def loaded(folder: Path, shared: bool = False) -> SessionWorker:
    worker = SessionWorker(folder, "cpu", shared)
    worker.load(1)
    return worker


def greedy(folder: Path, ids: list[int], new: int) -> list[int]:
    """The likeliest tokens, each after all tokens before it read in one call."""
    session, made = Session(folder, threads=1), list[int]()
    while len(made) < new:
        session.reset()
        logits = session.prefill([ids + made])
        assert not isinstance(logits, TopLogits)
        made.append(int(logits[0].argmax()))
    return made


# The worker


@pytest.mark.parametrize(("name", "shared"), [("fused", False), ("every", False), ("alone", True)])
def test_a_worker_writes_the_likeliest_tokens_plain_and_by_lookup(
    name: str, shared: bool, folders: dict[str, Path]
) -> None:
    worker, ids, new = loaded(folders[name], shared), Tokenizer(folders["fused"]).encode(TEXT), 40
    assert worker.drafts(7) == {"lacks": "", "rounds": False}
    wanted = greedy(folders["fused"], ids, new)
    plain, drafted = (json.loads(json.dumps(worker.write(ids, new, [], lookup))) for lookup in (0, 7))
    assert plain["tokens"] == drafted["tokens"] == wanted and len({*wanted}) > 5
    assert plain["drafts"] == [new - 1, 0, 0] and plain["ms"] > 0
    steps, made, kept = drafted["drafts"]
    assert 0 < kept < made and steps + kept == new - 1
    runs = worker.clock.runs
    worker.write(ids, new, [], 7)
    assert worker.clock.runs - runs == 1 + steps


def test_a_text_ends_with_what_ends_a_text(folders: dict[str, Path]) -> None:
    worker, ids = loaded(folders["fused"]), Tokenizer(folders["fused"]).encode(TEXT)
    whole = worker.write(ids, 30, [], 0)["tokens"]
    end = next(i for i in range(10, 30) if whole[i] not in whole[:i])
    for lookup in (0, 7):
        assert worker.write(ids, 30, [whole[end]], lookup)["tokens"] == whole[: end + 1]


def test_the_time_begins_with_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [5.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def generate(prompts: list[list[int]], new: int, stop: list[int], lookup: int) -> Iterator[list[int]]:
        assert (prompts, new, stop, lookup) == ([[4, 5]], 3, [9], 0)
        for seconds in (1.0, 0.002, 0.003):
            now[0] += seconds
            yield [7]

    worker = SessionWorker(Path(), "cpu", False)
    worker.loaded = SimpleNamespace(generate=generate)  # type: ignore[assignment]
    answer = worker.write([4, 5], 3, [9], 0)
    assert answer == {"tokens": [7, 7, 7], "ms": pytest.approx(5.0), "drafts": [2, 0, 0]}


def test_a_worker_says_why_it_has_no_lookup(folders: dict[str, Path]) -> None:
    assert NO_DRAFT in loaded(folders["last"]).drafts(7)["lacks"]
    assert NO_REWIND in loaded(folders["alone"]).drafts(7)["lacks"]
    assert "a draft of 8 tokens is checked by logits of 9" in loaded(folders["fused"]).drafts(8)["lacks"]
    assert loaded(folders["last"]).drafts(0) == {"lacks": "", "rounds": False}
    assert loaded(folders["codes"]).drafts(7) == {"lacks": "", "rounds": True}


# Turns


def writers(log: Path, tokens: list[int]) -> list[str]:
    """A worker that writes down what it is asked; the name is to come."""
    text = f"""
import sys
from blockc.bench.protocol import serve
def write(**request):
    with open({str(log)!r}, "a") as out:
        print(sys.argv[1], request["lookup"], request["ids"], request["new"], request["stop"], file=out)
    return {{"tokens": {tokens}, "ms": 4.0, "drafts": [2, 1, 0]}}
serve({{"write": write}})
"""
    return [sys.executable, "-c", text]


def test_each_way_is_first_in_every_second_turn(tmp_path: Path) -> None:
    log, start = tmp_path / "log", Start((1, 2), (9,), tmp_path)
    texts = {"A": Writing(start), "B": Writing(start, lacks="none")}
    with start_workers({name: [*writers(log, [3, 4, 5]), name] for name in "AB"}, []) as workers:
        write_by_turns(workers, texts, Prompt("x", "", 3, 7, False), 4)
    asked = [line.split(" ", 2) for line in log.read_text().splitlines()]
    assert "".join(name + lookup for name, lookup, _ in asked) == "A0A7B0" + "B0A7A0" + "B0A7A0" + "A0A7B0"
    assert {rest for *_, rest in asked} == {"[1, 2] 3 [9]"}
    assert texts["A"].texts == {kind: [Written((3, 4, 5), 4.0, 2, 1, 0)] * 4 for kind in (0, 7)}
    assert [*texts["B"].texts] == [0] and texts["B"].median(0) == 2.0 and texts["B"].median(7) is None


def test_a_text_of_one_token_has_none_to_time(tmp_path: Path) -> None:
    with (
        pytest.raises(WorkerError, match="^A: the first token that it writes ends the text, so there is none to time"),
        start_workers({"A": [*writers(tmp_path / "log", [3]), "A"]}, []) as workers,
    ):
        write_by_turns(workers, {"A": Writing(Start((1,), (), tmp_path))}, Prompt("x", "", 3, 0, False), 1)


# Prompts


def test_a_folder_without_a_tokenizer_reads_the_tokens_of_the_first_that_has_one(tmp_path: Path) -> None:
    one, other, bare = (tmp_path / name for name in ("one", "other", "bare"))
    for folder in (one, other, bare):
        folder.mkdir()
    for folder, end in ((one, "</s>"), (other, "A")):
        characters().save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
    ids, prompt = tuple(characters().encode(TEXT).ids), Prompt("x", TEXT, 5, 0, False)
    first, second = Start(ids, (95,), one), Start(ids, (35,), other)
    assert encode_prompt(prompt, [bare, one, other, bare]) == {bare: first, one: first, other: second}
    with pytest.raises(SessionError, match=f"^{bare}: no tokenizer.json, so no text"):
        encode_prompt(prompt, [bare])
    with pytest.raises(SessionError, match="^x: has no token, and one or more are a prompt"):
        encode_prompt(Prompt("x", "", 5, 0, False), [one])


def test_a_prompt_is_the_file_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "é.txt"
    path.write_bytes(" a\r\n\tä \n".encode())
    assert read_prompt(path, None, None) == Prompt("é.txt", " a\r\n\tä \n", 128, 7, False)
    assert read_prompt(path, 9, 0) == Prompt("é.txt", " a\r\n\tä \n", 9, 0, False)
    assert read_prompt(path, 9, 7).required
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SessionError, match="not a text in UTF-8"):
        read_prompt(path, 9, 7)


# Figures


def test_texts_part_where_one_has_another_token_or_none() -> None:
    assert find_difference((1, 2, 3), (1, 2, 3)) is None
    assert [find_difference((1, 2, 3), other) for other in ((2, 2, 3), (1, 2, 4), (1, 2), (1, 2, 3, 4))] == [1, 3, 3, 4]


def test_a_ratio_is_the_median_of_those_of_the_turns() -> None:
    """Not the ratio of the medians; of times for a token, since texts may have different lengths."""
    writing = Writing(Start((1,), (), Path()))
    writing.texts = {
        0: [Written((1, 2, 3), ms, 2) for ms in (2.0, 8.0, 40.0)],
        7: [Written((1, 2, 3, 4, 5), 4.0, 2), Written((1, 2, 3), 2.0, 1), Written((1, 3, 2), 4.0, 1)],
    }
    assert (writing.median(0), writing.median(7)) == (4.0, 1.0)
    assert writing.ratio(7) == 4.0  # of 1, 4 and 10
    assert writing.parts_at(7) == 2


def written(tmp_path: Path, rounds: bool = False, lookup: int = 7) -> Bench:
    """Two candidates: the first one's texts are the same but for rounding, the other has no lookup."""
    load = {"seconds": 1.25, "memory": None, "weights": None, "versions": {}}
    ours = Candidate(BenchEntry("ours", tmp_path), 8_000_000, load)
    theirs = Candidate(BenchEntry("theirs", tmp_path), 9_000_000, load)
    start = Start((1, 2, 3, 4), (9,), tmp_path)
    ours.writing = Writing(start, "", rounds, {0: [Written((5, 6, 7), 20.0, 2), Written((5, 6, 7), 24.0, 2)]})
    if lookup:
        tokens = (5, 8, 7) if rounds else (5, 6, 7)
        ours.writing.texts[lookup] = [Written(tokens, 8.0, 1, 4, 1), Written(tokens, 8.0, 1, 4, 1)]
    theirs.writing = Writing(start, "its cache is no buffer" if lookup else "", False, {0: [Written((5, 6), 22.0, 1)]})
    return Bench("cpu", [0], 1, 2, (), [ours, theirs], prompt=Prompt("cat.txt", "", 3, lookup, False))


def test_the_table_says_what_a_token_takes_and_what_came_of_drafts(tmp_path: Path) -> None:
    assert tables.as_text(written(tmp_path)).split("\n") == [
        "cpu, 1 thread, pinned to 1 core; 2 turns, medians",
        "",
        "        load s  weights  private  resident  peak  on disk",
        "ours      1.25        -        -         -     -     8 MB",
        "theirs    1.25        -        -         -     -     9 MB",
        "",
        "cat.txt, a token after the first one",
        "                  plain  lookup 7",
        "ours    ms           11         4",
        "        tokens/s  90.91       250",
        "        x theirs   0.50         -",
        "theirs  ms           22         -",
        "        tokens/s  45.45         -",
        "        x theirs   1.00         -",
        "ours: 4 tokens read, 3 written; by lookup 2.75 times as fast: 1 step, 1 of 4 drafted tokens kept, same text",
        "theirs: 4 tokens read, 2 written; no lookup: its cache is no buffer",
    ]
    assert (
        tables.as_text(written(tmp_path, rounds=True))
        .split("\n")[-2]
        .endswith("kept, another text from token 2 on, since its products round several tokens otherwise than one")
    )
    plain = tables.as_text(written(tmp_path, lookup=0)).split("\n")
    assert plain[7] == "                  plain"
    assert plain[-2:] == ["ours: 4 tokens read, 3 written", "theirs: 4 tokens read, 2 written"]


def test_json_has_both_ways_and_what_lacks(tmp_path: Path) -> None:
    said = tables.as_data(written(tmp_path))
    assert said["text"] == {"name": "cat.txt", "tokens": 3, "lookup": 7}
    ours, theirs = (each["text"] for each in said["candidates"])
    plain = {"written": 3, "token_ms": 11.0, "tokens_s": pytest.approx(1000 / 11), "of_against": 0.5}
    drafted = {"written": 3, "token_ms": 4.0, "tokens_s": 250.0, "of_against": None}
    assert ours == {
        "read": 4,
        "tokenizer": str(tmp_path),
        "lacks": None,
        "rounds": False,
        "plain": {**plain, "steps": 2, "drafted": 0, "kept": 0},
        "lookup": {
            **drafted,
            "steps": 1,
            "drafted": 4,
            "kept": 1,
            "times_as_fast": 2.75,
            "same_text": True,
            "parts_at": None,
        },
    }
    assert (theirs["lacks"], theirs["lookup"], theirs["plain"]["of_against"]) == ("its cache is no buffer", None, 1.0)
    parted = tables.as_data(written(tmp_path, rounds=True))["candidates"][0]["text"]
    assert (parted["rounds"], parted["lookup"]["same_text"], parted["lookup"]["parts_at"]) == (True, False, 2)


# The command


def test_bench_measures_a_text_alone(folders: dict[str, Path], text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One run of builds that have lookup and that have none, and of another's folder without a tokenizer."""
    others = [word for name in ("last", "alone", "codes") for word in ("--against", folders[name])]
    assert alone(folders["fused"], *others, "--text", text, "--tokens", "40", "--format", "json") == 0
    out, err = capsys.readouterr()
    assert "blockc: cat.txt, 2 turns" in err.splitlines()
    said = json.loads(out)
    assert said["machine"] is None and said["text"] == {"name": "cat.txt", "tokens": 40, "lookup": 7}
    made = {each["name"]: each["text"] for each in said["candidates"]}
    assert [*made] == ["fused", "last", "alone", "alone, shared cache", "codes"]
    for name, each in made.items():
        ways = [each["plain"], *([each["lookup"]] if each["lookup"] else [])]
        assert each["read"] == len(TEXT) and all(way["written"] == 40 and way["token_ms"] > 0 for way in ways)
        own = folders["fused" if name.startswith("alone") else name]
        assert each["tokenizer"] == str(own) and each["plain"]["steps"] == 39
    assert NO_DRAFT in made["last"]["lacks"] and NO_REWIND in made["alone"]["lacks"]
    assert made["last"]["lookup"] is made["alone"]["lookup"] is None
    for name in ("fused", "alone, shared cache"):
        drafted = made[name]["lookup"]
        assert drafted["same_text"] and drafted["kept"] > 0 and drafted["steps"] < 39 and made[name]["lacks"] is None
    assert made["codes"]["rounds"] and not made["fused"]["rounds"] and made["codes"]["lookup"]["steps"] > 0


def test_the_api_writes_on_from_a_text_beside_other_measures(folders: dict[str, Path], text: Path) -> None:
    made = api.bench(folders["last"], prefill=(4,), decode=(), turns=1, threads=1, text=text, lookup=0, tokens=5)
    assert "last: 19 tokens read, 5 written" in made.text().split("\n") and "prefill 4" in made.text()
    assert repr(made) == "<Bench of last on cpu: prefill 4, cat.txt>"
    (said,) = made.data()["candidates"]
    assert said["text"]["lookup"] is said["text"]["lacks"] is None and said["text"]["plain"]["steps"] == 4


def test_what_cannot_be_written_is_refused_before_anything_is_measured(
    folders: dict[str, Path], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "empty").write_text("")
    given, asked = ("--text", text), ("--lookup", "7", "--tokens", "9")
    for name, arguments, code, why in (
        ("last", (*given, *asked), 1, f"last: {twin(NAME).spec.name}: {NO_DRAFT}"),
        ("fused", (*given, *asked, "--against", folders["alone"]), 1, f"alone: alone: {NO_REWIND}"),
        ("fused", given, 1, "fused: cat.txt has 19 tokens, and with 128 more 147, and its context is 128"),
        ("alone", (*given, "--tokens", "9"), 1, "alone: no tokenizer.json, so no text"),
        ("fused", ("--text", tmp_path / "bytes"), 1, "not a text in UTF-8"),
        ("fused", ("--text", tmp_path / "empty"), 1, "empty: has no token"),
        ("fused", ("--text", tmp_path / "none"), 2, "none: no such file or folder"),
        ("fused", (), 2, "nothing to measure: give --prefill, --decode or --text"),
        ("fused", (*given, "--tokens", "1"), 2, "--tokens"),
        ("fused", (*given, "--lookup", "-1"), 2, "--lookup"),
        ("fused", (*given, "--plot", tmp_path / "x.svg"), 2, "--plot draws prefill and decode"),
    ):
        assert alone(folders[name], *arguments) == code, why
        out, err = capsys.readouterr()
        assert why in err and "turns" not in err and out == ""
    assert bench(folders["fused"], "--lookup", "3") == 2
    assert "--lookup is for a text: give that too" in capsys.readouterr().err


def test_a_missing_package_is_named_with_the_way_to_it(
    folders: dict[str, Path], text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert alone(folders["fused"], "--text", text, "--tokens", "9") == 3
    assert "the package tokenizers is missing: `pip install '.[run]'`" in capsys.readouterr().err
