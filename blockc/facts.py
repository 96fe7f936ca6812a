"""What a checkpoint says of its model beside the tensors, compared with the graph.

A wrong theta, eps, window or number of heads changes no tensor's name and no shape, so that nothing else would tell.
A fact goes by the spec's key for it. What only one side says is not compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from blockc.ir import Function, functions, parameters
from blockc.jsonfile import FileError, json_object
from blockc.ops import (
    Alibi,
    Attention,
    ClampedSwiglu,
    DynamicScaling,
    Gelu,
    GeluTanh,
    LayerNorm,
    LinearScaling,
    Llama3Scaling,
    LongropeByLength,
    LongropeScaling,
    Op,
    QuickGelu,
    Relu,
    Relu2,
    RmsNorm,
    Rotary,
    RotaryTable,
    Silu,
    Softcap,
    Visible,
    Xielu,
    YarnScaling,
)
from blockc.safetensors import CheckpointError, shown

Value = int | float | str | bool | tuple[float, ...] | None
MAX_CONFIG = 1 << 24  # bytes
CLOSE = 1e-6  # a file's float is one of 32 bits

# By the spec's key, the names that config.json has for it. The first that stands there counts.
_CONFIG: dict[str, tuple[str, ...]] = {
    "vocab": ("vocab_size",),
    "width": ("hidden_size", "n_embd"),
    "depth": ("num_hidden_layers", "n_layer"),
    "context": ("max_position_embeddings", "n_positions"),
    "attention.heads": ("num_attention_heads", "n_head"),
    "attention.kv_heads": ("num_key_value_heads",),
    "attention.head_dim": ("head_dim",),
    "attention.softcap": ("attn_logit_softcapping",),
    "attention.rope.dims": ("rotary_dim",),
    "mlp.width": ("intermediate_size", "n_inner"),
    "activation": ("hidden_activation", "hidden_act", "activation_function"),
    "norm.eps": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
    "head.tied": ("tie_word_embeddings",),
    "head.softcap": ("final_logit_softcapping",),
}
_ROPE: dict[str, tuple[str, ...]] = {
    "attention.rope.theta": ("rope_theta", "rotary_emb_base"),
    "attention.rope.dims over head_dim": ("partial_rotary_factor", "rotary_pct"),
}
_SCALING: dict[str, tuple[str, ...]] = {
    "attention.rope.scaling.factor": ("factor",),
    "attention.rope.scaling.low_freq_factor": ("low_freq_factor",),
    "attention.rope.scaling.high_freq_factor": ("high_freq_factor",),
    "attention.rope.scaling.original": ("original_max_position_embeddings",),
}
_COMPARED = frozenset(("llama3", "linear", "dynamic"))  # scalings that the graph still says as the file does
_ACTIVATIONS: dict[str, str] = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "relu": "relu", "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "relu2": "relu2",
    "quick_gelu": "quick_gelu",
    "xielu": "xielu",
}  # fmt: skip
_SCALINGS: Mapping[type, str | None] = {
    type(None): None,
    LinearScaling: "linear",
    Llama3Scaling: "llama3",
    YarnScaling: "yarn",
    LongropeScaling: "longrope",
    LongropeByLength: "longrope",
    DynamicScaling: "dynamic",
}
_WORDS: dict[type[Op], str] = {
    Silu: "silu", Gelu: "gelu", GeluTanh: "gelu_tanh", Relu: "relu", Relu2: "relu2", ClampedSwiglu: "silu",
    QuickGelu: "quick_gelu",
    Xielu: "xielu",
}  # fmt: skip


@dataclass(frozen=True)
class Said:
    """One thing that a checkpoint says: the spec's key for it, its name in the file, and its value there."""

    key: str
    name: str
    value: Value


# What the checkpoint says


def config_says(path: Path) -> tuple[Said, ...]:
    """Of a config.json as transformers writes it; nothing where there is none. No other line of it is looked at."""
    try:
        config: dict[str, object] = json_object(path, MAX_CONFIG)
    except FileNotFoundError:
        return ()
    except (FileError, OSError) as error:
        raise CheckpointError(f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error)) from None
    inner = config.get("text_config")  # the language model of one that takes images too
    return tuple(_config(cast(dict[str, object], inner) if isinstance(inner, dict) else config))


