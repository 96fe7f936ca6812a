"""The keys of a spec: each value that is refused is refused where it stands, and says what was expected."""

from __future__ import annotations

import pytest

from blockc.language.parts import Attention
from tests.spec_text import changed, finding, findings, made, mark, refused, spec

LLAMA3 = "type: llama3, factor: 8, low_freq_factor: 1, high_freq_factor: 4, original: 16"
ROPE = "theta: 1e4, pairing: half"
SCALED = f"attention: {{heads: 2, rope: {{{ROPE}, scaling: {{{LLAMA3.replace('factor: 8, ', '%s')}}}}}}}"


def scaled(scaling: str, more: str = "") -> str:
    return f"attention: {{heads: 2, rope: {{{ROPE}{more}, scaling: {{{scaling}}}}}}}"


def longrope(said: str, lists: str = "short: [1, 2], long: [1, 2]") -> str:
    return scaled(f"type: longrope, {lists}, attention_factor: 1, {said}")


def test_the_base_stands() -> None:
    assert made().parameters == 16 * 8 + 2 * (4 * 8 * 8 + 2 * 8 * 16 + 2 * 8) + 8


# The version comes first


@pytest.mark.parametrize("value", ["2", "0", "true", "1.0", '"1"', "[1]", "{a: 1}", "one"])
def test_an_unknown_version_is_refused_before_anything_else(value: str) -> None:
    (found,) = refused(f"blockc: {value}\nnonsense: 7\n")
    assert (found.place.line, found.place.column) == (1, 9)
    assert (found.message, found.expected) == ("unknown version of the language", "1")
    assert "'" not in found.got


def test_without_a_version_nothing_is_read() -> None:
    (found,) = refused("nonsense: 7\n")
    assert (found.place.line, found.place.column, found.message) == (1, 1, "missing key blockc")
    assert (found.expected, found.hint) == ("blockc: 1", "it is the first line of a spec")


def test_the_version_stands_first() -> None:
    (found,) = refused("name: tiny\nblockc: 1\n")
    assert (found.place.line, found.place.column, found.message) == (2, 1, "blockc is not the first key")


# One value, one finding: where, what, expected

