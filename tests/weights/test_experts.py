"""Parameters of all experts: a tensor for each expert in the file, or one that is joined or transposed within each."""

from __future__ import annotations

import json
import math
import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockc import api
from blockc.basics.errors import CheckpointError
from blockc.basics.floats import FloatType
from blockc.ir import Array, B, Call, Function, Op, Param, S, Type, apply, node, parameters_of, tensor
from blockc.ir.call import Input
from blockc.language.spec import resolve_spec
from blockc.layouts import Layout, LayoutError, read_layout
from blockc.source import SpecError, parse
from blockc.weights import plan as planning
from blockc.weights.checkpoint import open_checkpoint
from blockc.weights.data import write_data
from blockc.weights.matching import pack, unpack
from blockc.weights.plan import DATA, Mode, WeightPlan, plan_weights
from blockc.weights.rules import Rules, patterns, random_parameters, rules
from tests.checkpoints import kept, off_by, parameters_in, save, tensors, twin
from tests.reference.models import OUTSIDE

E, F, W = 6, 10, 8


@dataclass(frozen=True)
class Bank(Op):
    """The parameters of experts, and nothing else."""

    experts: int
    width: int
    inputs: int

    def infer(self, *args: Type) -> tuple[Type, ...]:
        return args

    def params(self) -> tuple[Param, ...]:
        into, out = (self.experts, self.width, self.inputs), (self.experts, self.inputs, self.width)
        return (
            Param("gate", into, "matrix"),
            Param("up", into, "matrix"),
            Param("down", out, "matrix"),
            Param("gate_bias", into[:2], "bias"),
            Param("up_bias", into[:2], "bias"),
        )


def model(depth: int = 3, experts: int = E, width: int = F, inputs: int = W) -> Function:
    x = node(Input(tensor("float", B, S, inputs), token_axis=1), name="x")
    layer = Function("Layer", (x,), (("out", apply(Bank(experts, width, inputs), x[0], name="experts")),), stream="x")
    root = node(Input(tensor("float", B, S, inputs), token_axis=1), name="x")
    value = root[0]
    for i in range(depth):
        value = apply(Call(layer), value, name=f"layers.{i}")
    return Function("Model", (root,), (("logits", value),))


def layout(lines: str, beyond: str = "") -> Layout:
    body = "".join(f"\n    {line.strip()}" for line in lines.strip().splitlines())
    return read_layout("l", parse(f"layout: 1\nlayers:\n  at: h.<i>{beyond}\n  tensors:{body}\n", "l.yaml"))


BIASES = """
    experts.gate_bias: experts.gate_bias
    experts.up_bias: experts.up_bias
"""
ONE_BY_ONE = """
    experts.<e>.w1.weight: experts.gate
    experts.<e>.w3.weight: experts.up
    experts.<e>.w2.weight: experts.down
    experts.<e>.w1.bias: experts.gate_bias
    experts.<e>.w3.bias: experts.up_bias
"""
JOINED = """
    in.weight: {of: [experts.gate, experts.up], axis: 1}
    in.bias: {of: [experts.gate_bias, experts.up_bias], axis: 1}
    out.weight: experts.down
"""
INTERLEAVED = """
    gate_up: {of: [experts.gate, experts.up], axis: 1, groups: mlp_width, transpose: true}
    gate_up_bias: {of: [experts.gate_bias, experts.up_bias], axis: 1, groups: mlp_width}
    down: {of: [experts.down], transpose: true}
"""
WAYS = {"one by one": ONE_BY_ONE, "joined": JOINED, "interleaved": INTERLEAVED}


def width_of(function: Function) -> int:
    return parameters_of(function)["layers.0.experts.up"].shape[1]


def rules_of(lines: str, function: Function, beyond: str = "") -> Rules:
    return rules(layout(lines, beyond), function, {"mlp_width": width_of(function)})


def params_of(function: Function) -> dict[str, Array]:
    return {path: array.astype(np.float32) for path, array in random_parameters(function, 4).items()}