def _hides_nothing(config: Mapping[str, object]) -> bool:
    """A window as long as the context."""
    window, context = config.get("sliding_window"), config.get("max_position_embeddings")
    return isinstance(window, int) and isinstance(context, int) and window >= context


def _reached(config: Mapping[str, object], rope: Mapping[str, object]) -> Iterator[Said]:
    """Under dynamic, what a config.json has for its context is the one within which nothing is scaled."""
    factor = rope.get("factor")
    for said in _named(config, _CONFIG):
        dynamic = said.key == "context" and rope.get("rope_type", rope.get("type")) == "dynamic"
        if dynamic and isinstance(said.value, int) and isinstance(factor, int | float):
            yield Said("attention.rope.scaling.original", said.name, said.value)
            yield Said("context", f"{said.name} times the factor of rope", int(said.value * factor))
        else:
            yield said


def _static(config: Mapping[str, object], rope: dict[str, object]) -> dict[str, object]:
    """A dynamic rope with an alpha is a larger theta, whatever the length: theta alpha^(head_dim / (head_dim - 2))."""
    theta, alpha = rope.get("rope_theta", config.get("rope_theta")), rope.get("alpha")
    head_dim, width, heads = (config.get(key) for key in ("head_dim", "hidden_size", "num_attention_heads"))
    if head_dim is None and isinstance(width, int) and isinstance(heads, int) and heads > 0:
        head_dim = width // heads
    if rope.get("rope_type", rope.get("type")) != "dynamic" or not isinstance(alpha, int | float) or alpha <= 0:
        return rope
    if not isinstance(theta, int | float) or not isinstance(head_dim, int) or head_dim <= 2:
        return rope
    return {"rope_type": "default", "rope_theta": theta * alpha ** (head_dim / (head_dim - 2))}


def _config(config: Mapping[str, object]) -> Iterator[Said]:
    name = next((name for name in ("rope_parameters", "rope_scaling") if isinstance(config.get(name), dict)), "")
    rope = _static(config, cast(dict[str, object], config.get(name) or {}))
    for said in _reached(config, rope):
        activation = said.key == "activation"
        yield Said(said.key, said.name, _ACTIVATIONS.get(str(said.value), str(said.value))) if activation else said
    kinds = config.get("layer_types")
    full = config.get("use_sliding_window") is False or (isinstance(kinds, list) and "sliding_attention" not in kinds)
    if "sliding_window" in config:
        window = None if full or _hides_nothing(config) else config["sliding_window"]
        yield from _plain("attention.window", "sliding_window", window, none=True)
    if isinstance(scalar := config.get("query_pre_attn_scalar"), int | float) and scalar > 0:
        yield Said("attention.scale", "query_pre_attn_scalar ** -0.5", scalar**-0.5)
    if config.get("alibi") is not True:  # which stands in the place of rope
        yield from _named({**config, **rope}, _ROPE)
    kind = rope.get("rope_type", rope.get("type"))
    if isinstance(kind, str):
        yield Said("attention.rope.scaling.type", f"{name}.rope_type", None if kind == "default" else kind)
    elif "rope_scaling" in config and not rope:
        yield Said("attention.rope.scaling.type", "rope_scaling", None)
    for said in _named(rope, _SCALING):
        if kind in _COMPARED or (kind == "yarn" and said.name == "factor"):  # all else is in the frequencies
            yield Said(said.key, f"{name}.{said.name}", said.value)


def _named(values: Mapping[str, object], names: Mapping[str, tuple[str, ...]]) -> Iterator[Said]:
    for key, spelled in names.items():
        name = next((name for name in spelled if values.get(name) is not None), None)
        if name is not None:
            yield from _plain(key, name, values[name])


def _plain(key: str, name: str, value: object, none: bool = False) -> Iterator[Said]:
    """A number, a text or a bool; of a list, which speaks of each layer, every value once. Nothing else is compared."""
    for one in dict.fromkeys(cast(list[Any], value)) if isinstance(value, list) else [value]:
        if isinstance(one, int | float | str) or (none and one is None):
            yield Said(key, name, one)


# What the graph says


