"""Folders that onnxruntime-genai loads as they are: its own package generates from them what the oracle does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxruntime_genai
import pytest
import tokenizers

from blockc import api
from blockc.cli import app, run_guarded
from blockc.graph import interp
from blockc.graph.contract import Contract
from blockc.graph.target import Logits, Target
from blockc.language.spec import from_tree
from blockc.pipeline.compiled import PORTABLE, Compiled, compile_spec
from blockc.products.genai import CONFIG, GenaiError, make_config, make_files
from blockc.products.product import ProductError
from blockc.source import override, parse
from blockc.weights.gguf import GGUF
from blockc.weights.gguf.tokenizer import generation_config
from blockc.weights.rules import random_parameters
from tests.checkpoints import parameters_in, save, tensors, twin

NAMES = ("llama3-8b", "gpt2", "gemma2-9b")
FUSED, ROWS = Target("cpu"), Target("cpu", padding="right")
TARGETS = [pytest.param(PORTABLE, id="portable"), pytest.param(FUSED, id="fused"), pytest.param(ROWS, id="by rows")]
EOS, PAD = 0, 1  # which none of the twins says here
SAYS = {"generation_config.json": json.dumps({"eos_token_id": EOS, "pad_token_id": PAD}).encode()}
FIRST, SECOND = [3, 14, 15, 9, 26, 5, 35], [8, 9, 79, 32, 38, 46, 26]
SHORT = [2, 7, 18]
NEW = 12


def built(name: str, out: Path, target: Target = PORTABLE) -> Path:
    """A folder for genai, from a checkpoint of random weights that says nothing but its special tokens."""
    save(out / "in" / "model.safetensors", tensors(twin(name)))
    (out / "in" / "generation_config.json").write_bytes(SAYS["generation_config.json"])
    api.build(twin(name), out / "out", target=target, proof=False, weights=out / "in", products=["genai"])
    return out / "out"


def started(folder: Path, rows: Sequence[Sequence[int]], length: int) -> Any:
    model: Any = onnxruntime_genai.Model(str(folder))
    params: Any = onnxruntime_genai.GeneratorParams(model)
    params.set_search_options(batch_size=len(rows), max_length=length, do_sample=False)
    generator: Any = onnxruntime_genai.Generator(model, params)
    generator.append_tokens(np.array(rows, np.int32))
    return generator


def continued(generator: Any, rows: int = 1) -> list[list[int]]:
    """All rows once the last of them is done."""
    while not generator.is_done():
        generator.generate_next_token()
    return [[int(token) for token in generator.get_sequence(i)] for i in range(rows)]


def generated(folder: Path, rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """The rows with what genai adds to them, greedily."""
    return continued(started(folder, rows, len(rows[0]) + NEW), len(rows))


def ended(folder: Path, several: bool = False) -> tuple[list[int], int]:
    """Makes the fourth token that llama's twin would say an eos. (The row as it then ends; eos.)"""
    row = oracle("llama3-8b", tuple(FIRST))
    eos = row[len(FIRST) + 3]
    edited = json.loads((folder / CONFIG).read_text())
    edited["model"]["eos_token_id"] = [EOS, eos] if several else eos
    (folder / CONFIG).write_text(json.dumps(edited))
    return row[: row.index(eos, len(FIRST))], eos


@cache
def oracle(name: str, row: tuple[int, ...], new: int = NEW) -> list[int]:
    """The row, and greedily what follows, without a cache and in float64."""
    return greedy(twin(name), parameters_in(twin(name), tensors(twin(name))), row, new)


def greedy(model: Compiled, params: dict[str, np.ndarray], row: Sequence[int], new: int = NEW) -> list[int]:
    tokens = list(row)
    for _ in range(new):
        ids = np.array([tokens])
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(len(tokens))[None]}
        tokens.append(int(interp.interpret(model.function, feeds, params)["logits"][0, -1].argmax()))
    return tokens


# The real package


