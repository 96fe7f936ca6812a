"""Values made of keys, and layers that read the keys and values of earlier ones, by the outside: Gemma 4's text model.

Without inputs of each layer's own, without experts, and with the scalars of its layers at 1, it says these words alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from blockc import api
from blockc.diff import diff
from blockc.graph.shrink import shrink
from blockc.graph.target import Target
from blockc.ir import Array, dim, parameters_of
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.products.genai import CONFIG
from blockc.proof import prove
from blockc.proof.cases import Case
from blockc.proof.runners import Oracle
from blockc.report import make_report
from blockc.runtime import Session
from blockc.weights.rules import random_parameters
from tests.checkpoints import save
from tests.diff.test_diff import lines, side
from tests.products.test_genai import SAYS, generated, greedy
from tests.spec_text import changed, finding, made, spec
from tests.spec_variants import VARIANTS

KEYS = """\
vocab: 40
width: 24
depth: 2
context: 32
embedding: {scale: sqrt_width}
attention:
  heads: 4
  kv_heads: 2
  head_dim: 16
  scale: 1.0
  qk_norm: {over: head, weights: shared}
  v_norm: {over: head, weight: false}
  rope: {theta: 1e4, pairing: half}
mlp: {type: geglu_tanh, width: 12}
norm: {type: rms, eps: 1e-6, placement: sandwich}
head: {tied: true, softcap: 2}
"""
GLOBAL = "kv_heads: 1, head_dim: 32, v_from: k, rope: {theta: 1e6, pairs: 4}"
KINDS = f"near: {{attention: {{window: 5}}}}, far: {{attention: {{{GLOBAL}}}}}"
OWN = f"layers: {{pattern: [near, far], kinds: {{{KINDS}}}}}\n"
WIDE = "mlp: {width: 24}"
SHARING = f"""\
depth: 8
layers:
  first: [far, {{near: 3}}]
  pattern: [{{late: 3}}, last]
  kinds:
    near: {{attention: {{window: 5}}}}
    far: {{attention: {{{GLOBAL}}}}}
    late: {{attention: {{window: 5, v_norm: none, kv_from: near}}, {WIDE}}}
    last: {{attention: {{{GLOBAL.replace("v_from: k", "v_norm: none, kv_from: far")}}}, {WIDE}}}
