"""Codes of findings: each has an entry whose examples are true; warnings say what holds, comments silence no more."""

from __future__ import annotations

import ast
import pickle
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import blockc
from blockc import api
from blockc.checks import checking
from blockc.checks.policy import read_policy
from blockc.cli import app, run_guarded
from blockc.diagnostics import CODES, GROUPS, Code
from blockc.diagnostics.examples import BASE, change_base, example_file
from blockc.diagnostics.pages import code_entry, code_list
from blockc.graph.quantpolicy import read_quant_policy
from blockc.graph.target import Target
from blockc.importing import import_config
from blockc.importing.maps import read_map
from blockc.language.spec import from_tree
from blockc.layouts import read_layout
from blockc.pipeline.compiled import compile_spec, compile_tree
from blockc.source import Finding, SpecError, find_ignores, parse
from tests.bad.renew import FURTHER, HERE, PAGE, frozen, of_a_file, page, said, texts
from tests.spec_text import mark

PACKAGE = Path(blockc.__file__).parent
SPECS = sorted((PACKAGE.parent / "specs").glob("*.yaml"))
each_code = pytest.mark.parametrize("code", CODES.values(), ids=CODES)


def check(text: str | bytes, *assignments: str) -> tuple[Finding, ...]:
    return api.check_text(text.encode() if isinstance(text, str) else text, "s.yaml", assignments)


def names(found: tuple[Finding, ...]) -> list[str]:
    return [each.code.name for each in found]


