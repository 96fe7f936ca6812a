"""One meaning however it is said: hashes, the resolved spec, the twin, and an architecture that no word names."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from blockc.graph.shrink import shrink
from blockc.ir import Function, callee_of, functions_of, is_call
from blockc.language.algebra import elaborate, leaves_of
from blockc.language.parts import Attention
from blockc.language.spec import Spec, from_tree, load, resolve_to_yaml
from blockc.ops import Attention as AttentionOp
from blockc.ops import RelativeBias, RmsNorm
from blockc.pipeline.compiled import compile_spec
from blockc.proof import prove
from blockc.source import parse, to_plain
from tests.paths import ROOT
from tests.spec_text import finding, made, spec
from tests.spec_variants import BIG, HEADWISE, LARGE, LLAMA3, MACARON, VARIANTS, rope, two
from tests.structures import ops, tells_apart

SPECS = sorted((ROOT / "specs").glob("*.yaml"))
each_variant = pytest.mark.parametrize("variant", VARIANTS)
each_spec = pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)


def variant_spec(name: str) -> Spec:
    return spec(VARIANTS[name])


def hash_of(read: Spec) -> str:
    return elaborate(read).semantic_hash


def test_the_variants_differ() -> None:
    assert len({hash_of(variant_spec(name)) for name in VARIANTS}) >= len(VARIANTS) - 1  # text is outside the meaning


# One value, one hash


def norm(eps: str) -> str:
    return f"norm: {{type: rms, eps: {eps}, placement: pre}}"


@pytest.mark.parametrize("eps", ["1.0e-5", "0.00001", "1E-5", "10e-6", ".00001"])
def test_a_number_has_one_hash(eps: str) -> None:
    assert hash_of(spec(norm(eps))) == hash_of(spec(norm("1e-5")))
    assert resolve_to_yaml(spec(norm(eps))) == resolve_to_yaml(spec(norm("1e-5")))


@pytest.mark.parametrize("theta", ["1000000", "1.0e6", "1000000.0", "10e5"])
def test_a_number_gives_one_graph(theta: str) -> None:
    rotary = "attention: {heads: 2, rope: {theta: %s, pairing: half}}"
    one, other = (made(rotary % text, drop="positions") for text in ("1e6", theta))
    assert one.graph_txt() == other.graph_txt()
    assert one.model_py() == other.model_py()
    assert one.resolved_yaml() == other.resolved_yaml()
    assert one.onnx() == other.onnx()


SAME = [
    ("attention: {heads: 2, kv_heads: 2}", "attention: {heads: 2}"),
    ("attention: {heads: 2, head_dim: 4}", "attention: {heads: 2}"),
    ("attention: {heads: 2, scale: 0.5}", "attention: {heads: 2}"),
    ("attention: {heads: 2, causal: true}", "attention: {heads: 2}"),
    ("attention: {heads: 2, bias: [o, q]}", "attention: {heads: 2, bias: [q, o]}"),
    ("attention: {heads: 2, bias: []}", "attention: {heads: 2}"),
    ("head: {tied: true, bias: false}", "head: {tied: true}"),
    (f"attention: {{heads: 2, {HEADWISE[:-1]}, type: rms, eps: 1e-5}}}}", f"attention: {{heads: 2, {HEADWISE}}}"),
    (f"attention: {{heads: 2, {HEADWISE[:-1]}, offset: 0}}}}", f"attention: {{heads: 2, {HEADWISE}}}"),
    ("embedding: {scale: sqrt_width}", "embedding: {scale: 2.8284271247461903}"),
    ("embedding: {scale: {rsqrt: 16}}", "embedding: {scale: 0.25}"),
    ("norm: {type: rms, eps: 1e-5, offset: 0, placement: pre}", norm("1e-5")),
    ("norm: {type: rms, eps: 1e-5, final: true, placement: pre}", norm("1e-5")),
    (rope(", dims: 4"), rope()),
    (rope(", pairs: 2"), rope()),
    (rope(f", {LLAMA3}"), rope(f", {LLAMA3.replace('8', '8.0')}")),
    ("name: other", "name: tiny"),
    ("description: words", ""),
    ("init: {std: 0.5}", ""),
    ("expect: {parameters: 7}", ""),
    ("checkpoint: llama", ""),
    ("layers: {pattern: [a], kinds: {a: {}}}", ""),
    ("layers: {first: [a], last: [b], kinds: {a: {}, b: {}}}", ""),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_one_function_has_one_hash(one: str, other: str) -> None:
    assert hash_of(spec(one)) == hash_of(spec(other))


DIFFERENT = [
    ("attention: {heads: 2, kv_heads: 1}", "attention: {heads: 2}"),
    ("head: {tied: true, bias: true}", "head: {tied: true}"),
    (rope().replace("half", "interleaved"), rope()),
    (f"attention: {{heads: 2, {HEADWISE}}}", "attention: {heads: 2}"),
    (f"attention: {{heads: 2, {HEADWISE}}}", "attention: {heads: 2, qk_norm: {over: projection}}"),
    (f"attention: {{heads: 2, {HEADWISE}}}", f"attention: {{heads: 2, {HEADWISE[:-1]}, eps: 0.01}}}}"),
    (rope(", dims: 2"), rope(", pairs: 1")),
    ("mlp: {type: gelu, width: 16}", "mlp: {type: gelu_tanh, width: 16}"),
    ("mlp: {type: geglu, width: 16}", "mlp: {type: geglu_tanh, width: 16}"),
    ("head: {tied: false}", "head: {tied: true}"),
    ("norm: {type: rms, eps: 1e-5, final: false, placement: pre}", norm("1e-5")),
    ("context: 33", "context: 32"),
    ("depth: 3", "depth: 2"),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_another_function_has_another_hash(one: str, other: str) -> None:
    assert hash_of(spec(one)) != hash_of(spec(other))


def test_every_mlp_is_a_function_of_its_own() -> None:
    types = ("swiglu", "geglu", "geglu_tanh", "gelu", "gelu_tanh", "relu")
    all_ = [made(f"mlp: {{type: {type_}, width: 16, bias: [up, down]}}") for type_ in types]
    assert len({whole.decoder.semantic_hash for whole in all_}) == len({w.graph_txt() for w in all_}) == len(types)
    gated, plain_ = all_[0].parameters, all_[3].parameters
    assert [whole.parameters for whole in all_] == [gated] * 3 + [plain_] * 3
    assert gated - plain_ == 2 * 8 * 16


# What a norm of queries and keys takes over


def qk_norms(read: Spec) -> list[tuple[str, float, float]]:
    """Name, eps and offset of each such norm, layer by layer."""
    function = compile_spec(read).graph
    found = [(n.name, n.op) for n in function.nodes if n.name.rpartition(".")[2] in ("q_norm", "k_norm")]
    return [(name, op.eps, op.offset) for name, op in found if isinstance(op, RmsNorm)]


def test_norms_of_queries_and_keys_are_the_layers_own() -> None:
    base = f"attention: {{heads: 2, {HEADWISE}}}\nnorm: {{type: rms, eps: 1e-5, offset: 1, placement: pre}}"
    found = qk_norms(spec(two("norm: {eps: 0.01}", "attention: {qk_norm: {eps: 0.5}}", base)))
    assert found == [
        (f"layers.{i}.attention.{x}_norm", eps, 1.0) for i, eps in ((0, 0.01), (1, 0.5)) for x in ("q", "k")
    ]


def test_a_part_of_its_own_takes_over_the_norm_of_its_layer() -> None:
    found = qk_norms(spec(VARIANTS["norms of heads in a part"].replace("eps: 1e-5", "eps: 0.03")))
    assert {(name.split(".")[2], eps) for name, eps, _ in found} == {("wide", 0.03)}


# The resolved spec


def check_resolved(read: Spec) -> None:
    text = resolve_to_yaml(read)
    again = from_tree(parse(text, "spec.resolved.yaml"))
    assert hash_of(again) == hash_of(read)
    assert elaborate(again) == elaborate(read)
    assert resolve_to_yaml(again) == text
    assert again.kinds == read.kinds
    for key in ("name", "description", "checkpoint", "expect", "init"):
        assert getattr(again.top, key) == getattr(read.top, key)


@each_spec
def test_the_resolved_spec_reads_back(path: Path) -> None:
    check_resolved(load(path))


@each_variant
def test_the_resolved_variant_reads_back(variant: str) -> None:
    check_resolved(variant_spec(variant))


def test_the_resolved_spec_says_what_was_derived() -> None:
    said = yaml.safe_load(resolve_to_yaml(spec(rope(), drop="positions")))
    derived = said["attention"]
    assert (derived["kv_heads"], derived["head_dim"], derived["scale"], derived["causal"]) == (2, 4, 0.5, True)
    assert (said["norm"]["final"], said["positions"]) == (True, "none")


@pytest.mark.parametrize("name", ["1e5", "0o17", "1_000", "012", "true", "none", "2024-01-01", "1.5"])
def test_a_name_that_looks_like_something_else_stays_text(name: str) -> None:
    check_resolved(spec(f'name: "{name}"'))


# The twin


def shown_by_samples(op: object) -> bool:
    """A twin's max_distance is its buckets, so that its tokens reach beyond; tests of the op have them unlike."""
    held = (each.op for each in RelativeBias.samples())
    unlike = any(isinstance(o, RelativeBias) and len({o.heads, o.buckets, o.max_distance}) == 3 for o in held)
    return unlike and isinstance(op, tuple) and op[0] == RelativeBias.__name__