VALUES = [
    # change, message, expected
    ("attention: {heads: «true»}", "attention.heads: wrong kind of value", "an integer"),
    ("attention:\n  heads: «true»\n", "attention.heads: wrong kind of value", "an integer"),
    ("attention: {heads: «32.0»}", "attention.heads: wrong kind of value", "an integer"),
    ('attention: {heads: «"2"»}', "attention.heads: wrong kind of value", "an integer"),
    ("attention: {heads: «two»}", "attention.heads: wrong kind of value", "an integer"),
    ("attention: {«heads»: [2]}", "attention.heads: wrong kind of value", "an integer"),
    ("attention: {heads: «0»}", "attention.heads: too small", "more than 0"),
    ("attention: {heads: 2, kv_heads: «0»}", "attention.kv_heads: too small", "more than 0"),
    ("attention:\n  heads: 2\n  kv_heads: «-1»\n", "attention.kv_heads: too small", "more than 0"),
    ("attention: {heads: 2, head_dim: «0»}", "attention.head_dim: too small", "more than 0"),
    ("attention: {heads: 2, scale: «0»}", "attention.scale: too small", "more than 0"),
    ("attention: {heads: 2, scale: «true»}", "attention.scale: wrong kind of value", "a number"),
    ("attention: {heads: 2, causal: «1»}", "attention.causal: wrong kind of value", "true or false"),
    ("attention: {heads: 2, causal: «none»}", "attention.causal: wrong kind of value", "true or false"),
    ("attention: {heads: 2, bias: «true»}", "attention.bias: wrong kind of value", "a list"),
    ("attention: {heads: 2, bias: [q, «x»]}", "attention.bias[1]: not a word that is known", "one of q, k, v, o"),
    ("attention:\n  heads: 2\n  bias:\n    - q\n    - «x»\n", "attention.bias[1]: not a word", "one of q, k, v, o"),
    ("attention: {heads: 2, «bias»: [q, q]}", "attention: a matrix is named twice", "each of q, k, v, o at most once"),
    ("attention: {heads: 2, window: «0»}", "attention.window: too small", "more than 0"),
    ("attention: {heads: 2, window: «2.5»}", "attention.window: wrong kind of value", "an integer"),
    ("attention: {heads: 2, softcap: «0»}", "attention.softcap: too small", "more than 0"),
    ("attention: {heads: 2, qk_norm: «true»}", "attention.qk_norm: wrong kind of value", "a mapping"),
    (
        "attention: {heads: 2, qk_norm: {over: «heads»}}",
        "attention.qk_norm.over: not a word",
        "one of head, projection",
    ),
    ("attention: {heads: 2, qk_norm: {over: head, weights: «each»}}", "qk_norm.weights: not a word", "shared, own"),
    (
        "attention: {heads: 2, qk_norm: {over: head, weights: own, offset: «1»}}",
        "offset is part of a norm whose weights are shared",
        "offset: none",
    ),
    ("attention: {heads: 2, v_norm: «true»}", "attention.v_norm: wrong kind of value", "a mapping"),
    ("attention: {heads: 2, v_norm: {over: head, weight: «true»}}", "attention.v_norm.weight: not a word", "false"),
    ("attention: {heads: 2, v_from: «q»}", "attention.v_from: not a word", "k"),
    ("attention: {heads: 2, rope: «true»}", "attention.rope: wrong kind of value", "a mapping"),
    ("attention: «2»", "attention: wrong kind of value", "a mapping"),
    ("«attention»: [heads, 2]", "attention: wrong kind of value", "a mapping"),
    (f"attention: {{heads: 2, rope: {{{ROPE}, dims: «0»}}}}", "attention.rope.dims: too small", "more than 0"),
    ("attention: {heads: 2, rope: {theta: «0», pairing: half}}", "attention.rope.theta: too small", "at least 1"),
    ("attention: {heads: 2, rope: {theta: «-1e4», pairing: half}}", "attention.rope.theta: too small", "at least 1"),
    ("attention: {heads: 2, rope: {theta: 1e4, pairing: «full»}}", "rope.pairing: not a word", "one of half, inter"),
    (SCALED % "factor: «0», ", "attention.rope.scaling.factor: too small", "more than 0"),
    (SCALED % "factor: «-8», ", "attention.rope.scaling.factor: too small", "more than 0"),
    (SCALED % "factor: «true», ", "attention.rope.scaling.factor: wrong kind of value", "a number"),
    ("mlp: {type: «swish», width: 4}", "mlp.type: not a word that is known here", "one of swiglu, geglu, geglu_tanh"),
    ("mlp: {type: relu, width: «0»}", "mlp.width: too small", "more than 0"),
    ("mlp:\n  type: relu\n  width: «1.5»\n", "mlp.width: wrong kind of value", "an integer"),
    ("mlp: {type: relu, width: 4, bias: [«q»]}", "mlp.bias[0]: not a word", "one of gate, up, down"),
    ("mlp: {type: relu, width: 4, «bias»: [up, up]}", "mlp: a matrix is named twice", "at most once"),
    ("norm: {type: «batch», eps: 1e-5, placement: pre}", "norm.type: not a word", "one of rms, layer"),
    ("norm: {type: rms, eps: «-1», placement: pre}", "norm.eps: too small", "at least 0"),
    ("norm: {type: rms, eps: 1e-5, placement: «middle»}", "norm.placement: not a word", "one of pre, post, sandwich"),
    ("norm: {type: rms, eps: 1e-5, placement: pre, final: «1»}", "norm.final: wrong kind of value", "true or false"),
    ("norm: {type: rms, eps: 1e-5, placement: pre, offset: «a»}", "norm.offset: wrong kind of value", "a number"),
    ("norm: {type: rms, eps: 1e-5, placement: pre, bias: «true»}", "norm: an rms norm has no bias", "no such key"),
    ("«norm»: {type: layer, eps: 1e-5, placement: pre}", "must say whether it has a bias", "bias: true or bias: false"),
    ("norm: {type: rms, eps: 1e-5, placement: pre, weight: «none»}", "norm.weight: wrong kind", "true or false"),
    ("norm: {type: layer, eps: 1e-5, placement: pre, weight: false, bias: «true»}", "without weight has", "no bias"),
    ("norm: {type: rms, eps: 1e-5, placement: pre, weight: false, offset: «1»}", "without weight has", "no offset"),
    ("norm: {type: layer, eps: 1e-5, placement: pre, weight: false, offset: «1»}", "without weight has", "no offset"),
    (longrope("choose: by_length, original: «32»"), "no call is longer than this", "less than context 32"),
    (longrope("choose: «by_length»"), "by_length must say its original", "the most tokens of a call"),
    (longrope("choose: long, original: «8»"), "choose: long takes one list for all", "choose: by_length"),
    (longrope("choose: «by_length», original: 8", "short: [1, 2]"), "there is no list long", "long: [...]"),
    (scaled("type: dynamic, factor: 2, original: «32»"), "no call is longer than this", "less than context 32"),
    (scaled("type: dynamic, factor: «0», original: 8"), "scaling.factor: too small", "more than 0"),
    (scaled("type: «dynamic», factor: 2, original: 8", ", dims: 2"), "one alone turns", "a wider head or rope"),
    ("attention: {heads: 2, clip: «0»}", "attention.clip: too small", "more than 0"),
    ("head: {tied: true, scale: «0»}", "head.scale: too small", "more than 0"),
    ("residual_scale: «-1»", "residual_scale: too small", "more than 0"),
    ("attention: {heads: 2, sinks: «1»}", "attention.sinks: wrong kind of value", "true or false"),
    ("attention: {heads: 2, sinks: true, softcap: «2»}", "attention: softcap changes scores", "no softcap"),
    (
        "«mlp»: {type: swiglu_clamped, width: 4, limit: 7}",
        "swiglu_clamped must say its alpha",
        "alpha: a number above 0",
    ),
    ("mlp: {type: swiglu, width: 4, limit: «7»}", "swiglu has no limit", "no such key here"),
    ("head: {tied: «1»}", "head.tied: wrong kind of value", "true or false"),
    ("head: {tied: true, bias: «1»}", "head.bias: wrong kind of value", "true or false"),
    (
        "head: {tied: true, bias: «[head]»}".replace("«[head]»", "[head]").replace("bias", "«bias»"),
        "head.bias: wrong",
        "",
    ),
    ("head: {tied: «none»}", "head.tied: wrong kind of value", "true or false"),
    ("head: «3»", "head: wrong kind of value", "a mapping"),
    ("head: {tied: true, softcap: «-1»}", "head.softcap: too small", "more than 0"),
    ("embedding: {scale: «sqrt»}", "embedding.scale: wrong kind of value", "a number or sqrt_width"),
    ("embedding: {scale: «-1»}", "embedding.scale: too small", "more than 0 or sqrt_width"),
    ("embedding: {width: «8»}", "embedding: the embedding is as wide as the stream, 8", "another number than 8"),
    ("embedding: {width: «0»}", "embedding.width: too small", "more than 0"),
    ("embedding: {«norm»: {type: layer, eps: 1e-5}}", "embedding.norm: a layer norm must say", "bias: true or bias"),
    ("embedding: {norm: {type: rms, eps: 1, bias: «true»}}", "embedding.norm: an rms norm has no bias", "no such key"),
    ("embedding: {scale: {rsqrt: «0»}}", "embedding.scale.rsqrt: too small", "more than 0"),
    ("embedding: {scale: {rsqrt: «x»}}", "embedding.scale.rsqrt: wrong kind of value", "a number"),
    ("embedding: {scale: {rsqrt: 2, «sqrt»: 3}}", "unknown key embedding.scale.sqrt", "one of rsqrt"),
    ("embedding: {«scale»: {}}", "missing key embedding.scale.rsqrt", "a number"),
    ("embedding: {«scale»: [2]}", "embedding.scale: wrong kind of value", "a number or sqrt_width"),
    ("positions: «learned»", "positions: wrong kind of value", "a mapping"),
    ("positions: {type: «rotary»}", "positions: no such type", "one of learned, sinusoidal"),
    ("vocab: «0»", "vocab: too small", "more than 0"),
    ("vocab: «16.0»", "vocab: wrong kind of value", "an integer"),
    ("width: «-8»", "width: too small", "more than 0"),
    ("depth: «0»", "depth: too small", "more than 0"),
    ('depth: «"2"»', "depth: wrong kind of value", "an integer"),
    ("context: «none»", "context: wrong kind of value", "an integer"),
    ("description: «12»", "description: wrong kind of value", "a word"),
    ("init: {std: «0»}", "init.std: too small", "more than 0"),
    ("expect: {parameters: «1.5»}", "expect.parameters: wrong kind of value", "an integer"),
    ("expect: {kv_values_per_token: «-1»}", "expect.kv_values_per_token: too small", "at least 0"),
    ("expect: {layers: {local: «0»}}", "expect.layers.local: too small", "more than 0"),
    ("block: «7»\nnorm: {type: rms, eps: 1e-5}", "block: wrong kind of value", "a list"),
    ("layers: {pattern: «a», kinds: {a: {}}}", "layers.pattern: wrong kind of value", "a list"),
    ("layers: {pattern: [a], kinds: {a: «none»}}", "layers.kinds.a: wrong kind of value", "a mapping"),
    ("layers: {pattern: [a], kinds: {«A»: {}}}", "layers.kinds.A: not a name of a layer kind", "a letter a-z"),
    ("layers: {pattern: [a], kinds: {«a+b»: {}}}", "layers.kinds.a+b: not a name of a layer kind", "a letter a-z"),
]


