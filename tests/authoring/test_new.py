"""blockc new: the textbook exercise. A budget and a family give width, depth and heads, and a spec that is clean."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from blockc import api
from blockc.authoring.newspec import NoDesignError, find_nearest, new_spec, read_family
from blockc.cli import app, run_guarded
from blockc.diagnostics.examples import BASE, change_base
from blockc.language.fmt import format_spec
from blockc.language.spec import load
from blockc.source import MappingNode, parse, read_tree, to_plain, tree_at
from tests.paths import ROOT


def spec(name: str) -> MappingNode:
    return read_tree(ROOT / "specs" / f"{name}.yaml")


def tree(keys: str) -> MappingNode:
    return parse(change_base(keys), "s.yaml")


def run(*arguments: str, cwd: Path) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with chdir(cwd), redirect_stdout(out), redirect_stderr(err):
        code = run_guarded(lambda: app(["new", *arguments], standalone_mode=False))
    return code, out.getvalue(), err.getvalue()


# The exercise


def test_a_hundred_billion_in_the_ratios_of_gpt3() -> None:
    """12 layers of width^2 and width = 128 depth give width^3 = 128e11 / 12: 10,217, which is 80 heads of 128."""
    sizes, count = find_nearest(read_family(spec("gpt3-175b"), "gpt3-175b"), 100e9)
    assert (sizes.width, sizes.depth, sizes.heads, sizes.head_dim, sizes.mlp) == (10240, 80, 80, 128, 40960)
    # By hand: a layer has 12 width^2, 13 width of biases and norms; then the tables and the last norm.
    assert count == 80 * (12 * 10240**2 + 13 * 10240) + (50257 + 2048) * 10240 + 2 * 10240


def test_a_hundred_billion_in_the_ratios_of_llama() -> None:
    sizes, count = find_nearest(read_family(spec("llama3-8b"), "llama3-8b"), 100e9)
    assert abs(count / 100e9 - 1) <= 0.03 and 0.9 < sizes.aspect / 128 < 1.1
    assert (sizes.head_dim, sizes.heads * 128, sizes.heads // sizes.kv_heads) == (128, sizes.width, 4)
    assert sizes.mlp * 2 == sizes.width * 7 and sizes.width % 128 == 0
    # A layer: q and o, k and v, gate and up and down, two norms; two tables; the last norm.
    layer = 2 * sizes.width**2 + sizes.width**2 // 2 + 3 * sizes.width * sizes.mlp + 2 * sizes.width
    assert count == sizes.depth * layer + 2 * 128256 * sizes.width + sizes.width


BUDGETS = [100e6, 350e6, 7e9, 70e9, 500e9]


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", ["gpt3-175b", "llama3-8b"])
def test_every_budget_is_met(name: str, budget: float) -> None:
    kept = read_family(spec(name), name)
    sizes, count = find_nearest(kept, budget)
    assert abs(count / budget - 1) <= 0.03
    assert sizes.heads % sizes.kv_heads == 0 and sizes.width % 64 == 0 and sizes.mlp % 64 == 0
    if budget > 1e9:  # below, tables weigh as much as layers
        assert sizes.head_dim == kept.sizes.head_dim and 0.6 < sizes.aspect / kept.sizes.aspect < 1.6


@pytest.mark.parametrize("name", ["gpt3-175b", "llama3-8b"])
def test_a_family_is_its_own_size(name: str) -> None:
    """The budget that a model has gives the model."""
    kept = read_family(spec(name), name)
    expect = load(ROOT / "specs" / f"{name}.yaml").top.expect
    assert expect is not None and isinstance(expect.parameters, int)
    assert find_nearest(kept, expect.parameters) == (kept.sizes, expect.parameters)


FAMILIES = ["gemma2-9b", "phi-2", "qwen3-0.6b", "llama3.1-405b"]


@pytest.mark.parametrize("name", FAMILIES)
def test_other_families_keep_what_is_no_size(name: str) -> None:
    old = spec(name)
    text, sizes, count = new_spec("a", old, name, 3e9)
    assert api.check_text(text.encode(), "a.yaml") == ()
    assert format_spec(text.encode(), "a.yaml") == text.encode()
    assert abs(count / 3e9 - 1) <= 0.03 and f"expect: {{parameters: {count}}}" in text
    new = parse(text, "a.yaml")
    for key in ("vocab", "norm", "head", "layers", "positions", "embedding"):
        assert said(new, key) == said(old, key)
    assert said(new, "attention.rope") == said(old, "attention.rope")
    assert not {"checkpoint", "description"} & set(new.entries)
    assert sizes.depth % (2 if name == "gemma2-9b" else 1) == 0


def said(tree: MappingNode, path: str) -> object:
    found = tree_at(tree, tuple(path.split(".")))
    return found and to_plain(found)


@pytest.mark.parametrize("name", ["phi-4-mini", "gemma3-4b"])
def test_a_scaling_that_says_no_end_leaves_the_context(name: str) -> None:
    old = spec(name)
    assert read_family(old, name).data["context"] == said(old, "context")


def test_a_context_beyond_the_scaling_of_rope_is_cut() -> None:
    text, _, _ = new_spec("a", spec("llama3.1-405b"), "llama3.1-405b", None)
    assert "\ncontext: 65536\n" in text


REFUSED = [
    ("layers: {pattern: [a, b], kinds: {a: {}, b: {mlp: {width: 128}}}}\n", "layers of several sizes"),
    ("layers: {pattern: [a, b], kinds: {a: {}, b: {attention: {heads: 2}}}}\n", "layers of several sizes"),
    ("layers: {first: [a], pattern: [b], kinds: {a: {}, b: {attention: {window: 8}}}}\n", "first or last layers"),
    (
        "norm: {type: rms, eps: 1e-5}\nblock: [attention, mlp, more]\nparts: {more: {mlp: {width: 64}}}\n",
        "layers of several sizes",
    ),
    ("norm: {type: rms, eps: 1e-5}\nblock: [attention]\nmlp: none\n", "no attention and mlp at the top level"),
]


@pytest.mark.parametrize(("keys", "message"), REFUSED)
def test_a_family_of_no_one_shape(keys: str, message: str) -> None:
    with pytest.raises(NoDesignError, match=message):
        read_family(tree(keys), "s")


def test_a_budget_that_no_design_meets() -> None:
    """Llama's tables alone have 256,512 numbers for each of width's."""
    with pytest.raises(
        NoDesignError, match=r"no design of s's ratios has 1e7 parameters within 3%; the nearest has \d"
    ):
        find_nearest(read_family(spec("llama3-8b"), "s"), 10e6)


# The command line


def test_a_spec_is_written(tmp_path: Path) -> None:
    code, out, _ = run("my-100b", "--like", "llama3-8b", "--parameters", "100B", cwd=tmp_path)
    text = (tmp_path / "my-100b.yaml").read_text()
    assert code == 0 and api.check(tmp_path / "my-100b.yaml") == ()
    assert text.startswith(
        "blockc: 1\nname: my-100b\nvocab: 128256\n# The ratios of llama3-8b: heads of 128, 4 to a key-"
    )
    assert "# The budget: 1e11 parameters; this has -1.5%\n" in text
    page = (ROOT / "docs" / "ci.md").read_text()
    assert f"$ blockc new my-100b --like llama3-8b --parameters 100B\n{out}```" in page


def test_without_a_budget_the_sizes_stay(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(BASE)
    code, out, _ = run("b", "--like", "base.yaml", "--out", "x.yaml", cwd=tmp_path)
    assert (code, out.split(":")[0]) == (0, "x.yaml")
    old, new = load(tmp_path / "base.yaml"), load(tmp_path / "x.yaml")
    assert (new.name, new.top.width, new.layers[0].keys) == ("b", old.top.width, old.layers[0].keys)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["../x", "--like", "gpt2"], 2, "../x: not a name"),
        (["con", "--like", "gpt2"], 2, "con: a name that Windows keeps for a device"),
        (["x\n", "--like", "gpt2"], 2, "not a name"),
        (["a", "--like", "gpt9"], 2, "gpt9: no such file or folder"),
        (["a", "--like", "gpt2", "--parameters", "nan"], 2, "--parameters nan: expected a number"),
        (["a", "--like", "gpt2", "--parameters", "-1"], 2, "expected a number from 1e3 to 1e15"),
        (["a", "--like", "block-4x4", "--parameters", "1e9"], 1, "would have findings"),
        (["a", "--like", "gpt2", "--parameters", "2e3"], 1, "no design of gpt2's ratios has 2e3 parameters within 3%"),
        (["there", "--like", "gpt2"], 2, "there.yaml: exists; give --force to replace it"),
    ],
)
def test_what_is_refused_writes_nothing(arguments: Sequence[str], code: int, message: str, tmp_path: Path) -> None:
    (tmp_path / "there.yaml").symlink_to("nowhere")
    got, out, err = run(*arguments, cwd=tmp_path)
    assert (got, out) == (code, "") and message in err
    assert [path.name for path in tmp_path.iterdir()] == ["there.yaml"]


def test_force_writes_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("old")
    assert run("a", "--like", "gpt2", "--force", cwd=tmp_path)[0] == 0
    assert api.check(tmp_path / "a.yaml") == ()
