"""Policies of quantising: how strictly a file is read, which matrices a pattern takes, and which are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockc import api
from blockc.cli import app, run_guarded
from blockc.graph.quant import Quant, parse_quant
from blockc.graph.quantpolicy import read_quant_policy
from blockc.ir import Blocks
from blockc.source import Finding, SpecError
from tests.checkpoints import twin
from tests.spec_text import mark

LLAMA = twin("llama3-8b")
HEAD = "blockc_quant: 1\n"


def misfits(text: str, name: str = "llama3-8b") -> list[Finding]:
    return read_quant_policy((HEAD + text).encode(), "q.yaml").misfits(twin(name).readers)


def test_a_policy_is_read_as_a_recipe_in_its_order() -> None:
    text = 'scales: calibrated\nmatrices: {head: int8:64, "*.v": int8, layers.0: keep, "*": int4:128}\n'
    assert read_quant_policy((HEAD + text).encode(), "q.yaml").make_quant(LLAMA.readers) == Quant(
        "policy",
        (("head", Blocks(8, 64)), ("*.v", Blocks(8, 32)), ("layers.0.*", None), ("*", Blocks(4, 128))),
        "calibrated",
    )


WRONG = [
    # a policy, the code of the finding, what it expects or hints
    ("blockc_quant: «2»\nmatrices: {head: int8}\n", "BLC107", "1"),
    ("«blockc_quant»: 1\n", "BLC110", "a mapping"),
    (HEAD + "«scale»: rounded\nmatrices: {head: int8}\n", "BLC109", "did you mean scales?"),
    (HEAD + "scales: «round»\nmatrices: {head: int8}\n", "BLC107", "one of rounded, calibrated"),
    (HEAD + "matrices: {head: «int5»}\n", "BLC105", "int8, int4, one of them with a block of 16, 32"),
    (HEAD + "matrices:\n  head: int8\n  v: «int4:33»\n", "BLC105", "a block of 16, 32"),
    (HEAD + "matrices: {head: «int4:quality»}\n", "BLC105", "or keep"),
    (HEAD + "matrices: {head: «4»}\n", "BLC105", "a word"),
    (HEAD + "«matrices»: {}\n", "BLC105", "at least one pattern"),
    (HEAD + "«matrices»: [head]\n", "BLC105", "a mapping"),
    (HEAD + "matrices: {head: int8, «head»: int4}\n", "BLC012", ""),
    (HEAD + f"matrices: {{«{'a' * 101}»: int4}}\n", "BLC105", "at most 100"),
    (HEAD + "matrices:\n  *«.»v: int8\n", "BLC010", ""),
]


@pytest.mark.parametrize(("text", "code", "said"), WRONG)
def test_a_wrong_policy_is_refused_at_its_place(text: str, code: str, said: str) -> None:
    line, column, *_ = mark(text)
    with pytest.raises(SpecError) as raised:
        read_quant_policy(text.replace("«", "").replace("»", "").encode(), "q.yaml")
    (found,) = raised.value.findings
    assert (found.code.name, found.place.line, found.place.column) == (code, line, column)
    assert said in f"{found.expected}; {found.hint}"


TAKEN = [
    ("layers.1.attention.v", {"layers.1.attention.v"}),
    ("v", {"layers.0.attention.v", "layers.1.attention.v"}),
    ("attention.*", {f"layers.{i}.attention.{name}" for i in range(2) for name in "qkvo"}),
    ("layers.0", {f"layers.0.{name}" for name in ("attention.q", "attention.k", "attention.v", "attention.o",
                                                   "mlp.gate", "mlp.up", "mlp.down")}),
    ("head", {"head"}),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "names"), TAKEN)
def test_a_pattern_takes_a_name_or_a_part_of_one(pattern: str, names: set[str]) -> None:
    quant = read_quant_policy(f'{HEAD}matrices: {{"{pattern}": int4}}'.encode(), "q.yaml").make_quant(LLAMA.readers)
    held = {name for each in LLAMA.readers.values() for name in each}
    assert {name for name in held if quant.blocks_for([name])} == names


UNFIT = [
    # matrices of a policy, the line at which a finding stands, its code, what it says
    ("matrices:\n  dwon: int8\n  '*': int4\n", 3, "BLC320", "did you mean down?"),
    ("matrices:\n  positions: keep\n  '*': int4\n", 3, "BLC320", ""),
    ("matrices:\n  '*': int4\n  v: int8\n", 4, "BLC321", ""),
]


@pytest.mark.parametrize(("text", "line", "code", "hint"), UNFIT)
def test_a_pattern_that_changes_nothing_is_an_error_at_its_line(text: str, line: int, code: str, hint: str) -> None:
    (found,) = misfits(text)
    assert (found.code.name, found.place.line, found.place.column, found.hint) == (code, line, 3, hint)


def test_a_tied_table_is_one_matrix() -> None:
    tied = "gemma2-9b"
    assert misfits("matrices: {embedding: int8, head: int8}\n", tied) == []
    assert [each.code.name for each in misfits("matrices: {embedding: int4, head: int8}\n", tied)] == ["BLC321"]


def test_a_recipe_calibrates_where_a_scale_of_4_bits_is_fitted() -> None:
    said = ("int8", "int4", "int4:quality", "int8:64")
    assert [parse_quant(word).calibrates for word in said] == [False, True, True, False]
    assert not Quant("q", (("*", Blocks(8)),), "calibrated").calibrates


def test_the_command_line_names_file_line_and_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "q.yaml").write_text(HEAD + "matrices: {haed: int8}\n")
    words = ["show", "block-4x4", "--quant-policy", str(tmp_path / "q.yaml")]
    assert run_guarded(lambda: app(words, standalone_mode=False)) == 1
    assert "q.yaml:2:12: haed matches no matrix of this model [BLC320]" in capsys.readouterr().err
    assert run_guarded(lambda: app([*words, "--quant", "int4"], standalone_mode=False)) == 2
    with pytest.raises(SpecError):
        api.quant_policy(tmp_path / "q.yaml", LLAMA)