@pytest.mark.parametrize(("change", "message", "expected"), VALUES)
def test_a_wrong_value_is_refused_where_it_stands(change: str, message: str, expected: str) -> None:
    found = finding(change)
    assert message in found.message
    assert expected in found.expected


HINTS = [
    ('attention: {heads: «"2"»}', "remove the quotes"),
    ('norm: {type: rms, eps: «"1e-5"», placement: pre}', "remove the quotes"),
    ("norm:\n  type: rms\n  eps: «'1e-5'»\n  placement: pre\n", "remove the quotes"),
    ("attention: {heads: «2.0»}", "write 2"),
    ("mlp: {type: «gelu_tan», width: 4}", "did you mean gelu_tanh?"),
    ("mlp: {type: «swigu», width: 4}", "did you mean swiglu?"),
    ("norm: {type: rms, eps: 1e-5, placement: «per»}", "did you mean pre?"),
    ("name: «12»", "quote it if it is text"),
    ("head: {tied: true, softcap: «-2.0»}", ""),
    ("mlp: {type: «swish», width: 4}", ""),  # SiLU or the gated one: no guess
]


@pytest.mark.parametrize(("change", "hint"), HINTS)
def test_hints(change: str, hint: str) -> None:
    assert finding(change).hint == hint


READING = [
    ("depth: «010»", "a number with a leading zero"),
    ("attention: {heads: 2, kv_heads: «null»}", "no value"),
    ("attention:\n  heads: 2\n  kv_heads: «~»\n", "no value"),
    ("norm: {type: rms, eps: «.nan», placement: pre}", "not a finite number"),
    ("attention: {heads: 2, rope: {theta: «.inf», pairing: half}}", "not a finite number"),
    ("vocab: «16_000»", "an underscore in a number"),
    ("vocab: «0x10»", "a number that is not decimal"),
]


