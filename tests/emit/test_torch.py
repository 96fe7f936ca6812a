"""The emitted model.py as PyTorch's own tools see it: compile, export, meta device, FLOP counter, checkpoints."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor
from torch.export import Dim
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from blockc.graph.shrink import shrink
from blockc.ir import Array, inline, parameters_of, product
from blockc.language.spec import load, resolve_spec
from blockc.layouts import load_layout
from blockc.ops import Experts, SinkAttention
from blockc.pipeline.compiled import Compiled, compile_spec
from blockc.proof.runners import load_module
from blockc.weights.matching import pack
from blockc.weights.rules import group_sizes, random_parameters, rules
from blockc.weights.safetensors import write_safetensors
from tests.paths import ROOT, WRITERS
from tests.reference.models import spec_of
from tests.tiers import chosen, some, traced

torch.set_num_threads(1)  # the twins are too small to share out
SPECS = {path.stem: path for path in sorted((ROOT / "specs").glob("*.yaml"))}
THREE = ("gemma2-9b", "gpt2", "llama3-8b")  # caps and windows; biases and learned positions; rope and grouped heads
CLOSE = 3e-5  # of the logits' standard deviation
every_spec = pytest.mark.parametrize("name", SPECS)
writing_specs = pytest.mark.parametrize("name", WRITERS)
encoder_specs = pytest.mark.parametrize("name", sorted(SPECS.keys() - set(WRITERS)))  # no logits of words, or no cache
unlike_specs = pytest.mark.parametrize("name", chosen())  # where torch traces the text, which takes seconds
traced_specs = pytest.mark.parametrize("name", traced())  # where it does so for long
# torch.onnx knows neither a stable sort nor the products of experts.
exported_specs = pytest.mark.parametrize("name", [n for n in some(*THREE) if "experts:" not in SPECS[n].read_text()])
two_specs = pytest.mark.parametrize("name", some(*THREE[1:]))  # where C++ is compiled
Inputs = dict[str, Any]


@cache
def _twin(name: str) -> Compiled:
    return compile_spec(shrink(load(SPECS[name])))


@cache
def _params(name: str) -> dict[str, Array]:
    return random_parameters(_twin(name).function, seed=31)


def _short(name: str) -> Compiled:
    """The twin with its pattern of layers once and not twice: torch traces each layer anew, at a second or more."""
    keys = resolve_spec(_twin(name).spec)
    first = (keys.get("layers") or {}).get("first") or []
    laid = sum(next(iter(entry.values())) if isinstance(entry, dict) else 1 for entry in first)
    return compile_spec(spec_of({**keys, "depth": max(2, keys["depth"] // 2, laid + 1 if first else 0)}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emitted")


def _module(twin: Compiled, folder: Path) -> ModuleType:
    path = folder / f"{twin.spec.name}_{twin.spec.top.depth}.py"
    path.write_text(twin.model_py(), encoding="utf-8")
    return load_module(path)


def _model(name: str, folder: Path, twin: Compiled | None = None) -> Any:
    model = _module(twin or _twin(name), folder).Model()
    with torch.no_grad():
        for path, held in [*model.named_parameters(), *model.named_buffers()]:
            if path in _params(name):  # the other buffers are computed
                held.copy_(torch.from_numpy(_params(name)[path]))
    return model.eval()


def _inputs(model: Any, batch: int, tokens: int, past: int, vocab: int = 16) -> Inputs:
    """Random tokens after a random past whose first token is padding in the last row; no tensor is another's view.

    A model without a cache gets the past's tokens as tokens.
    """
    seed = torch.Generator().manual_seed(97 * batch + 11 * tokens + past)
    if not _takes(model, "past_key_values"):
        return _texts(model, torch.randint(0, vocab, (batch, past + tokens), generator=seed), seed)
    mask = torch.ones(batch, past + tokens, dtype=torch.long)
    mask[-1, : min(past, 1)] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)[:, past:]
    shapes = [[(batch, *state[1:-2], past, state[-1]) for state in layer] for layer in _held(model)]
    return {
        "input_ids": torch.randint(0, vocab, (batch, tokens), generator=seed),
        "attention_mask": mask,
        "position_ids": positions.clone(),
        "past_key_values": tuple(tuple(torch.randn(s, generator=seed) for s in layer) for layer in shapes),
    }


def _takes(model: Any, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters


def _texts(model: Any, ids: Tensor, seed: torch.Generator) -> Inputs:
    """Padding at the left of the last row and at the right of the first; segments at random, where there are any."""
    mask = torch.ones_like(ids)
    if ids.shape[1] > 2:
        mask[-1, 0] = mask[0, -1] = 0
    texts = {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    if _takes(model, "token_type_ids"):
        texts["token_type_ids"] = torch.randint(0, 2, ids.shape, generator=seed)
    return texts


def _held(model: Any) -> list[list[tuple[int, ...]]]:
    """The shapes of the states of each layer, whose tokens are along the axis before the last."""
    with torch.no_grad():
        held = model(torch.zeros(1, 2, dtype=torch.long), use_cache=True).past_key_values
    return [[tuple(state.shape) for state in layer] for layer in held]


def _flat(inputs: Inputs) -> dict[str, Tensor]:
    """Under the names of the ONNX graph."""
    states = {
        f"past_key_values.{i}.{state}": tensor
        for i, layer in enumerate(inputs["past_key_values"])
        for state, tensor in zip(("key", "value"), layer, strict=True)
    }
    return {name: value for name, value in inputs.items() if name != "past_key_values"} | states


def _same(got: Any, wanted: Any) -> None:
    """Logits or hidden states, the pooled vector, and the cache."""
    mine, theirs = _answers(got), _answers(wanted)
    assert mine.keys() == theirs.keys() and mine
    for name in theirs:
        _close(mine[name], theirs[name])
    for mine, theirs in zip(_states(got), _states(wanted), strict=True):
        _close(mine, theirs)


def _answers(output: Any) -> dict[str, Tensor]:
    return {name: value for name, value in vars(output).items() if isinstance(value, Tensor)}


def _states(output: Any) -> list[Tensor]:
    return [state for layer in getattr(output, "past_key_values", None) or () for state in layer]


def _close(got: Any, wanted: Any) -> None:
    """By the spread of the numbers wanted; few of them, which are those of classes, by their size."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape
    size = wanted.std() if wanted.size > 16 else np.sqrt(np.square(wanted).mean())
    assert np.isfinite(wanted).all() and size > 0.1
    assert np.abs(got - wanted).max() < CLOSE * size


