"""What transformers saves of a model is what its import builds, whatever is said there of biases and of the head."""

from __future__ import annotations

import json
from collections.abc import Iterator
from collections.abc import Mapping as Mapped
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from blockc import api
from blockc.basics.errors import CheckpointError
from blockc.checks.checking import find_misses
from blockc.graph import interp
from blockc.importing import import_config
from blockc.importing.maps import model_types
from blockc.ir import Array, parameters_of
from blockc.language.spec import from_tree
from blockc.layouts.wrapper import load_wrapper
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.source import Entry, MappingNode, ScalarNode
from blockc.weights.checkpoint import open_checkpoint
from blockc.weights.matching import misfit_error
from blockc.weights.plan import WeightPlan, plan_weights
from tests.checkpoints import ROOT, save, tensors, twin
from tests.reference.classes import CASES

library: Any = safetensors.torch
outside: Any = transformers
DATA = ROOT / "tests" / "data" / "cases2"
Config = dict[str, Any]
COMMON: Config = {"vocab_size": 97, "hidden_size": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BASE: Config = {
    **COMMON, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
GROUPED: Config = {**BASE, "num_key_value_heads": 2}
GEMMA: Config = {**GROUPED, "head_dim": 12, "query_pre_attn_scalar": 20, "sliding_window": 4}
FALCON: Config = {**COMMON, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_hidden_size": 48, "num_kv_heads": 2}
OLD: Config = {
    "vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
OPT: Config = {
    **COMMON, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
NEO: Config = {
    **COMMON, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 64, "window_size": 4,
    "attention_types": [[["global", "local"], 1]],
}  # fmt: skip
MIXED: Config = {**GROUPED, "head_dim": 8, "num_experts_per_tok": 2}
SPARSE: Config = {**MIXED, "moe_intermediate_size": 24, "num_experts": 4}
LATENT: Config = {
    **BASE, "num_key_value_heads": 4, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4, "v_head_dim": 6, "moe_intermediate_size": 24, "n_routed_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip
# As Kimi K2: a ramp of yarn that is a step, and factors that are unlike
YARN_STEP: Config = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0,
    "mscale_all_dim": 0.707, "original_max_position_embeddings": 16,
}  # fmt: skip
# By model type a small config, and the keys that choose which tensors there are ("" chooses several
# at once): every combination is built.
KINDS: dict[str, tuple[Config, dict[str, tuple[Any, ...]]]] = {
    "apertus": (GROUPED, {"attention_bias": (False, True)}),
    "arcee": (GROUPED, {"attention_bias": (False, True), "mlp_bias": (False, True)}),
    "bitnet": (GROUPED, {"attention_bias": (False, True)}),
    "bloom": ({**COMMON, "n_layer": 2, "n_head": 4}, {}),
    "codegen": ({**OLD, "rotary_dim": 4}, {}),
    "cohere": (GROUPED, {"attention_bias": (False, True), "use_qk_norm": (False, True)}),
    "cohere2": (GROUPED, {"attention_bias": (False, True)}),
    "deepseek_v2": (LATENT, {"": (
        {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "routed_scaling_factor": 4.0,
         "first_k_dense_replace": 1, "q_lora_rank": 12},
        {"q_lora_rank": None, "norm_topk_prob": True},
    )}),
    "deepseek_v3": (LATENT, {"rope_interleave": (True, False), "": (
        {"rope_parameters": YARN_STEP},
        {"n_group": 4, "topk_group": 2, "n_shared_experts": 2, "first_k_dense_replace": 1, "q_lora_rank": 12},
        {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 0, "q_lora_rank": None, "norm_topk_prob": False},
    )}),
    "ernie4_5": ({**GROUPED, "head_dim": 8}, {"use_bias": (False, True)}),
    "falcon": (FALCON, {"bias": (False, True), "": (
        {"parallel_attn": False}, {"parallel_attn": True}, {"new_decoder_architecture": True},
        {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
    )}),
    "gemma": ({**GROUPED, "head_dim": 12}, {"attention_bias": (False, True)}),
    "gemma2": (GEMMA, {"attention_bias": (False, True)}),
    "gemma3_text": (GEMMA, {"attention_bias": (False, True)}),
    "glm": ({**GROUPED, "head_dim": 8}, {"attention_bias": (False, True)}),
    "glm4": ({**GROUPED, "head_dim": 8}, {"attention_bias": (False, True)}),
    "glm4_moe": (
        {**MIXED, "moe_intermediate_size": 24, "n_routed_experts": 8, "num_hidden_layers": 3, "n_shared_experts": 2},
        {
            "attention_bias": (False, True), "use_qk_norm": (False, True),
            "": (
                {"first_k_dense_replace": 0}, {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5},
                {"first_k_dense_replace": 2, "norm_topk_prob": False},
            ),
        },
    ),
    "gpt2": (OLD, {}),
    "gpt_bigcode": (OLD, {"multi_query": (False, True)}),
    "gpt_neo": (NEO, {}),
    "gpt_neox": (BASE, {"attention_bias": (False, True), "use_parallel_residual": (False, True)}),
    "gpt_oss": ({**MIXED, "num_local_experts": 4, "sliding_window": 4}, {"attention_bias": (True, False)}),
    "gptj": ({**OLD, "rotary_dim": 4}, {}),
    "granite": (GROUPED, {"attention_bias": (False, True), "mlp_bias": (False, True)}),
    "granitemoe": ({**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}, {"attention_bias": (False, True)}),
    "helium": ({**GROUPED, "head_dim": 8}, {"attention_bias": (False, True), "mlp_bias": (False, True)}),
    "hunyuan_v1_dense": ({**GROUPED, "head_dim": 8}, {"attention_bias": (False, True)}),
    "llama": (GROUPED, {"attention_bias": (False, True), "mlp_bias": (False, True)}),
    "minimax_m2": ({**MIXED, "num_local_experts": 4}, {"rotary_dim": (4, 8)}),
    "mistral": (GROUPED, {}),
    "mixtral": ({**MIXED, "num_local_experts": 4}, {"sliding_window": (None, 4)}),
    "mpt": ({"vocab_size": 97, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}, {}),
    "nemotron": (GROUPED, {"attention_bias": (False, True), "mlp_bias": (False, True)}),
    "olmo": (GROUPED, {"attention_bias": (False, True)}),
    "olmo2": (GROUPED, {"attention_bias": (False, True)}),
    "olmo3": (GROUPED, {"attention_bias": (False, True)}),
    "olmoe": (
        {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2},
        {"attention_bias": (False, True), "norm_topk_prob": (False, True)},
    ),
    "opt": (OPT, {
        "enable_bias": (False, True), "do_layer_norm_before": (True, False), "word_embed_proj_dim": (32, 16),
    }),
    "persimmon": (BASE, {"qk_layernorm": (False, True)}),
    "phi": (GROUPED, {}),
    "phi3": (GROUPED, {}),
    "qwen2": (GROUPED, {}),
    "qwen2_moe": (
        {**SPARSE, "shared_expert_intermediate_size": 40, "num_hidden_layers": 3},
        {"": ({}, {"qkv_bias": False, "norm_topk_prob": True}, {"decoder_sparse_step": 2},
              {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2, "mlp_only_layers": [1]})},
    ),
    "qwen3": (GROUPED, {"attention_bias": (False, True)}),
    "qwen3_moe": (
        {**SPARSE, "num_hidden_layers": 4},
        {"attention_bias": (False, True), "norm_topk_prob": (False, True),
         "": ({}, {"decoder_sparse_step": 2, "mlp_only_layers": [3]})},
    ),
    "seed_oss": (
        {**GROUPED, "head_dim": 8},
        {"attention_bias": (False, True), "attention_out_bias": (False, True), "mlp_bias": (False, True)},
    ),
    "smollm3": (GROUPED, {"attention_bias": (False, True), "mlp_bias": (False, True)}),
    "stablelm": (GROUPED, {"use_qkv_bias": (False, True), "use_parallel_residual": (False, True)}),
    "starcoder2": (GROUPED, {"use_bias": (False, True)}),
}  # fmt: skip
# A wrapper, another name of deepseek_v3, and three that transformers has not
OTHERS = {"gemma3", "kimi_k2", "baichuan", "internlm2", "nanogpt"}
TOLERANCE = 1e-5  # of the spread; transformers takes norms and rope in float32


def combinations(choices: Mapped[str, tuple[Any, ...]]) -> Iterator[Config]:
    made: list[Config] = [{}]
    every: dict[str, tuple[Any, ...]] = {**choices, "tie_word_embeddings": (True, False)}
    for key, values in every.items():
        chosen: list[Config] = [{key: value} for value in values] if key else list[Config](values)
        made = [{**one, **more} for one in made for more in chosen]
    yield from made


def saved(folder: Path, config: Any, kind: str = "AutoModelForCausalLM") -> Any:
    """A model of random weights, no bias or gain of which is 0 or 1, as transformers saves it."""
    torch.manual_seed(3)
    model = (
        getattr(outside, kind).from_config(config, attn_implementation="eager", experts_implementation="eager").eval()
    )
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(0.25 * torch.randn_like(param) + (0.5 if param.ndim == 1 else 0))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn_like(buffer))
    model.save_pretrained(folder)
    return model


def planned(folder: Path) -> tuple[Compiled, WeightPlan]:
    model = api.compile(folder)
    top = model.spec.top
    return model, plan_weights(model.function, open_checkpoint(folder), top.checkpoint, None, "fp32", top.context)


def off_by(folder: Path, truth: Array, ids: Array) -> float:
    """The largest difference of the oracle's logits, on the weights as they are planned, of the truth's spread."""
    model, made = planned(folder)
    shapes = {path: param.shape for path, param in parameters_of(model.function).items()}
    params = {
        path: np.concatenate([piece.ravel() for piece in source.pieces()]).astype(np.float64).reshape(shapes[path])
        for path, source in made.sources.items()
    }
    feeds: dict[str, Array] = {
        "input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(ids.shape[1])[None],
    }  # fmt: skip
    logits = interp.interpret(model.function, feeds, params)["logits"]
    return float(np.abs(logits - truth).max() / truth.std())


def logits(model: Any, ids: Array) -> Array:
    with torch.no_grad():
        return model.double()(torch.tensor(ids)).logits.numpy()


IDS = np.random.RandomState(0).randint(3, 97, (1, 11))


@pytest.mark.parametrize("kind", KINDS)
def test_every_combination_of_biases_and_heads_is_built(kind: str, tmp_path: Path) -> None:
    base, choices = KINDS[kind]
    for i, chosen in enumerate(combinations(choices)):
        model = saved(tmp_path / str(i), outside.AutoConfig.for_model(kind, **base, **chosen))
        assert off_by(tmp_path / str(i), logits(model, IDS), IDS) < TOLERANCE, chosen
        assert "expect:" in api.import_spec(tmp_path / str(i)), "the headers fit too"


def test_every_model_type_is_built() -> None:
    of_classes = {getattr(outside, name).config_class.model_type for name in CASES}  # tests/weights/test_encoders.py
    assert {*KINDS} | OTHERS | of_classes == {*model_types()}


@pytest.mark.parametrize("name", ["untied-gemma2", "untied-gemma3", "untied-opt_proj_pre"])
def test_a_config_with_a_head_of_its_own_is_built(name: str, tmp_path: Path) -> None:
    config = json.loads((DATA / f"{name}.json").read_text())
    model = saved(tmp_path, outside.AutoConfig.for_model(**config))
    assert off_by(tmp_path, logits(model, IDS), IDS) < TOLERANCE


# A tied head that stands alone


@pytest.mark.parametrize(("kind", "table", "head"), [
    ("llama", "model.embed_tokens.weight", "lm_head.weight"),
    ("gpt_neox", "gpt_neox.embed_in.weight", "embed_out.weight"),
])  # fmt: skip
def test_a_tied_head_alone_is_the_embedding_too(kind: str, table: str, head: str, tmp_path: Path) -> None:
    model = saved(tmp_path, outside.AutoConfig.for_model(kind, **KINDS[kind][0], tie_word_embeddings=True))
    held = library.load_file(tmp_path / "model.safetensors")
    assert head not in held
    held[head] = held.pop(table)
    library.save_file(held, tmp_path / "model.safetensors", {"format": "pt"})
    assert off_by(tmp_path, logits(model, IDS), IDS) < TOLERANCE
    _, made = planned(tmp_path)
    assert made.linked["embedding.weight"].shape == (97, 32)


def test_without_a_tie_both_must_be_there(tmp_path: Path) -> None:
    saved(tmp_path, outside.AutoConfig.for_model("llama", **GROUPED, tie_word_embeddings=False))
    held = library.load_file(tmp_path / "model.safetensors")
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        library.save_file(
            {k: v for k, v in held.items() if k != name}, tmp_path / "model.safetensors", {"format": "pt"}
        )
        with pytest.raises(CheckpointError, match=f"missing: {name}"):
            planned(tmp_path)


# A language model inside a larger one


def larger(folder: Path) -> Any:
    """Gemma 3 with images, as it is published."""
    config = outside.AutoConfig.for_model(**json.loads((DATA / "gemma3-mm.json").read_text()))
    return saved(folder, config, "AutoModelForImageTextToText")


def renamed(folder: Path, old: str, new: str) -> None:
    held = library.load_file(folder / "model.safetensors")
    held = {new + name.removeprefix(old) if name.startswith(old) else name: array for name, array in held.items()}
    library.save_file(held, folder / "model.safetensors", {"format": "pt"})


def test_the_language_model_of_one_that_takes_images_is_taken(tmp_path: Path) -> None:
    truth = logits(larger(tmp_path), IDS)
    assert off_by(tmp_path, truth, IDS) < TOLERANCE
    held = library.load_file(tmp_path / "model.safetensors")
    others = [name for name in held if not name.startswith("language_model.")]
    size = sum(4 * held[name].numel() for name in others)
    (note,) = planned(tmp_path)[1].notes
    towers = "multi_modal_projector and vision_tower"
    assert note == f"only the language model is taken: {len(others)} tensors of {towers}, {size:,} bytes, are left out"
    assert "expect:" in api.import_spec(tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        [("language_model.model.", "model.language_model."), ("vision_tower.", "model.vision_tower."),
         ("multi_modal_projector.", "model.multi_modal_projector.")],
        [("language_model.model.", "language_model.")],
        [("language_model.model.", "model.text_model."), ("vision_tower.", "model.vision_model."),
         ("multi_modal_projector.", "model.connector.")],
    ],
)  # fmt: skip
def test_other_ways_to_name_it_are_the_same(names: list[tuple[str, str]], tmp_path: Path) -> None:
    truth = logits(larger(tmp_path), IDS)
    for old, new in names:
        renamed(tmp_path, old, new)
    assert off_by(tmp_path, truth, IDS) < TOLERANCE


def test_a_tensor_of_no_known_tower_is_refused(tmp_path: Path) -> None:
    larger(tmp_path)
    renamed(tmp_path, "vision_tower.", "vision_towers.")
    with pytest.raises(CheckpointError) as caught:
        planned(tmp_path)
    first, *lines = str(caught.value).splitlines()
    assert first == "the checkpoint does not fit the spec:"
    assert len(lines) == 21 and lines[0].startswith("  extra: vision_towers.") and lines[-1].endswith("more")
    with pytest.raises(CheckpointError, match=r"extra: vision_towers\."):
        api.import_spec(tmp_path)


def test_a_plain_model_with_a_tower_is_refused(tmp_path: Path) -> None:
    held = tensors(twin("llama3-8b")) | {"vision_tower.weight": np.ones((2, 2), np.float32)}
    opened = open_checkpoint(save(tmp_path / "model.safetensors", held))
    with pytest.raises(CheckpointError, match=r"extra: vision_tower\.weight"):
        plan_weights(twin("llama3-8b").function, opened, "llama", None, "fp32")


def test_the_names_of_wrappers_are_those_of_transformers() -> None:
    assert load_wrapper().towers_of(["model.layers.0.mlp.up_proj.weight", "visually.x", "model.visual.x"]) == {
        "model.visual.x": "visual"
    }
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    for kind, text in (("llava", "llama"), ("mistral3", "mistral"), ("aya_vision", "cohere2"), ("idefics3", "llama")):
        vision = {**small, "image_size": 28, "patch_size": 14}
        text_config = {**GROUPED, "model_type": text}
        config = outside.AutoConfig.for_model(kind, text_config=text_config, vision_config=vision)
        with torch.device("meta"):
            names = [*outside.AutoModelForImageTextToText.from_config(config).state_dict()]
        rest = [name for name in names if name not in load_wrapper().towers_of(names)]
        spelled = [s for s in load_wrapper().spellings if s("model.layers.0.self_attn.q_proj.weight") in names]
        assert spelled and len(rest) < len(names), kind
        known = ("lm_head.", *(s.new for s in spelled))
        assert [name for name in rest if not name.startswith(known)] == [], kind


# Messages


def test_of_each_kind_of_fault_the_first_are_listed() -> None:
    faults = [f"missing: a{i}" for i in range(300)] + [f"extra: b{i}" for i in range(300)] + ["unlike: c is 1"]
    lines = str(misfit_error(faults)).splitlines()
    assert len(lines) == 1 + 21 + 21 + 1
    assert lines[20:23] == ["  missing: a19", "  and 280 more", "  extra: b0"]


def test_a_layout_that_an_import_does_not_fit_is_said_at_its_config() -> None:
    """And not in the map of the model type, which nobody who imports can edit."""
    tree = import_config(json.dumps({"model_type": "llama", **GROUPED}).encode(), "there/config.json", "x").tree
    assert find_misses(compile_spec(from_tree(tree))) == []
    entry = tree.entries["checkpoint"]
    other = {**tree.entries, "checkpoint": Entry(entry.key, ScalarNode("gpt2", entry.value.place, "gpt2"))}
    (found,) = find_misses(compile_spec(from_tree(MappingNode(other, tree.place))))
    assert found.place.file == "there/config.json" and "no tensor of the layout gives" in found.message
    assert found.hint == "choose another layout, or write the spec without checkpoint"