@pytest.mark.parametrize("logits", ["all", "last"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_genai_generates_what_the_oracle_does(name: str, target: Target, logits: Logits, tmp_path: Path) -> None:
    """Alone, two of equal length, and two of unlike length: genai fills up on the right, and every graph takes that."""
    folder = built(name, tmp_path, replace(target, logits=logits))
    said = json.loads((folder / CONFIG).read_text())
    assert said["search"]["past_present_share_buffer"] == (target is not PORTABLE)
    first, second, short = (oracle(name, tuple(row)) for row in (FIRST, SECOND, SHORT))
    assert not {EOS, PAD} & {*first, *second, *short} and len(set(first[len(FIRST) :])) > 2
    assert generated(folder, [FIRST]) == [first]
    assert generated(folder, [FIRST, SECOND]) == [first, second]
    filled = SHORT + [PAD] * (len(FIRST) - len(SHORT))
    assert generated(folder, [FIRST, filled]) == [first, filled + short[len(SHORT) :]]


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_for_cuda_generates_on_the_cpu_too(name: str, tmp_path: Path) -> None:
    """Half precision and rows by their lengths: genai pads as such a graph wants it. Its provider is taken out here."""
    folder = built(name, tmp_path, Target("cuda", "fp16"))
    edited = json.loads((folder / CONFIG).read_text())
    options = edited["model"]["decoder"]["session_options"]
    assert options == {"provider_options": [{"cuda": {}}]} and edited["search"]["past_present_share_buffer"]
    options["provider_options"] = []
    (folder / CONFIG).write_text(json.dumps(edited))
    first, short = (oracle(name, tuple(row)) for row in (FIRST, SHORT))
    filled = SHORT + [PAD] * (len(FIRST) - len(SHORT))
    assert generated(folder, [FIRST, filled]) == [first, filled + short[len(SHORT) :]]


@pytest.mark.parametrize("target", TARGETS)
def test_a_row_padded_on_the_left_by_hand_is_read_with_its_pads(target: Target, tmp_path: Path) -> None:
    """genai masks the pads that end a row and no others; its own tokenizer puts them there."""
    filled = [PAD] * (len(FIRST) - len(SHORT)) + SHORT
    rows = generated(built("llama3-8b", tmp_path, target), [FIRST, filled])
    assert rows == [oracle("llama3-8b", tuple(FIRST)), oracle("llama3-8b", tuple(filled))]
    assert rows[1][len(FIRST) :] != oracle("llama3-8b", tuple(SHORT))[len(SHORT) :]


@pytest.mark.parametrize("target", TARGETS)
def test_a_second_turn_goes_on_after_eos(target: Target, tmp_path: Path) -> None:
    """Several new tokens on a past, of one row. genai keeps no eos, neither in the row nor in the cache."""
    folder = built("llama3-8b", tmp_path, target)
    first, eos = ended(folder)
    turn = [*first, *SECOND]
    second = oracle("llama3-8b", tuple(turn))
    assert eos not in second[len(first) :] and len(set(second[len(turn) :])) > 2
    generator = started(folder, [FIRST], len(second))
    assert continued(generator) == [first]
    generator.append_tokens(np.array(SECOND, np.int32))
    assert continued(generator) == [second]


@pytest.mark.parametrize("several", [False, True])
def test_generation_stops_at_eos(several: bool, tmp_path: Path) -> None:
    folder = built("llama3-8b", tmp_path)
    first, _ = ended(folder, several)
    assert generated(folder, [FIRST]) == [first]


def test_genai_and_onnxruntime_run_in_one_process(tmp_path: Path) -> None:
    folder = built("gpt2", tmp_path, replace(FUSED, logits="last"))
    session: Any = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    feeds: dict[str, Any] = {"input_ids": np.array([FIRST]), "attention_mask": np.ones((1, len(FIRST)), np.int64)}
    feeds["position_ids"] = np.arange(len(FIRST))[None]
    feeds |= {i.name: np.zeros((1, i.shape[1], 0, i.shape[3]), np.float32) for i in session.get_inputs()[3:]}
    logits = started(folder, [FIRST], 64).get_output("logits")
    assert logits.shape == (1, 1, 96)
    np.testing.assert_allclose(logits, session.run(["logits"], feeds)[0], atol=1e-5)


# The configuration

UNEVEN = """\
blockc: 1
name: uneven
vocab: 96
width: 64
depth: 3
context: 64
attention: {heads: 4, kv_heads: 2, head_dim: 16, rope: {theta: 100, pairing: half}}
mlp: {type: swiglu, width: 96}
norm: {type: rms, eps: 1e-5, placement: pre}
head: {tied: false}
"""
WIDE = "layers={pattern: [narrow, narrow, wide], kinds: {narrow: {}, wide: {attention: {head_dim: 32%s}}}}"
SOME = "layers={pattern: [plain, mixing, plain], kinds: {plain: {block: [{residual: [mlp]}]}, mixing: {}}}"


def said(*changes: str) -> Compiled:
    tree = parse(UNEVEN, "uneven.yaml")
    for change in changes:
        tree = override(tree, change)
    return compile_spec(from_tree(tree))


def graph(model: Compiled, target: Target = PORTABLE) -> tuple[bytes, dict[str, np.ndarray]]:
    """model.onnx with random weights inside, and those."""
    params = random_parameters(model.function, 3)
    return model.onnx(target, params), params


def serves(model: Compiled, target: Target = PORTABLE) -> Contract:
    return model.contract(target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kv_heads", ["", ", kv_heads: 4"])
def test_layers_of_unlike_caches_generate(kv_heads: str, target: Target, tmp_path: Path) -> None:
    """One number cannot say what layers differ in, so it is left out, and genai reads each layer's from the graph."""
    model = said(WIDE % kv_heads)
    data, params = graph(model, target)
    past = [i.type.tensor_type.shape.dim for i in onnx.load_from_string(data).graph.input[3:]]
    assert [(dims[1].dim_value, dims[3].dim_value) for dims in past[::2]] == [
        (2, 16),
        (2, 16),
        (4 if kv_heads else 2, 32),
    ]
    decoder = make_config(model.contract(target), SAYS, 64)["model"]["decoder"]
    assert "head_size" not in decoder and decoder.get("num_key_value_heads") == (None if kv_heads else 2)
    assert decoder["num_hidden_layers"] == 3
    for name, held in {"model.onnx": data, **make_files(model.contract(target), SAYS, 64)}.items():
        (tmp_path / name).write_bytes(held)
    assert generated(tmp_path, [FIRST, SECOND]) == [greedy(model, params, row) for row in (FIRST, SECOND)]


def test_layers_that_remember_are_counted_and_no_others() -> None:
    decoder = make_config(serves(said(SOME)), SAYS, 64)["model"]["decoder"]
    assert (decoder["num_hidden_layers"], decoder["num_key_value_heads"], decoder["head_size"]) == (1, 2, 16)


def test_the_configuration_is_what_the_graph_says() -> None:
    """Another graph, another configuration: nothing comes from a name or from the spec."""
    contract = serves(said())
    made = make_config(contract, SAYS, 64)
    assert made["model"]["decoder"]["inputs"] == {
        "input_ids": "input_ids",
        "attention_mask": "attention_mask",
        "position_ids": "position_ids",
        "past_key_names": "past_key_values.%d.key",
        "past_value_names": "past_key_values.%d.value",
    }
    assert (made["model"]["vocab_size"], made["model"]["context_length"], made["search"]["max_length"]) == (96, 64, 64)
    made = make_config(replace(contract, inputs=contract.inputs[:2], vocab=97), SAYS, 64)
    assert "position_ids" not in made["model"]["decoder"]["inputs"] and made["model"]["vocab_size"] == 97


def test_a_buffer_is_shared_only_where_every_layer_writes_in_place() -> None:
    """head_dim 12 is none that onnxruntime's fused attention takes, so that one layer of these joins its cache."""
    odd = "layers={pattern: [plain, odd], kinds: {plain: {}, odd: {attention: {head_dim: 12, rope: none}}}}"
    shared = [
        make_config(serves(said("depth=2", *change), target), SAYS, 64)["search"]["past_present_share_buffer"]
        for change, target in (((), PORTABLE), ((), FUSED), ((odd,), FUSED))
    ]
    assert shared == [False, True, False]


@pytest.mark.parametrize("place", ["model", "model.decoder", "model.decoder.inputs", "model.decoder.outputs", "search"])
def test_genai_takes_no_key_that_it_does_not_know(place: str, tmp_path: Path) -> None:
    """So that to be loaded is to be read: each key that is written is one of genai's."""
    data, _ = graph(said())
    (tmp_path / "model.onnx").write_bytes(data)
    made = make_config(serves(said()), SAYS, 64)
    assert made.keys() == {"model", "search"}, "genai lets strange sections stand"
    (tmp_path / CONFIG).write_text(json.dumps(made))
    onnxruntime_genai.Model(str(tmp_path))
    inner = made
    for key in place.split("."):
        inner = inner[key]
    inner["made_up"] = 1
    (tmp_path / CONFIG).write_text(json.dumps(made))
    with pytest.raises(RuntimeError, match="made_up"):
        onnxruntime_genai.Model(str(tmp_path))


# What the checkpoint says


def special(**companions: Any) -> dict[str, Any]:
    """The ids and the defaults of sampling, from these companions."""
    held = {f"{name}.json": json.dumps(value).encode() for name, value in companions.items()}
    made = make_config(serves(said()), held, 64)
    ids = {key: value for key, value in made["model"].items() if key.endswith("_token_id")}
    return ids | {
        key: value for key, value in made["search"].items() if key not in ("max_length", "past_present_share_buffer")
    }


TOKENIZER = {"model": {"vocab": {"a": 3, "</s>": 4}}, "added_tokens": [{"id": 7, "content": "<s>"}]}


def test_special_tokens_are_those_of_the_checkpoint() -> None:
    greedily = {"do_sample": False}
    assert special(generation_config={"eos_token_id": 2}) == {"eos_token_id": 2, "pad_token_id": 2} | greedily
    assert special(generation_config={"eos_token_id": [2, 5], "bos_token_id": 1, "pad_token_id": 6}) == (
        {"bos_token_id": 1, "eos_token_id": [2, 5], "pad_token_id": 6} | greedily
    )
    assert special(tokenizer_config={"eos_token": "</s>", "bos_token": {"content": "<s>"}}, tokenizer=TOKENIZER) == (
        {"bos_token_id": 7, "eos_token_id": 4, "pad_token_id": 4} | greedily
    )
    both = {"tokenizer_config": {"eos_token": "</s>", "pad_token": "a"}, "tokenizer": TOKENIZER}
    assert special(generation_config={"eos_token_id": 2}, **both) == {"eos_token_id": 2, "pad_token_id": 3} | greedily


def test_sampling_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    sampled = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.1}
    config_ = {"eos_token_id": 2, **sampled, "transformers_version": "4", "typical_p": 1.0}
    assert special(generation_config=config_) == {"eos_token_id": 2, "pad_token_id": 2} | sampled
    assert special(generation_config={"eos_token_id": 2, "top_k": None})["do_sample"] is False
    data, _ = graph(said())
    for name, held in {
        "model.onnx": data,
        **make_files(serves(said()), {"generation_config.json": json.dumps(config_).encode()}, 64),
    }.items():
        (tmp_path / name).write_bytes(held)
    onnxruntime_genai.Model(str(tmp_path))


@pytest.mark.parametrize(
    ("companions", "why"),
    [
        ({}, r'no file of the checkpoint says so: put generation_config.json with {"eos_token_id": ID}'),
        ({"generation_config": {"eos_token_id": 96}}, "generation_config.json: eos_token_id is 96, .* 0 to 95"),
        ({"generation_config": {"eos_token_id": [1, "</s>"]}}, 'eos_token_id is "</s>"'),
        ({"generation_config": {"eos_token_id": 1, "pad_token_id": -1}}, "pad_token_id is -1"),
        ({"generation_config": {"eos_token_id": True}}, "eos_token_id is true"),
        ({"generation_config": {"eos_token_id": 1, "top_p": "x"}}, 'json: top_p is "x", expected float'),
        ({"generation_config": {"eos_token_id": 1, "top_k": True}}, "top_k is true, expected int"),
        ({"generation_config": []}, "generation_config.json of the checkpoint: not a JSON object"),
        (
            {"tokenizer_config": {"eos_token": "<eos>"}, "tokenizer": TOKENIZER},
            'tokenizer_config.json: eos_token is "<eos>", and tokenizer.json has no such token: say in',
        ),
    ],
)
def test_what_the_checkpoint_does_not_say_right_is_refused(companions: dict[str, Any], why: str) -> None:
    with pytest.raises(GenaiError, match=why):
        special(**companions)


def test_special_tokens_of_a_gguf_file() -> None:
    """A turn that ends with a token of its own ends generation too."""
    said = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.padding_token_id": 5}
    assert generation_config(said) == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 5}
    assert generation_config(said | {"tokenizer.ggml.eot_token_id": 4})["eos_token_id"] == [2, 4]
    assert generation_config(said | {"tokenizer.ggml.eot_token_id": 2})["eos_token_id"] == 2
    assert generation_config({"tokenizer.ggml.eot_token_id": 4}) == {"eos_token_id": 4}
    held = GGUF("llama", {}, said).companions()
    assert special(generation_config=json.loads(held["generation_config.json"]))["eos_token_id"] == 2
    assert GGUF("llama", {}, {}).companions() == {}


# What genai does not run


def test_an_encoder_is_refused() -> None:
    with pytest.raises(GenaiError, match="with a cache, and this model has none: it looks both ways"):
        make_config(serves(said("attention.causal=false")), SAYS, 64)


def test_a_buffer_of_the_portable_graph_is_refused(tmp_path: Path) -> None:
    why = "does not feed model.onnx its input write_indices: build with --cache joined"
    with pytest.raises(ProductError, match=why):
        built("llama3-8b", tmp_path, Target(cache="buffer"))
    assert not (tmp_path / "out").exists()
    with pytest.raises(GenaiError, match="its input write_indices"):
        make_config(serves(said(), Target(cache="buffer")), SAYS, 64)


def test_a_graph_that_picks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProductError, match="picks from all logits of a token: build with --logits last"):
        built("llama3-8b", tmp_path, Target(logits=5))
    with pytest.raises(ProductError, match="reads logits of one token: build with --logits last"):
        built("llama3-8b", tmp_path, Target(logits="last", last=3))
    assert not (tmp_path / "out").exists()


