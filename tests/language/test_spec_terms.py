"""Terms and labels: what a block may say, and that a word and its term are one spec."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import torch

from blockc.graph.build import build_graph
from blockc.ir import GraphError, Value, apply
from blockc.language.algebra import Chain, Decoder, Leaf, Residual, Sum, elaborate, leaves_of
from blockc.language.parts import Attention, Mlp, Norm, Part, Scope
from blockc.language.spec import PLACEMENTS
from blockc.language.spec.labels import label_fault
from blockc.ops import Linear
from blockc.proof import prove
from blockc.source import Place
from tests.spec_text import BARE, finding, findings, made, spec

PRE = "[{residual: [attention_norm, attention]}, {residual: [mlp_norm, mlp]}]"
# What each placement stands for, as the language page has it.
TERMS = {
    "pre": PRE,
    "post": "[{residual: [attention]}, attention_post_norm, {residual: [mlp]}, mlp_post_norm]",
    "sandwich": "[{residual: [attention_norm, attention, attention_post_norm]}, "
    "{residual: [mlp_norm, mlp, mlp_post_norm]}]",
    "branch": "[{residual: [attention, attention_post_norm]}, {residual: [mlp, mlp_post_norm]}]",
    "parallel_one": "[{residual: [norm, {sum: [[attention], [mlp]]}]}]",
    "parallel_two": "[{residual: [{sum: [[attention_norm, attention], [mlp_norm, mlp]]}]}]",
}


def block(term: str, more: str = "", drop: str = "") -> tuple[str, str]:
    return f"{BARE}block: {term}\n{more}", drop


def labels(term: str, more: str = "") -> list[str]:
    decoder = elaborate(spec(*block(term, more)))
    return [leaf.label for leaf in leaves_of(decoder.layers[0])]


# A word is its term


@pytest.mark.parametrize("placement", TERMS)
def test_a_placement_and_its_term_are_one_tree(placement: str) -> None:
    final = "final: false" if placement == "post" else "final: true"
    word = made(f"norm: {{type: rms, eps: 1e-5, placement: {placement}}}")
    term = made(f"norm: {{type: rms, eps: 1e-5, {final}}}\nblock: {TERMS[placement]}")
    assert word.decoder == term.decoder
    assert word.decoder.semantic_hash == term.decoder.semantic_hash
    assert word.graph_txt() == term.graph_txt()
    assert word.model_py() == term.model_py()


def test_the_placements_are_those_of_the_page() -> None:
    assert set(PLACEMENTS) == set(TERMS)
    hashes = {made(f"norm: {{type: rms, eps: 1e-5, placement: {p}, final: true}}").decoder.semantic_hash for p in TERMS}
    assert len(hashes) == len(TERMS)


def test_the_tree_says_what_the_term_says() -> None:
    (layer, _) = elaborate(spec(*block(PRE))).layers
    norm, attention = Norm(type="rms", eps=1e-5), Attention(heads=2).resolve(8)
    first = Residual(Chain((Leaf("attention_norm", norm), Leaf("attention", attention))))
    second = Residual(Chain((Leaf("mlp_norm", norm), Leaf("mlp", Mlp(type="relu", width=16)))))
    assert layer == Chain((first, second))


def test_a_chain_in_a_chain_is_one_chain() -> None:
    nested = "[[[{residual: [[attention_norm], [attention]]}]], {residual: [mlp_norm, mlp]}]"
    assert made(*block(nested)).decoder == made(*block(PRE)).decoder


def test_a_term_in_block_style_is_the_same() -> None:
    lines = "\n  - residual: [attention_norm, attention]\n  - residual:\n      - mlp_norm\n      - mlp"
    assert made(*block(lines)).decoder == made(*block(PRE)).decoder


# What is no term

WRONG = [
    # block, message, expected, got, hint
    ("«[]»", "not a chain of terms", "[term, term, ...]", "an empty list", ""),
    ("[attention, {residual: «mlp»}]", "not a chain of terms", "[term, term, ...]", "mlp", ""),
    ("[attention, {residual: «[]»}]", "not a chain of terms", "[term, term, ...]", "an empty list", ""),
    ("[{residual: «{sum: []}»}]", "not a chain of terms", "[term, term, ...]", "a mapping with sum", ""),
    ("[{sum: «[[attention]]»}]", "a sum has two branches or more", "[[...], [...]]", "a list", ""),
    ("[{sum: «mlp»}]", "a sum has two branches or more", "[[...], [...]]", "mlp", ""),
    ("[{sum: [«attention», [mlp]]}]", "not a chain of terms", "[term, term, ...]", "attention", ""),
    ("[«1»]", "not a term", "a label, {residual: [...]}, {sum: [[...], [...]]} or {scale: x}", "1", ""),
    ("[attention, «true»]", "not a term", "a label, {residual", "true", ""),
    ("[«{}»]", "not a term", "a label, {residual", "an empty mapping", ""),
    ("[«{residual: [attention], sum: []}»]", "not a term", "a label", "a mapping with residual, sum", ""),
    ("[«{residul: [attention]}»]", "not a term", "a label", "a mapping with residul", ""),
    ("[«{product: [[attention], [mlp]]}»]", "not a term", "a label", "product", "product is kept for a later version"),
    ("[attention, mlp, {scale: «0»}]", "a scale is one factor", "a number above 0", "0", ""),
    ("[attention, mlp, {scale: «true»}]", "a scale is one factor", "a number above 0", "true", ""),
    ("[attention, {scale: «[mlp]»}]", "a scale is one factor", "a number above 0", "a list", ""),
    ("[attention, «{scale: 2, sum: []}»]", "not a term", "a label", "a mapping with scale, sum", ""),
    (
        "[attention, «mlpp»]",
        "no part is called mlpp",
        "attention, mlp, norm, a label of parts",
        "mlpp",
        "did you mean mlp?",
    ),
    ("[«attn», mlp]", "no part is called attn", "one that ends in _norm", "attn", "did you mean attention?"),
    ("[attention, «conv»]", "no part is called conv", "attention, mlp", "conv", ""),
    ("[attention, mlp, «mlp»]", "label mlp stands twice in one block", "another label", "", "would be a guess"),
    ("[{residual: [a_norm, attention]}, {residual: [«a_norm», mlp]}]", "label a_norm stands twice", "", "", ""),
    ("\n  - attention\n  - residual:\n      - «attention»\n", "label attention stands twice", "", "", ""),
]


@pytest.mark.parametrize(("term", "message", "expected", "got", "hint"), WRONG)
def test_what_is_no_term_is_refused_where_it_stands(
    term: str, message: str, expected: str, got: str, hint: str
) -> None:
    found = finding(*block(term))
    assert message in found.message
    assert expected in found.expected
    assert got in found.got
    assert hint in found.hint


def test_a_label_that_stands_twice_shows_both() -> None:
    ((label, place),) = finding(*block("[attention, mlp, «mlp»]")).others
    assert (label, place.line, place.column) == ("first here", 12, 20)


MISSING = [
    ("[attention, «mlp»]", "mlp", "the block names mlp, and there is no mlp"),
    ("[mlp, «attention»]", "attention", "the block names attention, and there is no attention"),
    ("[«mlp_norm», mlp, attention]", "norm", "the block names mlp_norm, and there is no norm"),
    ("[«norm», mlp, attention]", "norm", "the block names norm, and there is no norm"),
]


@pytest.mark.parametrize(("term", "drop", "message"), MISSING)
def test_a_label_wants_the_key_that_it_stands_for(term: str, drop: str, message: str) -> None:
    assert finding(*block(term, drop=drop)).message == message


# What no layer reads


def test_a_key_that_no_layer_reads_is_refused() -> None:
    found = finding("«mlp»: {type: relu, width: 16}\n" + block("[attention]")[0])
    assert (found.message, found.hint) == ("mlp is read by no layer", "name it in a block, or leave it out")
    found = finding("norm: {type: rms, eps: 1e-5, final: false}\nblock: [attention, mlp]".replace("norm", "«norm»", 1))
    assert found.message == "norm is read by no layer"


def test_the_final_norm_reads_the_norm() -> None:
    assert made(*block("[attention, mlp]")).decoder.final_norm is not None


def test_a_kind_says_nothing_that_its_block_does_not_read() -> None:
    kinds = "kinds: {a: {}, b: {block: [mlp], «attention»: {window: 4}}}"
    assert finding(f"layers: {{pattern: [a, b], {kinds}}}").message == "layers.kinds.b.attention is read by no layer"


# Parts

PARTS = "parts: {wide: {mlp: {width: 24}}}"


def test_a_part_varies_the_key_of_its_name() -> None:
    decoder = elaborate(spec(*block("[{residual: [attention]}, {residual: [wide, mlp]}]", PARTS)))
    parts = {leaf.label: leaf.part for leaf in leaves_of(decoder.layers[0])}
    assert parts["wide"] == Mlp(type="relu", width=24)
    assert parts["mlp"] == Mlp(type="relu", width=16)


def test_a_part_of_another_type_keeps_nothing() -> None:
    more = "parts: {gated: {mlp: {type: swiglu, width: 4, bias: [gate]}}}\nmlp: {type: relu, width: 16, bias: [up]}"
    decoder = elaborate(spec(*block("[attention, mlp, gated]", more)))
    assert [leaf.part for leaf in leaves_of(decoder.layers[0])][2] == Mlp(type="swiglu", width=4, bias=("gate",))


def test_a_part_needs_no_key_of_its_name() -> None:
    more = "parts: {one: {mlp: {type: gelu, width: 4}}, two: {mlp: {type: relu, width: 4}}}"
    assert labels("[attention, one, two]", f"{more}\nmlp: none") == ["attention", "one", "two"]


def test_a_part_may_have_the_name_of_a_norm_of_a_placement() -> None:
    own = made("parts: {mlp_norm: {norm: {eps: 0.1}}}")
    eps = {leaf.label: leaf.part.eps for leaf in leaves_of(own.decoder.layers[0]) if isinstance(leaf.part, Norm)}
    assert eps == {"attention_norm": 1e-5, "mlp_norm": 0.1}


def test_a_part_may_be_used_by_some_kinds_only() -> None:
    kinds = "{a: {}, b: {block: [attention, mlp, wide]}}"
    used = made(f"{PARTS}\nlayers: {{pattern: [a, b], kinds: {kinds}}}")
    assert [len(list(leaves_of(chain))) for chain in used.decoder.layers] == [4, 3]


def test_rope_in_a_part_says_where_a_token_stands() -> None:
    more = "parts: {roped: {attention: {rope: {theta: 1e4, pairing: half}}}}"
    assert made(*block("[{residual: [roped]}, {residual: [mlp]}]", more, drop="positions")).parameters


WRONG_PARTS = [
    ("[mlp, attention]", "parts: {«wide»: {mlp: {width: 3}}}", "part wide stands in no block"),
    ("[mlp, attention, wide]", "parts: {«wide»: {conv: {}}}", "part wide is not one of attention, mlp, norm"),
    ("[mlp, attention, wide]", "parts: {«wide»: {}}", "part wide is not one of attention, mlp, norm"),
    ("[mlp, attention, wide]", "parts: {«wide»: {mlp: {width: 3}, norm: {}}}", "part wide is not one of"),
    ("[mlp, attention, wide]", "parts: {wide: {mlp: {width: «x»}}}", "parts.wide.mlp.width: wrong kind of value"),
    ("[mlp, attention, wide]", "parts:\n  wide:\n    mlp:\n      width: «0»\n", "parts.wide.mlp.width: too small"),
    ("[mlp, attention, wide]", "parts: {wide: {mlp: {«widht»: 3}}}", "unknown key parts.wide.mlp.widht"),
    ("[mlp, attention, wide]", "parts: {wide: {mlp: {«router»: {}}}}", "unknown key parts.wide.mlp.router"),
    ("[mlp, attention, wide]", "parts: {wide: {mlp: {«bias»: [gate]}}}", "parts.wide.mlp: relu has no gate to bias"),
    ("[mlp, attention, wide]", "parts: {wide: {attention: {heads: «3»}}}", "attention.heads 3 does not divide width 8"),
    ("[mlp, attention, wide]", "parts: {wide: {attention: {window: «40»}}}", "parts.wide.attention: a window this"),
    ("[mlp, attention, wide]", "parts: {wide: {norm: {«final»: true}}}", "unknown key parts.wide.norm.final"),
    ("[mlp, attention, wide]", "parts: {wide: {norm: {bias: «true»}}}", "parts.wide.norm: an rms norm has no bias"),
    ("[mlp, attention, wide]", "parts: {wide: «mlp»}", "parts.wide: wrong kind of value"),
    ("[mlp, attention]", "parts: «7»", "parts: wrong kind of value"),
]


@pytest.mark.parametrize(("term", "parts", "message"), WRONG_PARTS)
def test_a_wrong_part_is_refused_where_it_stands(term: str, parts: str, message: str) -> None:
    assert message in finding(*block(term, parts)).message


def test_every_part_that_stands_in_no_block_is_named() -> None:
    found = findings(*block("[mlp, attention]", "parts: {b: {mlp: {width: 3}}, a: {mlp: {width: 3}}}"))
    assert sorted(f.message for f in found) == ["part a stands in no block", "part b stands in no block"]


# Labels: paths, attributes and variables


# The second and third have a Cyrillic letter, the fourth a ligature.
@pytest.mark.parametrize(
    "label", ["__import__", "А_norm", "а_norm", "ﬁ_norm", "A", "1st", "a-b", "a.b", "_a", "a" * 65]
)
def test_a_label_is_written_in_ascii(label: str) -> None:
    found = finding(*block(f"[attention, mlp, «{label}»]"))
    assert (found.message, found.expected) == (f"{label} cannot be a label", "another label")
    assert found.hint == "a label is a letter a-z, then letters, digits and _, at most 64 in all"


@pytest.mark.parametrize("label", ["__import__", "А", "A", "a-b"])
def test_so_is_a_label_of_parts(label: str) -> None:
    found = finding(*block("[attention, mlp]", f"parts: {{«{label}»: {{mlp: {{width: 3}}}}}}"))
    assert (found.message, found.got) == (f"parts.{label}: not a label", label)


TAKEN = {
    "class": "Python", "import": "Python", "lambda": "Python", "match": "Python", "type": "PyTorch", "in": "Python",
    "none": "turns a thing off",
    "train": "PyTorch", "eval": "PyTorch", "forward": "PyTorch", "half": "PyTorch", "float": "PyTorch", "to": "PyTorch",
    "double": "PyTorch", "apply": "PyTorch", "training": "PyTorch", "parameters": "PyTorch", "state_dict": "PyTorch",
    "x": "something else", "self": "something else", "mask": "something else", "mask_4": "something else",
    "cos": "something else", "sin": "something else", "cos_2": "something else", "key": "something else",
    "value": "something else", "past_key": "something else", "past_value": "something else", "torch": "something else",
    "nn": "something else", "after_attention": "something else", "attention_plus_mlp": "something else",
    "weight": "something else", "bias": "something else",
}  # fmt: skip


@pytest.mark.parametrize("label", TAKEN)
def test_a_label_takes_no_name_that_emitted_code_needs(label: str) -> None:
    found = finding(*block(f"[attention, mlp, «{label}»]", f"parts: {{{label}: {{mlp: {{width: 3}}}}}}"))
    assert found.message == f"{label} cannot be a label"
    assert TAKEN[label] in found.hint


def test_every_attribute_of_a_module_is_refused() -> None:
    """torch's own: transformers, once imported, adds some."""
    names = [name for name in dir(torch.nn.Module()) if not name.startswith("_") and name == name.lower()]
    assert len(names) > 50
    assert [name for name in names if not label_fault(name) and "transformers" not in _module_of(name)] == []


