"""The keys of the two ends of a model: segments, the head, the pool; and what looks both ways between them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockc.graph.contract import contract_of
from blockc.pipeline.compiled import PORTABLE
from tests.spec_text import finding, findings, made

BOTH = "attention: {heads: 2, causal: false}\n"
WRONG = [
    ("pool: {type: «max»}\nhead: none\n", "not a word that is known here", "one of first, last, mean"),
    ("pool: {«from»: mean, type: mean}\nhead: none\n", "unknown key pool.from", "one of dense, type, unit"),
    ("head: none\n«pool»: {unit: true}\n", "missing key pool.type", "one of first, last, mean"),
    ("«pool»: {type: mean}\n", "a head of the vocabulary reads each token, and no pool", "head: none, or a head of"),
    ("«head»: {bias: true}\n", "missing key head.tied", "true or false"),
    ("head: {«tied»: true, classes: 3}\n", "unknown key head.tied", "one of bias, classes, transform"),
    ("head: {classes: «0»}\n", "head.classes: too small", "more than 0"),
    ("head: {tied: true, transform: {act: «swiglu»}}\n", "head.transform.act: not a word", "gelu"),
    ("head: {tied: true, transform: {norm: {type: rms, eps: 1e-5, bias: «true»}}}\n", "an rms norm has no bias", "no"),
    ("head: none\npool: {type: mean, dense: [{norm: {type: rms, eps: 1, bias: «true»}}]}\n", "an rms norm has", "no"),
    ("head: none\npool: {type: mean, «dense»: []}\n", "pool.dense: wrong kind of value", "a length of at least 1"),
    ("embedding: {segments: «0»}\n", "embedding.segments: too small", "more than 0"),
    ("attention: {heads: 2, «window»: {each_side: 3}}\n", "each_side looks both ways", "a number, or causal: false"),
    ("attention: {heads: 2, causal: false, window: «3»}\n", "a window looks back", "{each_side: 3}, or no window"),
    ("attention: {heads: 2, causal: false, window: {each_side: «32»}}\n", "a window this long", "less than context 32"),
    ("attention: {heads: 2, relative_bias: {buckets: «1», max_distance: 9}}\n", "too few buckets", "2 or more"),
    ("attention: {heads: 2, causal: false, relative_bias: {buckets: «7», max_distance: 9}}\n", "too few", "an even"),
    ("attention: {heads: 2, relative_bias: {buckets: 8, max_distance: «4»}}\n", "distances of one", "more than 4"),
    ("attention: {heads: 2, alibi: {max_bias: 8}, «relative_bias»: {buckets: 8, max_distance: 9}}\n",
     "alibi says how much a key counts", "one of them"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message", "expected"), WRONG)
def test_what_is_wrong_is_refused_where_it_stands(change: str, message: str, expected: str) -> None:
    found = finding(change)
    assert message in found.message
    assert expected in found.expected


def test_a_head_is_said_even_if_there_is_none() -> None:
    (found,) = findings(drop="head")
    assert found.message == "missing key head"


def ports(change: str) -> tuple[dict[str, tuple[int | str, ...]], dict[str, tuple[int | str, ...]]]:
    served = contract_of(made(change).served)
    inputs, outputs = ({port.name: port.shape for port in side} for side in (served.inputs, served.outputs))
    assert not served.held
    return inputs, outputs


OUTPUTS = {
    "head: none\n": {"last_hidden_state": ("B", "S", 8)},
    "head: none\npool: {type: mean}\n": {"last_hidden_state": ("B", "S", 8), "pooled": ("B", 8)},
    "head: none\npool: {type: last, dense: [{width: 20}, {width: 5}], unit: true}\n": {
        "last_hidden_state": ("B", "S", 8),
        "pooled": ("B", 5),
    },
    "head: {classes: 3}\n": {"logits": ("B", "S", 3)},
    "head: {classes: 3}\npool: {type: first, dense: {act: tanh}}\n": {"logits": ("B", 3)},
    "head: {tied: true, transform: {act: gelu}}\n": {"logits": ("B", "S", 16)},
}


@pytest.mark.parametrize("ends", OUTPUTS)
def test_the_spec_says_what_comes_out(ends: str) -> None:
    inputs, outputs = ports(BOTH + ends)
    assert list(inputs) == ["input_ids", "attention_mask", "position_ids"]
    assert outputs == OUTPUTS[ends]


@pytest.mark.parametrize("ends", [each for each in OUTPUTS if "tied" not in each])
def test_without_logits_of_a_next_token_there_is_no_cache(ends: str) -> None:
    """Also where the attention is causal."""
    _, outputs = ports(ends)
    assert outputs == OUTPUTS[ends]


@pytest.mark.parametrize(("segments", "given"), [(1, False), (2, True), (5, True)])
def test_segments_are_an_input_where_there_are_several(segments: int, given: bool) -> None:
    inputs, _ = ports(BOTH + f"head: none\nembedding: {{segments: {segments}}}\n")
    assert ("token_type_ids" in inputs) == given
    assert made(f"embedding: {{segments: {segments}}}\n").parameters == made().parameters + segments * 8


def parameters(change: str) -> set[str]:
    return {param.name for param in made(change).function.own_params}


def test_parameters_are_named_by_what_the_spec_says() -> None:
    plain = parameters("head: none\n")
    assert parameters("head: none\npool: {type: mean, dense: {bias: true}}\n") - plain == {"dense.weight", "dense.bias"}
    listed = parameters("head: none\npool: {type: mean, dense: [{}, {norm: {type: rms, eps: 1e-5}}]}\n")
    assert listed - plain == {"dense_1.weight", "dense_2.weight", "dense_2_norm.weight"}
    assert parameters("head: none\npool: {type: mean, dense: [{}]}\n") - plain == {"dense_1.weight"}
    head = parameters("head: {classes: 3, bias: true, transform: {bias: true}}\n")
    assert head - plain == {"transform.weight", "transform.bias", "head.weight", "head.bias"}
    bias = "attention: {heads: 2, relative_bias: {buckets: 8, max_distance: 16}}\nhead: none\n"
    assert parameters(bias) - plain == {"relative_bias.weight"}


def test_a_transform_is_as_wide_as_what_the_head_reads() -> None:
    model = made("embedding: {width: 5}\nhead: {tied: true, transform: {act: gelu}}\n")
    shapes = {param.name: param.shape for param in model.function.own_params}
    assert shapes["transform.weight"] == (5, 8)
    assert "project_out.weight" not in shapes


def test_words_that_change_nothing_have_one_meaning() -> None:
    """unit: false is no unit, window to each side is another window, and a list of one dense has other parameters."""
    head = "head: none\n"

    def meaning(change: str) -> str:
        return made(BOTH + head + change).decoder.semantic_hash

    assert meaning("pool: {type: mean, unit: false, dense: none}\n") == meaning("pool: {type: mean}\n")
    same = "pool: {type: mean, dense: {width: 8, act: none, bias: false}}\n"
    assert meaning(same) == meaning("pool: {type: mean, dense: {}}\n")
    assert meaning(same) != meaning("pool: {type: mean, dense: [{}]}\n")
    assert len({meaning(f"pool: {{type: {each}}}\n") for each in ("first", "last", "mean")}) == 3


@pytest.mark.parametrize("ends", [each for each in OUTPUTS if "tied" not in each])
def test_logits_to_choose_from_are_those_of_tokens(ends: str) -> None:
    model = made(BOTH + ends)
    why = model.refuses(replace(PORTABLE, logits="last"))
    assert bool(why) == (not model.by_token)
    if why:
        assert why == f"the model gives {' and '.join(OUTPUTS[ends])}, and no logits of each token to choose from"
    assert model.refuses(PORTABLE) == ""
