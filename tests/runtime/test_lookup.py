"""Drafts from a text itself: where they come from, how many there are, and that the text is the one without them.

Sessions on twins are compared with themselves token by token, and several logits of a call with the oracle.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockc import api
from blockc.graph.quant import parse_quant
from blockc.graph.target import Target
from blockc.ir import Array
from blockc.language.spec import from_tree
from blockc.pipeline.compiled import compile_spec
from blockc.proof.comparison import TOLERANCE
from blockc.proof.matrix import RUN_AS
from blockc.runtime import Sampler, Session, SessionError, TopLogits, greedy
from blockc.runtime.lookup import OF_CODES, OF_FLOATS, PAUSE, START, WINDOW, Drafts, Occurrences, Pace
from blockc.runtime.sampling import Logits
from blockc.source import parse
from blockc.weights.rules import random_parameters
from tests.checkpoints import save, tensors, twin
from tests.runtime.test_run import PROMPT, SECOND, characters, run
from tests.runtime.test_session import MIXED, build, truth
from tests.runtime.test_step import captured

FEW: dict[str, Target] = {
    "fused": Target("cpu", logits="last", last=8),
    "fused, all": Target("cpu"),
    "by rows": Target("cpu", logits="last", padding="right", last=8),
    "by rows, all": Target("cpu", padding="right"),
    "buffer": Target(cache="buffer", logits="last", last=8),
    "buffer, all": Target(cache="buffer"),
}
TARGETS = FEW | {
    "for cuda": Target("cuda", "fp16", "last", last=8),
    "joined": Target(logits="last", last=8),
    "last": Target("cpu", logits="last"),
    "last 4": Target("cpu", logits="last", last=4),
    "highest": Target("cpu", logits=5),
}
PROMPTS = ([5, 6, 7, 8] * 6, [3, 14, 15, 9, 26, 5, 35], [1] * 10)
LONG = 60


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Builds by spec and target, as they are asked for."""
    root = tmp_path_factory.mktemp("builds")

    class Builds(dict[tuple[str, str], Path]):
        def __missing__(self, key: tuple[str, str]) -> Path:
            name, target = key
            self[key] = build(root / f"{name} {target}".replace(" ", "_"), name, TARGETS[target])
            return self[key]

    return Builds()


def text_of(
    session: Session, prompt: Sequence[int], new: int, lookup: int = 0, stop: Sequence[int] = (), **given: Any
) -> list[int | None]:
    return [token for (token,) in session.generate([prompt], new, stop, lookup=lookup, **given)]


# Where a text has been before


def searched(text: Sequence[int], most: int) -> list[int]:
    """What follows the latest earlier occurrence of the last three tokens, else of the last two, by trying each.

    A text that ends before the draft is taken to go on as it does after that occurrence.
    """
    for size in (3, 2):
        for end in range(len(text) - 1, size - 1, -1):
            if len(text) >= size and list(text[end - size : end]) == list(text[-size:]):
                draft = list(text[end:])
                while len(draft) < most:
                    draft.append(draft[len(draft) - (len(text) - end)])
                return draft[:most]
    return []


@pytest.mark.parametrize("letters", [1, 2, 3, 6])
def test_a_draft_is_what_a_search_finds(letters: int) -> None:
    draw = np.random.default_rng(letters)
    found = set[int]()
    for _ in range(60):
        text: list[int] = draw.integers(0, letters, draw.integers(0, 9)).tolist()
        known = Occurrences(text)
        for token in draw.integers(0, letters, 30).tolist():
            for most in (0, 1, 4, 100):
                assert known.draft(most) == searched(text, most), text
            found.add(len(set(known.draft(100))))
            text.append(token)
            known.append(token)
            assert known.text == text
    assert len(found) == letters + 1, "from no draft to one of all letters"


def test_three_tokens_count_more_than_two_and_a_draft_goes_on_with_its_beginning() -> None:
    assert Occurrences([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3]).draft(2) == [7, 9]
    assert Occurrences([1, 2, 3, 7, 9, 2, 3, 8, 4, 2, 3]).draft(2) == [8, 4]
    assert Occurrences([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3]).draft(11) == [7, 9, 2, 3, 8, 1, 2, 3, 7, 9, 2]
    assert Occurrences([4, 4, 4]).draft(9) == [4] * 9
    assert Occurrences([1, 5, 6, 5, 6]).draft(5) == [5, 6, 5, 6, 5]
    assert Occurrences([1, 2, 3]).draft(9) == Occurrences([2, 2]).draft(9) == Occurrences([]).draft(9) == []


