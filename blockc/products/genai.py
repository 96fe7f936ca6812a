"""The files that onnxruntime-genai wants beside a model: its configuration, derived from the finished graph.

What the graph says (names, cache shapes, vocabulary, whether one buffer may be the cache) is read from it alone; the
ids of special tokens and the defaults of sampling are those of the checkpoint's own files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blockc.basics.errors import BlockcError
from blockc.basics.jsonfile import FileError, parsed, written
from blockc.graph.target import Provider
from blockc.weights.special import FILES, SpecialError, special_ids

if TYPE_CHECKING:
    import onnx

CONFIG = "genai_config.json"
# What a decoder of any architecture may read besides its cache. Whatever else a graph asks for, genai does not feed.
_INPUTS = ("input_ids", "attention_mask", "position_ids")
_CACHE = re.compile(r"(past_key_values|present)\.([0-9]+)\.(key|value)")
# Defaults of generation_config.json that mean the same in genai's `search`, and the type that each has in both.
_SEARCH: dict[str, tuple[type, ...]] = {
    "do_sample": (bool,),
    "temperature": (int, float),
    "top_k": (int,),
    "top_p": (int, float),
    "repetition_penalty": (int, float),
}


class GenaiError(BlockcError):
    """A model that onnxruntime-genai does not run, or a checkpoint that does not say what it must know."""


def files(
    model: bytes, companions: Mapping[str, bytes], context: int, provider: Provider | None = None
) -> dict[str, bytes]:
    """What must lie beside model.onnx and the companions for onnxruntime_genai.Model(folder). Raises GenaiError.

    tokenizer_config.json is made where there is a tokenizer.json without one: genai's tokenizer does not open else.
    """
    made = {CONFIG: written(config(model, companions, context, provider))}
    if "tokenizer.json" in companions and "tokenizer_config.json" not in companions:
        made["tokenizer_config.json"] = written({"tokenizer_class": "PreTrainedTokenizerFast"})
    return made


def config(
    model: bytes, companions: Mapping[str, bytes], context: int, provider: Provider | None = None
) -> dict[str, Any]:
    """genai_config.json. `model` is the graph that has its weights, `context` the most tokens that it takes.

    Heads and head_dim of the cache are said where all layers agree; where they do not, genai reads each layer's from
    the graph. Raises GenaiError.
    """
    import onnx

    graph = onnx.load_from_string(model).graph
    _refuse_unfed(graph)
    inputs, outputs = _shapes(graph.input), _shapes(graph.output)
    layers = _layers(inputs, outputs)
    vocab = _vocab(outputs)
    kv_heads, head_dims = ({shape[axis] for shape in layers} for axis in (1, 3))
    decoder = {
        "filename": "model.onnx",
        "session_options": {"provider_options": [{"cuda": {}}] if provider == "cuda" else []},
        "num_hidden_layers": len(layers) // 2,
        **({"num_key_value_heads": kv_heads.pop()} if len(kv_heads) == 1 else {}),
        **({"head_size": head_dims.pop()} if len(head_dims) == 1 else {}),
        "inputs": {name: name for name in _INPUTS if name in inputs}
        | {f"past_{part}_names": f"past_key_values.%d.{part}" for part in ("key", "value")},
        "outputs": {"logits": "logits"} | {f"present_{part}_names": f"present.%d.{part}" for part in ("key", "value")},
    }
    return {
        "model": {
            "type": "decoder",  # of no family: nothing is assumed beyond what stands here
            "vocab_size": vocab,
            "context_length": context,
            **_special(companions, vocab),
            "decoder": decoder,
        },
        "search": {"max_length": context, "past_present_share_buffer": _shared(graph)} | _search(companions),
    }


# The graph


def _shapes(values: Any) -> dict[str, list[int | str]]:
    """Name to shape, a symbol where a size is not fixed."""
    return {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}


def _refuse_unfed(graph: onnx.GraphProto) -> None:
    """Every input must be one that genai has something for. Raises GenaiError."""
    import onnx

    for value in graph.input:
        if value.name in _INPUTS or _CACHE.fullmatch(value.name):
            continue
        if value.type.tensor_type.elem_type == onnx.TensorProto.INT64:
            why = "build with --cache joined, or for a provider with --ep"
        else:
            why = "it is a weight, and they must be in the model: build with --weights PATH"
        raise GenaiError(f"onnxruntime-genai does not feed model.onnx its input {value.name}: {why}")


def _layers(inputs: Mapping[str, list[int | str]], outputs: Mapping[str, list[int | str]]) -> list[list[int | str]]:
    """The shapes of the past, two for each layer that has one: [batch, kv_heads, past, head_dim]."""
    past = {name: shape for name, shape in inputs.items() if _CACHE.fullmatch(name)}
    if not past:
        raise GenaiError(
            "onnxruntime-genai generates with a cache, and this model has none: it looks both ways, or nothing attends"
        )
    if "logits" not in outputs:
        raise GenaiError("onnxruntime-genai picks from all logits of a token: build with --logits last")
    layers = range(len(past) // 2)
    wanted = [f"past_key_values.{i}.{part}" for i in layers for part in ("key", "value")]
    presents = {name.replace("past_key_values", "present") for name in wanted}
    if sorted(past) != sorted(wanted) or presents | {"logits"} != set(outputs):
        raise GenaiError(
            "model.onnx does not have one key and one value for each layer, from 0 up, as onnxruntime-genai has"
        )
    for name, shape in past.items():
        if len(shape) != 4 or not isinstance(shape[1], int) or not isinstance(shape[3], int):
            raise GenaiError(f"{name} is {shape}, and onnxruntime-genai holds [batch, kv_heads, past, head_dim]")
    return list(past.values())


def _vocab(outputs: Mapping[str, list[int | str]]) -> int:
    """Of logits [batch, tokens, vocab]: of all tokens or of the last alone, genai takes both."""
    shape = outputs["logits"]
    if len(shape) != 3 or not isinstance(shape[2], int):
        raise GenaiError(f"logits are {shape}, and onnxruntime-genai reads [batch, tokens, vocab]")
    return shape[2]


def _shared(graph: onnx.GraphProto) -> bool:
    """Whether one buffer can be both past and present: only a kernel that writes in place takes that."""
    makers = {name: (n.domain, n.op_type) for n in graph.node for name in n.output}
    presents = [o.name for o in graph.output if _CACHE.fullmatch(o.name)]
    return all(makers[name] == ("com.microsoft", "GroupQueryAttention") for name in presents)


# The checkpoint's files


def _special(companions: Mapping[str, bytes], vocab: int) -> dict[str, Any]:
    """eos, one id or several; bos where it is known; pad, which fills up batches, else the first eos."""
    files = {name: _read(companions, name) for name in FILES}
    number = _tokens(companions).get
    try:
        bos, eos, pad = ([*special_ids(name, files, number, vocab)] for name in ("bos", "eos", "pad"))
    except SpecialError as error:
        raise GenaiError(str(error)) from None
    if not eos:
        raise GenaiError(
            "onnxruntime-genai must know which token ends a text, and no file of the checkpoint says so: put "
            'generation_config.json with {"eos_token_id": ID} beside the weights'
        )
    known = {"bos_token_id": bos[0]} if bos else {}
    return known | {"eos_token_id": eos if len(eos) > 1 else eos[0], "pad_token_id": (pad or eos)[0]}


def _tokens(companions: Mapping[str, bytes]) -> dict[str, int]:
    """Every token of tokenizer.json by its text: a vocabulary with numbers, or in their order with scores."""
    tokenizer = _read(companions, "tokenizer.json")
    model, added = tokenizer.get("model"), tokenizer.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    scored = enumerate(vocab) if isinstance(vocab, list) else ()
    known = {pair[0]: i for i, pair in scored if isinstance(pair, list) and pair}
    known |= vocab if isinstance(vocab, dict) else {}
    known |= {t.get("content"): t.get("id") for t in (added if isinstance(added, list) else ()) if isinstance(t, dict)}
    return {token: i for token, i in known.items() if isinstance(token, str) and type(i) is int}


def _search(companions: Mapping[str, bytes]) -> dict[str, Any]:
    """Greedy, unless the checkpoint says how it is sampled."""
    file = "generation_config.json"
    said = {key: value for key, value in _read(companions, file).items() if key in _SEARCH and value is not None}
    for key, value in said.items():
        if type(value) not in _SEARCH[key]:
            raise GenaiError(f"{file}: {key} is {json.dumps(value)}, and it wants {_SEARCH[key][-1].__name__}")
    return {"do_sample": False} | said


def _read(companions: Mapping[str, bytes], name: str) -> dict[str, Any]:
    if name not in companions:
        return {}
    try:
        return parsed(companions[name], f"{name} of the checkpoint")
    except FileError as error:
        raise GenaiError(str(error)) from None