# torch.compile

SIZES = ((5, 6, 3), (3, 4, 7), (2, 1, 9))  # batch, new tokens, past


@pytest.fixture
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.backend("aot_eager")
@traced_specs
@pytest.mark.usefixtures("_fresh")
def test_aot_eager_in_one_graph(name: str, folder: Path) -> None:
    """One trace serves all sizes but those of one token, which torch takes for another program."""
    model = _model(name, folder, _short(name))
    traced = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for size in SIZES[:2]:
            inputs = _inputs(model, *size)
            _same(traced(**inputs), model(**inputs))


@two_specs
@pytest.mark.usefixtures("_fresh")
def test_aot_eager_of_tokens_alone_and_of_one_token(name: str, folder: Path) -> None:
    model = _model(name, folder, _short(name))
    traced = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        tokens = _inputs(model, 2, 6, 0)["input_ids"]
        _close(traced(tokens).logits, model(tokens).logits)
        inputs = _inputs(model, *SIZES[2])
        _same(traced(**inputs), model(**inputs))


@pytest.mark.backend("inductor")
@two_specs
@pytest.mark.usefixtures("_fresh")
def test_inductor_in_one_graph(name: str, folder: Path) -> None:
    model = _model(name, folder, _short(name))
    traced = torch.compile(model, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for size in SIZES[:2]:
            inputs = _inputs(model, *size)
            _same(traced(**inputs), model(**inputs))


# torch.export


def _shapes(inputs: Inputs) -> Inputs:
    """The mask's length is a Dim of its own: torch takes no sum of two."""
    batch, new, past, total = Dim("batch"), Dim("new"), Dim("past"), Dim("total")
    if "past_key_values" not in inputs:
        return {name: {0: batch, 1: new} for name in inputs}
    return {
        "input_ids": {0: batch, 1: new},
        "attention_mask": {0: batch, 1: total},
        "position_ids": {0: batch, 1: new},
        "past_key_values": tuple(
            tuple({0: batch, state.dim() - 2: past} for state in layer) for layer in inputs["past_key_values"]
        ),
    }


@pytest.mark.backend("export")
@unlike_specs
def test_export_with_dynamic_shapes(name: str, folder: Path) -> None:
    """One program prefills and decodes, or takes texts of all lengths."""
    model = _model(name, folder)
    example = _inputs(model, 2, 3, 4)
    with torch.no_grad():
        program = torch.export.export(model, (), example, dynamic_shapes=_shapes(example)).module()
    for size in ((2, 3, 4), (3, 5, 2), (1, 1, 7), (1, 1, 1), (2, 7, 0), (3, 1, 0)):
        inputs = _inputs(model, *size)
        with torch.no_grad():
            _same(program(**inputs), model(**inputs))


@pytest.mark.backend("export")
@unlike_specs
def test_export_without_a_past(name: str, folder: Path) -> None:
    """Mask and positions too are left to the model."""
    model = _model(name, folder)
    shapes = {"input_ids": {0: Dim("batch"), 1: Dim("new")}}
    with torch.no_grad():
        program = torch.export.export(model, (torch.zeros(2, 5, dtype=torch.long),), dynamic_shapes=shapes).module()
        for size in ((3, 9), (1, 4), (4, 2)):
            tokens = _inputs(model, *size, 0)["input_ids"]
            _same(program(tokens), model(tokens))


@pytest.mark.backend("onnx export")
@exported_specs
def test_torch_onnx_export_agrees_with_the_direct_graph(name: str, folder: Path) -> None:
    model = _model(name, folder)
    example = _inputs(model, 2, 3, 4)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        traced = torch.onnx.export(
            model, (), kwargs=example, dynamic_shapes=_shapes(example), dynamo=True, opset_version=23, verbose=False
        )
    assert traced is not None
    theirs = _session(traced.model_proto.SerializeToString())
    ours = _session(_twin(name).onnx(weights=_params(name)))
    for size in ((2, 3, 4), (3, 5, 2), (1, 1, 7), (2, 4, 0)):
        feeds = {key: value.numpy() for key, value in _flat(_inputs(model, *size)).items()}
        in_order = {i.name: value for i, value in zip(theirs.get_inputs(), feeds.values(), strict=True)}
        mine = ours.run(None, {i.name: feeds[i.name] for i in ours.get_inputs()})
        for got, wanted in zip(mine, theirs.run(None, in_order), strict=True):
            _close(got, wanted)


def test_torch_onnx_does_not_take_experts(folder: Path) -> None:
    """Which is why their cells are gaps: a release that takes them fails here."""
    example = _inputs(model := _model("mixtral-8x7b", folder), 2, 3, 4)
    given: Inputs = {"kwargs": example, "dynamic_shapes": _shapes(example), "dynamo": True, "opset_version": 23}
    with torch.no_grad(), pytest.raises(torch.onnx.OnnxExporterError, match="sort"):
        torch.onnx.export(model, (), **given, verbose=False)


def _session(model: bytes) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


# What the model works out by itself


@writing_specs
def test_what_is_left_out_is_worked_out(name: str, folder: Path) -> None:
    """No mask is a mask of ones, no positions are counted from it, no past is an empty one."""
    model = _model(name, folder)
    with torch.no_grad():
        inputs = _inputs(model, 2, 6, 0)
        bare = model(inputs["input_ids"], use_cache=True)
        _same(bare, model(**inputs))
        new = torch.randint(0, 16, (2, 3))
        full = {"attention_mask": torch.ones(2, 9, dtype=torch.long), "position_ids": torch.arange(6, 9).expand(2, 3)}
        past = bare.past_key_values
        _same(model(new, past_key_values=past), model(new, past_key_values=past, **full))


@encoder_specs
def test_what_is_left_out_of_texts_is_worked_out(name: str, folder: Path) -> None:
    """No mask is a mask of ones, no positions are counted from it, no segments are the first one."""
    model = _model(name, folder)
    assert not _takes(model, "past_key_values") and not _takes(model, "use_cache")
    padded = _inputs(model, 3, 6, 0)
    ids, mask = padded["input_ids"], padded["attention_mask"]
    first = {"token_type_ids": torch.zeros_like(ids)} if "token_type_ids" in padded else {}
    full = {"attention_mask": torch.ones_like(ids), "position_ids": torch.arange(6).expand(3, 6), **first}
    with torch.no_grad():
        bare = model(ids)
        _same(bare, model(ids, **full))
        _same(model(ids, attention_mask=mask), model(**{**padded, **first}))
        for matters in ({"attention_mask": mask}, {k: 1 - v for k, v in first.items()}):
            if matters:
                with pytest.raises(AssertionError):
                    _same(model(ids, **matters), bare)


# The real size


@pytest.mark.backend("meta")
@every_spec
def test_the_real_model_on_the_meta_device(name: str) -> None:
    """Names, shapes and total are those of the graph, of the spec's own figure and of the ONNX."""
    real = compile_spec(load(SPECS[name]))
    namespace: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(real.model_py(), "model.py", "exec", dont_inherit=True), namespace)
    with torch.device("meta"):
        model = namespace["Model"]()
    held = model.state_dict()
    buffers = {path: b for path, b in model.named_buffers() if path in held}
    shapes = {path: tuple(p.shape) for path, p in (*model.named_parameters(), *buffers.items())}
    assert all(p.is_meta for p in (*model.parameters(), *buffers.values()))
    assert shapes == {path: param.shape for path, param in parameters_of(real.function).items()}
    graph = onnx.load_from_string(real.onnx()).graph
    given = {i.name: tuple(d.dim_value for d in i.type.tensor_type.shape.dim) for i in graph.input}
    states = (n for n in given if n.startswith("past_key_values."))
    runtime = {"input_ids", "attention_mask", "position_ids", "token_type_ids", *states}
    assert {path: shape for path, shape in given.items() if path not in runtime} == shapes
    expect = real.spec.top.expect
    assert expect is not None and expect.parameters == sum(p.numel() for p in model.parameters())
    assert buffers.keys() == {path for path, param in parameters_of(real.function).items() if param.buffer}


