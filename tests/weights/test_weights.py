"""Checkpoints: transformers computes the oracle's logits on the same weights, and nothing wrong is read in silence."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from blockc.basics.errors import CheckpointError
from blockc.graph.build import build_graph
from blockc.graph.interp import interpret
from blockc.ir import Array, Function, parameters_of
from blockc.language.algebra import elaborate
from blockc.language.spec import from_tree
from blockc.layouts import LayoutError, load_layout, read_layout
from blockc.source import SpecError, parse
from blockc.weights.matching import pack, unpack
from blockc.weights.rules import Rules, group_sizes, patterns, random_parameters, rules
from blockc.weights.safetensors import read_safetensors, write_safetensors
from tests.paths import DATA

# Names and shapes as transformers 5.24.0 saves its tiny models; Pythia's files call the head embed_out.
SAVED: dict[str, dict[str, list[int]]] = json.loads((DATA / "hf_keys_small.json").read_text())
B, S, PADS = 2, 24, 5
AutoModel: Any = transformers.AutoModelForCausalLM
library: Any = safetensors.torch  # neither has types of its own

SIZES = "blockc: 1\nname: small\nvocab: 128\nwidth: 64\ndepth: 2\ncontext: 64\n"
LLAMA = (
    SIZES
    + """\
attention: {heads: 4, kv_heads: 2, rope: {theta: 5000, pairing: half}}
mlp: {type: swiglu, width: 96}
norm: {type: rms, eps: 1e-5, placement: pre}
head: {tied: false}
"""
)
LLAMA_TIED = (
    SIZES
    + """\
attention:
  heads: 4
  kv_heads: 2
  head_dim: 24
  bias: [q, k, v, o]
  rope:
    theta: 10000
    pairing: half
    scaling: {type: llama3, factor: 8, low_freq_factor: 1, high_freq_factor: 4, original: 32}
mlp: {type: swiglu, width: 96, bias: [gate, up, down]}
norm: {type: rms, eps: 1e-5, placement: pre}
head: {tied: true}
"""
)
MISTRAL = LLAMA.replace("kv_heads: 2,", "kv_heads: 2, head_dim: 16, window: 8,").replace("5000", "10000")
QWEN2 = LLAMA.replace("kv_heads: 2,", "kv_heads: 2, bias: [q, k, v],").replace("1e-5", "1e-6")
QWEN3 = MISTRAL.replace("window: 8", "qk_norm: {over: head, weights: shared}")
OLMO2 = LLAMA.replace("kv_heads: 2,", "kv_heads: 2, qk_norm: {over: projection},").replace("pre", "branch")
GPT2 = (
    SIZES
    + """\
positions: {type: learned}
attention: {heads: 4, bias: [q, k, v, o]}
mlp: {type: gelu_tanh, width: 256, bias: [up, down]}
norm: {type: layer, eps: 1e-5, bias: true, placement: pre}
head: {tied: true}
"""
)
PHI = (
    SIZES
    + """\
attention: {heads: 4, kv_heads: 2, bias: [q, k, v, o], rope: {theta: 10000, pairing: half, dims: 8}}
mlp: {type: gelu_tanh, width: 96, bias: [up, down]}
norm: {type: layer, eps: 1e-5, bias: true, placement: parallel_one}
head: {tied: false, bias: true}
"""
)
GPT_J = (
    SIZES
    + """\
attention: {heads: 4, rope: {theta: 10000, pairing: interleaved, dims: 8}}
mlp: {type: gelu_tanh, width: 256, bias: [up, down]}
norm: {type: layer, eps: 1e-5, bias: true, placement: parallel_one}
head: {tied: false, bias: true}
"""
)
GPT_NEOX = (
    SIZES
    + """\
attention: {heads: 4, bias: [q, k, v, o], rope: {theta: 10000, pairing: half, dims: 4}}
mlp: {type: gelu, width: 96, bias: [up, down]}
norm: {type: layer, eps: 1e-5, bias: true, placement: parallel_two}
head: {tied: false}
"""
)
GEMMA2 = (
    SIZES
    + """\
