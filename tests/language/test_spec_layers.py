"""The layer pattern: what is laid where, how kinds merge, and what does not fit."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from blockc.language.parts import Attention
from blockc.language.spec.layers import merge
from blockc.source import parse, to_plain
from tests.spec_text import BARE, finding, findings, made, spec

TWO = "kinds: {a: {attention: {window: 4}}, b: {}}"


def laid(layers: str, depth: int) -> list[str]:
    return [layer.kind for layer in spec(f"depth: {depth}\nlayers: {layers}").layers]


def attentions(layers: str, top: str = "attention: {heads: 2}") -> list[Attention | None]:
    return [layer.keys.attention for layer in spec(f"{top}\nlayers: {layers}").layers]


# What is laid


@pytest.mark.parametrize(
    ("layers", "depth", "kinds"),
    [
        (f"{{pattern: [a, b], {TWO}}}", 4, "a b a b"),
        (f"{{pattern: [a, b], {TWO}}}", 5, "a b a b a"),  # the last tile may be cut
        (f"{{pattern: [{{a: 2}}, b], {TWO}}}", 7, "a a b a a b a"),
        (f"{{pattern: [{{a: 100}}, b], first: [b], {TWO}}}", 3, "b a a"),
        (f"{{first: [b], pattern: [a], {TWO}}}", 3, "b a a"),
        (f"{{pattern: [a], last: [{{b: 2}}], {TWO}}}", 4, "a a b b"),
        (f"{{first: [b], pattern: [a, b], last: [a], {TWO}}}", 5, "b a b a a"),
        (f"{{first: [a], last: [b], {TWO}}}", 2, "a b"),
        (f"{{first: [a, b, b], {TWO}}}", 3, "a b b"),
        (f"{{pattern: [a+b, b], {TWO}}}", 2, "a+b b"),
        (f"{{pattern: [{{a+b: 2}}], {TWO}}}", 2, "a+b a+b"),
    ],
)
def test_first_and_last_are_laid_once_and_the_pattern_is_tiled_between(layers: str, depth: int, kinds: str) -> None:
    assert laid(layers, depth) == kinds.split()


def test_without_layers_all_are_of_one_kind() -> None:
    assert spec("depth: 3").kinds == {"layer": 3}


# What does not fit

WRONG = [
    # change, message, expected, got
    ("layers: {pattern: [a, «c»], " + TWO + "}", "layer kind c is not defined", "one of a, b", "c"),
    ("layers:\n  pattern:\n    - a\n    - «c»\n  kinds: {a: {}}\n", "layer kind c is not defined", "one of a", "c"),
    ("layers: {pattern: [{«c»: 2}], " + TWO + "}", "layer kind c is not defined", "one of a, b", "c"),
    ("layers: {pattern: [«a+c»], " + TWO + "}", "layer kind c is not defined", "one of a, b", "c"),
    ("layers: {«first»: [a], " + TWO + "}", "first and last lay 1, and depth is 2", "2 layers", "1"),
    ("layers: {«first»: [a, b, b], " + TWO + "}", "first and last lay 3, and depth is 2", "2 layers", "3"),
    ("layers: {«first»: [{a: 2}], last: [b], " + TWO + "}", "lay 3, and depth is 2", "2 layers", "3"),
    ("layers: {«first»: [{a: 1000000000000}], " + TWO + "}", "lay 1000000000000, and", "2 layers", "1000000000000"),
    ("layers: {«kinds»: {a: {}}}", "first and last lay 0, and depth is 2", "2 layers", "0"),
    ("layers: {«pattern»: [], kinds: {a: {}}}", "first and last lay 0, and depth is 2", "2 layers", "0"),
    ("layers: {first: [a, b], «pattern»: [b], " + TWO + "}", "the pattern has no room", "a depth above 2", ""),
    ("layers: {pattern: [{a: «0»}], kinds: {a: {}}}", "not a count of a layers", "an integer above 0", "0"),
    ("layers: {pattern: [{a: «-1»}], kinds: {a: {}}}", "not a count of a layers", "an integer above 0", "-1"),
    ("layers: {pattern: [{a: «2.0»}], kinds: {a: {}}}", "not a count of a layers", "an integer above 0", "2.0"),
    ("layers: {pattern: [{a: «true»}], kinds: {a: {}}}", "not a count of a layers", "an integer above 0", "true"),
    ("layers: {pattern: [«{a: 1, b: 2}»], " + TWO + "}", "not a layer entry", "kind, kindA+kindB or {kind:", "a, b"),
    ("layers: {pattern: [«2»], kinds: {a: {}}}", "not a layer entry", "kind, kindA+kindB or {kind: count}", "2"),
    ("layers: {pattern: [«[a]»], kinds: {a: {}}}", "not a layer entry", "kind, kindA+kindB", "a list"),
    ("layers: {pattern: [a], kinds: {a: {}, «b»: {}}}", "layer kind b is defined and never laid", "", ""),
    ("layers:\n  pattern: [a]\n  kinds:\n    a: {}\n    «b»: {}\n", "layer kind b is defined and never laid", "", ""),
    ("layers: {pattern: [a], kinds: {a: {«hedas»: 1}}}", "unknown key layers.kinds.a.hedas", "one of attention", ""),
    ("layers: {pattern: [a], kinds: {a: {«width»: 1}}}", "unknown key layers.kinds.a.width", "one of attention", ""),
    ("layers: {pattern: [a], kinds: {a: {«positions»: none}}}", "unknown key layers.kinds.a.positions", "one of", ""),
    (
        "layers: {pattern: [a], kinds: {a: {attention: {«hedas»: 1}}}}",
        "unknown key attention.hedas",
        "one of alibi",
        "",
    ),
    ("layers: {pattern: [a], kinds: {a: {mlp: {width: «0»}}}}", "mlp.width: too small", "more than 0", "0"),
    ("layers: {pattern: [a], kinds: {a: {attention: {heads: «3»}}}}", "heads 3 does not divide", "a divisor of 8", "3"),
    ("layers: {pattern: [a], kinds: {a: {attention: {window: «99»}}}}", "hides nothing", "less than context 32", "99"),
    ("layers: {pattern: [a], kinds: {a: {«mlp»: {type: gelu}}}}", "missing key mlp.width", "an integer", ""),
    ("layers: {pattern: [a], kinds: {a: {«mlp»: none}}}", "norm.placement pre places the mlp, which is none", "", ""),
    (
        "layers: {pattern: [a], kinds: {a: {norm: {«final»: false}}}}",
        "layers.kinds.a.norm.final: the final norm is the model's",
        "",
        "",
    ),
]


@pytest.mark.parametrize(("change", "message", "expected", "got"), WRONG)
def test_what_does_not_fit_is_refused_where_it_stands(change: str, message: str, expected: str, got: str) -> None:
    found = finding(change)
    assert message in found.message
    assert expected in found.expected
    assert got in found.got


def test_both_numbers_have_their_place() -> None:
    ((label, place),) = finding("layers: {«first»: [a], kinds: {a: {}}}").others
    assert (label, place.line, place.column) == ("depth is here", 5, 8)


def test_a_near_kind_is_suggested() -> None:
    assert finding("layers: {pattern: [«globl»], kinds: {global: {}}}").hint == "did you mean global?"


def test_every_kind_that_is_never_laid_is_named() -> None:
    found = findings("layers: {pattern: [a], kinds: {a: {}, b: {}, c: {}}}")
    assert [f.message.split()[2] for f in found] == ["b", "c"]


def test_an_inherited_fault_is_said_once() -> None:
    (found,) = findings("mlp: {type: swish, width: 4}\nlayers: {pattern: [a, b], kinds: {a: {}, b: {}}}")
    assert (found.place.line, found.place.column) == (9, 13)
    (found,) = findings("layers: {pattern: [a, b], kinds: {a: {}, b: {}}}", drop="mlp")
    assert (found.place.line, found.place.column, found.message) == (1, 1, "missing key mlp")


# Merging


def merged(below: str, above: str) -> object:
    return to_plain(merge(parse(below, "a"), parse(above, "b")))


@pytest.mark.parametrize(
    ("below", "above", "result"),
    [
        ("{a: 1, b: 2}", "{b: 3}", {"a": 1, "b": 3}),
        ("{a: {b: 1, c: 2}}", "{a: {c: 3}}", {"a": {"b": 1, "c": 3}}),
        ("{a: {b: {c: 1, d: 2}}}", "{a: {b: {d: 3}}}", {"a": {"b": {"c": 1, "d": 3}}}),
        ("{a: [1, 2]}", "{a: [3]}", {"a": [3]}),
        ("{a: {b: 1}}", "{a: none}", {"a": "none"}),
        ("{a: none}", "{a: {b: 1}}", {"a": {"b": 1}}),
        ("{a: {type: x, b: 1}}", "{a: {type: y, c: 2}}", {"a": {"type": "y", "c": 2}}),
        ("{a: {type: x, b: 1}}", "{a: {type: x, c: 2}}", {"a": {"type": "x", "b": 1, "c": 2}}),
        ("{a: {type: x, b: 1}}", "{a: {c: 2}}", {"a": {"type": "x", "b": 1, "c": 2}}),
    ],
)
def test_mappings_merge_by_key_and_the_rest_replaces(below: str, above: str, result: object) -> None:
    assert merged(below, above) == result


def test_a_kind_varies_the_top_level_keys() -> None:
    a, b = attentions("{pattern: [a, b], kinds: {a: {attention: {window: 4, bias: [q]}}, b: {}}}")
    assert a is not None
    assert b is not None
    assert (a.heads, a.window, a.bias) == (2, 4, ("q",))
    assert (b.heads, b.window, b.bias) == (2, None, ())


@pytest.mark.parametrize("key", ["window: 4", "softcap: 4", "kv_heads: 1", "head_dim: 2", "scale: 2", "bias: [q]"])
def test_none_removes_what_is_inherited(key: str) -> None:
    word = key.split(":")[0]
    top = f"attention: {{heads: 2, {key}}}"
    kept, removed = attentions(f"{{pattern: [a, b], kinds: {{a: {{}}, b: {{attention: {{{word}: none}}}}}}}}", top)
    assert kept is not None
    assert getattr(kept, word)
    assert removed == Attention(heads=2)


def test_none_removes_rope_from_one_layer_only() -> None:
    rope = "attention: {heads: 2, rope: {theta: 1e4, pairing: half}}"
    layers = "{pattern: [{a: 3}, b], kinds: {a: {}, b: {attention: {rope: none}}}}"
    whole = made(f"depth: 4\n{rope}\nlayers: {layers}", drop="positions")
    attentions = [layer.keys.attention for layer in whole.spec.layers]
    assert [a is not None and a.rope is not None for a in attentions] == [True, True, True, False]
    assert whole.graph_txt().count("q_rotated = rotary") == 1  # three layers are one function, the fourth has none


def test_another_type_keeps_nothing_of_the_inherited_one() -> None:
    change = "mlp: {type: relu, width: 16, bias: [up]}\nlayers: {pattern: [a, b], kinds: {a: {}, b: {mlp: {%s}}}}"
    assert spec(change % "type: swiglu, width: 4").layers[1].keys.mlp.bias == ()  # type: ignore[union-attr]
    assert spec(change % "type: relu, width: 4").layers[1].keys.mlp.bias == ("up",)  # type: ignore[union-attr]


def test_joined_kinds_merge_from_left_to_right() -> None:
    (joined, _) = attentions("{pattern: [a+b], kinds: {a: {attention: {window: 4}}, b: {attention: {softcap: 2}}}}")
    assert joined is not None
    assert (joined.window, joined.softcap) == (4, 2)


CLASHES = [
    ("{a: {attention: {window: 4}}, b: {attention: {«window»: 5}}}", "attention.window"),
    ("{a: {attention: none}, b: {attention: {«window»: 5}}}", "attention.window"),
    ("{a: {attention: {window: 5}}, b: {«attention»: none}}", "attention"),
    ("{a: {attention: {bias: [q]}}, b: {attention: {«bias»: [k]}}}", "attention.bias"),
    ("{a: {block: [attention, mlp]}, b: {norm: {«placement»: post}}}", "norm.placement"),
    ("{a: {norm: {placement: post}}, b: {«block»: [attention, mlp]}}", "block"),
]


@pytest.mark.parametrize(("kinds", "path"), CLASHES)
def test_joined_kinds_do_not_say_the_same_thing(kinds: str, path: str) -> None:
    found = finding(f"layers: {{pattern: [a+b], kinds: {kinds}}}")
    assert found.message == f"{path} is set by both a and b, which are joined by +"
    ((label, place),) = found.others
    assert label == "in a"
    assert place.column < found.place.column


def test_a_block_and_a_placement_take_each_others_place() -> None:
    kinds = "{words: {norm: {placement: sandwich}}, term: {block: [{residual: [attention]}, {residual: [mlp]}]}}"
    read = spec(f"layers: {{pattern: [words, term], kinds: {kinds}}}")
    words, term = (layer.keys for layer in read.layers)
    assert words.norm is not None
    assert term.norm is not None
    assert (words.norm.placement, words.block) == ("sandwich", None)
    assert (term.norm.placement, term.block is None) == (None, False)
    kinds = "{a: {}, b: {norm: {placement: pre}}}"
    below = spec(f"{BARE}block: [attention, mlp]\nlayers: {{pattern: [a, b], kinds: {kinds}}}")
    assert [layer.keys.block is None for layer in below.layers] == [False, True]


# The final norm


@pytest.mark.parametrize(
    ("norm", "there"),
    [("placement: pre", True), ("placement: post", False), ("placement: post, final: true", True),
     ("placement: sandwich, final: false", False), ("placement: parallel_two", True)],
)  # fmt: skip
def test_the_final_norm_is_there_unless_norms_follow_each_addition(norm: str, there: bool) -> None:
    assert (made(f"norm: {{type: rms, eps: 1e-5, {norm}}}").decoder.final_norm is not None) == there


def test_the_final_norm_is_checked_though_no_layer_has_it() -> None:
    kinds = "kinds: {a: {norm: {type: rms, eps: 1e-5, placement: pre}}}"
    found = finding(f"«norm»: {{type: layer, eps: 1e-5}}\nlayers: {{pattern: [a], {kinds}}}")
    assert "must say whether it has a bias" in found.message


# Sizes: answered from arithmetic


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """In this time, and in 200 MB."""
    tracemalloc.start()
    begun = time.perf_counter()
    yield
    took, peak = time.perf_counter() - begun, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert took < seconds
    assert peak < 200e6


def test_a_pattern_of_any_count_costs_no_more_than_the_depth() -> None:
    runs = ", ".join(["{a: 1000000000000}"] * 2000)
    with bounded(20):
        assert laid(f"{{pattern: [{runs}], kinds: {{a: {{}}}}}}", 3) == ["a", "a", "a"]


@pytest.mark.costly
def test_the_deepest_model_is_compiled() -> None:
    kinds = "{a: {attention: {window: 4}}, b: {}}"
    with bounded(60):
        deep = made(f"depth: 10000\nlayers: {{pattern: [a, b], kinds: {kinds}}}")
    assert deep.spec.kinds == {"a": 5_000, "b": 5_000}


def test_any_depth_beyond_is_refused_at_once() -> None:
    with bounded(2):
        found = finding("depth: «1000000000»\nlayers: {pattern: [{a: 1000000000}], kinds: {a: {}}}")
    assert "more layers than can be laid out" in found.message


def test_any_width_is_arithmetic() -> None:
    n = 10**9
    with bounded(5):
        wide = made(f"width: {n}\nvocab: {n}\nattention: {{heads: 1000000}}\nmlp: {{type: relu, width: {2 * n}}}")
    assert wide.parameters == n * n + 2 * (4 * n * n + 4 * n * n + 2 * n) + n