def plan(
    lines: str, function: Function, path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode | None = None,
    dtype: FloatType = "fp32", beyond: str = "",
) -> WeightPlan:  # fmt: skip
    monkeypatch.setattr(planning, "load_layout", lambda name: layout(lines, beyond))  # pyright: ignore
    monkeypatch.setattr(planning, "group_sizes", lambda function: {"mlp_width": width_of(function)})  # pyright: ignore
    return plan_weights(function, open_checkpoint(path), "l", mode, dtype)


def by_hand(way: str, params: Mapping[str, Array]) -> dict[str, Array]:
    """A file as the families write it."""
    found: dict[str, Array] = {}
    for i in range(3):
        gate, up, down, gate_bias, up_bias = (
            params[f"layers.{i}.experts.{name}"] for name in ("gate", "up", "down", "gate_bias", "up_bias")
        )
        if way == "one by one":
            for e in range(E):
                found |= {f"h.{i}.experts.{e}.w1.weight": gate[e], f"h.{i}.experts.{e}.w2.weight": down[e]}
                found |= {f"h.{i}.experts.{e}.w3.weight": up[e], f"h.{i}.experts.{e}.w1.bias": gate_bias[e]}
                found |= {f"h.{i}.experts.{e}.w3.bias": up_bias[e]}
        elif way == "joined":
            found[f"h.{i}.in.weight"] = np.concatenate([gate, up], 1)
            found[f"h.{i}.in.bias"] = np.concatenate([gate_bias, up_bias], 1)
            found[f"h.{i}.out.weight"] = down
        else:
            whole, bias = np.empty((E, W, 2 * F), np.float32), np.empty((E, 2 * F), np.float32)
            whole[..., ::2], whole[..., 1::2] = gate.swapaxes(1, 2), up.swapaxes(1, 2)
            bias[:, ::2], bias[:, 1::2] = gate_bias, up_bias
            found |= {f"h.{i}.gate_up": whole, f"h.{i}.gate_up_bias": bias, f"h.{i}.down": down.swapaxes(1, 2)}
    return found


@pytest.mark.parametrize("way", WAYS)
def test_a_file_of_experts_is_read_and_written(way: str) -> None:
    function = model()
    params, held = params_of(function), rules_of(WAYS[way], function)
    file = by_hand(way, params)
    packed, read = pack(held, params), unpack(held, file)
    assert packed.keys() == file.keys() and read.keys() == params.keys()
    for name, array in file.items():
        np.testing.assert_array_equal(packed[name], array, err_msg=name)
    for path, array in params.items():
        np.testing.assert_array_equal(read[path], array, err_msg=path)