# FLOPs


def _count_grouped(
    rows: tuple[int, int], weight: tuple[int, int, int], *_: object, out_shape: Any, **__: object
) -> int:
    """Of a grouped product, which torch does not count: each row times the matrix of its expert."""
    return 2 * rows[0] * rows[1] * out_shape[1]


def _of_sinks(name: str, sizes: dict[str, int]) -> int:
    """A sink is one key more in PyTorch, and its value of zeros is multiplied too."""
    sinks = (n for n in _twin(name).graph.nodes if isinstance(n.op, SinkAttention))
    return sum(4 * product(n.inputs[0].type.shape).at(sizes) for n in sinks)


@every_spec
@pytest.mark.parametrize("size", [(2, 6, 0), (3, 2, 5)], ids=["prefill", "decode"])
def test_the_rules_count_what_torch_counts(name: str, size: tuple[int, int, int], folder: Path) -> None:
    """torch has no figure for its fused CPU attention, so attention runs as the two products that it is."""
    model, (batch, new, past) = _model(name, folder), size
    inputs = _inputs(model, batch, new, past)
    sparse = any(isinstance(n.op, Experts) for n in _twin(name).graph.nodes)
    grouped = (torch.ops.aten._grouped_mm, torch.ops.blockc.grouped_linear) if sparse else ()
    counts = FlopCounterMode(display=False, custom_mapping=dict.fromkeys(grouped, _count_grouped))
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counts as counter:
        model(**inputs)
    held = "past_key_values" in inputs
    sizes = {"B": batch, "S": new, "P": past} if held else {"B": batch, "S": new + past, "P": 0}
    graph = _twin(name).graph if held and past else inline(_twin(name).function)
    ours = {n.name: n.op.flops(*(value.type for value in n.inputs)).at(sizes) for n in graph.nodes}
    assert counter.get_total_flops() - _of_sinks(name, sizes) == sum(ours.values()) > 0
    counted = {path.rpartition(".")[2] for path, flops in ours.items() if flops}
    headed = any(output == "logits" for output, _ in _twin(name).function.outputs)
    assert {"o", "mixed"} <= counted and ("head" in counted) == headed
    assert counted <= {*"qkvo", "mixed", "gate", "up", "down", "head"} | {
        "project_in", "project_out", "router", "experts", "shared_gate", "q_a", "q_b", "kv_a",
        "transform", "dense", "dense_1", "dense_2",
    }  # fmt: skip