def check_twin(read: Spec) -> None:
    twin = shrink(read)
    assert to_plain(shrink(twin).tree) == to_plain(twin.tree)
    assert set(twin.kinds) == set(read.kinds)
    small, whole = elaborate(twin), elaborate(read)
    for kind in read.kinds:
        wanted = [(leaf.label, type(leaf.part)) for leaf in leaves_of(whole.layers[whole.kinds.index(kind)])]
        assert [(leaf.label, type(leaf.part)) for leaf in leaves_of(small.layers[small.kinds.index(kind)])] == wanted
    assert compile_spec(twin).parameters < 8_000_000
    assert ops(compile_spec(twin), apart=False) == ops(compile_spec(read), apart=False)
    larger = ops(compile_spec(read))
    small_ops = {each for each in ops(compile_spec(twin)) if not shown_by_samples(each)}
    more = [each for each in small_ops if not any(tells_apart(each, other, {}) for other in larger)]
    assert not more, f"sizes are equal in the twin alone, so that which is which does not show: {more}"


@each_spec
def test_the_twin_of_a_spec_stands(path: Path) -> None:
    check_twin(load(path))


@each_variant
def test_the_twin_of_a_variant_stands(variant: str) -> None:
    check_twin(variant_spec(variant))


@pytest.mark.parametrize("variant", LARGE)
def test_the_twin_of_a_large_variant_is_small_and_keeps_its_structure(variant: str) -> None:
    read = spec(BIG + LARGE[variant])
    check_twin(read)
    check_resolved(read)