LATENT = {"state": "latent", "past": "past_key_values.0.latent", "present": "present.0.latent"}


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda held: held[:-1], "one key and one value for each layer"),
        (lambda held: (replace(held[0], **LATENT), *held[1:]), "one key and one value for each layer"),
        (lambda held: (replace(held[0], shape=("B", "P", 32), grows=1), *held[1:]), r"key is \[B, P, 32\]"),
        (lambda held: (replace(held[0], shape=("B", 2, 3, 16), grows=None), *held[1:]), r"key is \[B, 2, 3, 16\]"),
    ],
)
def test_a_cache_of_another_form_is_refused(edit: Any, why: str) -> None:
    contract = serves(said())
    with pytest.raises(GenaiError, match=why):
        make_config(replace(contract, held=edit(contract.held)), SAYS, 64)


def test_a_model_without_weights_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ProductError, match="needs a model with weights: build with --weights PATH"):
        api.build(twin("gpt2"), tmp_path / "out", proof=False, products=["genai"])
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_without_eos_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    save(tmp_path / "in" / "model.safetensors", tensors(twin("llama3-8b")))
    with pytest.raises(GenaiError, match="which token ends a text"):
        api.build(twin("llama3-8b"), tmp_path / "out", proof=False, weights=tmp_path / "in", products=["genai"])
    assert not (tmp_path / "out").exists()