# Checkpoints

LAID_OUT = {
    "falcon-40b": "falcon", "gemma2-9b": "gemma2", "gpt-j-6b": "gpt-j", "gpt2": "gpt2", "llama3-8b": "llama",
    "olmo2-7b": "olmo2", "phi-2": "phi", "phi3-mini-4k": "phi3", "pythia-410m": "gpt-neox",
    "glm4.5-air": "glm-moe", "gpt-oss-20b": "gpt-oss", "granite3.1-1b-a400m": "granite-moe",
    "transformer2017": "",  # its own names
}  # fmt: skip
every_layout = pytest.mark.parametrize("name", LAID_OUT)
PACKED = {
    "gemma2-9b": "model.layers.1.mlp.up_proj.weight", "gpt2": "transformer.h.1.attn.c_attn.weight",
    "llama3-8b": "model.layers.1.self_attn.k_proj.weight", "transformer2017": "layers.1.attention.k.weight",
    "gpt-j-6b": "transformer.h.1.attn.k_proj.weight", "olmo2-7b": "model.layers.1.self_attn.k_proj.weight",
    "falcon-40b": "transformer.h.1.self_attention.query_key_value.weight",
    "phi-2": "model.layers.1.self_attn.dense.weight", "phi3-mini-4k": "model.layers.1.mlp.gate_up_proj.weight",
    "pythia-410m": "gpt_neox.layers.1.attention.query_key_value.weight",
    "glm4.5-air": "model.layers.1.mlp.experts.3.up_proj.weight",
    "gpt-oss-20b": "model.layers.1.mlp.experts.gate_up_proj",
    "granite3.1-1b-a400m": "model.layers.1.block_sparse_moe.input_linear.weight",
}  # fmt: skip


