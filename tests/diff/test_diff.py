"""blockc diff: single changes and the exact classes they fall in, every pair of specs, and the command line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from blockc.checks.checking import check_text
from blockc.cli import app, run_guarded
from blockc.diff import CLASSES, Change, Diff, Side, diff
from blockc.language.spec import from_tree, load
from blockc.pipeline.compiled import compile_spec
from blockc.source import override, parse, render_finding
from tests.paths import ROOT
from tests.spec_text import BARE, changed
from tests.spec_variants import VARIANTS

SPECS = sorted((ROOT / "specs").glob("*.yaml"))
CHECKPOINT, NUMERIC, IO, COST, SOURCE = CLASSES

ROPED = """\
blockc: 1
name: roped
vocab: 32
width: 16
depth: 4
context: 64
attention: {heads: 4, kv_heads: 2, window: 16, softcap: 5, rope: {theta: 10000, pairing: half}}
mlp: {type: swiglu, width: 24}
norm: {type: rms, eps: 1e-5, placement: pre}
head: {tied: false, softcap: 30}
"""


def side(spec: str, *changes: str, file: str = "s.yaml") -> Side:
    tree = parse(spec, file)
    for change in changes:
        tree = override(tree, change)
    return Side(file, "\n".join((spec, *changes)).encode(), compile_spec(from_tree(tree)))


def of(before: str, *changes: str) -> Diff:
    return diff(side(before), side(before, *changes))


def lines(found: Diff, kind: str) -> list[str]:
    return [change.line for change in found.changes if change.kind == kind]


def only(found: Diff, kind: str) -> Change:
    (change,) = (each for each in found.changes if each.kind == kind)
    return change


# One change, and the classes that it falls in

SINGLE: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "eps": (("norm.eps=1e-6",), {NUMERIC}),
    "offset": (("norm.offset=1",), {NUMERIC}),
    "norm type": (("norm={type: layer, eps: 1e-5, bias: false, placement: pre}",), {NUMERIC}),
    "norm type with a bias": (("norm={type: layer, eps: 1e-5, bias: true, placement: pre}",),
                              {CHECKPOINT, NUMERIC, COST}),
    "rope theta": (("attention.rope.theta=500000",), {NUMERIC}),
    "pairing": (("attention.rope.pairing=interleaved",), {NUMERIC}),
    "partial rope": (("attention.rope.dims=2",), {NUMERIC}),
    "rope scaling": (("attention.rope.scaling={type: llama3, factor: 8, low_freq_factor: 1, high_freq_factor: 4,"
                      " original: 16}",), {NUMERIC}),
    "rope by length": (("attention.rope.scaling={type: dynamic, factor: 8, original: 16}",), {NUMERIC}),
    "no rope": (("attention.rope=none", "positions=none"), {NUMERIC}),
    "window": (("attention.window=8",), {NUMERIC, COST}),
    "no window": (("attention.window=none",), {NUMERIC, COST}),
    "softcap of scores": (("attention.softcap=none",), {NUMERIC}),
    "softcap of logits": (("head.softcap=20",), {NUMERIC}),
    "no softcap of logits": (("head.softcap=none",), {NUMERIC}),
    "scale of scores": (("attention.scale=0.25",), {NUMERIC}),
    "scale of the embedding": (("embedding={scale: sqrt_width}",), {NUMERIC}),
    "scale of the embedding, by a root": (("embedding={scale: {rsqrt: 2}}",), {NUMERIC}),
    "activation": (("mlp.type=geglu",), {NUMERIC}),
    "gated to plain": (("mlp.type=gelu",), {CHECKPOINT, NUMERIC, COST}),
    "placement pre to sandwich": (("norm.placement=sandwich",), {CHECKPOINT, COST}),
    "placement pre to branch": (("norm.placement=branch",), {CHECKPOINT, NUMERIC}),
    "placement pre to post": (("norm.placement=post", "norm.final=true"), {CHECKPOINT, NUMERIC}),
    "no final norm": (("norm.final=false",), {CHECKPOINT, COST}),
    "heads of other width": (("attention.heads=8",), {CHECKPOINT, IO, COST}),
    "kv_heads": (("attention.kv_heads=4",), {CHECKPOINT, IO, COST}),
    "head_dim": (("attention.head_dim=8",), {CHECKPOINT, IO, COST}),
    "mlp width": (("mlp.width=32",), {CHECKPOINT, COST}),
    "mlp bias": (("mlp.bias=[down]",), {CHECKPOINT, COST}),
    "attention bias": (("attention.bias=[q, k]",), {CHECKPOINT, COST}),
    "qk_norm": (("attention.qk_norm={over: head, weights: shared}",), {CHECKPOINT, COST}),
    "v_norm": (("attention.v_norm={over: head, weight: false}",), {NUMERIC}),
    "a norm before o": (("attention.sub_norm={weight: true}",), {CHECKPOINT, COST}),
    "a norm before down": (("mlp.sub_norm={weight: false}",), {NUMERIC}),
    "v_from": (("attention.v_from=k",), {CHECKPOINT, NUMERIC, COST}),
    "width": (("width=32",), {CHECKPOINT, IO, COST}),
    "tied": (("head.tied=true",), {CHECKPOINT, COST}),
    "bias of the head": (("head.bias=true",), {CHECKPOINT, COST}),
    "learned positions": (("positions={type: learned}",), {CHECKPOINT, COST}),
    "sines": (("positions={type: sinusoidal}",), {NUMERIC}),
    "depth": (("depth=6",), {CHECKPOINT, IO, COST}),
    "vocab": (("vocab=40",), {CHECKPOINT, IO, COST}),
    "context": (("context=128",), {COST}),
    "both ways": (("attention.causal=false", "attention.window=none"), {NUMERIC, IO, COST}),
    "init": (("init={std: 0.01}",), {SOURCE}),
    "name": (("name=other",), {SOURCE}),
    "description": (("description=other",), {SOURCE}),
    "expect": (("expect={layers: {layer: 4}}",), {SOURCE}),
    "spelling": (("norm.eps=0.00001",), {SOURCE}),
    "a derived value said": (("attention.head_dim=4",), {SOURCE}),
    "the order of the MLP and attention": (
        ("norm={type: rms, eps: 1e-5}", "block=[{residual: [mlp_norm, mlp]}, {residual: [attention_norm, attention]}]"),
        {NUMERIC},
    ),
    "a word said by its term": (
        ("norm={type: rms, eps: 1e-5}", "block=[{residual: [attention_norm, attention]}, {residual: [mlp_norm, mlp]}]"),
        {SOURCE},
    ),
    "no residual": (("norm={type: rms, eps: 1e-5}", "block=[attention_norm, attention, mlp_norm, mlp]"), {NUMERIC}),
}  # fmt: skip


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_change_falls_in_exactly_these_classes(name: str) -> None:
    changes, classes = SINGLE[name]
    found = of(ROPED, *changes)
    assert set(found.classes) == classes, found.text()


@pytest.mark.parametrize("name", SINGLE)
def test_the_way_back_falls_in_the_same_classes(name: str) -> None:
    changes, classes = SINGLE[name]
    found = diff(side(ROPED, *changes), side(ROPED))
    assert set(found.classes) == classes, found.text()


@pytest.mark.parametrize(
    ("changes", "what", "said"),
    [
        (("norm.eps=1e-6",), NUMERIC,
         "norm.eps: 1e-05 -> 1e-06, 9 times (layers.{i}.attention_norm, layers.{i}.mlp_norm, final_norm)"),
        (("attention.window=none",), NUMERIC, "attention.window: 16 -> none, 4 times (layers.{i}.attention)"),
        (("attention.rope.theta=500000",), NUMERIC,
         "attention.rope.theta: 10000 -> 500000, 4 times (layers.{i}.attention)"),
        (("attention.rope.pairing=interleaved",), NUMERIC,
         "attention.rope.pairing: half -> interleaved, 4 times (layers.{i}.attention)"),
        (("attention.rope=none", "positions=none"), NUMERIC,
         "attention.rope: {theta: 10000, pairing: half} -> none, 4 times (layers.{i}.attention)"),
        (("mlp.type=geglu",), NUMERIC, "mlp.type: swiglu -> geglu, 4 times (layers.{i}.mlp)"),
        (("head.softcap=none",), NUMERIC, "head.softcap: 30 -> none (head)"),
        (("embedding={scale: 2}",), NUMERIC, "embedding.scale: none -> 2 (embedding)"),
        (("embedding={norm: {type: rms, eps: 1e-5}}",), CHECKPOINT, "embedding_norm.weight: added, (16,)"),
        (("head.tied=true",), CHECKPOINT, "head.weight: (32, 16) of its own -> tied to embedding.weight"),
        (("mlp.bias=[down]",), CHECKPOINT, "layers.{i}.mlp.down.bias: added, (16,), 4 times"),
        (("context=128",), COST, "context: 64 -> 128 (x 2)"),
        (("vocab=40",), IO, "logits: float[B, S, 32] -> float[B, S, 40]"),
        (("depth=6",), CHECKPOINT, "layers 4 to 5: added, 18 tensors"),
        (("init={std: 0.01}",), SOURCE, "init: added, {std: 0.01}"),
        (("norm.eps=0.00001",), SOURCE, "text: comments, order or spelling"),
    ],
)  # fmt: skip
def test_a_single_change_is_said_in_one_line(changes: tuple[str, ...], what: str, said: str) -> None:
    assert lines(of(ROPED, *changes), what) == [said]


def test_the_other_lines_of_a_change_of_sizes() -> None:
    found = of(ROPED, "attention.kv_heads=4")
    assert lines(found, CHECKPOINT) == [
        f"layers.{{i}}.attention.{matrix}.weight: (8, 16) -> (16, 16), 4 times" for matrix in "kv"
    ]
    assert "past_key_values.{i}.key: float[B, 2, P, 4] -> float[B, 4, P, 4], 4 times" in lines(found, IO)
    assert len(lines(found, IO)) == 4
    assert lines(found, COST)[-1] == "cache bytes per token: 128 -> 256 (x 2)"


def test_the_tensors_of_all_experts_are_one_line() -> None:
    """A tensor for each expert: 8 in each of 4 layers."""
    experts = "mlp.experts={count: 8, active: 2, router: {scores: softmax, normalise: true}}"
    said = (experts, "checkpoint=qwen-moe")
    found = diff(side(ROPED, *said), side(ROPED, *said, "mlp.width=20"))
    assert lines(found, CHECKPOINT) == [
        *(f"model.layers.{{i}}.mlp.experts.{{e}}.{matrix}_proj.weight: (24, 16) -> (20, 16), 32 times"
          for matrix in ("gate", "up")),
        "model.layers.{i}.mlp.experts.{e}.down_proj.weight: (16, 24) -> (16, 20), 32 times",
    ]  # fmt: skip


def test_fewer_wider_heads_are_another_function_of_the_same_tensors() -> None:
    found = of(changed("attention: {heads: 4}"), "attention.heads=2")
    assert CHECKPOINT not in found.classes
    assert lines(found, NUMERIC) == ["attention.heads: 4 -> 2, 2 times (layers.{i}.attention)"]


def test_heads_packed_together_in_a_file_are_other_rows_in_it() -> None:
    spec = (ROOT / "specs" / "pythia-410m.yaml").read_text().split("expect:")[0]
    found = of(spec, "attention.heads=8")
    joined = "(1024, 1024), (1024, 1024), (1024, 1024) in"
    assert lines(found, CHECKPOINT)[0] == (
        "gpt_neox.layers.{i}.attention.query_key_value.weight: "
        f"{joined} 16 groups -> {joined} 8 groups, 24 times (its rows are others)"
    )
    assert set(found.classes) == {CHECKPOINT, NUMERIC, IO}


# Labels, kinds and layouts

OWN = (
    f"{BARE}block: [{{residual: [mlp_norm, LABEL]}}, {{residual: [attention_norm, attention]}}]\n"
    "parts: {LABEL: {mlp: {width: 12}}}\n"
)


def renamed(label: str, *changes: str) -> Side:
    return side(changed(OWN.replace("LABEL", label)), *changes)


def test_a_label_called_otherwise_is_a_rename() -> None:
    found = diff(renamed("wide"), renamed("feed"))
    assert found.classes == (CHECKPOINT,)
    assert lines(found, CHECKPOINT) == [
        f"layers.{{i}}.wide.{m}.weight: layers.{{i}}.wide.{m}.weight -> layers.{{i}}.feed.{m}.weight, 2 times (renamed)"
        for m in ("up", "down")
    ]


def test_a_norm_called_otherwise_is_a_rename_and_one_elsewhere_is_not() -> None:
    inner = f"{BARE}block: [{{residual: [attention_norm, attention]}}, {{residual: [mlp_norm, mlp]}}]"
    other = inner.replace("mlp_norm", "second_norm")
    found = diff(side(changed(inner)), side(changed(other)))
    assert found.classes == (CHECKPOINT,)
    assert only(found, CHECKPOINT).note == "renamed"
    moved = diff(side(changed(inner)), side(changed(inner.replace("mlp_norm, mlp", "mlp, mlp_post_norm"))))
    assert {change.note for change in moved.changes if change.kind == CHECKPOINT} == {""}
    assert set(moved.classes) == {CHECKPOINT, NUMERIC}


def test_a_renamed_part_is_still_compared() -> None:
    found = diff(renamed("wide"), renamed("feed", "mlp.type=gelu"))
    assert NUMERIC in found.classes
    assert "mlp.type: relu -> gelu, 2 times (layers.{i}.wide)" in lines(found, NUMERIC)


def test_kinds_that_change_places_are_another_function() -> None:
    kinds = "layers: {pattern: [a, b], kinds: {a: {attention: {window: 4}}, b: {}}}"
    found = diff(side(changed(kinds)), side(changed(kinds.replace("[a, b]", "[b, a]"))))
    assert found.classes == (NUMERIC,)
    assert lines(found, NUMERIC) == [
        "attention.window: 4 -> none (layers.0.attention)",
        "attention.window: none -> 4 (layers.1.attention)",
    ]


def test_kinds_that_are_only_called_otherwise_are_text() -> None:
    kinds = "layers: {pattern: [a, b], kinds: {a: {attention: {window: 4}}, b: {}}}"
    other = "layers: {pattern: [near, far], kinds: {near: {attention: {window: 4}}, far: {}}}"
    assert diff(side(changed(kinds)), side(changed(other))).classes == (SOURCE,)


def test_another_layout_is_said_once() -> None:
    spec = (ROOT / "specs" / "llama3-8b.yaml").read_text().split("expect:")[0]
    found = of(spec, "checkpoint=none")
    assert found.classes == (CHECKPOINT,)
    assert only(found, CHECKPOINT).line.startswith("checkpoint: llama -> none (the layout")


def test_names_are_those_of_the_layout_where_both_have_it() -> None:
    spec = (ROOT / "specs" / "llama3-8b.yaml").read_text().split("expect:")[0]
    found = of(spec, "head.tied=true")
    assert lines(found, CHECKPOINT) == [
        "lm_head.weight: (128256, 4096) of its own -> tied to model.embed_tokens.weight"
    ]
    assert lines(of(spec, "mlp.width=1024"), CHECKPOINT)[0] == (
        "model.layers.{i}.mlp.gate_proj.weight: (14336, 4096) -> (1024, 4096), 32 times"
    )


# Places


def at(found: Diff, what: str) -> tuple[str, int]:
    place = next(change.place for change in found.changes if change.what == what)
    assert place is not None
    return place.file, place.line


def test_a_change_stands_at_its_key_in_the_new_file_and_a_removal_at_the_old_one() -> None:
    new = ROPED.replace("window: 16, ", "").replace("eps: 1e-5", "eps: 1e-6").replace("name:", "# comment\nname:")
    found = diff(side(ROPED, file="a.yaml"), side(new, file="b.yaml"))
    assert at(found, "norm.eps") == ("b.yaml", 10)
    assert at(found, "attention.window") == ("a.yaml", 7)
    uncapped = ROPED.replace(", softcap: 30", "")
    assert at(diff(side(ROPED, file="a.yaml"), side(uncapped, file="b.yaml")), "head.softcap") == ("a.yaml", 10)
    sized = diff(side(ROPED, file="a.yaml"), side(ROPED.replace("width: 24", "width: 32"), file="b.yaml"))
    assert at(sized, "layers.{i}.mlp.up.weight") == ("b.yaml", 8)
    wider = diff(side(ROPED, file="a.yaml"), side(ROPED.replace("width: 16\n", "width: 32\n"), file="b.yaml"))
    assert at(wider, "layers.{i}.mlp.up.weight") == at(wider, "embedding.weight") == ("b.yaml", 4)
    assert at(wider, "past_key_values.{i}.key") == ("b.yaml", 4)


# Every pair


def test_the_large_llama_keeps_the_function_of_the_small_one() -> None:
    small, large = (side((ROOT / "specs" / f"llama3-{size}.yaml").read_text()) for size in ("8b", "70b"))
    assert diff(small, large).classes == (CHECKPOINT, IO, COST)


def least(path: Path) -> int:
    """Layers enough for one of each kind."""
    layers = load(path).layers
    kinds = [layer.kind for layer in layers]
    return max(2, *(kinds.index(kind) + 1 for kind in kinds))


@pytest.mark.costly
def test_every_pair_of_specs_is_compared() -> None:
    sides = [side(path.read_text(), f"depth={least(path)}", file=path.name) for path in SPECS]
    found: dict[tuple[str, str], set[str]] = {}
    for a, b in product(sides, sides):
        found[a.file, b.file] = set((made := diff(a, b)).classes)
        assert (not made.changes) == (a is b), made.text()
        assert SOURCE not in made.classes
        assert len(made.text().splitlines()) < 80
    assert all(found[a, b] == found[b, a] for a, b in found)


VARIED = {name: side(changed(change)) for name, change in VARIANTS.items() if name != "text"}  # that has no layout


@pytest.mark.parametrize("name", VARIED)
def test_variants_differ_as_their_meanings_do(name: str) -> None:
    names = list(VARIED)
    for step in (0, 1, 7):
        a, b = VARIED[name], VARIED[names[(names.index(name) + step) % len(names)]]
        found = diff(a, b)
        alike = a.model.decoder.semantic_hash == b.model.decoder.semantic_hash
        assert set(found.classes) <= {SOURCE} if alike else set(found.classes) - {SOURCE}, found.text()
        assert set(found.classes) == set(diff(b, a).classes)


# The command line


@dataclass
class Done:
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def command(*arguments: str, cwd: Path = ROOT) -> Done:
        monkeypatch.chdir(cwd)
        code = run_guarded(lambda: app(["diff", *arguments], standalone_mode=False))
        said = capsys.readouterr()
        return Done(code, str(said.out), str(said.err))

    return command


def test_the_command_line_compares_names_and_exits_as_it_is_told(run: Run) -> None:
    done = run("llama3-8b", "llama3-70b", "--fail-on", "CHECKPOINT,IO")
    assert done.code == 1
    assert done.out.splitlines()[0].endswith(": CHECKPOINT, IO, COST")
    assert "llama3-70b.yaml:4]" in done.out
    assert run("llama3-8b", "llama3-70b", "--fail-on", "NUMERIC").code == 0
    same = run("llama3-8b", "llama3-8b", "--fail-on", ",".join(CLASSES))
    assert (same.code, same.out.rstrip()[-9:]) == (0, "no change")


def test_json_has_a_version_and_a_place_for_each_change(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(ROPED)
    (tmp_path / "b.yaml").write_text(ROPED.replace("eps: 1e-5", "eps: 1e-6"))
    done = run("a.yaml", "b.yaml", "--json", cwd=tmp_path)
    data = json.loads(done.out)
    where = {"file": "b.yaml", "line": 9, "column": 19}
    note = "layers.{i}.attention_norm, layers.{i}.mlp_norm, final_norm"
    assert data == {
        "format": 1, "a": "a.yaml", "b": "b.yaml", "classes": ["NUMERIC"],
        "changes": [{"class": "NUMERIC", "what": "norm.eps", "before": "1e-05", "after": "1e-06", "times": 9,
                     "note": note, "where": where}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("llama3-8b", "llama3-70b", "--fail-on", "IO,NOISE"), 2, "--fail-on NOISE: expected some of CHECKPOINT,"),
        (("llama3-8b",), 2, "1 specs given; expected two, or one with --against git:REF"),
        (("llama3-8b", "gpt2", "--against", "git:HEAD"), 2, "expected one beside --against"),
        (("llama3-8b", "absent.yaml"), 2, "absent.yaml: no such file or folder"),
        (("llama3-8b", "--against", "HEAD"), 2, "expected git:REF"),
        (("llama3-8b", "--against", "git:--output=x"), 2, "is not a revision of git"),
        (("llama3-8b", "--against", "git:HEAD:README.md"), 2, "is not a revision of git"),
    ],
)
def test_what_is_asked_wrongly_is_refused(run: Run, arguments: tuple[str, ...], code: int, message: str) -> None:
    done = run(*arguments)
    assert done.code == code
    assert message in done.err
    assert "Traceback" not in done.err


def test_a_wrong_spec_has_its_findings(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(ROPED)
    (tmp_path / "b.yaml").write_text(ROPED.replace("kv_heads: 2", "kv_heads: 3"))
    done = run("a.yaml", "b.yaml", cwd=tmp_path)
    assert done.code == 1
    assert done.err.startswith("b.yaml:7:33: attention.kv_heads 3 does not divide")


def committed(file: Path, text: str) -> None:
    """A repository of one commit, in the folder above the file's."""

    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=file.parent.parent, check=True, capture_output=True)

    file.parent.mkdir()
    file.write_text(text)
    git("init", "-q")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one")