# How many are drafted


def test_drafts_grow_while_they_are_right_and_shrink_where_they_are_not() -> None:
    pace = Pace(12, OF_FLOATS)
    assert pace.next == START == 4
    sizes: list[int] = []
    for kept in ("all", "all", "all", "half", "less", "less", "none", "none", "all"):
        drafted = pace.next
        pace.record(drafted, {"all": drafted, "half": -(-drafted // 2), "less": (drafted - 1) // 2}.get(kept, 0))
        sizes.append(pace.next)
    assert sizes == [8, 12, 12, 12, 6, 3, 1, 1, 2]
    assert Pace(3, OF_FLOATS).next == 3 and Pace(1, OF_FLOATS).next == 1


@pytest.mark.parametrize("cost", [OF_FLOATS, OF_CODES])
def test_drafts_stop_after_eight_that_cost_more_than_they_gained(cost: float) -> None:
    pace = Pace(8, cost)
    for _ in range(WINDOW - 1):
        pace.record(pace.next, 0)
        pace.record(0, 0)
        assert pace.next == 1 or len(pace.recent) < 3, "steps without a draft are not judged"
    pace.record(pace.next, 0)
    assert pace.next == 0
    for left in range(PAUSE - 1, 0, -1):
        pace.record(0, 0)
        assert pace.pause == left and pace.next == 0
    pace.record(0, 0)
    assert pace.next == 1 and not pace.recent, "and they are judged anew"


@pytest.mark.parametrize(("cost", "kept"), [(0.25, 2), (0.26, 3), (0.06, 1)])
def test_what_a_drafted_token_costs_says_how_many_must_be_right(cost: float, kept: int) -> None:
    """Of eight drafts of one token each."""
    for right in (kept - 1, kept):
        pace = Pace(1, cost)
        for i in range(WINDOW):
            pace.record(1, int(i < right))
        assert (pace.next == 0) == (right < kept)


def test_the_eight_latest_drafts_are_judged() -> None:
    pace = Pace(1, OF_CODES)
    for right in [1] * 20 + [0] * 6:
        pace.record(1, right)
        assert pace.next == 1
    pace.record(1, 0)
    assert pace.next == 0, "seven of the last eight were wrong"
    pace = Pace(1, OF_CODES, pause=5)
    pace.record(2, 2)
    assert pace.pause == 2, "tokens that were kept pass too"


# The text is the one without drafts


@pytest.mark.parametrize("target", FEW)
@pytest.mark.parametrize("name", ["llama3-8b", "gemma2-9b", "gpt2"])
def test_a_text_with_drafts_is_the_text_without(name: str, target: str, folders: dict[tuple[str, str], Path]) -> None:
    """Greedy and drawn: gemma2's attention has windows and caps, gpt2 learned positions."""
    session = Session(folders[name, target], threads=1)
    assert not session.rounds
    for prompt in PROMPTS:
        plain = text_of(session, prompt, LONG)
        for lookup in (1, 2, 3, 7, *((20,) if target.endswith("all") else ())):
            assert text_of(session, prompt, LONG, lookup) == plain
            held = session.drafts
            assert held.steps + held.kept == LONG and held.kept <= held.drafted
        drawn = text_of(session, prompt, LONG, sampler=Sampler(0.1, seed=3))
        assert text_of(session, prompt, LONG, 7, sampler=Sampler(0.1, seed=3)) == drawn
    assert session.drafts.kept > 10, "of ten equal tokens more are drafted"


@pytest.mark.parametrize("lookup", [1, 7])
def test_drafts_save_steps(lookup: int, folders: dict[tuple[str, str], Path]) -> None:
    """Each kept token is a step less; what is read at each step is one token and a draft of it."""
    session = Session(folders["llama3-8b", "fused"], threads=1)
    reads: list[int] = []
    extend = session.extend_lent
    session.extend_lent = lambda tokens: reads.append(len(tokens)) or extend(tokens)  # type: ignore[method-assign,func-returns-value]
    text_of(session, PROMPTS[2], LONG, lookup)
    held = session.drafts
    assert held.kept > 15 and held.steps == LONG - held.kept == len(reads) + 1
    assert held.drafted == sum(reads) - len(reads) and 2 <= max(reads) <= lookup + 1


def test_a_sampler_of_ones_own_is_asked_once_a_token(folders: dict[tuple[str, str], Path]) -> None:
    session = Session(folders["llama3-8b", "fused"], threads=1)
    asked = 0

    def choose(logits: Logits) -> Array:
        nonlocal asked
        assert not isinstance(logits, TopLogits) and logits.shape == (1, 96) and logits.dtype == np.float32
        asked += 1
        return greedy(logits)

    for i, _ in enumerate(session.generate([PROMPTS[2]], LONG, sampler=choose, lookup=7)):
        assert asked == i + 1
    assert session.drafts.kept > 15 and asked == LONG


@pytest.mark.parametrize("lookup", [0, 7])
def test_a_sampler_of_ones_own_may_keep_its_logits(lookup: int, folders: dict[tuple[str, str], Path]) -> None:
    """Only samplers that are known to keep nothing read the memory which the next step writes."""
    session = Session(folders["llama3-8b", "fused"], threads=1)
    kept: list[tuple[Array, Array]] = []

    def choose(logits: Logits) -> Array:
        assert isinstance(logits, np.ndarray)
        kept.append((logits, logits.copy()))
        return greedy(logits)

    text = text_of(session, PROMPTS[2], LONG, lookup, sampler=choose)
    assert len(kept) == LONG and len({int(held.argmax()) for held, _ in kept}) == len(set(text))
    for held, copied in kept:
        np.testing.assert_array_equal(held, copied)


def test_a_token_that_stops_may_stand_inside_a_draft(folders: dict[tuple[str, str], Path]) -> None:
    session = Session(folders["llama3-8b", "by rows"], threads=1)
    plain = text_of(session, PROMPTS[0], LONG)
    inside = 0
    for end in set(plain):
        assert end is not None
        wanted = plain[: plain.index(end) + 1]
        assert text_of(session, PROMPTS[0], LONG, 7, [end]) == wanted
        assert session.drafts.steps + session.drafts.kept == len(wanted)
        inside += session.lengths[0] > len(PROMPTS[0]) + len(wanted) - 1
    assert inside > 0, "where more was read than was written"


def test_a_text_ends_after_as_many_tokens_as_were_asked_for(folders: dict[tuple[str, str], Path]) -> None:
    """Also inside what would be a draft, and at the end of the context; the cache keeps its length."""
    session = Session(folders["llama3-8b", "fused"], threads=1)
    plain, kept = text_of(session, PROMPTS[2], LONG), 0
    for new in range(1, 24):
        assert text_of(session, PROMPTS[2], new, 7) == plain[:new]
        kept += session.drafts.kept
        assert session.lengths == (len(PROMPTS[2]) + new - 1,)
    assert kept > 30
    whole = session.context - len(PROMPTS[2])
    assert text_of(session, PROMPTS[2], whole, 7) == text_of(session, PROMPTS[2], whole)
    with pytest.raises(SessionError, match="129 tokens of one row"):
        text_of(session, PROMPTS[2], whole + 1, 7)
    assert text_of(session, PROMPTS[2], 0, 7) == []


@pytest.mark.parametrize("target", ["fused", "by rows", "buffer"])
def test_a_text_goes_on_where_rope_changes(target: str, folders: dict[tuple[str, str], Path]) -> None:
    """longrope: beyond 16 tokens all are read again. No draft reaches over the length at which that is so."""
    session = Session(folders["phi-4-mini", target], threads=1)
    (side,) = session.model.contract.sides
    assert (side.original, side.grows) == (16, False)
    kept = 0
    for prompt in ([1] * 10, [5, 6] * 4, [5, 6, 7] * 3, list(range(16)), list(range(17))):
        assert text_of(session, prompt, 40, 7) == text_of(session, prompt, 40)
        assert text_of(session, prompt, 16 - len(prompt), 7) == text_of(session, prompt, 16 - len(prompt))
        kept += session.drafts.kept
    assert kept > 0, "below the length as well"


def test_a_text_whose_rope_turns_with_every_length_ends_before_that(tmp_path: Path) -> None:
    text = MIXED.replace("theta: 1e4", "theta: 1e4, scaling: {type: dynamic, factor: 2, original: 40}")
    model = compile_spec(from_tree(parse(text.split("layers:")[0], "grows.yaml")))
    held = {k: v.astype(np.float32) for k, v in random_parameters(model.function, 3).items()}
    weights = save(tmp_path / "in" / "model.safetensors", held)
    api.build(model, tmp_path / "out", target=FEW["fused"], proof=False, weights=weights)
    session = Session(tmp_path / "out", threads=1)
    plain = text_of(session, PROMPTS[2], 31)
    assert session.drafts == Drafts()
    assert text_of(session, PROMPTS[2], 31, 7) == plain and session.drafts.kept > 0
    for lookup in (0, 7):
        with pytest.raises(SessionError, match="beyond 40 the model's rope rotates tokens differently at every length"):
            text_of(session, PROMPTS[2], 32, lookup)


@pytest.mark.parametrize("target", ["fused", "by rows", "buffer"])
def test_texts_follow_each_other_in_one_session(target: str, folders: dict[tuple[str, str], Path]) -> None:
    """Also after one that was left in the middle, and after a batch."""
    session = Session(folders["gpt2", target], threads=1)
    alone = [text_of(Session(folders["gpt2", target], threads=1), prompt, LONG) for prompt in PROMPTS]
    left = session.generate([PROMPTS[0]], LONG, lookup=7)
    started = [token for (token,) in islice(left, 30)]
    assert started == alone[0][:30]
    assert [text_of(session, prompt, LONG, 7) for prompt in PROMPTS] == alone
    left = session.generate([PROMPTS[2]], LONG, lookup=7)
    assert [token for (token,) in islice(left, 11)] == alone[2][:11]
    batch = list(zip(*session.generate(PROMPTS, LONG), strict=True))
    assert [list(row) for row in batch] == alone
    assert [text_of(session, prompt, LONG, 7) for prompt in reversed(PROMPTS)] == alone[::-1]
    assert session.drafts.kept > 0


# Several tokens read and forgotten


ROW, OTHER = [3, 14, 15, 9, 26, 5, 35, 8, 9, 79, 32, 4], [2, 7, 18, 28]


def is_as_the_oracle_says(name: str, target: str, logits: Logits, row: Sequence[int]) -> bool:
    """Of the last tokens of a row, as many as there are logits."""
    assert not isinstance(logits, TopLogits)
    wanted = truth(name, tuple(row))
    off = np.abs(logits - wanted[-len(logits) :]).max() / wanted.std()
    return logits.dtype == np.float32 and bool(off < TOLERANCE[RUN_AS[TARGETS[target].dtype]])


@pytest.mark.parametrize("target", [*FEW, "for cuda"])
@pytest.mark.parametrize("name", ["llama3-8b", "gemma2-9b"])
def test_what_follows_forgotten_tokens_is_as_if_they_had_not_been(
    name: str, target: str, folders: dict[tuple[str, str], Path]
) -> None:
    session = Session(folders[name, target], threads=1)
    session.prefill([ROW[:7]], room=9)
    logits = session.extend(ROW[7:])
    assert logits.shape == (5, 96) and is_as_the_oracle_says(name, target, logits, ROW)
    held = logits.copy()
    for length in (11, 5, 5, 1):
        session.rewind(length)
        assert session.lengths == (length,)
        seen = [*ROW[:length], *OTHER]
        assert is_as_the_oracle_says(name, target, session.extend(OTHER), seen)
        assert is_as_the_oracle_says(name, target, session.decode([9]), [*seen, 9])
        assert is_as_the_oracle_says(name, target, session.extend([6, 7]), [*seen, 9, 6, 7])
        session.rewind(length)
        session.rewind(length)
        assert is_as_the_oracle_says(name, target, session.extend(ROW[length:][:8]), ROW[: length + 8])
    assert np.array_equal(logits, held), "what was given is not written over"
    session.reset()
    assert is_as_the_oracle_says(name, target, session.extend(OTHER), OTHER)


def test_a_step_that_is_bound_sees_no_forgotten_token(folders: dict[tuple[str, str], Path]) -> None:
    """As on CUDA, where the mask is as long as the buffers, and a row's length is its sum."""
    session, _ = captured(folders["llama3-8b", "for cuda"])
    session.prefill([ROW])
    session.rewind(5)
    assert is_as_the_oracle_says("llama3-8b", "for cuda", session.decode([9]), [*ROW[:5], 9])
    assert session.step is not None
    assert is_as_the_oracle_says("llama3-8b", "for cuda", session.extend(OTHER), [*ROW[:5], 9, *OTHER])
    session.rewind(6)
    assert is_as_the_oracle_says("llama3-8b", "for cuda", session.extend([4]), [*ROW[:5], 9, 4])


def test_a_cache_of_new_tensors_is_extended_but_not_rewound(folders: dict[tuple[str, str], Path]) -> None:
    session = Session(folders["llama3-8b", "joined"], threads=1)
    session.prefill([ROW[:7]])
    assert is_as_the_oracle_says("llama3-8b", "joined", session.extend(ROW[7:]), ROW)
    with pytest.raises(SessionError, match=r"not a buffer .* build it with --ep cpu or --cache buffer"):
        session.rewind(7)
    assert is_as_the_oracle_says("llama3-8b", "joined", session.extend(OTHER), [*ROW, *OTHER])
    session = Session(folders["mixed", "fused"], threads=1)
    session.prefill([ROW])
    with pytest.raises(SessionError, match="mixed: its cache is not a buffer"):
        session.rewind(7)


def test_what_cannot_be_extended_or_rewound(folders: dict[tuple[str, str], Path]) -> None:
    session = Session(folders["llama3-8b", "last 4"], threads=1)
    with pytest.raises(SessionError, match="a rewind to 1 tokens, and the rows have "):
        session.rewind(1)
    session.prefill([ROW])
    for length in (0, -1, 13):
        with pytest.raises(SessionError, match=f"a rewind to {length} tokens, and the rows have 12"):
            session.rewind(length)
    with pytest.raises(SessionError, match="no token was given"):
        session.extend([])
    with pytest.raises(SessionError, match=r"5 tokens were given, and it gives those of the last 4: .* last:5"):
        session.extend([1] * 5)
    with pytest.raises(SessionError, match="token 96 is outside"):
        session.extend([1, 96])
    assert session.lengths == (12,) and session.extend([1] * 4).shape == (4, 96)
    session.reset()
    session.prefill([ROW, OTHER])
    with pytest.raises(SessionError, match="2 rows are open"):
        session.extend([1])
    with pytest.raises(SessionError, match="a rewind to 3 tokens, and the rows have 12, 4"):
        session.rewind(3)
    for target, why in (("last", "those of the last one"), ("highest", "the 5 highest logits of one")):
        session = Session(folders["llama3-8b", target], threads=1)
        session.prefill([ROW])
        with pytest.raises(SessionError, match=rf"{why}: build it with --logits last:2"):
            session.extend([1, 2])


def test_no_rewind_leads_to_keys_that_were_rotated_for_another_length(folders: dict[tuple[str, str], Path]) -> None:
    session = Session(folders["phi-4-mini", "fused"], threads=1)
    session.prefill([list(range(20))])
    session.rewind(17)
    with pytest.raises(SessionError, match="beyond 16 the model's rope rotates tokens differently"):
        session.rewind(16)
    assert session.lengths == (17,)
    row = (*range(17), 3, 4)
    assert is_as_the_oracle_says("phi-4-mini", "fused", session.extend([3, 4]), row)


# What is refused


def test_what_lookup_needs(folders: dict[tuple[str, str], Path]) -> None:
    def why(target: str, lookup: int, prompts: Sequence[Sequence[int]] = (PROMPTS[0],)) -> str:
        with pytest.raises(SessionError) as said:
            list(Session(folders["llama3-8b", target], threads=1).generate(prompts, 5, lookup=lookup))
        return str(said.value)

    assert "takes one prompt, and there are 2" in why("fused", 7, PROMPTS[:2])
    assert "takes one prompt, and there are 0" in why("fused", 7, ())
    assert why("fused", 8).endswith("it gives those of the last 8: build it with --logits last:9")
    assert why("last 4", 4).endswith("it gives those of the last 4: build it with --logits last:5")
    assert why("last", 1).endswith("it gives those of the last one: build it with --logits last:2")
    assert why("highest", 1).endswith("it gives the 5 highest logits of one: build it with --logits last:2")
    assert why("joined", 7).endswith("build it with --ep cpu or --cache buffer")
    assert "lookup is -1: expected how many tokens to draft" in why("fused", -1)
    assert "a row without a token" in why("fused", 7, [[]])
    assert text_of(Session(folders["llama3-8b", "last 4"], threads=1), PROMPTS[0], 5, 3)


# The command


@pytest.fixture(scope="module")
def run_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("run")
    save(root / "in" / "model.safetensors", tensors(twin("llama3-8b")))
    characters().save(str(root / "in" / "tokenizer.json"))
    (root / "in" / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    made = {
        "floats": FEW["fused"], "portable": TARGETS["joined"],
        "codes": Target("cpu", logits="last", quant=parse_quant("int4"), last=4),
    }  # fmt: skip
    for name, target in made.items():
        api.build(twin("llama3-8b"), root / name, target=target, proof=False, weights=root / "in")
    return {name: root / name for name in made}


def test_run_prints_the_text_and_then_what_came_of_the_drafts(
    run_folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, prompt, tokens = run_folders["floats"], "abc" * 9, "40"
    assert run(folder, "--prompt", prompt, "--tokens", tokens) == 0
    plain, figures = capsys.readouterr()
    assert run(folder, "--prompt", prompt, "--tokens", tokens, "--lookup", "7") == 0
    out, err = capsys.readouterr()
    first, last = err.splitlines()
    assert out == plain and first.split(",")[0] == figures.split(",")[0]
    session = Session(folder)
    text_of(session, [ord(c) - 30 for c in prompt], int(tokens), 7, [1])
    held = session.drafts
    assert held.drafted > 0
    assert last == f"{held.steps} steps: {held.kept} of {held.drafted} drafted tokens were right"
    drawn = [api.run(folder, [prompt], tokens=40, temperature=0.3, seed=5, lookup=lookup) for lookup in (0, 7)]
    assert drawn[0] == drawn[1] != [plain.removesuffix("\n")]
    assert api.run(folder, [prompt], tokens=40, lookup=7) == [plain.removesuffix("\n")]


def test_a_build_with_codes_says_that_the_text_may_be_another(
    run_folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folders["codes"]
    session = Session(folder, prepack=None)
    assert session.rounds and len(text_of(session, PROMPTS[2], LONG, 3)) == LONG
    assert session.drafts.steps + session.drafts.kept == LONG
    capsys.readouterr()
    assert run(folder, "--prompt", "abc" * 9, "--tokens", "20", "--lookup", "3") == 0
    out, err = capsys.readouterr()
    assert out.strip() and len(err.splitlines()) == 3
    assert err.splitlines()[0].endswith("so with --lookup the text may become another one")
    assert "same" not in err and "exact" not in err
    assert run(folder, "--prompt", "abc", "--tokens", "5") == 0
    assert "another" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "arguments", "code", "said"),
    [
        ("floats", ["--lookup", "8"], 1, "a draft of 8 tokens is checked by logits of 9, and it gives those of the "
         "last 8: build it with --logits last:9"),
        ("codes", ["--lookup", "4"], 1, "it gives those of the last 4: build it with --logits last:5"),
        ("portable", ["--lookup", "7"], 1, "build it with --ep cpu or --cache buffer"),
        ("floats", ["--lookup", "7", "--prompt", SECOND], 2, "--lookup takes one --prompt, and there are 2"),
        ("floats", ["--lookup", "-1"], 2, "-1"),
        ("floats", ["--lookup", "x"], 2, "x"),
    ],
)  # fmt: skip
def test_run_says_why_it_cannot_draft(
    name: str,
    arguments: list[str],
    code: int,
    said: str,
    run_folders: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(run_folders[name], "--prompt", PROMPT, "--tokens", "9", *arguments) == code
    out, err = capsys.readouterr()
    assert said in err and out == ""
    assert code == 2 or len(err.splitlines()) == 1 + (name == "codes")