"""
SHORT = KEYS.replace("depth: 2\n", "")  # of what is said of the layers
FEW = SHARING.replace("depth: 8", "depth: 4").replace("{near: 3}", "near").replace("{late: 3}", "late")
OTHER = "    other: {attention: {window: 5}}\n    far:"  # like near, and not of that kind
CLOSE = 2e-5  # of the logits' spread: transformers has norms and angles in float32
NAMES = {
    **{f"attention.{m}": f"self_attn.{m}_proj" for m in "qkvo"},
    **{f"attention.{m}_norm": f"self_attn.{m}_norm" for m in "qk"},
    "attention_norm": "input_layernorm",
    "attention_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
    **{f"mlp.{m}": f"mlp.{m}_proj" for m in ("gate", "up", "down")},
}


def outside(params: Mapping[str, Array], tokens: Array, types: str = "nf", shared: int = 0) -> Array:
    """Layers are near or far; the last ones share, and their MLPs are twice as wide."""
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    config = Gemma4TextConfig(
        vocab_size=40, hidden_size=24, intermediate_size=12, num_hidden_layers=len(types), num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, global_head_dim=32, num_global_key_value_heads=1, attention_k_eq_v=True,
        layer_types=[{"n": "sliding_attention", "f": "full_attention"}[kind] for kind in types], sliding_window=5,
        num_kv_shared_layers=shared, use_double_wide_mlp=True, rms_norm_eps=1e-6, final_logit_softcapping=2.0,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        },
        max_position_embeddings=32, hidden_size_per_layer_input=0, vocab_size_per_layer_input=40,
        tie_word_embeddings=True, pad_token_id=0,
    )  # fmt: skip
    config._attn_implementation = "eager"
    model = Gemma4ForCausalLM(config).double().eval()
    state = {name: torch.ones_like(t) for name, t in model.state_dict().items() if name.endswith("layer_scalar")}
    names = {"embedding": "model.embed_tokens", "final_norm": "model.norm"}
    for path, array in params.items():
        module, _, kind = path.rpartition(".")
        if path.startswith("layers."):
            _, layer, label = module.split(".", 2)
            module = f"model.layers.{layer}.{NAMES[label]}"
        state[f"{names.get(module, module)}.{kind}"] = torch.from_numpy(array)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    with torch.no_grad():
        # Asked for hidden states too, it does not leave out what it thinks no logit needs, which fails without inputs
        # of each layer's own.
        return model(input_ids=torch.from_numpy(tokens), output_hidden_states=True).logits.numpy()


def error(model: Compiled, params: Mapping[str, Array], wanted: Array, chunks: tuple[int, ...]) -> float:
    ours = Oracle(model.served).run(Case("", tuple(TOKENS), (0, 0), chunks), params).logits
    return float(np.abs(ours - wanted).max() / wanted.std())


ROW = [3, 14, 15, 9, 26, 5, 35]
TOKENS = np.random.RandomState(3).randint(0, 40, (2, 12))
CHUNKS = ((12,), (5, 4, 1, 1, 1))


@cache
def whole() -> Compiled:
    return made(KEYS + OWN)


@cache
def sharing() -> Compiled:
    return made(SHORT + SHARING)


@pytest.mark.parametrize("chunks", CHUNKS)
def test_values_are_normed_keys(chunks: tuple[int, ...]) -> None:
    params = random_parameters(whole().function, 5)
    assert "layers.0.attention.v.weight" in params and "layers.1.attention.v.weight" not in params
    assert error(whole(), params, outside(params, TOKENS), chunks) < CLOSE


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  v_norm: {over: head, weight: false}\n", ""),
        ("weight: false}\n", "weight: false, type: layer, eps: 1e-6}\n"),
        ("weight: false}\n", "weight: false, eps: 1e-3}\n"),
    ],
)
def test_another_norm_of_values_shows(old: str, new: str) -> None:
    params = random_parameters(whole().function, 5)
    wrong = made((KEYS + OWN).replace(old, new))
    assert error(wrong, params, outside(params, TOKENS), (12,)) > 1e-3


@pytest.mark.parametrize("chunks", CHUNKS)
def test_layers_read_the_keys_and_values_of_the_latest_of_a_kind(chunks: tuple[int, ...]) -> None:
    params = random_parameters(sharing().function, 5)
    assert error(sharing(), params, outside(params, TOKENS, "fnnnnnnf", 4), chunks) < CLOSE


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{near: 3}", "{near: 2}, other"),  # they read what the last but one made
        ("window: 5, v_norm: none", "v_norm: none"),
        ("  qk_norm: {over: head, weights: shared}\n", ""),
    ],
)
def test_other_keys_and_values_show(old: str, new: str) -> None:
    params = random_parameters(sharing().function, 5)
    text = (SHORT + SHARING).replace(old, new)
    wrong = made(text.replace("    far:", OTHER) if "other" in new else text)
    assert error(wrong, params, outside(params, TOKENS, "fnnnnnnf", 4), (12,)) > 1e-2


CPU, CUDA, ROWS = Target("cpu"), Target("cuda", "fp16"), Target("cpu", padding="right")
SOFT = KEYS.replace("scale: 1.0", "scale: 0.25")  # sharper scores are beyond half precision


def unfused(model: Compiled, target: Target) -> dict[str, str]:
    return {left.node.split(".")[1]: left.reason for left in model.unfused(target) if left.node.endswith("mixed")}


def test_values_of_both_kinds_are_fused() -> None:
    model = made(SOFT + OWN)
    found = prove(model, targets=(CUDA,))
    assert found.complete, found.table()
    assert not unfused(model, CPU) and not unfused(model, CUDA)


def test_every_backend_reads_what_another_layer_remembers() -> None:
    """A kernel that holds its cache turns keys by where they lie, and their other readers do not: none is fused."""
    model = made(SHORT.replace("scale: 1.0", "scale: 0.25").replace("sandwich", "pre") + FEW)
    found = prove(model, targets=(Target(), Target(cache="buffer"), CPU, CUDA))
    assert found.complete, found.table()
    lent, borrowed = "another attention reads its cache", "its keys and values are another attention's"
    wanted = dict.fromkeys("03", lent) | dict.fromkeys("4567", borrowed)
    assert unfused(sharing(), CPU) == wanted
    alike = "layers.0.attention.mixed is not fused, and all must lay out rows alike"
    assert unfused(sharing(), CUDA) == unfused(sharing(), ROWS) == wanted | dict.fromkeys("12", alike)


def test_only_layers_that_make_keys_and_values_have_a_cache() -> None:
    made_by = ["0.key", "0.value", "1.key", "1.value", "2.key", "2.value", "3.key", "3.value"]
    served = sharing().served
    assert [n.name for n in served.inputs[3:]] == [f"past_key_values.{each}" for each in made_by]
    assert list(served.output_names[1:]) == [f"present.{each}" for each in made_by]
    figures = make_report(sharing().spec, sharing().decoder, sharing().function)
    assert figures.kv_cache.values_per_token == 3 * 2 * 2 * 16 + 2 * 32
    assert figures.kv_cache.bytes_per_token_per_kind["late"] == 0
    paths = parameters_of(sharing().function)
    assert {path.split(".")[3] for path in paths if path.startswith("layers.4.attention.")} == {"q", "q_norm", "o"}


def test_the_last_token_alone_goes_through_the_layers_that_read() -> None:
    """What these layers make of earlier tokens nobody reads."""
    flat = sharing().flatten(Target(logits="last"))
    shapes = {n.name: n.types[0].shape for n in flat.nodes if n.name.startswith("layers.") and n.name.endswith(".o")}
    assert [shape[1] == dim(1) for shape in shapes.values()] == [False] * 3 + [True] * 5


def test_a_twin_keeps_who_reads_whom() -> None:
    small = compile_spec(shrink(sharing().spec))
    assert [(r.layer, r.source) for r in small.decoder.readings] == [(3, 2), (4, 2), (5, 0), (6, 2), (7, 2), (8, 0)]


@pytest.mark.parametrize("target", [Target(), CPU, Target(cache="buffer")], ids=["portable", "fused", "buffer"])
def test_sessions_generate_what_the_oracle_does(target: Target, tmp_path: Path) -> None:
    """onnxruntime-genai too, whose layers are those that have a cache."""
    params = random_parameters(sharing().function, 5)
    wanted = greedy(sharing(), params, ROW)
    save(tmp_path / "in" / "model.safetensors", {path: array.astype(np.float32) for path, array in params.items()})
    (tmp_path / "in" / "generation_config.json").write_bytes(SAYS["generation_config.json"])
    folder = tmp_path / "out"
    products = ["genai"] if target.cache == "joined" else []
    api.build(sharing(), folder, target=target, proof=False, weights=tmp_path / "in", products=products)
    steps = [tokens[0] for tokens in Session(folder).generate([ROW], len(wanted) - len(ROW))]
    assert ROW + steps == wanted
    if products:
        assert generated(folder, [ROW]) == [wanted]
        assert json.loads((folder / CONFIG).read_text())["model"]["decoder"]["num_hidden_layers"] == 4


ROPE = "rope: {theta: 1e4, pairing: half"
WRONG = [
    # kinds a and b, which are laid by turns; message, expected, hint, what else is shown
    ("a: {}, b: {attention: {kv_from: «c»}}", "layer kind c is not defined", "one of a, b", "", ()),
    ("near: {}, b: {attention: {kv_from: «naer»}}", "layer kind naer is not", "one of b, near", "mean near?", ()),
    ("a: {attention: {kv_from: «b»}}, b: {}", "no layer of kind b before layer 0 makes", "its own", "lends none", ()),
    ("a: {attention: {kv_from: «a»}}, b: {}", "no layer of kind a before layer 0 makes", "its own", "lends none", ()),
    ("a: {}, b: {attention: {kv_from: «b»}}", "no layer of kind b before layer 1 makes", "its own", "lends none", ()),
    ("a: {block: [mlp]}, b: {attention: {kv_from: «a»}}", "keys and values in attention", "its own", "lends none", ()),
    ("a: {}, b: {attention: {kv_from: «a», kv_heads: 1}}", "kv_heads is not that of layer 0", "2", "", ("kv_heads",)),
    ("a: {}, b: {attention: {kv_from: «a», head_dim: 8}}", "head_dim is not that of layer 0", "4", "", ("head_dim",)),
    (f"a: {{}}, b: {{attention: {{kv_from: «a», {ROPE}}}}}}}", "rope is not that of layer 0", "none", "", ("rope",)),
    ("a: {}, b: {attention: {kv_from: a, «bias»: [k, q]}}", "no matrix of keys or values to bias", "", "", ("read",)),
    ("a: {}, b: {attention: {kv_from: a, v_from: «k»}}", "kv_from leaves no values to make", "none", "", ("read",)),
    ("a: {}, b: {attention: {kv_from: a, «v_norm»: {over: head, weight: false}}}", "v_norm is of the layer that makes",
     "v_norm: none", "", ("read",)),
]  # fmt: skip


@pytest.mark.parametrize(("kinds", "message", "expected", "hint", "others"), WRONG)
def test_what_cannot_be_read_is_refused(
    kinds: str, message: str, expected: str, hint: str, others: tuple[str, ...]
) -> None:
    found = finding(f"layers:\n  pattern: [{kinds.partition(':')[0]}, b]\n  kinds: {{{kinds}}}\n")
    assert message in found.message
    assert expected in found.expected and hint in found.hint
    assert len(found.others) == len(others)
    for (label, _), word in zip(found.others, others, strict=True):
        assert word in label


def test_a_difference_in_who_is_read_is_said_once_and_of_the_readers() -> None:
    whole = changed(SHORT + SHARING)
    theirs = whole.replace("far, {near: 3}", "far, {near: 2}, other").replace("    far:", OTHER)
    found = diff(side(whole), side(theirs))
    assert lines(found, "NUMERIC") == ["attention: mixed: layer 3 -> 2, 3 times (layers.{i}.attention)"]
    capped = diff(side(whole), side(whole.replace("kv_from: far", "kv_from: far, softcap: 3")))
    assert lines(capped, "NUMERIC") == ["attention.softcap: none -> 3 (layers.7.attention)"]
    scaled = diff(side(whole), side(whole.replace("scale: sqrt_width", "scale: 3")))
    assert [line.partition(":")[0] for line in lines(scaled, "NUMERIC")] == ["embedding.scale"]


def test_texts_fold_the_readers_and_leave_whom_they_read_apart() -> None:
    graph, text = sharing().graph_txt(), sharing().model_py()
    assert "    for N in 4..6:\n        chain = LateLayer as layers.N(chain, mask_5, layers.3.key, " in graph
    assert "    layers.3 = NearLayer(layers, " in graph and "function NearLayer2" not in graph
    assert "    for N in 1..2:\n        chain = NearLayer as layers.N(chain, mask_5, " in graph
    assert "        for layer in layers[4:7]:\n            x = layer(x, mask_5, layers_3_key, " in text
    assert "present.append((layers_3_key, layers_3_value))" in text
    late = made(SHORT + SHARING.replace("depth: 8", "depth: 10") + "  last: [{near: 2}]\n").graph_txt()
    assert "for N in 8..9:\n        chain = NearLayer as layers.N(chain, mask_5, " in late
    assert "past_key_values.(N - 4).key" in late


def test_a_twin_keeps_as_many_keys_for_readers_of_fewer_heads() -> None:
    kinds = "kinds: {a: {}, b: {attention: {kv_from: a, heads: 4, kv_heads: 4}}}"
    large = f"width: 64\nattention: {{heads: 16, kv_heads: 4, head_dim: 16}}\nlayers: {{pattern: [a, b], {kinds}}}\n"
    assert [layer.keys.attention.kv_heads for layer in shrink(spec(large)).layers if layer.keys.attention] == [2, 2]


def test_what_a_kind_is_called_is_no_part_of_the_meaning() -> None:
    renamed = SHARING.replace("near", "narrow").replace("late", "reader")
    assert made(SHORT + renamed).decoder.semantic_hash == sharing().decoder.semantic_hash
    other = SHARING.replace("{near: 3}", "{near: 2}, other").replace("    far:", OTHER)
    assert made(SHORT + other).decoder.semantic_hash != sharing().decoder.semantic_hash


@pytest.mark.parametrize(
    "variant", ["keys of another layer", "keys of another layer's part", "keys of another layer, both ways"]
)
def test_emitted_layers_lend_beside_what_they_remember(variant: str) -> None:
    found = prove(made(VARIANTS[variant]), targets=())
    assert found.complete and len({row.backend for row in found.rows}) == 2, found.table()
