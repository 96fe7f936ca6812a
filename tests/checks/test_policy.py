"""Policies, and bounds in `expect`: what is said of a breach and where, and how strictly a policy is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from blockc import api
from blockc.checks.policy import PolicyKeys, read_policy
from blockc.diagnostics.examples import BASE, change_base
from blockc.language.spec import from_tree, resolve_to_yaml
from blockc.pipeline.compiled import compile_spec
from blockc.report.sizes import parse_size
from blockc.source import Finding, SpecError, parse, render_finding
from tests.paths import ROOT
from tests.spec_text import mark

KINDS = "layers: {pattern: [a, b], kinds: {a: {}, b: {attention: {kv_heads: 2}}}}\n"
ROPE = "rope: {theta: 10000, pairing: half}"


def held(policy: str, text: str | bytes = BASE, *assignments: str) -> tuple[Finding, ...]:
    data = text.encode() if isinstance(text, str) else text
    return api.check_text(data, "s.yaml", assignments, read_policy(f"policy: 1\n{policy}\n".encode(), "p.yaml"))


def breach(policy: str, keys: str) -> Finding:
    """The one breach, which stands where the spec is marked, beside the policy's own line."""
    text = change_base(keys.replace("«", "").replace("»", "")).decode()
    (found,) = held(policy, text)
    _, column, width = mark(keys)
    (line,) = (each for each in keys.splitlines() if "«" in each)
    row = text.splitlines().index(line.replace("«", "").replace("»", "")) + 1
    assert (found.place.line, found.place.column, found.place.width) == (row, column, width)
    ((label, place),) = found.others
    assert (label, place.file, place.line, found.severity) == ("the policy", "p.yaml", 2, "error")
    return found


BREACHES = [
    # policy, the spec with the place, code, expected, got
    ("parameters: {max: 172351}", "width: «64»\n", "BLC310", "at most 172,351", "172352"),
    ("parameters: {min: 172353}", "width: «64»\n", "BLC310", "at least 172,353", "172352"),
    ("kv_bytes_per_token: {max: 511, dtype: fp16}", f"attention: {{heads: «4», {ROPE}}}\n", "BLC311", "at most 511",
     "512"),
    ("kv_bytes_per_token: {max: 511, dtype: fp32}", f"attention: {{heads: 4, kv_heads: «2», {ROPE}}}\n", "BLC311",
     "at most 511", "512"),
    ("head_dims: [32, 64]", f"attention: {{heads: «4», {ROPE}}}\n", "BLC313", "one of 32, 64", "16"),
    ("head_dims: [16]", f"attention: {{heads: 4, head_dim: «32», {ROPE}}}\n", "BLC313", "16", "32"),
    ("placements: [branch]", "norm: {type: rms, eps: 1e-5, placement: «pre»}\n", "BLC314", "branch", "pre"),
    ("placements: [pre]", "norm: {type: rms, eps: 1e-5}\n«block»: [attention, mlp]\n", "BLC314", "pre", "a block"),
    ("expect: [parameters]", "«expect»: {layers: {layer: 2}}\n", "BLC315", "expect.parameters", ""),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "keys", "code", "expected", "got"), BREACHES)
def test_a_breach_stands_at_the_key_that_decides_it(policy: str, keys: str, code: str, expected: str, got: str) -> None:
    found = breach(policy, keys)
    assert (found.code.name, found.expected, found.got) == (code, expected, got)


@pytest.mark.parametrize(
    "policy",
    [
        "parameters: {min: 172352, max: 172352}",
        "kv_bytes_per_token: {max: 512, dtype: bf16}",
        "kv_bytes_per_token: {max: 256B, dtype: int8}",
        "head_dims: [64, 16]",
        "placements: [post, pre]",
        "expect: [layers]",
        "",
    ],
)
def test_a_bound_that_is_kept(policy: str) -> None:
    assert held(policy) == ()


def test_a_block_is_the_placement_that_says_the_same() -> None:
    term = "[{residual: [norm, {sum: [[attention], [[mlp]]]}]}]"
    text = change_base(f"norm: {{type: rms, eps: 1e-5}}\nblock: {term}\n")
    assert held("placements: [parallel_one]", text) == ()
    (found,) = held("placements: [parallel_two]", text)
    assert (found.message, found.place.line) == ("norms are placed as in parallel_one", 12)


def test_kinds_that_inherit_a_breach_have_it_once_and_others_each() -> None:
    text = change_base(KINDS + "expect: {layers: {a: 1, b: 1}}\n")
    assert [each.code.name for each in held("head_dims: [64]", text)] == ["BLC313"]
    kinds = KINDS.replace("kv_heads: 2", "head_dim: 32")
    assert [each.got for each in held("head_dims: [64]", change_base(kinds + "expect: {layers: {a: 1, b: 1}}\n"))] == [
        "16", "32",
    ]  # fmt: skip