def test_a_revision_that_is_wrong_has_the_findings_of_check(run: Run, tmp_path: Path) -> None:
    """Of keys and of terms at once."""
    spec = tmp_path / "below" / "s.yaml"
    wrong = ROPED.replace(", placement: pre", "").replace("mlp:", "widht: 1\nmlp:") + "block: [attention, mlp, mlp]\n"
    committed(spec, wrong)
    found = check_text(wrong.encode(), "git:HEAD:below/s.yaml")
    assert [each.message for each in found] == ["unknown key widht", "label mlp stands twice in one block"]
    spec.write_text(ROPED)
    done = run("below/s.yaml", "--against", "git:HEAD", cwd=tmp_path)
    assert done.code == 1
    assert done.err == "".join(f"{render_finding(each)}\n" for each in found)


def test_a_file_is_compared_with_what_git_has_of_it(run: Run, tmp_path: Path) -> None:
    spec = tmp_path / "below" / "s.yaml"
    committed(spec, ROPED)
    assert "no change" in run("below/s.yaml", "--against", "git:HEAD", cwd=tmp_path).out
    spec.write_text(ROPED.replace("  ", " ") + "# a comment\n")
    done = run("below/s.yaml", "--against", "git:HEAD", cwd=tmp_path)
    assert done.out.splitlines()[0] == "git:HEAD:below/s.yaml -> below/s.yaml: SOURCE"
    spec.write_text(ROPED.replace(", window: 16", ""))
    done = run("below/s.yaml", "--against", "git:HEAD", cwd=tmp_path)
    assert "attention.window: 16 -> none, 4 times (layers.{i}.attention)  [git:HEAD:below/s.yaml:7]" in done.out
    absent = run("below/s.yaml", "--against", "git:nowhere", cwd=tmp_path)
    assert absent.code == 2
    assert "below/s.yaml at nowhere: " in absent.err


def test_experts_of_a_token_are_compared_beside_experts_of_another_size(tmp_path: Path) -> None:
    """No tensor's shape shows how many experts a token takes."""
    text = (ROOT / "specs" / "mixtral-8x7b.yaml").read_text(encoding="utf-8")
    for old, new in (("active: 2", "active: 4"), ("width: 14336", "width: 7168"), ("count: 8", "count: 16")):
        assert text.count(old) == 1
        text = text.replace(old, new)
    other = tmp_path / "other.yaml"
    other.write_text("\n".join(line for line in text.splitlines() if not line.startswith("expect")) + "\n")
    paths = (ROOT / "specs" / "mixtral-8x7b.yaml", other)
    sides = (Side(path.name, path.read_bytes(), compile_spec(load(path))) for path in paths)
    found = {(each.kind, each.what, each.before, each.after) for each in diff(*sides).changes}
    assert ("NUMERIC", "mlp.experts.active", "2", "4") in found