embedding: {scale: sqrt_width}
attention:
  heads: 4
  kv_heads: 2
  head_dim: 16
  scale: 0.20412414523193154  # 24^-0.5
  softcap: 50
  rope: {theta: 10000, pairing: half}
mlp: {type: geglu_tanh, width: 96}
norm: {type: rms, eps: 1e-6, offset: 1, placement: sandwich}
head: {tied: true, softcap: 30}
layers:
  pattern: [local, global]
  kinds: {local: {attention: {window: 8}}, global: {}}
"""
)
ALIKE: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    layout: str
    spec: str
    config: Callable[[], Any]

    @property
    def function(self) -> Function:
        return _function(self.spec)

    @property
    def rules(self) -> Rules:
        return rules(load_layout(self.layout), self.function, group_sizes(self.function))

    def params(self, seed: int = 0) -> dict[str, Array]:
        return random_parameters(self.function, seed)


@cache
def _function(spec: str) -> Function:
    return build_graph(elaborate(from_tree(parse(spec, "small.yaml"))))


def _rope(theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}


CASES = {
    "llama": Case("llama", LLAMA, lambda: transformers.LlamaConfig(
        **ALIKE, num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False, **_rope(5000.0))),
    "llama-tied": Case("llama", LLAMA_TIED, lambda: transformers.LlamaConfig(
        **ALIKE, num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=True, head_dim=24, attention_bias=True,
        mlp_bias=True, **_rope(10000.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                               original_max_position_embeddings=32))),
    "mistral": Case("llama", MISTRAL, lambda: transformers.MistralConfig(
        **ALIKE, num_key_value_heads=2, head_dim=16, sliding_window=8, rms_norm_eps=1e-5, tie_word_embeddings=False,
        **_rope(10000.0))),
    "qwen2": Case("llama", QWEN2, lambda: transformers.Qwen2Config(
        **ALIKE, num_key_value_heads=2, use_sliding_window=False, rms_norm_eps=1e-6, tie_word_embeddings=False,
        **_rope(5000.0))),
    "qwen3": Case("llama", QWEN3, lambda: transformers.Qwen3Config(
        **ALIKE, num_key_value_heads=2, head_dim=16, use_sliding_window=False, rms_norm_eps=1e-5,
        tie_word_embeddings=False, **_rope(10000.0))),
    "olmo2": Case("olmo2", OLMO2, lambda: transformers.Olmo2Config(
        **ALIKE, num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False, **_rope(5000.0))),
    "gpt2": Case("gpt2", GPT2, lambda: transformers.GPT2Config(
        vocab_size=128, n_positions=64, n_embd=64, n_layer=2, n_head=4, tie_word_embeddings=True, bos_token_id=1,
        eos_token_id=2)),
    "phi": Case("phi", PHI, lambda: transformers.PhiConfig(
        **ALIKE, num_key_value_heads=2, layer_norm_eps=1e-5, tie_word_embeddings=False, qk_layernorm=False,
        hidden_act="gelu_new", **_rope(10000.0, partial_rotary_factor=0.5))),
    "gpt-j": Case("gpt-j", GPT_J, lambda: transformers.GPTJConfig(
        vocab_size=128, n_positions=64, n_embd=64, n_layer=2, n_head=4, rotary_dim=8, tie_word_embeddings=False,
        bos_token_id=1, eos_token_id=2)),
    "gpt-neox": Case("gpt-neox", GPT_NEOX, lambda: transformers.GPTNeoXConfig(
        **ALIKE, tie_word_embeddings=False, hidden_act="gelu", use_parallel_residual=True,
        **_rope(10000.0, partial_rotary_factor=0.25))),
    "gemma2": Case("gemma2", GEMMA2, lambda: transformers.Gemma2Config(
        **ALIKE, num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=24, sliding_window=8, rms_norm_eps=1e-6,
        tie_word_embeddings=True, **_rope(10000.0))),
}  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


# Against transformers


def _inputs() -> dict[str, Array]:
    """The second row is padded on the left."""
    mask = np.ones((B, S), np.int64)
    mask[1, :PADS] = 0
    positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    return {
        "input_ids": np.random.RandomState(0).randint(3, 128, (B, S)),
        "attention_mask": mask,
        "position_ids": positions,
    }


def _loaded(case: Case, params: dict[str, Array], folder: Path) -> Any:
    """The transformers model, from a folder as one downloads it: strictly nothing missing, nothing left."""
    single = {name: array.astype(np.float32) for name, array in params.items()}
    write_safetensors(folder / "model.safetensors", pack(case.rules, single))
    case.config().save_pretrained(folder)
    model, info = AutoModel.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True, output_loading_info=True
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")), info
    return model.eval()


@every_case
def test_transformers_computes_what_the_oracle_computes(case: Case, tmp_path: Path) -> None:
    params, inputs = case.params(), _inputs()
    ours = interpret(case.function, inputs, params)["logits"]
    with torch.no_grad():
        theirs = _loaded(case, params, tmp_path)(**{k: torch.tensor(v) for k, v in inputs.items()}).logits.numpy()
    seen = inputs["attention_mask"] == 1
    assert ours[seen].std() > 0.1
    assert np.abs(ours - theirs)[seen].max() < 3e-5 * ours[seen].std()


@every_case
def test_what_transformers_saves_is_read_back(case: Case, tmp_path: Path) -> None:
    params = case.params(seed=1)
    model = _loaded(case, params, tmp_path)
    model.save_pretrained(tmp_path / "shards", max_shard_size="60KB")
    assert (tmp_path / "shards" / "model.safetensors.index.json").is_file()
    model.save_pretrained(tmp_path / "one")
    for folder in ("shards", "one", "one/model.safetensors"):
        _assert_same(unpack(case.rules, read_safetensors(tmp_path / folder)), params)


def _assert_same(got: dict[str, Array], expected: dict[str, Array]) -> None:
    assert got.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_array_equal(got[path], array, err_msg=path)


# Rules


@pytest.mark.parametrize("name", SAVED)
def test_pack_gives_the_names_and_shapes_that_transformers_saves(name: str) -> None:
    packed = pack(CASES[name].rules, CASES[name].params())
    assert {key: list(array.shape) for key, array in packed.items()} == SAVED[name]
    assert {rule.name: list(rule.shape) for rule in CASES[name].rules} == SAVED[name]


@every_case
def test_unpack_is_the_inverse_of_pack(case: Case) -> None:
    _assert_same(unpack(case.rules, pack(case.rules, case.params())), case.params())


@every_case
def test_the_patterns_say_what_the_rules_say(case: Case) -> None:
    held = patterns(load_layout(case.layout), case.function, group_sizes(case.function))
    expanded = {
        (p.name.format(i=i), tuple(target.format(i=i) for target in p.targets), p.groups, p.axis, p.transpose)
        for p in held for i in p.layers or (0,)
    }  # fmt: skip
    assert expanded == {(r.name, r.targets, r.groups, r.axis, r.transpose) for r in case.rules}
    assert {target for r in case.rules for target in r.targets} == set(parameters_of(case.function))
    assert all(p.layers == ((0, 1) if "{i}" in p.name else ()) for p in held)


def test_neox_interleaves_per_head() -> None:
    case = CASES["gpt-neox"]
    name, params = "gpt_neox.layers.0.attention.query_key_value.weight", case.params()
    q, k, v = (params[f"layers.0.attention.{m}.weight"].reshape(4, 16, 64) for m in "qkv")
    by_hand = np.concatenate([part[h] for h in range(4) for part in (q, k, v)])
    packed = pack(case.rules, params)[name]
    np.testing.assert_array_equal(packed, by_hand)
    stacked = Rules(tuple(replace(rule, groups=1) for rule in case.rules), case.rules.patterns)
    assert pack(stacked, params)[name].shape == packed.shape
    assert not np.array_equal(pack(stacked, params)[name], packed)


def test_gpt2_stacks_and_transposes() -> None:
    case = CASES["gpt2"]
    params, packed = case.params(), pack(case.rules, case.params())
    q, k, v = (params[f"layers.1.attention.{m}.weight"].T for m in "qkv")
    np.testing.assert_array_equal(packed["transformer.h.1.attn.c_attn.weight"], np.concatenate([q, k, v], axis=1))
    biases = np.concatenate([params[f"layers.1.attention.{m}.bias"] for m in "qkv"])
    np.testing.assert_array_equal(packed["transformer.h.1.attn.c_attn.bias"], biases)


def test_a_layout_that_is_not_there_names_those_that_are() -> None:
    for name in ("lama", "../layouts/llama", "__init__", ""):
        with pytest.raises(LayoutError, match="gemma2, .*gpt-j, .*gpt2, .*llama, .*olmo2, .*phi, phi3"):
            load_layout(name)


def test_uncovered_parameters_are_all_named() -> None:
    function = CASES["gemma2"].function
    with pytest.raises(LayoutError) as caught:
        rules(load_layout("gpt2"), function, group_sizes(function))
    gates = {f"layers.{i}.mlp.gate.weight" for i in range(2)}
    posts = {f"layers.{i}.{part}_post_norm.weight" for i in range(2) for part in ("attention", "mlp")}
    named = {line.rpartition(" ")[2] for line in str(caught.value).splitlines() if "no tensor" in line}
    assert named == gates | posts


def test_some_of_a_join_is_no_join() -> None:
    function = _function(GPT2.replace("bias: [q, k, v, o]", "bias: [q, o]"))
    with pytest.raises(LayoutError, match=r"c_attn.bias joins .*: no parameter layers.0.attention.k.bias, layers.0"):
        rules(load_layout("gpt2"), function, group_sizes(function))


def test_a_group_holds_whole_heads() -> None:
    """Two key-value heads do not go round four groups, although their rows would."""
    function = _function(GPT_NEOX.replace("heads: 4,", "heads: 4, kv_heads: 2,"))
    with pytest.raises(LayoutError, match="no 4 groups along axis 0"):
        rules(load_layout("gpt-neox"), function, group_sizes(function))
    with pytest.raises(LayoutError, match="packed by heads, which differs between attentions"):
        rules(load_layout("gpt-neox"), function, {})


def test_two_lines_for_one_parameter_are_refused() -> None:
    twice = parse("layout: 1\ntensors: {a: embedding.weight, b: embedding.weight}\n", "l.yaml")
    with pytest.raises(LayoutError, match="two lines of the layout hold for embedding.weight"):
        rules(read_layout("l", twice), CASES["llama"].function, {})


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("tensors: {a: b}", "1:1", "unknown version"),
        ("layout: 2", "1:9", "unknown version"),
        ("layout: 1.0", "1:9", "unknown version"),
        ("layout: 1\ntensor: {a: b}", "2:1", "did you mean tensors?"),
        ("layout: 1\ntensors: [a]", "2:10", "not a mapping"),
        ("layout: 1\ntensors: {a<e>: b}", "2:11", "not a tensor name"),
        ("layout: 1\ntensors: {a.<i>: b}", "2:11", "not a tensor name"),
        ("layout: 1\ntensors: {a: 3}", "2:14", "not a tensor name"),
        ("layout: 1\ntensors: {a.<p>: b}", "2:11", "<p> on one side alone"),
        ("layout: 1\ntensors: {a: {of: b}}", "2:19", "not a list"),
        ("layout: 1\ntensors: {a: {groups: 2}}", "2:14", "no parameters are named"),
        ("layout: 1\ntensors: {a: {of: [b], permute_rope: heads}}", "2:24", "unknown word permute_rope"),
        ("layout: 1\ntensors: {a: {of: [b], groups: 0}}", "2:32", "not a value of groups"),
        ("layout: 1\ntensors: {a: {of: [b], groups: experts}}", "2:32", "not a value of groups"),
        ("layout: 1\ntensors: {a: {of: [b], axis: true}}", "2:30", "not a value of axis"),
        ("layout: 1\ntensors: {a: {of: [b], transpose: 1}}", "2:35", "transpose is yes or no"),
        ("layout: 1\nlayers: {at: a.<i>}", "2:9", "layers lacks a word"),
        ("layout: 1\nlayers: {at: a, tensors: {b: c}}", "2:14", "no place for the layer's number"),
        ("layout: 1\nprefix: a.", "2:9", "not a list"),
        ("layout: 1\ntied: {a: 1}", "2:11", "not a tensor name"),
        ('layout: 1\nignore: {a: ""}', "2:13", "ignored for no reason"),
    ],
)
def test_a_layout_is_read_strictly(text: str, place: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_layout("l", parse(text + "\n", "l.yaml"))
    assert str(caught.value).startswith(f"l.yaml:{place}: ")
    assert message in str(caught.value)


# Checkpoints through the rules


def _faults(case: Case, tensors: dict[str, Array]) -> list[str]:
    with pytest.raises(CheckpointError) as caught:
        unpack(case.rules, tensors)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_all_that_is_wrong_is_listed_at_once() -> None:
    case = CASES["llama"]
    tensors = pack(case.rules, case.params())
    del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].T
    tensors["lm_head.weight"] = tensors["lm_head.weight"].astype(np.int8)
    tensors["model.layers.2.mlp.up_proj.weight"] = np.zeros(3)
    tensors["\x1b[31m"] = np.zeros(3)
    assert sorted(_faults(case, tensors)) == [
        r"extra: \x1b[31m",
        "extra: model.layers.2.mlp.up_proj.weight",
        "misshapen: lm_head.weight holds int8, expected floating-point numbers",
        "misshapen: model.embed_tokens.weight is (64, 128), expected (128, 64)",
        "missing: model.layers.1.mlp.up_proj.weight (96, 64)",
        "missing: model.norm.weight (64,)",
    ]


def test_parameters_that_do_not_fit_are_listed_at_once() -> None:
    case = CASES["llama"]
    params = case.params()
    params["final.weight"] = params.pop("final_norm.weight")
    params["head.weight"] = params["head.weight"][:-1]
    with pytest.raises(CheckpointError) as caught:
        pack(case.rules, params)
    assert sorted(line.split()[1] for line in str(caught.value).splitlines()[1:]) == [
        "final.weight", "final_norm.weight", "head.weight",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["llama-tied", "gpt2", "gemma2"])
def test_a_tied_head_may_be_there_and_then_is_equal(name: str) -> None:
    case, params = CASES[name], CASES[name].params()
    tensors = pack(case.rules, params)
    _assert_same(unpack(case.rules, {**tensors, "lm_head.weight": params["embedding.weight"]}), params)
    other = {**tensors, "lm_head.weight": params["embedding.weight"] + 1e-6}
    assert _faults(case, other) == ["untied: lm_head.weight differs from embedding.weight, which it is tied to"]


def test_an_untied_head_is_its_own() -> None:
    case = CASES["llama"]
    assert not case.rules.patterns.tied
    assert CASES["llama-tied"].rules.patterns.tied == {"lm_head.weight": "embedding.weight"}


@pytest.mark.parametrize(
    ("name", "ignored"),
    [
        ("llama", "model.layers.{}.self_attn.rotary_emb.inv_freq"),
        ("gpt2", "transformer.h.{}.attn.bias"),
        ("gpt2", "transformer.h.{}.attn.masked_bias"),
        ("gpt-neox", "gpt_neox.layers.{}.attention.bias"),
        ("gpt-neox", "gpt_neox.layers.{}.attention.masked_bias"),
        ("gpt-neox", "gpt_neox.layers.{}.attention.rotary_emb.inv_freq"),
    ],
)
def test_buffers_are_ignored_by_name(name: str, ignored: str) -> None:
    case = CASES[name]
    tensors = pack(case.rules, case.params())
    buffers: dict[str, Array] = {ignored.format(i): np.ones((1, 1, 4, 4), np.bool_) for i in range(2)}
    _assert_same(unpack(case.rules, {**tensors, **buffers}), case.params())
    odd = {ignored.format(0).replace(".", "_"): np.zeros(1), ignored.format("x"): np.zeros(1)}
    assert _faults(case, {**tensors, **odd}) == [f"extra: {key}" for key in odd]


def test_prefixes_are_alternatives() -> None:
    case = CASES["gpt2"]
    tensors = pack(case.rules, case.params())
    bare = {key.removeprefix("transformer."): array for key, array in tensors.items()}
    assert bare.keys() != tensors.keys()
    extras = {"h.0.attn.bias": np.zeros(1), "lm_head.weight": bare["wte.weight"]}
    _assert_same(unpack(case.rules, {**bare, **extras}), case.params())
    mixed = {**bare, "transformer.wte.weight": bare["wte.weight"], "transformer.h.0.attn.bias": np.zeros(1)}
    assert _faults(case, mixed) == ["extra: transformer.wte.weight", "extra: transformer.h.0.attn.bias"]
    del bare["h.1.ln_1.bias"]
    assert _faults(case, bare) == ["missing: h.1.ln_1.bias (64,)"]


# Files


def _file(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def _f32(begin: int, end: int, shape: object = None) -> dict[str, object]:
    return {"dtype": "F32", "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


BAD_FILES: dict[str, tuple[object, bytes, str]] = {
    "overlap": ({"a": _f32(0, 8), "b": _f32(4, 12)}, bytes(12), "tensor b overlaps"),
    "hole": ({"a": _f32(0, 4), "b": _f32(8, 12)}, bytes(12), "tensor b comes after a hole of 4 bytes"),
    "hole at the start": ({"a": _f32(4, 8)}, bytes(8), "hole of 4 bytes"),
    "hole at the end": ({"a": _f32(0, 4)}, bytes(8), "a hole of 4 bytes after the last"),
    "truncated": ({"a": _f32(0, 4), "b": _f32(4, 12)}, bytes(11), "truncated: tensor b ends at byte 12 of 11"),
    "no data": ({"a": _f32(0, 4)}, b"", "truncated"),
    "duplicate": (b'{"a": %b, "a": %b}' % ((json.dumps(_f32(0, 4)).encode(),) * 2), bytes(4), "a stands twice"),
    "duplicate field": (b'{"a": {"dtype": "F32", "dtype": "F32"}}', b"", "dtype stands twice"),
    "backwards": ({"a": _f32(8, 0, [2])}, bytes(8), r"but has the bytes \(8, 0\)"),
    "negative": ({"a": _f32(-4, 0, [1])}, bytes(4), "not described"),
    "wrong length": ({"a": _f32(0, 8, [3])}, bytes(8), r"is F32 \(3,\), but has the bytes"),
    "huge": ({"a": _f32(0, 2**70, [2**68])}, bytes(8), "truncated"),
    "empty with huge axes": ({"a": _f32(0, 0, [0, 2**62, 2**62])}, b"", "but has the bytes"),
    "many axes": ({"a": _f32(0, 4, [1] * 100)}, bytes(4), "but has the bytes"),
    "a truth value": ({"a": _f32(0, 4, [True])}, bytes(4), "not described"),
    "a fraction": ({"a": _f32(0, 4, [1.0])}, bytes(4), "not described"),
    "unknown field": ({"a": {**_f32(0, 4), "x": 1}}, bytes(4), "not described"),
    "unknown dtype": ({"a": {**_f32(0, 4), "dtype": "F8_E5M2"}}, bytes(4), "F8_E5M2, which is not read"),
    "no description": ({"a": 3}, b"", "not described"),
    "not an object": ([], b"", "not a JSON object"),
    "not JSON": (b"{", b"", "not JSON"),
    "not UTF-8": (b'{"\xff": 1}', b"", "not JSON"),
    "deep": (b"[" * 100_000, b"", "not JSON"),
    "a control character": ({"\x1b[2J": 3}, b"", r"tensor \\x1b\[2J"),
}


@pytest.mark.parametrize(("header", "data", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_corrupt_file_is_named(header: object, data: bytes, message: str, tmp_path: Path) -> None:
    path = _file(tmp_path / "x.safetensors", header, data)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_safetensors(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 100, 3])
def test_a_header_longer_than_its_file_is_refused(length: int, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    with pytest.raises(CheckpointError, match=f"a header of {length} bytes in a file of 10"):
        read_safetensors(path)


def test_what_is_no_safetensors_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither model.safetensors nor"):
        read_safetensors(tmp_path)
    with pytest.raises(CheckpointError, match="no such file"):
        read_safetensors(tmp_path / "x.safetensors")
    for name in ("pytorch_model.bin", "model.pt"):
        (tmp_path / name).write_bytes(b"\x80\x04N.")
        with pytest.raises(CheckpointError, match="never opened"):
            read_safetensors(tmp_path / name)
    (tmp_path / "e.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="a header of 0 bytes in a file of 0"):
        read_safetensors(tmp_path / "e.safetensors")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"a": "../x.safetensors"}}, "beside it"),
        ({"weight_map": {"a": "x.bin"}}, "beside it"),
        ({"weight_map": {"a": 3}}, "beside it"),
        ({"weight_map": {}}, "beside it"),
        ({}, "beside it"),
        ({"weight_map": {"a": "y.safetensors"}}, "no such file"),
        ({"weight_map": {"a": "x.safetensors"}}, "tensor b of x.safetensors is not listed for it"),
        ({"weight_map": {"a": "x.safetensors", "b": "x.safetensors", "c": "x.safetensors"}}, "no file holds c"),
    ],
)
def test_an_index_says_where_each_tensor_is(index: object, message: str, tmp_path: Path) -> None:
    write_safetensors(tmp_path / "x.safetensors", {"a": np.ones(2), "b": np.ones(3)})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=message):
        read_safetensors(tmp_path)


def test_files_are_those_of_the_safetensors_library(tmp_path: Path) -> None:
    """bf16 widens exactly; the other types come as they are, at any alignment."""
    path = tmp_path / "x.safetensors"
    x = torch.tensor(np.random.RandomState(0).standard_normal((3, 5)))
    dtypes = {"half": torch.float16, "brain": torch.bfloat16, "single": torch.float32, "double": torch.float64}
    tensors = {name: x.to(dtype) for name, dtype in dtypes.items()}
    tensors |= {"mask": x > 0, "byte": (x * 9).to(torch.int8), "number": torch.tensor(1.5)}
    library.save_file(tensors, path)
    read = read_safetensors(path)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        expected = tensor.float().numpy() if name == "brain" else tensor.numpy()
        assert read[name].dtype == expected.dtype
        np.testing.assert_array_equal(read[name], expected)
    write_safetensors(path, read)  # over the file that the arrays are mapped from
    back = library.load_file(path)
    for name, array in read.items():
        np.testing.assert_array_equal(back[name].numpy(), array)
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    for array in (np.zeros(2, np.complex64), np.zeros(0)):
        with pytest.raises(CheckpointError, match="not written"):
            write_safetensors(tmp_path / "x.safetensors", {"a": array})


# Random weights


@every_case
def test_random_parameters_hide_nothing(case: Case) -> None:
    params, shapes = case.params(), parameters_of(case.function)
    assert params.keys() == shapes.keys()
    for path, array in params.items():
        param = shapes[path]
        assert array.shape == param.shape and array.dtype == np.float64
        assert not np.any((array == 0) | (array == 1))
        np.testing.assert_array_equal(array, array.astype(np.float32))
        std = array.shape[-1] ** -0.5 if param.role in ("matrix", "table") else 0.3
        assert abs(array.std() / std - 1) < 0.3
        assert abs(array.mean() - param.neutral) < 0.15
    biggest = np.concatenate([array.ravel()[:16] for array in params.values()])
    assert len(np.unique(biggest)) == len(biggest)  # no two parameters alike


def _digest(params: dict[str, Array]) -> str:
    whole = hashlib.sha256()
    for path in sorted(params):
        whole.update(path.encode() + params[path].astype("<f4").tobytes())
    return whole.hexdigest()


def test_random_parameters_are_the_same_everywhere() -> None:
    case = CASES["llama"]
    assert _digest(case.params(seed=7)) == "376418a075e33df2c2ec660f2124ca2903a2771f7ba05acff8a58b7e7f48b0b7"
    assert _digest(case.params(seed=8)) != _digest(case.params(seed=7))
    # A parameter's numbers depend on its path, not on what else is there.
    alone = random_parameters(_function(LLAMA.replace("depth: 2", "depth: 1")), 7)
    np.testing.assert_array_equal(alone["layers.0.mlp.up.weight"], case.params(7)["layers.0.mlp.up.weight"])


def test_seeds_of_any_size_are_seeds() -> None:
    for seed in (0, -1, 2**40):
        assert random_parameters(CASES["gpt2"].function, seed)