def test_a_twin_keeps_what_tells_kinds_apart() -> None:
    twin = shrink(spec(BIG + LARGE["other head_dim"]))
    local, whole = (layer.keys.attention for layer in twin.distinct)
    assert isinstance(local, Attention)
    assert isinstance(whole, Attention)
    assert local.resolve(twin.top.width).head_dim != whole.resolve(twin.top.width).head_dim
    assert local.window


@pytest.mark.parametrize("key", ["head_dim: 4", "kv_heads: 1"])
def test_the_twin_of_a_kind_that_removes_a_size(key: str) -> None:
    removed = f"attention: {{{key.split(':')[0]}: none}}"
    check_twin(spec(two("", removed, f"attention: {{heads: 2, {key}}}")))


# An architecture by YAML alone


def attention_ops(function: Function) -> list[AttentionOp]:
    found = [n for f in functions_of(function) for n in f.nodes]
    return [n.op for n in found if isinstance(n.op, AttentionOp) and not is_call(n)]


def test_a_block_that_no_word_names_is_the_same_function_everywhere() -> None:
    whole = made(MACARON, drop="positions")
    (layer,) = {callee_of(n) for n in whole.function.nodes if is_call(n)}
    held = {n.name for n in layer.nodes}
    assert {"before", "attention", "after", "mlp", "halfway_norm", "halfway_post_norm"} <= held
    assert len(attention_ops(whole.function)) == 1
    mlps = 2 * 8 * 12 + (3 * 8 * 16 + 8) + (3 * 8 * 24 + 8)
    inside = mlps + (2 * 8 * 8 + 2 * 8 * 4) + 5 * 8 + 2 * 8  # attention, five norms without a bias, one with
    assert whole.parameters == 16 * 8 + 2 * inside + 8
    proof = prove(whole)
    assert proof.complete, proof.line
    assert {row.backend for row in proof.rows} >= {"oracle", "torch", "onnxruntime", "onnxruntime, last token"}


def test_kinds_of_own_blocks_and_parts_are_the_same_function_everywhere() -> None:
    parts = "parts: {wide: {mlp: {type: geglu, width: 12}}}"
    change = two(f"block: [{{residual: [{{residual: [attention]}}, wide]}}, mlp_norm], {parts}", "", "depth: 3")
    proof = prove(made(change))
    assert proof.complete, proof.line


def test_its_faults_have_places_too() -> None:
    found = finding(MACARON.replace("width: 12}", "width: «x»}"))
    assert found.message == "parts.before.mlp.width: wrong kind of value"


def test_sizes_may_be_unlike_in_the_twin_alone_and_not_equal_there_alone() -> None:
    equal, unlike = ("SplitHeads", "size 0", "size 0"), ("SplitHeads", "size 0", "size 1")
    assert tells_apart(unlike, equal, {}) and tells_apart(equal, equal, {}) and tells_apart(unlike, unlike, {})
    assert not tells_apart(equal, unlike, {}) and not tells_apart(("MergeHeads",), equal, {})