def _module_of(name: str) -> str:
    return str(getattr(getattr(torch.nn.Module, name, None), "__module__", ""))


def test_a_label_may_be_called_as_a_helper_is() -> None:
    """The variable gives way: the helper keeps its name in the file."""

    result = prove(made(*block("[{residual: [attention_norm, attention]}, {residual: [mlp_norm, rotate]}]",
                               "parts: {rotate: {mlp: {}}}")))  # fmt: skip
    assert result.complete, result.table()


ODD = ["a", "max", "print", "list", "x_ray", "masked", "sine", "dims", "i", "name", "device", "attention_key"]


def test_every_variable_that_a_layer_has_anyway_is_refused() -> None:
    """The names of a layer's forward less its labels, for the layers that have the most of them."""
    rope = "attention: {heads: 2, rope: {theta: 1e4, pairing: half, dims: 2}, window: 4}"
    more = "parts: {second: {attention: {rope: {theta: 10, pairing: half}, window: 5}}}\n" + rope
    whole = made(*block("[{residual: [{sum: [[attention], [second]]}]}, {residual: [mlp]}]", more))
    (layer,) = [n for n in ast.parse(whole.model_py()).body if isinstance(n, ast.ClassDef) and n.name == "Layer"]
    forward = next(n for n in layer.body if isinstance(n, ast.FunctionDef) and n.name == "forward")
    names = {n.id for n in ast.walk(forward) if isinstance(n, ast.Name)} | {a.arg for a in forward.args.args}
    own = {"attention", "second", "mlp", "Cache", "Tensor", "bool", "tuple"}
    prefixed = {name for name in names if name.startswith(("second_", "attention_"))}
    assert sorted(name for name in names - own - prefixed if not label_fault(name)) == []