@pytest.mark.parametrize(("change", "message"), READING)
def test_what_no_reader_agrees_on_is_refused_before_it_is_a_value(change: str, message: str) -> None:
    assert finding(change).message == message


def test_null_says_what_to_write() -> None:
    assert finding("attention: {heads: 2, kv_heads: «null»}").hint == "write none, or leave the key out"


# Missing keys: no default is supplied

MISSING = [
    # change, what to drop, message, expected
    ("", "name", "missing key name", "a word"),
    ("", "vocab", "missing key vocab", "an integer"),
    ("", "width", "missing key width", "an integer"),
    ("", "depth", "missing key depth", "an integer"),
    ("", "context", "missing key context", "an integer"),
    ("", "head", "missing key head", "a mapping with tied"),
    ("", "attention", "missing key attention", ""),
    ("", "mlp", "missing key mlp", ""),
    (
        "",
        "norm",
        "missing key norm",
        "norm.placement, one of pre, post, sandwich, branch, parallel_one, parallel_two; or a block",
    ),
    ("", "positions", "nothing says where a token stands", "positions, attention.rope or attention.alibi"),
    ("«head»: {softcap: 4}", "", "missing key head.tied", "true or false"),
    ("«head»:\n  softcap: 4\n", "", "missing key head.tied", "true or false"),
    ("«attention»: {kv_heads: 2}", "", "missing key attention.heads", "an integer"),
    ("«attention»: {}", "", "missing key attention.heads", "an integer"),
    ("attention: {heads: 2, «rope»: {pairing: half}}", "", "missing key attention.rope.theta", "a number"),
    ("attention: {heads: 2, «rope»: {theta: 1e4}}", "", "missing key attention.rope.pairing", "half"),
    (
        "attention: {heads: 2, «qk_norm»: {weights: shared}}",
        "",
        "missing key attention.qk_norm.over",
        "one of head, proj",
    ),
    ("«mlp»: {width: 4}", "", "missing key mlp.type", "one of swiglu, geglu"),
    ("«mlp»:\n  type: relu\n", "", "missing key mlp.width", "an integer"),
    ("«norm»: {type: rms, placement: pre}", "", "missing key norm.eps", "a number"),
    ("«norm»: {eps: 1e-5, placement: pre}", "", "missing key norm.type", "one of rms, layer"),
    (
        "«norm»: {type: rms, eps: 1e-5}",
        "",
        "missing key norm.placement",
        "one of pre, post, sandwich, branch, parallel_one, parallel_two",
    ),
    ("«positions»: {}", "", "missing key positions.type", "one of learned, sinusoidal"),
    ("«init»: {}", "", "missing key init.std", "a number"),
    ("«layers»: {pattern: [a]}", "", "missing key layers.kinds", "a mapping"),
]