def figures(function: Function) -> dict[str, set[Value]]:
    """By the spec's key, the values that the function computes with: several where its layers differ."""
    found: dict[str, set[Value]] = {}
    for key, value in _figures(function):
        found.setdefault(key, set()).add(value)
    return found


def _figures(function: Function) -> Iterator[tuple[str, Value]]:
    yield from _sizes(function)
    for inner in functions(function):
        for n in inner.nodes:
            match n.op:
                case Attention(heads, kv_heads, scale, softcap):
                    head_dim = n.inputs[0].type.shape[-1].value
                    yield from (("attention.heads", heads), ("attention.kv_heads", kv_heads))
                    yield from (("attention.head_dim", head_dim), ("attention.scale", scale))
                    yield "attention.softcap", softcap
                case Rotary(width, head_dim):
                    yield from (("attention.rope.dims", width), ("attention.rope.dims over head_dim", width / head_dim))
                case RotaryTable() as table:
                    yield from _rope(table)
                case Visible(window) | Alibi(window=window):
                    yield "attention.window", window
                case RmsNorm() | LayerNorm() as norm:
                    yield "norm.eps", norm.eps
                case Softcap(cap):
                    yield "head.softcap", cap
                case op if type(op) in _WORDS:
                    yield "activation", _WORDS[type(op)]
                case _:
                    pass


def _sizes(function: Function) -> Iterator[tuple[str, Value]]:
    params = parameters(function)
    layers = {found[1] for path in params if (found := re.match(r"layers\.(\d+)\.", path))}
    yield from (("depth", len(layers)), ("head.tied", "head.weight" not in params))
    for path, param in params.items():
        if path == "embedding.weight":
            inwards = params.get("project_in.weight")
            yield from (("vocab", param.shape[0]), ("width", inwards.shape[0] if inwards else param.shape[1]))
        if re.fullmatch(r"layers\.\d+\.mlp\.up\.weight", path):
            yield "mlp.width", param.shape[0]


def _rope(table: RotaryTable) -> Iterator[tuple[str, Value]]:
    yield "attention.rope.theta", table.theta
    scaling = table.scaling
    moving = table.theta ** (-2.0 * np.arange(table.pairs) / table.over)
    yield "attention.rope.scaling", tuple((moving / table.frequencies[: table.pairs]).tolist())
    yield "attention.rope.scaling.type", _SCALINGS[type(scaling)]
    at = "attention.rope.scaling"
    match scaling:
        case LinearScaling(factor) | YarnScaling(factor):
            yield f"{at}.factor", factor
        case Llama3Scaling(factor, low, high, original):
            yield from ((f"{at}.factor", factor), (f"{at}.low_freq_factor", low))
            yield from ((f"{at}.high_freq_factor", high), (f"{at}.original", original))
        case DynamicScaling(factor, original):
            yield from ((f"{at}.factor", factor), (f"{at}.original", original))
        case LongropeScaling() | LongropeByLength() | None:
            pass


# The comparison


def misfits(said: tuple[Said, ...], function: Function, context: int | None = None) -> list[str]:
    """A line for each thing that the checkpoint says and the graph does otherwise.

    Where layers differ, what the file says is that of one of them. A spec's context may be shorter than the file's.
    """
    found = figures(function)
    lines: list[str] = []
    for one in said:
        if one.key == "context":
            if context is not None and isinstance(one.value, int) and context > one.value:
                lines.append(f"unlike: {one.name} is {one.value}, and the spec's context is longer: {context}")
            continue
        values = found.get(one.key, {None})
        if not any(_same(one.value, value) for value in values):
            spec = " and ".join(sorted(map(_text, values)))
            lines.append(f"unlike: {one.name} is {_text(one.value)}, and the spec's {one.key} is {spec}")
    return lines


def _same(a: Value, b: Value) -> bool:
    match a, b:
        case tuple(), tuple():
            return len(a) == len(b) and all(map(_same, a, b))
        case ((int() | float()), (int() | float())):
            return math.isclose(a, b, rel_tol=CLOSE)
        case _:
            return a == b


def _text(value: Value) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case float():
            return str(int(value)) if value.is_integer() else f"{value:.7g}"
        case tuple():
            return "1" if set(value) == {1.0} else f"{min(value):.4g} to {max(value):.4g}"
        case _:
            return shown(value)