def _tensors(name: str) -> dict[str, Array]:
    """The checkpoint's tensors as a file has them."""
    single = {path: array.astype(np.float32) for path, array in _params(name).items()}
    if not LAID_OUT[name]:
        return single
    function = _twin(name).function
    return pack(rules(load_layout(LAID_OUT[name]), function, group_sizes(function)), single)


def _written(tensors: dict[str, Array], path: Path) -> Path:
    write_safetensors(path, {name: np.asarray(array, order="C") for name, array in tensors.items()})
    return path


def _loads(name: str, tensors: dict[str, Array], folder: Path, tmp_path: Path) -> None:
    """The model read from the file has the logits of the model whose parameters were set one by one."""
    loaded = _module(_twin(name), folder).Model.load(_written(tensors, tmp_path / "model.safetensors"))
    wanted = _model(name, folder)
    assert dict(loaded.named_parameters()).keys() == dict(wanted.named_parameters()).keys()
    tokens = _inputs(loaded, 2, 6, 0)["input_ids"]
    with torch.no_grad():
        assert torch.equal(loaded.eval()(tokens).logits, wanted(tokens).logits)


@every_layout
def test_load(name: str, folder: Path, tmp_path: Path) -> None:
    _loads(name, _tensors(name), folder, tmp_path)


@every_layout
def test_load_from_shards_in_half_precision(name: str, folder: Path, tmp_path: Path) -> None:
    tensors = list(_tensors(name).items())
    _written(dict(tensors[::2]), tmp_path / "model-00001-of-00002.safetensors")
    _written(dict(tensors[1::2]), tmp_path / "model-00002-of-00002.safetensors")
    loaded = _module(_twin(name), folder).Model.load(tmp_path, dtype=torch.bfloat16)
    for path, parameter in loaded.named_parameters():
        assert torch.equal(parameter, torch.from_numpy(_params(name)[path]).bfloat16()), path


