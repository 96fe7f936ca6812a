"""attention.latent: what is read, what is refused beside it, and how it shrinks."""

from __future__ import annotations

import pytest

from blockc.graph.shrink import shrink
from blockc.ir import parameters_of
from blockc.language.spec import resolve_spec
from tests.spec_text import finding, made, spec

LATENT = "latent: {kv_rank: 4, nope_dim: 3, rope_dim: 2, v_dim: 5, norm: {eps: 1e-6}}"
ROPE = "rope: {theta: 100, pairing: half}"


def attention(*keys: str, latent: str = LATENT, rope: str = ROPE) -> str:
    return f"attention: {{heads: 2, {', '.join((latent, *keys, rope))}}}\n"


@pytest.mark.parametrize(
    ("key", "word"),
    [
        ("kv_heads: «1»", "kv_heads"),
        ("head_dim: «8»", "head_dim"),
        ("«bias»: [o]", "bias"),
        ("«alibi»: {max_bias: 8}", "alibi"),
        ("softcap: «30»", "softcap"),
        ("clip: «8»", "clip"),
        ("sinks: «true»", "sinks"),
        ("«qk_norm»: {over: head, weights: shared}", "qk_norm"),
        ("«v_norm»: {over: head, weight: false}", "v_norm"),
        ("v_from: «k»", "v_from"),
    ],
)
def test_what_is_not_defined_beside_it_is_refused_at_its_place(key: str, word: str) -> None:
    found = finding(attention(key))
    assert found.code.name == "BLC244"
    assert found.message.endswith(f"{word} is not defined for latent attention")
    assert found.others


def test_keys_and_values_of_another_layer_are_refused_beside_it() -> None:
    kinds = "layers: {pattern: [a, b], kinds: {a: {}, b: {attention: {kv_from: «a»}}}}\n"
    found = finding(attention() + kinds)
    assert (found.code.name, found.message.endswith("kv_from is not defined for latent attention")) == ("BLC244", True)


@pytest.mark.parametrize(
    ("latent", "rope", "message"),
    [
        ("«latent»" + LATENT.removeprefix("latent"), "rope: none", "latent attention without rope"),
        (LATENT, "rope: {theta: 100, pairing: half, dims: «2»}", "rope turns all numbers of rope_dim beside latent"),
        (LATENT, "rope: {theta: 100, pairing: half, pairs: «1»}", "rope turns all numbers of rope_dim beside latent"),
    ],
)
def test_rope_turns_the_whole_of_its_part(latent: str, rope: str, message: str) -> None:
    found = finding(attention(latent=latent, rope=rope))
    assert found.code.name == "BLC244" and message in found.message


def test_rope_of_an_odd_part_is_refused() -> None:
    assert finding(attention(latent=LATENT.replace("rope_dim: 2", "rope_dim: «3»"))).code.name == "BLC206"


@pytest.mark.parametrize("key", ["kv_rank: 4, ", "nope_dim: 3, ", "rope_dim: 2, ", "v_dim: 5, ", ", norm: {eps: 1e-6}"])
def test_every_size_but_that_of_queries_must_be_said(key: str) -> None:
    lacks = LATENT.replace(key, "").replace("latent", "«latent»")
    assert key.strip(", ").partition(":")[0] in finding(attention(latent=lacks)).hint


def test_heads_have_the_sizes_that_latent_says_and_need_not_divide_the_width() -> None:
    three = attention().replace("heads: 2", "heads: 3")
    shapes = {
        name: param.shape for name, param in parameters_of(made(three).function).items() if "layers.0.att" in name
    }
    assert {name.removeprefix("layers.0.attention"): shape for name, shape in shapes.items()} == {
        "_norm.weight": (8,), ".q.weight": (15, 8), ".kv_a.weight": (6, 8), ".kv_a_norm.weight": (4,),
        ".mixed.k_up": (9, 4), ".mixed.v_up": (15, 4), ".o.weight": (8, 15),
    }  # fmt: skip
    keys = resolve_spec(spec(three))["attention"]
    assert keys["scale"] == 5**-0.5
    assert not {"kv_heads", "head_dim"} & keys.keys()


def test_resolved_keys_are_a_spec_again_and_a_rank_of_queries_adds_a_norm() -> None:
    ranked = attention(latent=LATENT.replace("{", "{q_rank: 6, ", 1))
    params = parameters_of(made(ranked).function)
    assert params["layers.1.attention.q_a.weight"].shape == (6, 8)
    assert params["layers.1.attention.q_a_norm.weight"].shape == (6,)
    assert params["layers.1.attention.q_b.weight"].shape == (10, 6)
    again = made(
        "attention: " + str(resolve_spec(spec(ranked))["attention"]).replace("True", "true").replace("'", "") + "\n"
    )
    assert again.decoder.semantic_hash == made(ranked).decoder.semantic_hash


def test_a_twin_of_a_twin_is_the_twin() -> None:
    large = "latent: {q_rank: 1536, kv_rank: 512, nope_dim: 128, rope_dim: 64, v_dim: 128, norm: {eps: 1e-6}}"
    twin = shrink(spec(attention("scale: 0.135", latent=large)))
    latent = resolve_spec(twin)["attention"]["latent"]
    sizes = [latent[key] for key in ("rope_dim", "v_dim", "nope_dim", "kv_rank", "q_rank")]
    assert sizes == sorted({*sizes})
    assert resolve_spec(shrink(twin)) == resolve_spec(twin)