@pytest.mark.parametrize(("change", "drop", "message", "expected"), MISSING)
def test_a_missing_key_is_missed_where_it_should_stand(change: str, drop: str, message: str, expected: str) -> None:
    if not change:
        (found,) = findings(change, drop)
        assert (found.place.line, found.place.column) == (1, 1)
    else:
        found = finding(change, drop)
    assert found.message == message
    assert expected in found.expected


@pytest.mark.parametrize(
    "missing", ["factor: 8", "low_freq_factor: 1", "high_freq_factor: 4", "original: 16", "type: llama3"]
)
def test_a_scaling_says_all_of_itself(missing: str) -> None:
    scaling = LLAMA3.replace(missing, "").replace(", ,", ",").strip(", ")
    found = finding(f"attention: {{heads: 2, rope: {{{ROPE}, «scaling»: {{{scaling}}}}}}}")
    assert found.message == f"missing key attention.rope.scaling.{missing.split(':')[0]}"
    assert found.hint == f"no default is supplied: say {missing.split(':')[0]}"


# Values that do not go together

TOGETHER = [
    # change, message, expected, what else is shown
    ("attention: {heads: «3»}", "attention.heads 3 does not divide width 8", "such as 2 or 4, or a head_dim", ()),
    ("attention:\n  heads: «5»\n", "attention.heads 5 does not divide width 8", "a divisor of 8", ()),
    ("attention: {heads: «1000000000000»}", "does not divide width 8", "such as 1 or 8", ()),
    ("attention: {heads: 4, kv_heads: «3»}", "attention.kv_heads 3 does not divide attention.heads 4", "", ("heads",)),
    ("attention: {heads: 2, kv_heads: «4»}", "attention.kv_heads 4 does not divide attention.heads 2", "", ("heads",)),
    ("attention: {heads: 2, window: «32»}", "a window this long hides nothing", "less than context 32", ()),
    ("attention: {heads: 2, window: «4», causal: false}", "causal: false looks both ways", "no window", ("causal",)),
    (f"attention: {{heads: 2, rope: {{{ROPE}, dims: «3»}}}}", "attention.rope: rope turns pairs", "an even width", ()),
    (f"attention: {{heads: 2, head_dim: 5, «rope»: {{{ROPE}}}}}", "attention: rope turns pairs", "an even width", ()),
    (f"attention: {{heads: 2, rope: {{{ROPE}, dims: «6»}}}}", "dims is more than a head of 4 has", "at most 4", ()),
    (f"attention: {{heads: 2, rope: {{{ROPE}, pairs: «3»}}}}", "pairs is more than a head of 4 has", "at most 2", ()),
    (f"attention: {{heads: 2, rope: {{{ROPE}, dims: 2, pairs: «1»}}}}", "two meanings of partial", "", ("dims",)),
    (
        f"attention: {{heads: 2, rope: {{{ROPE}, scaling: {{{LLAMA3.replace('4', '«1»')}}}}}}}",
        "the bands of wavelengths cross",
        "more than low_freq_factor 1",
        ("low_freq_factor",),
    ),
    ("attention: {heads: 2, «qk_norm»: {over: head}}", "must say whose its weights are", "weights: shared", ()),
    (
        "attention: {heads: 2, qk_norm: {over: projection, weights: «shared»}}",
        "attention.qk_norm: a norm over the projection has a weight for each of its numbers",
        "no such key beside over: projection",
        (),
    ),
    (
        "attention: {heads: 2, «qk_norm»: {over: projection}}\nnorm: none\nblock: [attention, mlp]",
        "there is no norm to take type and eps from",
        "a norm, or type and eps here",
        (),
    ),
    (
        "attention: {heads: 2, «v_norm»: {over: head, weight: false}}\nnorm: none\nblock: [attention, mlp]",
        "there is no norm to take type and eps from",
        "a norm, or type and eps here",
        (),
    ),
    (
        "attention: {heads: 2, v_from: k, «bias»: [k, v]}",
        "attention: v_from: k leaves no matrix of values to bias",
        "no v here",
        ("values are keys",),
    ),
    ("mlp: {type: relu, width: 4, «bias»: [gate]}", "relu has no gate to bias", "up, down", ("the type is set here",)),
    (
        "norm: {type: rms, eps: 1e-5, «placement»: pre}\nblock: [mlp]",
        "norm.placement and block say the same thing",
        "one of them",
        ("block is here",),
    ),
    ("«mlp»: none", "norm.placement pre places the mlp, which is none", "", ()),
    ("«attention»: none", "norm.placement pre places the attention, which is none", "", ()),
    ("depth: «1000000000»", "more layers than can be laid out one by one", "at most 10000", ()),
]