@pytest.mark.parametrize("word", ["F32", "BF16"])
@pytest.mark.parametrize("way", WAYS)
def test_the_data_file_has_each_parameter_of_all_experts(
    way: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = model()
    params = params_of(function)
    path = save(tmp_path / "model.safetensors", by_hand(way, params), word)
    made = plan(WAYS[way], function, path, monkeypatch)
    assert made.mode == "pack" and any(note.endswith("packed") for note in made.notes)
    write_data(made, tmp_path / DATA)
    data = (tmp_path / DATA).read_bytes()
    for name, array in params.items():
        place = made.references[name]
        assert place.shape == array.shape
        found = np.frombuffer(data, np.float32, array.size, place.offset).reshape(array.shape)
        np.testing.assert_array_equal(found, kept(array, word), err_msg=name)
        np.testing.assert_array_equal(made.sources[name].read(), kept(array, word), err_msg=name)


def test_a_tensor_that_lies_as_the_parameter_does_is_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function = model()
    path = save(tmp_path / "model.safetensors", by_hand("joined", params_of(function)))
    made = plan(JOINED, function, path, monkeypatch, "link")
    assert set(made.linked) == {f"layers.{i}.experts.down" for i in range(3)}


def _without(name: str) -> Callable[[dict[str, Array]], None]:
    return lambda file: file.__delitem__(name)


def _with(name: str, shape: tuple[int, ...]) -> Callable[[dict[str, Array]], None]:
    return lambda file: file.update({name: np.ones(shape, np.float32)})


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_without("h.1.experts.4.w3.weight"), f"missing: h.1.experts.4.w3.weight ({F}, {W})"),
        (_with("h.1.experts.4.w3.weight", (F, W + 1)), "misshapen: h.1.experts.4.w3.weight is"),
        (_with("h.2.experts.6.w1.weight", (F, W)), "extra: h.2.experts.6.w1.weight"),
        (_with("h.3.experts.0.w1.weight", (F, W)), "extra: h.3.experts.0.w1.weight"),
    ],
    ids=["missing", "shape", "too many", "layer"],
)
def test_what_does_not_fit_is_named(
    change: Callable[[dict[str, Array]], None], fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = model()
    file = by_hand("one by one", params_of(function))
    change(file)
    with pytest.raises(CheckpointError) as caught:
        unpack(rules_of(ONE_BY_ONE, function), file)
    assert str(caught.value).splitlines()[1].strip().startswith(fault)
    with pytest.raises(CheckpointError) as caught:
        plan(ONE_BY_ONE, function, save(tmp_path / "model.safetensors", file), monkeypatch)
    (line,) = (line.strip() for line in str(caught.value).splitlines()[1:])
    assert line.startswith(fault)


def test_an_expert_that_is_not_finite_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function = model()
    file = by_hand("one by one", params_of(function))
    file["h.1.experts.4.w3.weight"] = np.full((F, W), np.inf, np.float32)
    made = plan(ONE_BY_ONE, function, save(tmp_path / "model.safetensors", file), monkeypatch)
    with pytest.raises(CheckpointError, match=r"not finite: h.1.experts.4.w3.weight holds NaN or Inf"):
        write_data(made, tmp_path / DATA)


def test_layers_after_the_last_one_are_dropped_with_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those that have the tensor by which the layout knows them: any other is a layer that the spec lacks."""
    function, said = model(), "\n  beyond: {eh_proj.weight: multi-token prediction}"
    file = by_hand("one by one", params_of(function))
    more = {"h.3.eh_proj.weight": file["h.0.experts.0.w1.weight"], "h.3.experts.0.w1.weight": np.ones((F, W))}
    more |= {"h.3.enorm.weight": np.ones(W)}
    path = save(tmp_path / "model.safetensors", file | more)
    made = plan(ONE_BY_ONE, function, path, monkeypatch, beyond=said)
    size = 4 * (2 * F * W + W)
    assert f"3 tensors of multi-token prediction, {size} bytes, are left out" in made.notes
    for name in ("h.4.enorm.weight", "h.2.eh_proj.weight", "h.30.enorm.weight"):
        save(path, file | more | {name: np.ones(W)})
        with pytest.raises(CheckpointError, match=f"extra: {name}"):
            plan(ONE_BY_ONE, function, path, monkeypatch, beyond=said)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("experts.<e>.in: {of: [experts.gate, experts.up]}", "<e> stands alone"),
        ("experts.<e>.w1: {of: [experts.gate], transpose: true}", "<e> stands alone"),
        ("experts.<e>.<e>: experts.gate", "not a tensor name"),
        ("experts.w1: experts.<e>.gate", "not a tensor name"),
        ("in: {of: [experts.gate], permute_rope: mlp_width}", "permute_rope"),
    ],
)
def test_a_line_of_experts_is_read_strictly(lines: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        layout(lines)


def test_layers_are_not_dropped_without_a_word() -> None:
    with pytest.raises(SpecError, match="nothing says what the layers after the last one are"):
        layout(ONE_BY_ONE, "\n  beyond: {eh_proj.weight: ''}")


def test_two_lines_for_one_parameter_are_a_fault() -> None:
    with pytest.raises(LayoutError, match=r"two lines of the layout hold for layers.0.experts.gate"):
        rules_of(ONE_BY_ONE + "    gate: experts.gate\n", model())


def test_widths_that_differ_are_a_fault() -> None:
    with pytest.raises(LayoutError, match="packed by mlp_width, which differs between MLPs"):
        patterns(layout(INTERLEAVED), model(), {"heads": 2, "head_dim": 4})


def test_the_plan_of_a_checkpoint_of_many_experts_is_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many tensors as DeepSeek V3 has: 58 layers of 256 experts."""
    function = model(58, 256, 1, 1)
    lines = "\n".join(ONE_BY_ONE.splitlines()[:4]) + BIASES
    shapes = {rule.name: rule.shape for rule in rules_of(lines, function)}
    assert len(shapes) == 58 * (3 * 256 + 2)
    header, end = dict[str, object](), 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))
    monkeypatch.setattr(planning, "load_layout", lambda name: layout(lines))  # pyright: ignore
    held = open_checkpoint(path)
    start = time.process_time()
    made = plan_weights(function, held, "l", None, "fp32")
    assert len(made.sources) == 58 * 5
    assert time.process_time() - start < 2