def test_the_cache_is_decided_where_most_is_kept() -> None:
    keys = KINDS.replace("a: {}, b: {attention: {kv_heads: 2}}", "a: {attention: {kv_heads: 1}}, b: {}")
    (found,) = held("kv_bytes_per_token: {max: 1, dtype: bf16}", change_base(keys + "expect: {layers: {a: 1, b: 1}}\n"))
    assert (found.place.line, found.place.column) == (7, 20)
    assert found.hint == "computed as 2 bytes x (1 a layer x 32 + 1 b layer x 128)"


def memory(context: int, batch: int, there: int) -> str:
    return f"memory: {{context: {context}, batch: {batch}, dtype: bf16, devices: 2, device_memory: {there}}}"


@pytest.mark.parametrize(("context", "batch"), [(256, 1), (128, 3)])
def test_memory_is_what_show_counts(context: int, batch: int) -> None:
    report = api.figures(compile_spec(from_tree(parse(BASE, "s.yaml"))), context=context, batch=batch)
    total = report.memory.weights + report.memory.kv_cache + report.memory.activations.peak
    assert total % 2 == 0
    assert held(memory(context, batch, total // 2)) == ()
    (found,) = held(memory(context, batch, total // 2 - 1))
    assert (found.code.name, found.got, found.place.line) == ("BLC312", str(total), 4)


def test_memory_stands_at_the_cache_where_that_is_the_most() -> None:
    attention = f"attention: {{heads: 4, kv_heads: 4, head_dim: 1024, {ROPE}}}\n"
    narrow = change_base("vocab: 64\n" + attention + "depth: 20\nexpect: {layers: {layer: 20}}\n")
    (found,) = held(memory(256, 1, 1), narrow)
    assert found.place.text[found.place.column - 1 :].startswith("4, head_dim") and "cache" in found.hint


def test_a_context_beyond_the_spec_is_the_spec_s() -> None:
    (at_most,), (own,) = held(memory(9999, 1, 1)), held(memory(256, 1, 1))
    assert at_most.got == own.got and "256 tokens" in at_most.message
    (absent,) = held("memory: {batch: 1, dtype: bf16, devices: 2, device_memory: 1}")
    assert absent.got == own.got


def test_no_comment_silences_a_policy_and_set_is_held_to_it() -> None:
    text = BASE.replace("width: 64\n", "width: 64 # blockc: ignore BLC310\n")
    assert [each.code.name for each in held("parameters: {max: 1}", text)] == ["BLC310", "BLC405"]
    (found,) = held("parameters: {max: 172352}", BASE, "vocab=1025")
    assert (found.code.name, found.got) == ("BLC310", "172416")


def test_a_spec_that_is_wrong_is_held_to_nothing() -> None:
    assert [each.code.name for each in held("parameters: {max: 1}", change_base("depth: 0\n"))] == ["BLC106"]


# Reading a policy

WRONG = [
    ("policy: 1\n«policy»: 1\n", "BLC012", ""),
    ("policy: «2»\n", "BLC107", "1"),
    ("policy: «\"1\"»\n", "BLC107", "1"),
    ("«p»arameters: {max: 1}\n", "BLC110", "1"),
    ("policy: 1\n«paramters»: {max: 1}\n", "BLC109", "did you mean parameters?"),
    ("policy: 1\nparameters: {«maximum»: 1}\n", "BLC109", ""),
    ("policy: 1\n«parameters»: {}\n", "BLC105", "min, max or both"),
    ("policy: 1\n«parameters»: {min: 2, max: 1}\n", "BLC105", "a max that is not below min"),
    ("policy: 1\nparameters: {max: «010»}\n", "BLC103", ""),
    ("policy: 1\nkv_bytes_per_token: {max: «80XB», dtype: bf16}\n", "BLC105", "a size such as 80GB or 80GiB"),
    ("policy: 1\nkv_bytes_per_token: {max: «0», dtype: bf16}\n", "BLC106", "more than 0"),
    ("policy: 1\n«kv_bytes_per_token»: {max: 1}\n", "BLC110", "one of fp32, bf16, fp16, fp8, int8"),
    ("policy: 1\n«head_dims»: []\n", "BLC105", "at least one"),
    ("policy: 1\nplacements: [«prae»]\n", "BLC107", "did you mean pre?"),
    ("policy: 1\nexpect: [«parameter»]\n", "BLC107", "did you mean parameters?"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "code", "said"), WRONG)
def test_a_policy_that_is_wrong(text: str, code: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_policy(text.replace("«", "").replace("»", "").encode(), "p.yaml")
    (found,) = caught.value.findings
    assert (found.place.line, found.place.column, found.place.width) == mark(text)
    assert found.code.name == code and said in (found.expected + found.hint)


@pytest.mark.parametrize(
    ("text", "size"),
    [("80GB", 80 * 10**9), ("80GiB", 80 * 2**30), ("1.5 KB", 1500), ("7", 7), ("0.5kib", 512), ("2TB", 2 * 10**12)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "80XB", "-1GB", "0GB", "1e3", "0.1", "8 0GB", "٨GB", "9" * 16])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="a size such as 80GB"):
        parse_size(text)


# The command line


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "blockc", *arguments], cwd=cwd, env=env, capture_output=True, text=True
    )


@pytest.mark.costly
def test_check_with_a_policy(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(BASE)
    (tmp_path / "p").write_text("policy: 1\nparameters: {max: 1e5}\n")
    done = run("check", "a.yaml", "--policy", "p", "--format", "json", cwd=tmp_path)
    (found,) = json.loads(done.stdout)["findings"]
    assert (done.returncode, found["code"], found["line"]) == (1, "BLC310", 4)
    assert (found["related"][0]["file"], found["related"][0]["line"]) == ("p", 2)
    (tmp_path / "p").write_text("policy: 1\nparamters: {max: 1e5}\n")
    done = run("check", "a.yaml", "--policy", "p", cwd=tmp_path)
    assert (
        done.returncode == 1 and done.stdout == "" and done.stderr.startswith("p:2:1: unknown key paramters [BLC109]")
    )
    assert run("check", "a.yaml", "--policy", "none", cwd=tmp_path).returncode == 2


def test_the_page_shows_what_is_said() -> None:
    page = (ROOT / "docs" / "policy.md").read_text()
    policy = page.split("```yaml\n")[1].split("```")[0]
    assert read_policy(policy.encode(), "p").keys.model_fields_set == set(PolicyKeys.model_fields)
    said = page.split("$ blockc check specs/gpt2.yaml --policy policy.yaml\n")[1].split("```")[0]
    (found,) = api.check_text(
        (ROOT / "specs/gpt2.yaml").read_bytes(), "specs/gpt2.yaml", (), read_policy(policy.encode(), "policy.yaml")
    )
    assert said == f"{render_finding(found)}\nblockc: 1 of 1 specs are wrong\n"


# Bounds in expect

BOUNDS = [
    ("{parameters: {max: 172352}}", ()),
    ("{parameters: {min: 172352, max: 1e9}}", ()),
    ("{«parameters»: {max: 172351}}", ("BLC301", "at most 172,351", "172352")),
    ("{«parameters»: {min: 2e5, max: 3e5}}", ("BLC301", "at least 200,000 and at most 300,000", "172352")),
    ("{«active_parameters»: {max: 1}}", ("BLC301", "at most 1", "172352")),
    ("{kv_values_per_token: {max: 256}}", ()),
    ("{«kv_values_per_token»: {max: 255}}", ("BLC301", "at most 255", "256")),
    ("{parameters: {«maximum»: 1}}", ("BLC109", "one of max, min", "maximum")),
    ("{«parameters»: {}}", ("BLC105", "min, max or both", "an empty mapping")),
    ("{«parameters»: {min: 3, max: 2}}", ("BLC105", "a max that is not below min", "a mapping with min, max")),
    ("{parameters: {max: «true»}}", ("BLC105", "a number", "true")),
    ("{parameters: «0»}", ("BLC106", "more than 0", "0")),
    ("{parameters: «1.5»}", ("BLC105", "an integer", "1.5")),
    ("{layers: {«layer»: {max: 3}}}", ("BLC105", "an integer", "a mapping with max")),
]


@pytest.mark.parametrize(("expect", "said"), BOUNDS)
def test_expect_takes_bounds(expect: str, said: tuple[str, ...]) -> None:
    text = change_base(f"expect: {expect}\n").decode()
    found = api.check_text(text.replace("«", "").replace("»", "").encode(), "s.yaml")
    if not said:
        assert found == ()
        return
    (one,) = found
    assert (one.code.name, one.expected, one.got) == said
    assert (one.place.line, one.place.column, one.place.width) == mark(text)


def test_bounds_stay_in_the_resolved_spec() -> None:
    expect = "expect: {parameters: {min: 1e5, max: 200000}, kv_values_per_token: {max: 256}}\n"
    spec = from_tree(parse(change_base(expect), "s"))
    again = from_tree(parse(resolve_to_yaml(spec), "r"))
    assert again.top.expect == spec.top.expect
    assert again.top.expect is not None and str(again.top.expect.parameters) == "at least 100,000 and at most 200,000"
