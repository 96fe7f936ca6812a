"""Every layout is a bijection: what a file's tensors are read as is written as the same bytes, duplicates apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockc
from blockc.basics.errors import CheckpointError
from blockc.graph.shrink import shrink
from blockc.importing import import_config
from blockc.ir import Array
from blockc.language.spec import from_tree
from blockc.layouts import Layout, LayoutError, load_gguf_layout, load_layout
from blockc.pipeline.compiled import compile_spec
from blockc.weights.matching import pack, unpack
from blockc.weights.rules import Rules, group_sizes, rules
from tests.structures import SPECS, twin

FOLDER = Path(blockc.__file__).parent / "layouts"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
GGUF = sorted(path.stem for path in (FOLDER / "gguf").glob("*.yaml"))


def fitting(held: Layout) -> Iterator[Rules]:
    """The layout's rules for the twin of every spec that it fits."""
    for name in SPECS:
        function = twin(name).function
        try:
            yield rules(held, function, group_sizes(function))
        except LayoutError:
            continue


ELECTRA = {"model_type": "electra", "embedding_size": 256, "hidden_size": 256}
# Of layouts that no bundled spec has, or not with all of their lines, a config.json that has them.
IMPORTED: dict[str, dict[str, Any]] = {
    "bert-masked": {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
    "bloom-sliced": {
        "model_type": "bloom", "hidden_size": 128, "n_head": 8, "n_layer": 4, "pretraining_tp": 2,
        "slow_but_exact": True,
    },
    "distilbert": {"model_type": "distilbert"},
    "electra": ELECTRA,
    "electra-classes": {**ELECTRA, "architectures": ["ElectraForSequenceClassification"]},
    "electra-generator": {**ELECTRA, "architectures": ["ElectraForMaskedLM"]},
    "electra-tokens": {**ELECTRA, "architectures": ["ElectraForTokenClassification"]},
    "eurobert-classes": {
        "model_type": "eurobert", "architectures": ["EuroBertForSequenceClassification"], "classifier_pooling": "bos",
    },
    "eurobert-masked": {"model_type": "eurobert", "architectures": ["EuroBertForMaskedLM"], "mlp_bias": True},
    "falcon-serial": {
        "model_type": "falcon", "alibi": True, "bias": True, "multi_query": False, "parallel_attn": False,
        "hidden_size": 128, "num_attention_heads": 8,
    },
    "gemma3-classes": {"model_type": "gemma3_text", "architectures": ["Gemma3TextForSequenceClassification"]},
    "glm-moe": {
        "model_type": "glm4_moe", "hidden_size": 128, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 16, "use_qk_norm": True,
    },
    "modernbert": {"model_type": "modernbert", "architectures": ["ModernBertModel"]},
    "modernbert-classes": {"model_type": "modernbert", "architectures": ["ModernBertForSequenceClassification"]},
    "modernbert-tokens": {"model_type": "modernbert", "architectures": ["ModernBertForTokenClassification"]},
    "mpnet-classes": {"model_type": "mpnet", "architectures": ["MPNetForSequenceClassification"]},
    "mpnet-masked": {"model_type": "mpnet", "architectures": ["MPNetForMaskedLM"]},
    "mpnet-tokens": {"model_type": "mpnet", "architectures": ["MPNetForTokenClassification"]},
    "nomic-bert-classes": {"model_type": "nomic_bert", "architectures": ["NomicBertForSequenceClassification"]},
    "nomic-bert-masked": {"model_type": "nomic_bert", "architectures": ["NomicBertForMaskedLM"]},
    "opt": {"model_type": "opt", "hidden_size": 128, "num_attention_heads": 8, "word_embed_proj_dim": 64},
    "qwen-moe": {"model_type": "qwen3_moe", "head_dim": 64, "decoder_sparse_step": 2},
    "roberta": {"model_type": "roberta"},
    "roberta-classes": {"model_type": "roberta", "architectures": ["RobertaForSequenceClassification"]},
    "roberta-tokens": {"model_type": "roberta", "architectures": ["RobertaForTokenClassification"]},
    "stablelm-parallel": {"model_type": "stablelm", "use_parallel_residual": True, "use_qkv_bias": True},
}  # fmt: skip


def of(name: str) -> list[Rules]:
    """For the twins of the specs whose checkpoints have it."""
    functions = [twin(spec).function for spec in SPECS if twin(spec).spec.top.checkpoint == name]
    if name in IMPORTED:
        made = from_tree(import_config(json.dumps(IMPORTED[name]).encode(), "config.json", name).tree)
        assert made.top.checkpoint == name
        functions.append(compile_spec(shrink(made)).function)
    return [rules(load_layout(name), function, group_sizes(function)) for function in functions]


def tensors(held: Rules) -> dict[str, Array]:
    """A file of float32 numbers, no two tensors alike: eighths, to which an offset is added without rounding."""
    random = np.random.RandomState(5)
    return {rule.name: random.randint(-(2**20), 2**20, rule.shape).astype(np.float32) / 8 for rule in held}


def returns(held: Rules) -> None:
    given = tensors(held)
    params = unpack(held, given)
    back = pack(held, params)
    assert back.keys() == given.keys()
    for name, array in given.items():
        assert (back[name].dtype, back[name].shape, back[name].tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert sum(array.size for array in params.values()) == sum(array.size for array in given.values())


@pytest.mark.parametrize("name", NAMES)
def test_unpack_then_pack_gives_the_same_bytes(name: str) -> None:
    found = of(name)
    assert found, f"no spec has checkpoint: {name}"
    for held in found:
        returns(held)


@pytest.mark.parametrize("name", GGUF)
def test_unpack_then_pack_gives_the_same_bytes_of_gguf(name: str) -> None:
    found = list(fitting(load_gguf_layout(name)))
    assert found, f"it fits no spec: {name}"
    for held in found:
        returns(held)


@pytest.mark.parametrize("name", NAMES)
def test_every_line_of_a_layout_holds_for_a_spec(name: str) -> None:
    """Nothing proves a line that no spec uses; but a family's sizes may differ in biases and in a head of their own."""
    used = {stem(pattern.name) for held in of(name) for pattern in held.patterns}
    held = load_layout(name)
    assert {stem(item.name) for item in held.items} - used <= {stem(tied) for tied in held.tied}


def stem(name: str) -> str:
    return name.removesuffix(".bias").removesuffix(".weight")


@pytest.mark.parametrize("name", NAMES)
def test_a_listed_duplicate_is_read_and_must_be_one(name: str) -> None:
    for held in of(name):
        given = tensors(held)
        params = unpack(held, given)
        for more, target in held.patterns.tied.items():
            assert unpack(held, {**given, more: params[target]}).keys() == params.keys()
            with pytest.raises(CheckpointError, match=f"untied: {more} differs from {target}"):
                unpack(held, {**given, more: params[target] + 1})
