"""Words that families need: each is what the family's own module in transformers computes, and what becomes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers

from blockc.graph import interp
from blockc.graph.interp import interpret
from blockc.graph.shrink import shrink
from blockc.graph.target import Target
from blockc.importing import import_config
from blockc.ir import Array
from blockc.language.parts.base import Scope
from blockc.language.parts.mlp import Mlp
from blockc.language.spec import from_tree, load
from blockc.layouts import load_layout
from blockc.ops import LayerNorm
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.source import SpecError
from blockc.weights.matching import unpack
from blockc.weights.rules import group_sizes, random_parameters, rules
from blockc.weights.safetensors import read_safetensors
from tests.reference.models import SPECS
from tests.spec_text import made

IDS = np.random.RandomState(0).randint(3, 128, (2, 9))


def test_a_layer_norm_of_one_plus_weight_is_nemotrons() -> None:
    from transformers.models.nemotron.modeling_nemotron import NemotronLayerNorm1P

    x, w, b = (np.random.RandomState(i).standard_normal(shape) for i, shape in enumerate([(2, 3, 24), (24,), (24,)]))
    norm = NemotronLayerNorm1P(24, eps=1e-2).double()
    norm.load_state_dict({"weight": torch.from_numpy(w), "bias": torch.from_numpy(b)})
    with torch.no_grad():
        wanted = norm(torch.from_numpy(x)).numpy()
    (ours,) = LayerNorm(24, 1e-2, True, offset=1.0).numpy((x,), (w, b))
    assert np.abs(ours - wanted).max() < 1e-12
    (other,) = LayerNorm(24, 1e-2, True).numpy((x,), (w, b))
    assert np.abs(other - wanted).max() > 0.5


@pytest.mark.parametrize(("word", "theirs", "gated"), [("reglu2", "relu2", True), ("quick_gelu", "quick_gelu", False)])
def test_an_mlp_is_that_of_transformers_activation(word: Any, theirs: str, gated: bool) -> None:
    from transformers.activations import ACT2FN

    scope = Scope(24)
    function = scope.close("Mlp", Mlp(type=word, width=56).expand(scope, scope.x[0], "mlp", None), "").function
    params = random_parameters(function, seed=5)
    x = np.random.RandomState(6).standard_normal((2, 7, 24))
    gate, up, down = (torch.from_numpy(params[f"mlp.{m}.weight"]) for m in ("gate" if gated else "up", "up", "down"))
    act = ACT2FN[theirs](torch.from_numpy(x) @ gate.T)
    wanted = ((act * (torch.from_numpy(x) @ up.T) if gated else act) @ down.T).numpy()
    assert np.abs(interpret(function, {"x": x}, params)["out"] - wanted).max() < 1e-12 * wanted.std()


def test_a_norm_around_an_offset_is_fused_and_its_gain_holds_it() -> None:
    nodes = _nodes(compile_spec(shrink(load(SPECS / "minitron-4b.yaml"))), Target("cpu"))
    fused = [n for n in nodes if n.op_type == "SkipLayerNormalization"]
    adds = {out for n in nodes if n.op_type == "Add" for out in n.output}
    # All but the first, which reads no sum.
    assert len(fused) == 4 and all(n.input[2] in adds for n in fused)


def test_quick_gelu_is_one_node_where_there_is_a_kernel() -> None:
    model = made("mlp: {type: quick_gelu, width: 8}")
    found = [n for n in _nodes(model, Target("cpu")) if n.op_type == "QuickGelu"]
    assert found and {onnx.helper.get_node_attr_value(n, "alpha") for n in found} == {np.float32(1.702)}
    assert "QuickGelu" not in {n.op_type for n in _nodes(model, Target())}


def _nodes(model: Compiled, target: Target) -> list[Any]:
    return list(onnx.load_from_string(model.onnx(target)).graph.node)


# Model types whose tensors are packed in their own way, as transformers saves them

PACKED: dict[str, Any] = {
    "codegen": {"n_embd": 64, "n_layer": 2, "n_head": 8, "rotary_dim": 8, "n_positions": 64},
    "gpt_bigcode": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_bigcode of many heads": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "multi_query": False},
}


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_checkpoint_of_transformers_is_read(name: str, tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model(
        name.split()[0], vocab_size=128, bos_token_id=1, eos_token_id=2, **PACKED[name]
    )
    torch.manual_seed(5)
    theirs = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    for parameter in theirs.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    theirs.save_pretrained(tmp_path)
    spec = from_tree(import_config((tmp_path / "config.json").read_bytes(), "config.json", "packed").tree)
    model = compile_spec(spec)
    held = rules(load_layout(spec.top.checkpoint or ""), model.function, group_sizes(model.function))
    params = unpack(held, read_safetensors(tmp_path))
    with torch.no_grad():
        wanted = theirs.double()(torch.from_numpy(IDS)).logits.numpy()
    assert np.abs(_logits(model, params) - wanted).max() < 5e-6 * wanted.std()


def _logits(model: Compiled, params: dict[str, Array]) -> Array:
    feeds = {"input_ids": IDS, "attention_mask": np.ones_like(IDS), "position_ids": np.arange(9)[None].repeat(2, 0)}
    return interp.interpret(model.function, feeds, params)["logits"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "arcee": ({"hidden_act": "xielu"}, "this hidden_act"),
    "nemotron": ({"norm_type": "rms"}, "unknown key norm_type"),
    "helium": ({"partial_rotary_factor": 0.5}, "this partial_rotary_factor"),
    "seed_oss": ({"attention_out_bias": "o"}, "attention_out_bias is yes or no"),
    "codegen": ({"scale_attn_weights": False}, "this scale_attn_weights"),
    "gpt_bigcode": ({"add_cross_attention": True}, "this add_cross_attention"),
}


@pytest.mark.parametrize("model_type", REFUSED)
def test_what_a_family_cannot_say_is_refused_by_name(model_type: str) -> None:
    change, message = REFUSED[model_type]
    with pytest.raises(SpecError) as caught:
        import_config(json.dumps({"model_type": model_type, **change}).encode(), "config.json", "x")
    assert any(message in each.message for each in caught.value.findings)