@pytest.mark.parametrize(("change", "message", "expected", "others"), TOGETHER)
def test_values_that_do_not_go_together(change: str, message: str, expected: str, others: tuple[str, ...]) -> None:
    found = finding(change)
    assert message in found.message
    assert expected in found.expected
    assert tuple(label for label, _ in found.others) == others


def test_the_other_place_is_where_it_stands() -> None:
    found = finding("attention:\n  heads: 4\n  kv_heads: «3»\n")
    ((_, other),) = found.others
    assert (other.line, other.column) == (9, 10)


def test_all_faults_of_one_run_in_the_order_of_the_file() -> None:
    found = findings("vocab: 0\nattention: {heads: true}\nmlp: {type: swish, width: 0}\nextra: 1")
    assert [(f.place.line, f.message.split(":")[0]) for f in found] == [
        (3, "vocab"), (8, "attention.heads"), (9, "mlp.type"), (9, "mlp.width"), (12, "unknown key extra"),
    ]  # fmt: skip


def test_where_layers_are_wrong_nothing_is_said_of_positions() -> None:
    (found,) = findings("attention: {heads: true}", "positions")
    assert found.message == "attention.heads: wrong kind of value"


def test_under_an_unknown_type_nothing_else_is_said() -> None:
    (found,) = findings(f"attention: {{heads: 2, rope: {{{ROPE}, scaling: {{type: yarm, beta_fast: 32}}}}}}")
    assert found.message == "attention.rope.scaling: no such type"


# What is valid


def test_heads_need_not_divide_the_width_beside_a_head_dim() -> None:
    attention = spec("width: 1792\nattention: {heads: 24, head_dim: 128}").layers[0].keys.attention
    assert isinstance(attention, Attention)
    assert attention.resolve(1792).head_dim == 128


@pytest.mark.parametrize(
    "key",
    ["window", "softcap", "rope", "kv_heads", "head_dim", "scale", "bias", "qk_norm", "v_norm", "sub_norm", "v_from"],
)
def test_none_is_what_absence_is(key: str) -> None:
    assert made(f"attention: {{heads: 2, {key}: none}}").decoder == made().decoder


@pytest.mark.parametrize(
    "change",
    [
        "embedding: none", "embedding: {scale: none}", "head: {tied: true, softcap: none}", "init: none",
        "expect: none", "layers: none", "checkpoint: none", "parts: none", "block: none",
        "mlp: {type: relu, width: 16, bias: none}",
        "norm: {type: rms, eps: 1e-5, placement: pre, offset: none}",
    ],
)  # fmt: skip
def test_none_turns_off_what_may_be_absent(change: str) -> None:
    assert made(change).decoder == made().decoder


def test_marks_are_read_as_meant() -> None:
    assert mark("a\nb: «cd»\n") == (2, 4, 2)
    assert changed("mlp: {type: gelu, width: 4}", "head").count("\n") == 10
