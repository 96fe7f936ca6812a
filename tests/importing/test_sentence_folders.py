"""Folders of sentence-transformers: their modules become the spec's pool, or are refused by the line of their file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockc.basics.errors import CheckpointError
from blockc.importing import import_config_file, read_modules
from blockc.importing.unlike import compare_config, read_config_beside
from blockc.pipeline.compiled import Compiled, compile_tree
from blockc.source import SpecError, override, to_plain
from blockc.weights.companions import read_companions
from blockc.weights.dense import locate_dense
from blockc.weights.safetensors import write_safetensors

OLD, NEW = "sentence_transformers.models", "sentence_transformers.base.modules"
BERT: dict[str, Any] = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 32,
                        "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48}  # fmt: skip
MEAN = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
UP = {"in_features": 32, "out_features": 96, "bias": False, "activation_function": IDENTITY}
DOWN = {"in_features": 96, "out_features": 32, "bias": True, "activation_function": TANH}


def module(kind: str, path: str) -> dict[str, str]:
    return {"idx": "0", "name": "0", "path": path, "type": kind}


TRANSFORMER, POOLING = module(f"{OLD}.Transformer", ""), module(f"{OLD}.Pooling", "1_Pooling")
NORMALIZE = module(f"{OLD}.Normalize", "4_Normalize")
DENSE = [module(f"{OLD}.Dense", "2_Dense"), module(f"{NEW}.dense.Dense", "3_Dense")]


def folder(path: Path, modules: list[dict[str, str]], **configs: Any) -> Path:
    """A folder with modules.json, and a config.json in each of the folders that are named."""
    (path / "modules.json").write_text(json.dumps(modules, indent=1))
    (path / "config.json").write_text(json.dumps(BERT))
    for name, config in configs.items():
        (path / name[1:]).mkdir()
        (path / name[1:] / "config.json").write_text(json.dumps(config))
    return path


def said(path: Path) -> Any:
    return to_plain(import_config_file(path / "config.json", read_modules(path)).tree)


def faults(path: Path) -> str:
    with pytest.raises(SpecError) as caught:
        read_modules(path)
    (first,) = caught.value.findings
    assert first.place.file.startswith(str(path))
    return f"{Path(first.place.file).relative_to(path)}: {first.message}"


def test_the_modules_stand_in_the_place_of_the_head(tmp_path: Path) -> None:
    """Whatever class config.json names."""
    keys = said(folder(tmp_path, [TRANSFORMER, POOLING, NORMALIZE], _1_Pooling=MEAN))
    assert (keys["head"], keys["pool"], keys["checkpoint"]) == ("none", {"type": "mean", "unit": True}, "bert")


def test_a_folder_without_modules_is_the_model_that_config_json_names(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    assert read_modules(tmp_path) is None and said(tmp_path)["checkpoint"] == "bert-masked"


def test_dense_modules_are_a_list_in_their_order(tmp_path: Path) -> None:
    path = folder(tmp_path, [TRANSFORMER, POOLING, *DENSE, NORMALIZE], _1_Pooling=MEAN, _2_Dense=UP, _3_Dense=DOWN)
    dense = [{"width": 96, "bias": False}, {"act": "tanh", "bias": True}]
    assert said(path)["pool"] == {"type": "mean", "dense": dense, "unit": True}
    weights = {"2_Dense": {"linear.weight": np.ones((96, 32), np.float32)},
               "3_Dense": {"linear.weight": np.ones((32, 96), np.float32),
                           "linear.bias": np.ones(32, np.float32)}}  # fmt: skip
    for name, tensors in weights.items():
        write_safetensors(path / name / "model.safetensors", tensors)
    found = {name: tensor.shape for name, tensor in locate_dense(path).items()}
    assert found == {"dense_1.weight": (96, 32), "dense_2.weight": (32, 96), "dense_2.bias": (32,)}


POOLINGS: dict[str, tuple[dict[str, Any], str]] = {
    "first": ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first"),
    "last": ({"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True, "include_prompt": True}, "last"),
    "nothing said": ({"word_embedding_dimension": 32}, "mean"),
    "a word": ({"embedding_dimension": 32, "pooling_mode": "cls"}, "first"),
    "a list of one": ({"pooling_mode": ["lasttoken"]}, "last"),
    "a word before old keys": ({"pooling_mode": "mean", "pooling_mode_cls_token": True}, "mean"),
}


@pytest.mark.parametrize(("config", "word"), POOLINGS.values(), ids=POOLINGS)
def test_poolings_in_old_words_and_new(config: dict[str, Any], word: str, tmp_path: Path) -> None:
    assert said(folder(tmp_path, [TRANSFORMER, POOLING], _1_Pooling=config))["pool"] == {"type": word}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "max": ({"pooling_mode": "max"}, "no word of a spec stands for pooling by max"),
    "weighted": ({"pooling_mode_weightedmean_tokens": True}, "no word of a spec stands for pooling by weightedmean"),
    "two": ({**MEAN, "pooling_mode_cls_token": True}, "no word of a spec stands for pooling by cls and mean"),
    "a prompt": ({**MEAN, "include_prompt": False},
                 "include_prompt: no word of a spec leaves out the tokens of a prompt"),
    "a key": ({**MEAN, "pooling_mode_top": True}, "unknown key pooling_mode_top"),
}  # fmt: skip


@pytest.mark.parametrize(("config", "message"), REFUSED.values(), ids=REFUSED)
def test_a_pooling_without_a_word_is_refused_in_its_file(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = folder(tmp_path, [TRANSFORMER, POOLING], _1_Pooling=config)
    assert faults(path) == f"1_Pooling/config.json: {message}"


def test_other_modules_and_orders_are_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, [TRANSFORMER, POOLING], _1_Pooling=MEAN, _2_Dense=UP)
    for modules, message in (
        (
            [TRANSFORMER, module(f"{OLD}.LSTM", "1_LSTM"), POOLING],
            f"no word of a spec stands for the module {OLD}.LSTM",
        ),
        ([TRANSFORMER, module("custom_st.Pooling", "1_Pooling")], "no word of a spec stands for the module custom_st."),
        ([TRANSFORMER], "an order of modules that no spec says"),
        ([TRANSFORMER, POOLING, NORMALIZE, DENSE[0]], "an order of modules that no spec says"),
        ([module(f"{OLD}.Transformer", "0_Transformer"), POOLING], "the model lies in a folder of its own"),
        ([TRANSFORMER, module(f"{OLD}.Pooling", "../other")], "a module outside of its folder"),
        ([TRANSFORMER, module(f"{OLD}.Pooling", "nowhere")], "no nowhere/config.json"),
    ):
        (path / "modules.json").write_text(json.dumps(modules))
        assert faults(path).startswith(f"modules.json: {message}")


def test_a_dense_module_without_a_word_or_without_weights_is_refused(tmp_path: Path) -> None:
    odd = {**UP, "activation_function": "os.system"}
    path = folder(tmp_path, [TRANSFORMER, POOLING, DENSE[0]], _1_Pooling=MEAN, _2_Dense=odd)
    assert faults(path) == "2_Dense/config.json: no word of a spec stands for os.system"
    with pytest.raises(CheckpointError, match=r"sentence-transformers cannot be read: .*2_Dense/config.json"):
        locate_dense(path)
    (path / "2_Dense" / "config.json").write_text(json.dumps(UP))
    with pytest.raises(CheckpointError, match="no such file"):
        locate_dense(path)


def test_what_a_runtime_needs_is_kept_and_is_no_part_of_the_spec(tmp_path: Path) -> None:
    path = folder(tmp_path, [TRANSFORMER, POOLING], _1_Pooling=MEAN)
    (path / "sentence_bert_config.json").write_text('{"max_seq_length": 256, "do_lower_case": false}')
    (path / "config_sentence_transformers.json").write_text('{"prompts": {}, "similarity_fn_name": "cosine"}')
    assert {"sentence_bert_config.json", "config_sentence_transformers.json"} <= read_companions(path).keys()
    assert said(path)["context"] == 512


# Beside weights


def spec_of(path: Path, *assignments: str) -> Compiled:
    """The spec of the folder, with other keys."""
    tree = import_config_file(path / "config.json", read_modules(path)).tree
    for assignment in assignments:
        tree = override(tree, assignment)
    return compile_tree(tree)


def unlike(path: Path, model: Compiled) -> list[str]:
    return compare_config(read_config_beside(path / "config.json"), model.function, model.spec.top.context)


MASKED = {"tied": True, "bias": True, "transform": {"act": "gelu", "bias": True,
                                                    "norm": {"type": "layer", "eps": 1e-12, "bias": True}}}  # fmt: skip


def test_a_spec_that_ends_otherwise_is_compared_with_the_class_that_ends_like_it(tmp_path: Path) -> None:
    """config.json names the class with logits of the vocabulary: what a pool makes of hidden states it does not say."""
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    of_texts = ("head={classes: 2, bias: true}", "pool={type: first, dense: {act: tanh, bias: true}}")
    for ends in (
        ("head=none",),
        ("head=none", "pool={type: mean, unit: true}"),
        ("head=none", "pool={type: last, dense: {act: relu}}"),
        of_texts,
        ("head={classes: 2, bias: true}",),
    ):
        assert unlike(tmp_path, spec_of(tmp_path, *ends)) == []
        (line,) = unlike(tmp_path, spec_of(tmp_path, *ends, "norm.eps=1e-5"))
        assert "norm.eps" in line
    for classes in ("head={classes: 3, bias: true}", "head={classes: 2, bias: false}"):
        assert len(unlike(tmp_path, spec_of(tmp_path, classes, *of_texts[1:]))) == 1
    assert len(unlike(tmp_path, spec_of(tmp_path, of_texts[0], "pool={type: mean}"))) == 1


def test_modules_say_what_is_made_of_hidden_states(tmp_path: Path) -> None:
    path = folder(tmp_path, [TRANSFORMER, POOLING, NORMALIZE], _1_Pooling=MEAN)
    assert unlike(path, spec_of(path)) == []
    for other in ("pool={type: first, unit: true}", "pool={type: mean}", "pool=none"):
        assert len(unlike(path, spec_of(path, other))) == 1
    assert unlike(path, spec_of(path, f"head={json.dumps(MASKED)}", "pool=none")) == []