@pytest.mark.parametrize("way", ["one by one", "interleaved"])
def test_one_expert_is_in_memory_at_a_time(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 32, each of 1.5 MB as float32: a whole parameter is 50 MB, and no more than some experts are held."""
    function = model(1, 32, 512, 768)
    lines = "\n".join(ONE_BY_ONE.splitlines()[:4]) + BIASES if way == "one by one" else INTERLEAVED
    held = rules_of(lines, function)
    path = tmp_path / "model.safetensors"
    save(path, {rule.name: np.full(rule.shape, 0.5, np.float32) for rule in held}, "BF16")
    made = plan(lines, function, path, monkeypatch)
    assert max(param.size for param in parameters_of(function).values()) * 4 > 50e6
    tracemalloc.start()
    try:
        write_data(made, tmp_path / DATA)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 25e6
    assert np.fromfile(tmp_path / DATA, np.float32).max() == 0.5


@pytest.mark.costly
@pytest.mark.parametrize("mode", [None, "link"])
@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-20b"])
def test_a_build_computes_what_the_checkpoint_says(name: str, mode: Mode | None, tmp_path: Path) -> None:
    model = twin(name)
    held = tensors(model)
    path = save(tmp_path / "model.safetensors", held, "BF16")
    api.build(model, tmp_path / "out", proof=False, weights=path, mode=mode)
    params = parameters_in(model, {tensor: kept(array, "BF16") for tensor, array in held.items()})
    assert off_by(model, tmp_path / "out" / "model.onnx", params) < 3e-5
    assert api.verify(tmp_path / "out").outdated == ()


CHANGED: dict[str, tuple[str, dict[str, Any], str]] = {
    "normalise": ("qwen3-30b-a3b", {"norm_topk_prob": False}, "norm_topk_prob is false"),
    "active": ("qwen3-30b-a3b", {"num_experts_per_tok": 3}, "num_experts_per_tok is 3"),
    "scale": ("deepseek-v3", {"routed_scaling_factor": 2.0}, "routed_scaling_factor is 2"),
    "groups": ("deepseek-v3", {"topk_group": 1}, "topk_group is 1"),
    "latent": ("deepseek-v3", {"kv_lora_rank": 9}, "kv_lora_rank is 9"),
    "limit": ("gpt-oss-20b", {"swiglu_limit": 3.0}, "swiglu_limit is 3"),
}


@pytest.mark.parametrize(("name", "changed", "line"), CHANGED.values(), ids=CHANGED)
def test_a_config_that_routes_otherwise_is_named(name: str, changed: dict[str, Any], line: str, tmp_path: Path) -> None:
    model, outside = twin(name), OUTSIDE[name]
    assert outside.config is not None
    said = json.loads(outside.config(resolve_spec(model.spec)).to_json_string())
    save(tmp_path / "model.safetensors", tensors(model))
    family = model.spec.top.checkpoint
    for more, fits in (({}, True), (changed, False)):
        (tmp_path / "config.json").write_text(json.dumps({**said, **more}))
        held = open_checkpoint(tmp_path)
        if fits:
            plan_weights(model.function, held, family, None, "fp32")
            continue
        with pytest.raises(CheckpointError, match=f"unlike: {line} "):
            plan_weights(model.function, held, family, None, "fp32")
