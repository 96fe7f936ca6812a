"""LoRA adapters merged into weights: the parameters are those of peft's own merge_and_unload."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from blockc.basics.errors import BlockcError, CheckpointError
from blockc.ir import Array
from blockc.pipeline.compiled import Compiled
from blockc.weights.adapter import open_adapter
from blockc.weights.checkpoint import open_checkpoint
from blockc.weights.matching import unpack
from blockc.weights.plan import WeightPlan, plan_weights
from tests.checkpoints import rules_of
from tests.reference.models import OUTSIDE, twin

# Rows by name, a transposed file, and all ways of packing.
FAMILIES = ("llama3-8b", "gpt2", "phi3-mini-4k", "pythia-410m", "falcon-7b", "bloom-560m", "mpt-7b", "gemma2-9b")
CLOSE = 2e-6  # of the largest weight: products in float32, added up in another order


def base(name: str, folder: Path) -> tuple[Compiled, Any]:
    """A twin, and transformers' model of its random weights, which lies in the folder too."""
    model = twin(name)
    outside = OUTSIDE[name].model(model, torch.float32)
    outside.save_pretrained(folder)
    return model, outside


def adapted(outside: Any, folder: Path, **said: Any) -> Any:
    """peft's model with an adapter of random numbers, which is saved to the folder."""
    import peft

    torch.manual_seed(5)
    said = {"r": 4, "lora_alpha": 6, "target_modules": "all-linear", "init_lora_weights": False, **said}
    model = peft.get_peft_model(outside, peft.LoraConfig(**said))
    # Saved beside the safetensors alone; the folder holds what a user downloads.
    model.save_pretrained(str(folder))
    saved = json.loads((folder / "adapter_config.json").read_text())
    saved["init_lora_weights"] = True  # as trained ones have it
    (folder / "adapter_config.json").write_text(json.dumps(saved))
    return model


def planned(model: Compiled, weights: Path, *folders: Path, **said: Any) -> WeightPlan:
    adapters = [open_adapter(folder) for folder in folders]
    checkpoint = open_checkpoint(weights)
    return plan_weights(model.function, checkpoint, model.spec.top.checkpoint, None, "fp32", adapters=adapters, **said)


def parameters(made: WeightPlan) -> dict[str, Array]:
    return {
        path: np.concatenate([piece.reshape(-1) for piece in s.pieces()]).reshape(s.rule.shapes[s.part])
        for path, s in made.sources.items()
    }


def merged(model: Compiled, outside: Any) -> dict[str, Array]:
    """What peft makes of it, under the parameters' paths."""
    with tempfile.TemporaryDirectory(prefix="merged-") as folder:
        outside.merge_and_unload().save_pretrained(folder)
        return unpack(rules_of(model), load_file(f"{folder}/model.safetensors"))


def compared(ours: dict[str, Array], theirs: dict[str, Array], before: dict[str, Array]) -> int:
    """Every parameter; how many an adapter has changed."""
    assert ours.keys() == theirs.keys()
    for path, array in ours.items():
        assert np.abs(array - theirs[path]).max() <= CLOSE * np.abs(theirs[path]).max(), path
    return sum(np.abs(array - before[path]).max() > 0.01 * np.abs(array).max() for path, array in ours.items())


@pytest.mark.parametrize("name", FAMILIES)
def test_the_parameters_are_those_of_merge_and_unload(name: str, tmp_path: Path) -> None:
    model, outside = base(name, tmp_path / "base")
    before = parameters(planned(model, tmp_path / "base"))
    outside = adapted(outside, tmp_path / "adapter")
    ours = planned(model, tmp_path / "base", tmp_path / "adapter")
    matrices = sum(param.role == "matrix" and path != "head.weight" for path, param in _params(model).items())
    assert compared(parameters(ours), merged(model, outside), before) == matrices
    # What is not adapted is still linked, what is, packed.
    adapted_ = {path for path, source in ours.sources.items() if source.deltas}
    assert adapted_ and not adapted_ & ours.linked.keys()


def _params(model: Compiled) -> Any:
    from blockc.ir import parameters_of as of

    return of(model.function)


def test_scales_by_rank_and_pattern_of_two_adapters(tmp_path: Path) -> None:
    """rsLoRA, ranks and alphas of some modules' own; an embedding and a head that are not tied; one after another."""
    model, outside = base("llama3-8b", tmp_path / "base")
    before = parameters(planned(model, tmp_path / "base"))
    patterns = {"rank_pattern": {"q_proj": 2, "layers.1.mlp.up_proj": 3}, "alpha_pattern": {"o_proj": 9}}
    outside = adapted(outside, tmp_path / "one", use_rslora=True, **patterns).merge_and_unload()
    chosen = ["embed_tokens", "lm_head", "down_proj"]
    outside = adapted(outside, tmp_path / "two", target_modules=chosen, r=3)
    ours = parameters(planned(model, tmp_path / "base", tmp_path / "one", tmp_path / "two"))
    assert compared(ours, merged(model, outside), before) > 5
    assert np.abs(ours["embedding.weight"] - before["embedding.weight"]).max() > 0.01


