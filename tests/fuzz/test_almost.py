"""Specs with one thing wrong, by chance: findings inside the file, or a model; never anything else."""

from __future__ import annotations

from hypothesis import given

from blockc.language.spec import from_tree
from blockc.pipeline.compiled import compile_spec
from blockc.report import make_report
from blockc.source import SpecError, parse, render_finding
from tests.fuzz.strategies import almost, counted


def findings_or_model(spec: str) -> None:
    try:
        model = compile_spec(from_tree(parse(spec, "fuzz.yaml")))
    except SpecError as error:
        lines = spec.split("\n")
        assert error.findings
        for found in error.findings:
            for place in (found.place, *(place for _, place in found.others)):
                assert place.file == "fuzz.yaml"
                assert 1 <= place.line <= len(lines)
                assert 1 <= place.column <= len(lines[place.line - 1]) + 1
            assert found.message
            assert render_finding(found)
        return
    make_report(model.spec, model.decoder, model.function)


@counted(60)
@given(almost())
def test_a_spec_with_one_change_gives_findings_or_a_model(spec: str) -> None:
    findings_or_model(spec)