# Text


def tokenizer() -> tokenizers.Tokenizer:
    """A byte-level BPE of a few words, whose special tokens come first."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<end>", "<pad>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["the quick brown fox and the lazy dog"] * 9, trainer)
    return made


def test_a_tokenizer_without_its_configuration_is_given_one(tmp_path: Path) -> None:
    """genai reads tokenizer.json with it, the template beside it, and fills up batches on the right, with pad."""
    own = tokenizer()
    held = {
        **SAYS,
        "tokenizer.json": own.to_str().encode(),
        "chat_template.jinja": b"{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{% endfor %}",
    }
    data, _ = graph(said())
    made = make_files(serves(said()), held, 64)
    assert made.keys() == {CONFIG, "tokenizer_config.json"}
    assert make_files(serves(said()), {**held, "tokenizer_config.json": b"{}"}, 64).keys() == {CONFIG}
    for name, content in {"model.onnx": data, **held, **made}.items():
        (tmp_path / name).write_bytes(content)
    model: Any = onnxruntime_genai.Model(str(tmp_path))
    read: Any = onnxruntime_genai.Tokenizer(model)
    text, short = "the lazy fox: 12 é<end>", "the dog"
    rows = [own.encode(t).ids for t in (text, short)]
    assert list(read.encode(text)) == rows[0] and read.decode(np.array(rows[1], np.int32)) == short
    assert read.encode_batch([text, short]).as_numpy().tolist() == [
        rows[0],
        rows[1] + [PAD] * (len(rows[0]) - len(rows[1])),
    ]
    assert read.apply_chat_template('[{"role": "user", "content": "hi"}]') == "[user] hi"


# The command


def test_the_command_writes_such_a_folder_or_says_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def command(*arguments: str) -> int:
        spec, out = str(tmp_path / "spec.yaml"), str(tmp_path / "out")
        words = ["build", spec, "--out", out, "--no-verify", "--target", "genai", *arguments]
        return run_guarded(lambda: app(words, standalone_mode=False))

    (tmp_path / "spec.yaml").write_text(twin("llama3-8b").resolved_yaml())
    save(tmp_path / "in" / "model.safetensors", tensors(twin("llama3-8b")))
    assert command() == 2
    assert "--target genai needs a model with weights: give them with --weights PATH" in capsys.readouterr().err
    assert command("--weights", str(tmp_path / "in")) == 1
    assert "put generation_config.json with" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    (tmp_path / "in" / "generation_config.json").write_bytes(SAYS["generation_config.json"])
    assert command("--weights", str(tmp_path / "in"), "--ep", "cpu", "--logits", "last") == 0
    assert CONFIG in capsys.readouterr().out and CONFIG in (tmp_path / "out" / "manifest.json").read_text()
    assert generated(tmp_path / "out", [FIRST]) == [oracle("llama3-8b", tuple(FIRST))]
    (tmp_path / "out" / CONFIG).write_text("{}")
    assert api.verify(tmp_path / "out").changed == (CONFIG,)