def test_an_adapter_of_half_precision_is_read(tmp_path: Path) -> None:
    model, outside = base("llama3-8b", tmp_path / "base")
    before = parameters(planned(model, tmp_path / "base"))
    made = adapted(outside, tmp_path / "adapter")
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    half = {name: array.astype(np.float16) for name, array in load_file(path).items()}
    save_file(half, path)
    made.load_state_dict(
        {
            name.replace(".weight", ".default.weight"): torch.from_numpy(a.astype(np.float32))
            for name, a in half.items()
        },
        strict=False,
    )
    ours = parameters(planned(model, tmp_path / "base", tmp_path / "adapter"))
    assert compared(ours, merged(model, made), before) > 5


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dora": ({"use_dora": True}, "use_dora: DoRA scales"),
    "modules to save": ({"modules_to_save": ["lm_head"]}, "modules_to_save of lm_head: it replaces whole modules"),
    "biases": ({"bias": "all"}, "bias: its effect is not known"),
    "a bias of its own": ({"lora_bias": True}, "lora_bias: its B has a bias"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_product_is_refused_by_its_name(kind: str, tmp_path: Path) -> None:
    said, expected = REFUSED[kind]
    _, outside = base("gpt2" if kind == "biases" else "llama3-8b", tmp_path / "base")
    adapted(outside, tmp_path / "adapter", **said)
    with pytest.raises(CheckpointError) as caught:
        open_adapter(tmp_path / "adapter")
    assert expected in str(caught.value)


CHANGED: dict[str, tuple[dict[str, Any], str]] = {
    "another method": ({"peft_type": "IA3"}, "peft_type is IA3"),
    "an unknown key": ({"use_warp": True}, "use_warp: its effect is not known"),
    "other weights": ({"init_lora_weights": "pissa"}, "init_lora_weights pissa: it needs weights other than"),
    "a target that is not there": (
        {"target_modules": ["q_proj", "c_attn"]},
        "target module c_attn: the adapter has no",
    ),
    "another rank": ({"r": 7}, "are no product of rank 7"),
    "a pattern": ({"alpha_pattern": {".*q_proj": 3}}, "alpha_pattern .*q_proj: expected a name of modules"),
    "no number": ({"lora_alpha": "x"}, "lora_alpha x is no number"),
}


@pytest.mark.parametrize("kind", CHANGED)
def test_a_configuration_that_is_not_understood_is_refused(kind: str, tmp_path: Path) -> None:
    said, expected = CHANGED[kind]
    _, outside = base("llama3-8b", tmp_path / "base")
    adapted(outside, tmp_path / "adapter")
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **said}))
    with pytest.raises(CheckpointError) as caught:
        open_adapter(tmp_path / "adapter")
    assert expected in str(caught.value)


def test_an_adapter_of_another_model_is_refused_by_its_modules(tmp_path: Path) -> None:
    model, _ = base("llama3-8b", tmp_path / "llama")
    _, other = base("gpt2", tmp_path / "gpt2")
    adapted(other, tmp_path / "adapter")
    with pytest.raises(CheckpointError, match="the model has no module transformer.h.0.attn.c_attn"):
        planned(model, tmp_path / "llama", tmp_path / "adapter")


@pytest.mark.parametrize("module", ["lm_head", "embed_tokens"])
def test_a_matrix_that_head_and_embedding_share_is_not_adapted(module: str, tmp_path: Path) -> None:
    model, outside = base("gemma2-9b", tmp_path / "base")
    adapted(outside, tmp_path / "adapter", target_modules=[module])
    with pytest.raises(CheckpointError, match="shares its matrix with the"):
        planned(model, tmp_path / "base", tmp_path / "adapter")


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("mixtral-8x7b", "model.layers.1.block_sparse_moe.experts.2.w1"),
        ("granite3.1-1b-a400m", "model.layers.1.block_sparse_moe.output_linear"),
    ],
)
def test_experts_are_not_adapted(name: str, module: str, tmp_path: Path) -> None:
    model, _ = base(name, tmp_path / "base")
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 4}')
    pair = {f"base_model.model.{module}.lora_{side}.weight": np.ones((4, 4), np.float32) for side in "AB"}
    save_file(pair, folder / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=rf"{module} is of a mixture's experts, to which no adapter is merged"):
        planned(model, tmp_path / "base", folder)


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_folder_that_is_no_adapter_says_so(missing: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    save_file({"base_model.model.x.lora_A.weight": np.ones((4, 4), np.float32)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(BlockcError, match="has no lora_B"):
        open_adapter(tmp_path)
    (tmp_path / missing).unlink()
    (tmp_path / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(BlockcError, match=rf"no {missing}.*pickled weights"):
        open_adapter(tmp_path)