def found_in(code: Code, example: str | bytes, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The codes that an example gives, whichever kind it is of."""
    if isinstance(example, str) and example.startswith("$ blockc "):
        return run(example, folder, capsys)
    text = example_file(code, example)
    if text.startswith(b"policy:"):
        return names(api.check_text(BASE.encode(), "s.yaml", policy=read_policy(text, "p.yaml")))
    if text.startswith(b"blockc_quant:"):
        model = compile_tree(parse(BASE.encode(), "s.yaml"))
        return names(tuple(read_quant_policy(text, "q.yaml").misfits(model.readers)))
    if not text.startswith((b"layout:", b"import:", b"{")):
        return names(check(text))
    try:
        if text.startswith(b"layout:"):
            read_layout("l", parse(text, "l.yaml"))
        elif text.startswith(b"import:"):
            read_map(parse(text, "m.yaml"))
        else:
            return names(import_config(text, "config.json", "c").warnings)
    except SpecError as error:
        return names(error.findings)
    return []


def run(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    (folder / "example.yaml").write_text(BASE)
    arguments = [str(folder / word) if word == "example.yaml" else word for word in shlex.split(command)[2:]]
    run_guarded(lambda: app(arguments, standalone_mode=False))
    return re.findall(r"\[(BLC\d{3})\]$", capsys.readouterr().err, re.MULTILINE)


# The catalogue


@each_code
def test_the_examples_of_a_code_are_true(code: Code, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if code.bad:
        assert found_in(code, code.bad, tmp_path, capsys) == [code.name]
        assert found_in(code, code.good, tmp_path, capsys) == []


def test_one_code_alone_is_without_an_example() -> None:
    assert [code.name for code in CODES.values() if not code.bad] == ["BLC501"]


def test_codes_are_given_once_and_stand_in_their_hundred_in_order() -> None:
    given = [value.name for group in GROUPS for value in vars(group).values() if isinstance(value, Code)]
    assert given == sorted(set(given))
    assert len(given) == len(CODES)
    for group in GROUPS:
        hundred = (group.__doc__ or "")[:4]
        here = [value.name for value in vars(group).values() if isinstance(value, Code)]
        assert here, group
        assert all(re.fullmatch(rf"{hundred}\d\d", name) for name in here)


def test_a_code_once_given_is_not_given_again() -> None:
    """A code that goes keeps its line, with (gone) behind the title. The list grows by hand or by the renewal."""
    kept = {name: title for name, title in frozen().items() if not title.endswith("(gone)")}
    assert kept == {code.name: code.title for code in CODES.values()}


def calls(tree: ast.AST, *called: str) -> Iterator[ast.Call]:
    for n in ast.walk(tree):
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in called:
            yield n


@pytest.mark.costly
def test_every_finding_has_a_code_and_every_code_a_finding() -> None:
    """finding, fault, Problem and Wrong take the code first, by the name that it has or one that holds it."""
    constants = {name for group in GROUPS for name, value in vars(group).items() if isinstance(value, Code)}
    used: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if path.parent.name == "diagnostics":
            continue
        for call in calls(tree, "finding", "fault", "Problem", "Wrong", "Finding"):
            assert call.args, f"{path}:{call.lineno}"
        used |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        used |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    assert constants - used == set()


def test_a_code_is_itself_in_another_process() -> None:
    (found,) = check("# nothing\n")
    assert pickle.loads(pickle.dumps(found)) == found
    assert pickle.loads(pickle.dumps(found)).code is CODES["BLC004"]


# The corpus, the page, and explain


def test_the_corpus_is_that_of_the_catalogue() -> None:
    assert {path.stem for path in HERE.glob("*.yaml")} == {path.stem for path in HERE.glob("*.txt")} == set(texts())
    assert {code.name for code in CODES.values() if of_a_file(code)} <= set(texts())


@pytest.mark.parametrize("name", texts())
def test_what_is_said_of_a_wrong_spec(name: str) -> None:
    """python -m tests.bad.renew writes both files anew."""
    data = (HERE / f"{name}.yaml").read_bytes()
    assert data == texts()[name]
    assert said(name, data) == (HERE / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FURTHER)
def test_findings_come_by_place_with_a_line_that_they_are_on(name: str) -> None:
    found = check(texts()[name])
    places = [(each.place.line, each.place.column) for each in found]
    assert places == sorted(places) and found
    assert all(1 <= each.place.column <= len(each.place.text) + 1 for each in found)


def test_the_page_is_current() -> None:
    """python -m tests.bad.renew writes it anew."""
    assert PAGE.read_text(encoding="utf-8") == page()
    assert all(f"#### {name}: " in page() for name in CODES)


def explained(*arguments: str) -> int:
    return run_guarded(lambda: app(["explain", *arguments], standalone_mode=False))


@each_code
def test_explain_prints_the_entry(code: Code, capsys: pytest.CaptureFixture[str]) -> None:
    assert explained(code.name.lower()) == 0
    out = capsys.readouterr().out
    assert out == code_entry(code) + "\n"
    assert code.title in out and code.why[:40] in out
    assert all(char.isprintable() or char in "\n\t" for char in out)


def test_explain_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert explained() == 0
    assert capsys.readouterr().out == code_list() + "\n"
    assert len(code_list().splitlines()) == len(CODES)


@pytest.mark.parametrize(
    ("asked", "near"),
    [("BLC12", "BLC012"), ("012", "BLC012"), ("blc0012", "BLC012"), ("BLC499", "BLC4"), ("ruff", ""), ("x" * 999, "")],
)
def test_explain_of_no_code(asked: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explained(asked) == 2
    said = capsys.readouterr().err
    assert f"{asked} is not a code" in said
    assert ("did you mean" in said) == bool(near) and near in said


# Warnings


WARNED = {"stablelm-3b": ["BLC401"]}  # it turns 20 of 80


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_published_models_are_clean(path: Path) -> None:
    assert [found.code.name for found in api.check(path)] == WARNED.get(path.stem, [])


def warned(keys: str, code: str) -> Finding:
    """The one warning, which stands where the keys are marked."""
    plain = keys.replace("«", "").replace("»", "")
    (found,) = check(change_base(plain))
    assert (found.code.name, found.severity) == (code, "warning")
    line, column, width = mark(change_base(keys).decode())
    assert (found.place.line, found.place.column, found.place.width) == (line, column, width)
    return found


ROPE = "rope: {theta: 10000, pairing: half"
HEADS = [
    # keys, expected
    ("attention: {heads: 4, head_dim: «20»}\npositions: none\n", "a multiple of 8"),
    (f"attention: {{heads: 4, head_dim: «24», {ROPE}}}}}\n", "a multiple of 16 with rope"),
    (f"attention: {{heads: «8», {ROPE}}}}}\n", "a multiple of 16 with rope"),
    (f"attention: {{heads: 4, head_dim: 32, {ROPE}, dims: «8»}}}}\n", "a multiple of 16 with rope"),
    (
        "norm: {type: rms, eps: 1e-5}\nblock: [attention, mlp, other]\n"
        f"parts: {{other: {{attention: {{heads: 4, head_dim: «24», {ROPE}}}}}}}}}\n",
        "a multiple of 16 with rope",
    ),
]


@pytest.mark.parametrize(("keys", "expected"), HEADS)
def test_heads_that_no_kernel_takes(keys: str, expected: str) -> None:
    assert warned(keys, "BLC401").expected == expected


@pytest.mark.parametrize("keys", ["attention: {heads: 8}\npositions: none\n", f"attention: {{heads: 2, {ROPE}}}}}\n"])
def test_heads_that_a_kernel_takes(keys: str) -> None:
    assert check(change_base(keys)) == ()


SIZES = [
    (head_dim, dims) for head_dim in (8, 12, 16, 20, 32, 40, 48) for dims in (0, 8, 12, 16, 32) if dims <= head_dim
]


@pytest.mark.parametrize(("head_dim", "dims"), SIZES)
def test_the_kernels_leave_what_is_warned_of(head_dim: int, dims: int) -> None:
    """`dims` coordinates of a head are turned, none where it is 0."""
    turned = f"rope: {{theta: 10000, pairing: half, dims: {dims}}}" if dims else "rope: none"
    text = change_base(f"attention: {{heads: 4, head_dim: {head_dim}, {turned}}}\npositions: {{type: learned}}\n")
    reasons = {left.reason for left in compile_spec(from_tree(parse(text, "s.yaml"))).unfused(Target(provider="cpu"))}
    sizes = {reason for reason in reasons if "not a multiple of 8" in reason or "takes multiples of 16" in reason}
    assert (names(check(text)) == ["BLC401"]) == bool(sizes), sizes


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("width: «96»\nattention: {heads: 6, head_dim: 16, rope: {theta: 10000, pairing: half}}\n", "64 or 128"),
        ("mlp: {type: swiglu, width: «40»}\n", "64"),
        ("layers: {pattern: [a, b], kinds: {a: {mlp: {width: «100»}}, b: {}}}\nexpect: {layers: {a: 1, b: 1}}\n", "64"),
    ],
)
def test_widths_between_tiles(keys: str, expected: str) -> None:
    assert expected in warned(keys, "BLC402").expected


def test_a_width_that_kinds_inherit_is_said_once() -> None:
    kinds = "layers: {pattern: [a, b], kinds: {a: {}, b: {attention: {window: 64}}}}\n"
    warned("mlp: {type: swiglu, width: «100»}\n" + kinds + "expect: {layers: {a: 1, b: 1}}\n", "BLC402")


def test_a_model_to_work_through_by_hand_has_no_sizes_to_mend() -> None:
    assert check(change_base("width: 12\nattention: {heads: 2}\npositions: none\nmlp: {type: relu, width: 20}\n")) == ()


def scaled(context: str, factor: str) -> str:
    scaling = f"{{type: llama3, factor: {factor}, low_freq_factor: 1, high_freq_factor: 4, original: 64}}"
    return f"context: {context}\nattention:\n  heads: 4\n  {ROPE}, scaling: {scaling}}}\n"


def test_a_context_beyond_the_scaling() -> None:
    found = warned(scaled("«513»", "8"), "BLC403")
    assert found.expected == "a context of at most 512, or a factor of 9"
    assert [label for label, _ in found.others] == ["the scaling"]
    assert check(change_base(scaled("512", "8"))) == ()


def test_the_figures_that_are_proposed_hold() -> None:
    (found,) = check(BASE.replace("expect:", "# "))
    assert (found.code.name, found.place.line, found.place.column) == ("BLC404", 1, 1)
    proposed = found.hint.partition("expect: ")[2]
    assert check(change_base(f"expect: {proposed}\n")) == ()
    assert names(check(change_base(f"expect: {proposed}\n".replace(": 1", ": 2")))) == ["BLC301"]


def test_other_values_are_held_to_no_expectation() -> None:
    assert check(BASE, "layers={pattern: [a], kinds: {a: {}}}") == ()
    assert check(BASE.replace("expect:", "# "), "depth=3") == ()


def test_a_spec_that_is_wrong_has_no_warnings() -> None:
    assert names(check(change_base("mlp: {type: swiglu, width: 170}\ndepth: 0\n"))) == ["BLC106"]


def test_warnings_stand_beside_figures_that_do_not_hold() -> None:
    found = check(change_base("mlp: {type: swiglu, width: 170}\nexpect: {parameters: 1}\ncheckpoint: lama\n"))
    assert sorted(names(found)) == ["BLC301", "BLC302", "BLC402"]


# Comments that silence

WIDE = "mlp: {type: swiglu, width: 170} "


@pytest.mark.parametrize(
    "comment",
    [
        "# blockc: ignore BLC402",
        "#blockc:ignore BLC402",
        "# blockc: ignore BLC402: as published",
        "# wide # blockc: ignore BLC402 as published",
    ],
)
def test_a_comment_silences_its_line(comment: str) -> None:
    assert check(change_base(WIDE + comment + "\n")) == ()


def test_a_comment_may_name_several_codes() -> None:
    both = f"attention: {{heads: 4, head_dim: 24, {ROPE}}}}}\n"
    text = change_base(both).decode().replace("\nmlp: ", " # blockc: ignore BLC401\nmlp: ")
    assert check(text) == ()
    idle = check(text.replace("BLC401", "BLC401, BLC402,BLC403"))
    assert [(each.code.name, each.got) for each in idle] == [("BLC405", "BLC402"), ("BLC405", "BLC403")]


@pytest.mark.parametrize(
    ("keys", "message", "hint"),
    [
        ("mlp: {type: swiglu, width: 192} # blockc: ignore «BLC402»\n", "no BLC402 on this line", "remove the comment"),
        ("# blockc: ignore «BLC402»\n", "no BLC402 on this line", "remove"),
        ("vocab: 1024 # blockc: ignore «BLC201»\n", "BLC201 is an error, and no comment silences an error", "mend"),
        ("vocab: 1024 # blockc: ignore «BLC999»\n", "BLC999 is not a code", "blockc explain"),
        ("vocab: 1024 # blockc: ignore «blc402»\n", "blc402 is not a code", ""),
        ("vocab: 1024 «# blockc: ignore»\n", "an ignore that names no code", "write # blockc: ignore BLC402"),
    ],
)
def test_a_comment_that_silences_nothing_is_a_warning(keys: str, message: str, hint: str) -> None:
    text = BASE.replace("vocab: 1024\n", keys) if keys.startswith("vocab") else BASE + keys.replace("mlp", "#")
    (found,) = check(text.replace("«", "").replace("»", ""))
    assert (found.code.name, found.severity, found.message) == ("BLC405", "warning", message)
    assert hint in found.hint
    assert (found.place.line, found.place.column, found.place.width) == mark(text)


def test_a_comment_ends_with_its_line() -> None:
    text = BASE.replace("vocab: 1024\n", "# blockc: ignore BLC402,\nvocab: 1024\n")
    assert [each.name for each in find_ignores(text, "s.yaml")] == ["BLC402"]


def test_many_comments_cost_little() -> None:
    text = BASE + "".join(f"p{i}: 1 # blockc: ignore BLC402\n" for i in range(4900)) + "# blockc: ignore x\n" * 20_000
    start = time.perf_counter()
    assert len(find_ignores(text, "s.yaml")) == 24_900
    assert time.perf_counter() - start < 10


def test_an_error_stays_an_error() -> None:
    found = check(change_base("depth: 0 # blockc: ignore BLC106\n"))
    assert [(each.code.name, each.severity) for each in found] == [("BLC106", "error"), ("BLC405", "warning")]


def test_of_a_spec_that_is_wrong_no_comment_is_called_idle() -> None:
    assert names(check(change_base("mlp: {type: swiglu, width: 192} # blockc: ignore BLC402\ndepth: 0\n"))) == [
        "BLC106"
    ]


@pytest.mark.parametrize(
    "value",
    [
        '"a # blockc: ignore BLC402"',
        "|\n  a\n  # blockc: ignore BLC402\n",
        "a# blockc:ignore BLC402",
        "a\n# blockc: ignored BLC402",
        "a\n# blockc ignore BLC402",
        "a #\n# blockc:\n# ignore BLC402",
    ],
)
def test_text_is_no_comment(value: str) -> None:
    text = BASE + f"description: {value}\n"
    assert find_ignores(text, "s.yaml") == []
    assert check(text) == ()


# Many files


def test_many_files_are_checked_as_each_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [BASE, "depth: 0\n", change_base(WIDE + "\n").decode()]
    files = [tmp_path / f"{i}.yaml" for i in range(2 * checking.PAYS)]
    for i, file in enumerate(files):
        file.write_text(texts[i % 3])
    alone = [api.check(file) for file in files]
    assert list(checking.check_files(list(map(str, files)))) == alone
    monkeypatch.setattr(checking, "get_all_start_methods", lambda: ["spawn"])
    monkeypatch.setattr(checking, "ProcessPoolExecutor", None)
    assert list(checking.check_files(list(map(str, files)))) == alone