def test_load_gpt2_without_its_prefix(folder: Path, tmp_path: Path) -> None:
    tensors = {name.removeprefix("transformer."): array for name, array in _tensors("gpt2").items()}
    assert "wte.weight" in tensors
    _loads("gpt2", tensors, folder, tmp_path)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("gpt2", "transformer.h.0.attn.bias"),
        ("gpt2", "transformer.h.1.attn.masked_bias"),
        ("llama3-8b", "model.layers.1.self_attn.rotary_emb.inv_freq"),
        ("pythia-410m", "gpt_neox.layers.0.attention.rotary_emb.inv_freq"),
    ],
)
def test_load_passes_over_buffers(name: str, more: str, folder: Path, tmp_path: Path) -> None:
    _loads(name, {**_tensors(name), more: np.ones(4, np.float32)}, folder, tmp_path)


@pytest.mark.parametrize("name", ["gpt2", "gemma2-9b"])
def test_load_takes_the_head_that_it_is_tied_to(name: str, folder: Path, tmp_path: Path) -> None:
    table = _params(name)["embedding.weight"].astype(np.float32)
    _loads(name, {**_tensors(name), "lm_head.weight": table}, folder, tmp_path)
    untied = _written({**_tensors(name), "lm_head.weight": table + np.float32(1)}, tmp_path / "untied.safetensors")
    with pytest.raises(ValueError, match="lm_head.weight differs from .*(wte|embed_tokens).weight"):
        _module(_twin(name), folder).Model.load(untied)


@every_layout
def test_load_names_what_is_missing(name: str, folder: Path, tmp_path: Path) -> None:
    tensors = _tensors(name)
    del tensors[PACKED[name]]
    with pytest.raises(KeyError, match=PACKED[name]):
        _module(_twin(name), folder).Model.load(_written(tensors, tmp_path / "model.safetensors"))


@every_layout
def test_load_names_what_is_not_known(name: str, folder: Path, tmp_path: Path) -> None:
    tensors = {**_tensors(name), "layers.0.attention.q.scale": np.ones(4, np.float32)}
    with pytest.raises(KeyError, match="layers.0.attention.q.scale"):
        _module(_twin(name), folder).Model.load(_written(tensors, tmp_path / "model.safetensors"))


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        *((name, axis) for name in ("gemma2-9b", "llama3-8b", "transformer2017") for axis in (0, 1)),
        *((name, axis) for name in ("gpt2", "pythia-410m", "glm4.5-air") for axis in (0, 1)),
        *(("gpt-oss-20b", axis) for axis in (0, 1, 2)),
    ],
)
def test_load_names_what_has_another_shape(name: str, axis: int, folder: Path, tmp_path: Path) -> None:
    """One row or column alone would be stretched over all, if copying were left to it; torch names the parameter."""
    tensors = _tensors(name)
    for few in (tensors[PACKED[name]].take([0], axis), np.delete(tensors[PACKED[name]], 0, axis)):
        with pytest.raises((ValueError, RuntimeError), match=f"{PACKED[name]} is|size mismatch for layers.1.[a-z.]+:"):
            _module(_twin(name), folder).Model.load(
                _written({**tensors, PACKED[name]: few}, tmp_path / "model.safetensors")
            )


def test_load_passes_over_layers_of_multi_token_prediction(folder: Path, tmp_path: Path) -> None:
    """But not over one more layer of another kind, nor over one more expert."""
    tensors, depth = _tensors("glm4.5-air"), _twin("glm4.5-air").spec.top.depth
    at = f"model.layers.{depth}"
    more = {f"{at}.eh_proj.weight": np.ones((4, 8)), f"{at}.mlp.experts.0.up_proj.weight": np.ones((4, 4))}
    _loads("glm4.5-air", {**tensors, **more}, folder, tmp_path)
    for name in (f"{at}.enorm.weight", "model.layers.1.mlp.experts.8.up_proj.weight"):
        with pytest.raises(KeyError, match=name):
            _loads("glm4.5-air", {**tensors, name: np.ones(4)}, folder, tmp_path)


def test_load_says_where_there_is_nothing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="safetensors"):
        _module(_twin("gpt2"), folder).Model.load(tmp_path)