def test_a_label_that_shadows_a_builtin_is_only_a_name() -> None:
    term = f"[{{residual: [attention]}}, {{residual: [mlp, {', '.join(ODD)}]}}]"
    parts = ", ".join(f"{label}: {{mlp: {{width: 3}}}}" for label in ODD)
    whole = made(*block(term, f"parts: {{{parts}}}"))
    module: dict[str, Any] = {}
    exec(compile(whole.model_py(), "model.py", "exec"), module)
    model = module["Model"]()
    assert model(torch.zeros(1, 3, dtype=torch.long)).logits.shape == (1, 3, 16)
    assert model.layers[0].print.up.weight.shape == (3, 8)


# Widths and names in the graph


class Narrow(Part):
    """y = W x with half as many rows: no part of the language does this."""

    def expand(self, scope: Scope, x: Value, label: str, place: Place | None) -> Value:
        return apply(Linear(scope.width, scope.width // 2), x, name=label, place=place)


def built(*terms: Residual | Sum) -> None:
    build_graph(Decoder(16, 8, 32, None, None, ("layer",), (Chain(terms),)))


def test_a_branch_ends_as_wide_as_the_stream() -> None:
    with pytest.raises(GraphError) as caught:
        built(Residual(Chain((Leaf("narrow", Narrow(), Place("s.yaml", 9, 4)),))))
    assert str(caught.value) == "layer kind layer: after_narrow: the branch is not as wide as the stream"
    assert (caught.value.expected, caught.value.got) == ("8", "4")
    assert caught.value.place == Place("s.yaml", 9, 4)


def test_branches_of_a_sum_are_as_wide_as_one_another() -> None:
    place = Place("s.yaml", 9, 4)
    wide, narrow = Leaf("wide", Mlp(type="relu", width=4)), Leaf("narrow", Narrow(), place)
    with pytest.raises(GraphError, match="wide_plus_narrow") as caught:
        built(Sum((Chain((wide,)), Chain((narrow,)))))
    assert caught.value.place == place


def test_sums_that_end_in_one_label_have_names_of_their_own() -> None:
    text = made(*block("[{residual: [{residual: [attention_norm, attention]}, mlp]}]")).graph_txt()
    assert " after_attention = " in text
    assert " after_attention_2 = " in text
