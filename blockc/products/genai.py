"""The files that onnxruntime-genai needs beside a model: its configuration, from the contract of the graph.

Names, cache shapes, vocabulary and whether the cache is one buffer come from the contract; the ids of special tokens
and the defaults of sampling come from the checkpoint's own files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from blockc.basics.jsonfile import FileError, dump_json, parse_json_object
from blockc.graph.contract import IDS, LOGITS, MASK, POSITIONS, Contract, StatePort
from blockc.graph.target import Provider, Target
from blockc.products.product import Product, ProductError, ProductInputs
from blockc.weights.special import FILES, SpecialError, special_ids

CONFIG = "genai_config.json"
# The inputs that genai feeds to a decoder of any architecture, besides its cache.
_INPUTS = (IDS, MASK, POSITIONS)
_STATES = ("key", "value")
# Keys of generation_config.json with the same meaning in genai's `search`, and their types.
_SEARCH: dict[str, tuple[type, ...]] = {
    "do_sample": (bool,),
    "temperature": (int, float),
    "top_k": (int,),
    "top_p": (int, float),
    "repetition_penalty": (int, float),
}


class GenaiError(ProductError):
    """A model that onnxruntime-genai does not run, or a checkpoint that lacks what it needs to know."""


def _requires(target: Target) -> str:
    if target.cache == "buffer":
        unfed = "it does not feed model.onnx its input write_indices"
        return f"{unfed}: build with --cache joined, or for a provider with --ep"
    if target.last > 1:
        return "it reads logits of one token: build with --logits last"
    if target.top:
        return "it picks from all logits of a token: build with --logits last"
    return ""


def context_of(beside: ProductInputs) -> int:
    """The longest context in which cached keys stay valid, since genai never prefills again."""
    return min((beside.spec.top.context, *(side.original for side in beside.contract.sides)))


def _make_files(beside: ProductInputs) -> dict[str, bytes]:
    return make_files(beside.contract, beside.companions, context_of(beside), beside.target.provider)


def _notes(beside: ProductInputs) -> list[str]:
    """A note where genai gets a shorter context than the model has."""
    whole, least = beside.spec.top.context, context_of(beside)
    if least == whole:
        return []
    return [f"genai: context_length is {least} of {whole}, because beyond it rope changes for tokens in the cache"]


def make_files(
    contract: Contract, companions: Mapping[str, bytes], context: int, provider: Provider | None = None
) -> dict[str, bytes]:
    """The files that onnxruntime_genai.Model(folder) needs beside model.onnx and the companions. Raises GenaiError.

    A tokenizer.json without tokenizer_config.json gets one, since genai's tokenizer does not open without it.
    """
    made = {CONFIG: dump_json(make_config(contract, companions, context, provider))}
    if "tokenizer.json" in companions and "tokenizer_config.json" not in companions:
        made["tokenizer_config.json"] = dump_json({"tokenizer_class": "PreTrainedTokenizerFast"})
    return made


def make_config(
    contract: Contract, companions: Mapping[str, bytes], context: int, provider: Provider | None = None
) -> dict[str, Any]:
    """genai_config.json for a graph with weights. `context` is the largest number of tokens.

    It has the cache's heads and head_dim where all layers agree; else genai reads them from the graph for each layer.
    Raises GenaiError.
    """
    _refuse(contract)
    layers = [held.shape for held in contract.held]
    vocab = contract.vocab
    assert vocab is not None
    kv_heads, head_dims = ({shape[axis] for shape in layers} for axis in (1, 3))
    inputs = {port.name for port in contract.inputs}
    decoder = {
        "filename": "model.onnx",
        "session_options": {"provider_options": [{"cuda": {}}] if provider == "cuda" else []},
        "num_hidden_layers": len(layers) // 2,
        **({"num_key_value_heads": kv_heads.pop()} if len(kv_heads) == 1 else {}),
        **({"head_size": head_dims.pop()} if len(head_dims) == 1 else {}),
        "inputs": {name: name for name in _INPUTS if name in inputs}
        | {f"past_{state}_names": _name_pattern(contract.held, state, "past") for state in _STATES},
        "outputs": {LOGITS: LOGITS}
        | {f"present_{state}_names": _name_pattern(contract.held, state, "present") for state in _STATES},
    }
    return {
        "model": {
            "type": "decoder",  # no family: genai assumes nothing beyond these keys
            "vocab_size": vocab,
            "context_length": context,
            **_special_tokens(companions, vocab),
            "decoder": decoder,
        },
        "search": {
            "max_length": context,
            "past_present_share_buffer": all(held.in_place for held in contract.held),
        }
        | _search_defaults(companions),
    }


def _name_pattern(states: Sequence[StatePort], state: str, port: Literal["past", "present"]) -> str:
    """The pattern of all layers' names, with %d for the layer's number."""
    first = next(held for held in states if held.state == state)
    return getattr(first, port).replace(f".{first.number}.", ".%d.")


def _refuse(contract: Contract) -> None:
    """Raises GenaiError for an input that genai does not feed, or a state that is not keys or values."""
    if not contract.held:
        raise GenaiError(
            "onnxruntime-genai generates with a cache, and this model has none: it looks both ways, or nothing attends"
        )
    for port in contract.inputs:
        if port.name not in _INPUTS:
            raise GenaiError(f"onnxruntime-genai does not feed model.onnx its input {port.name}")
    if contract.output(LOGITS) is None:
        raise GenaiError("onnxruntime-genai picks from logits, and this graph gives none")
    numbered = sorted((held.number, held.state) for held in contract.held)
    if numbered != [(i, state) for i in range(len(contract.held) // 2) for state in _STATES]:
        raise GenaiError(
            "model.onnx does not have one key and one value for each layer, from 0 up, as onnxruntime-genai has"
        )
    for held in contract.held:
        if len(held.shape) != 4 or held.grows != 2:
            shape = ", ".join(map(str, held.shape))
            raise GenaiError(f"{held.past} is [{shape}], and onnxruntime-genai holds [batch, kv_heads, past, head_dim]")


# The checkpoint's files


def _special_tokens(companions: Mapping[str, bytes], vocab: int) -> dict[str, Any]:
    """The ids of eos, one or several; of bos where known; of pad, which is the first eos where none is known."""
    files = {name: _read(companions, name) for name in FILES}
    number = _read_tokens(companions).get
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


def _read_tokens(companions: Mapping[str, bytes]) -> dict[str, int]:
    """The id of every token of tokenizer.json by its text. A vocabulary has ids, or scores in the order of ids."""
    tokenizer = _read(companions, "tokenizer.json")
    model, added = tokenizer.get("model"), tokenizer.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    scored = enumerate(vocab) if isinstance(vocab, list) else ()
    known = {pair[0]: i for i, pair in scored if isinstance(pair, list) and pair}
    known |= vocab if isinstance(vocab, dict) else {}
    known |= {t.get("content"): t.get("id") for t in (added if isinstance(added, list) else ()) if isinstance(t, dict)}
    return {token: i for token, i in known.items() if isinstance(token, str) and type(i) is int}


def _search_defaults(companions: Mapping[str, bytes]) -> dict[str, Any]:
    """The defaults of sampling: greedy, unless the checkpoint says otherwise."""
    file = "generation_config.json"
    said = {key: value for key, value in _read(companions, file).items() if key in _SEARCH and value is not None}
    for key, value in said.items():
        if type(value) not in _SEARCH[key]:
            raise GenaiError(f"{file}: {key} is {json.dumps(value)}, expected {_SEARCH[key][-1].__name__}")
    return {"do_sample": False} | said


def _read(companions: Mapping[str, bytes], name: str) -> dict[str, Any]:
    if name not in companions:
        return {}
    try:
        return parse_json_object(companions[name], f"{name} of the checkpoint")
    except FileError as error:
        raise GenaiError(str(error)) from None


PRODUCT = Product("genai", "onnxruntime-genai", frozenset({CONFIG}), _requires, _make_files, _notes)
