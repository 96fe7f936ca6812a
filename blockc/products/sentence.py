"""The files with which sentence-transformers loads a build by its ONNX backend.

modules.json              a transformer, its pool, and vectors of length 1: SentenceTransformer(DIR, backend="onnx")
1_Pooling/config.json     which tokens the vector is of
sentence_bert_config.json where a text is cut; the checkpoint's, where it has one
config.json               the checkpoint's own; by itself also for CrossEncoder(DIR, backend="onnx")

It reads last_hidden_state of model.onnx and pools it in PyTorch, or takes logits of texts as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockc.basics.jsonfile import FileError, dump_json, parse_json_object
from blockc.graph.contract import HIDDEN, LOGITS, POOLED
from blockc.graph.target import Target
from blockc.language.parts import Pool
from blockc.products.product import Product, ProductError, ProductInputs
from blockc.weights.companions import SENTENCE
from blockc.weights.special import CONFIG, TOKENIZER, TOKENS, special_token

MODULES, POOLING = "modules.json", "1_Pooling/config.json"
# By the word of pool.type. The keys that are true or false are read by all versions of sentence-transformers.
_MODES = {"first": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "last": "pooling_mode_lasttoken"}
_OTHERS = ("pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens")


class SentenceError(ProductError):
    """A model that sentence-transformers does not run, or a checkpoint that lacks what it needs to know."""


def _requires(target: Target) -> str:
    if target.dtype == "bf16":
        return "it reads outputs as NumPy arrays, which have no bf16: build with --dtype fp32"
    return ""


def make_files(beside: ProductInputs) -> dict[str, bytes]:
    """The files beside model.onnx and the companions. Raises SentenceError."""
    _refuse(beside)
    made = {CONFIG: _config(beside), **_tokenizer(beside)}
    if beside.contract.output(LOGITS) is not None:
        return made
    pool = beside.spec.top.pool
    assert pool is not None
    if SENTENCE not in beside.companions:
        made[SENTENCE] = dump_json({"max_seq_length": _limit(beside), "do_lower_case": False})
    return made | {MODULES: dump_json(_modules(pool)), POOLING: dump_json(_pooling(pool, beside.spec.top.width))}


def _refuse(beside: ProductInputs) -> None:
    """Raises SentenceError for outputs that it does not read."""
    contract, pool = beside.contract, beside.spec.top.pool
    if contract.held:
        raise SentenceError("sentence-transformers reads whole texts, and this model writes text: it has a cache")
    if (port := contract.output(LOGITS)) is not None and len(port.shape) != 2:
        raise SentenceError("sentence-transformers reads logits of a text, and this graph gives them for each token")
    if port is None and (contract.output(HIDDEN) is None or contract.output(POOLED) is None or pool is None):
        raise SentenceError("sentence-transformers makes one vector of a text: say `pool` in the spec")
    if port is None and pool is not None and pool.chain:
        raise SentenceError(
            "sentence-transformers pools in its own modules, and pool.dense lies in model.onnx: leave --target "
            "sentence-transformers out, and read `pooled`"
        )
    left, file = _pads_left(beside)
    if left and pool is not None and pool.type == "first":
        raise SentenceError(f"{file} pads on the left, where sentence-transformers takes padding for the first token")
    if left and beside.target.by_rows:
        raise SentenceError(f"{file} pads on the left, and this graph takes padding on the right: build without it")


def _pads_left(beside: ProductInputs) -> tuple[bool, str]:
    """Whether texts are padded on the left, and the file that says so: the tokenizer's settings, else the tokenizer."""
    said = _read(beside, TOKENIZER).get("padding_side")
    if said is not None:
        return said == "left", TOKENIZER
    padding = _read(beside, "tokenizer.json").get("padding")
    return isinstance(padding, dict) and str(padding.get("direction")).lower() == "left", "tokenizer.json"


def _limit(beside: ProductInputs) -> int:
    """The most tokens of a text, as `runtime.reading` has them: the context, or what the tokenizer says, if less."""
    said = _read(beside, TOKENIZER).get("model_max_length")
    context = beside.spec.top.context
    if isinstance(said, int | float) and not isinstance(said, bool) and said >= 1:
        return min(context, int(said))
    return context


def _config(beside: ProductInputs) -> bytes:
    if beside.config is None:
        raise SentenceError(f"sentence-transformers needs the checkpoint's {CONFIG}: put it beside the weights")
    try:
        held = parse_json_object(beside.config, f"{CONFIG} of the checkpoint")
    except FileError as error:
        raise SentenceError(str(error)) from None
    if "auto_map" in held:
        raise SentenceError(
            f"{CONFIG} names code of its own (auto_map), which no build has: sentence-transformers would not load it"
        )
    return beside.config


def _tokenizer(beside: ProductInputs) -> dict[str, bytes]:
    """tokenizer_config.json where the checkpoint has none. Raises SentenceError where texts cannot be padded."""
    if "tokenizer.json" not in beside.companions:
        raise SentenceError("sentence-transformers needs tokenizer.json: put the checkpoint's beside the weights")
    pad = next((each for name in (TOKENIZER, TOKENS) if (each := special_token("pad", _read(beside, name)))), None)
    if pad is None:
        padding = _read(beside, "tokenizer.json").get("padding")
        pad = padding.get("pad_token") if isinstance(padding, dict) else None
        if pad is None or TOKENIZER in beside.companions:
            raise SentenceError(f"no file says with which token texts are padded: say pad_token in {TOKENIZER}")
    if TOKENIZER in beside.companions:
        return {}
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": pad, "model_max_length": beside.spec.top.context}
    return {TOKENIZER: dump_json(said)}


def _modules(pool: Pool) -> list[dict[str, Any]]:
    kinds = {"Transformer": "", "Pooling": "1_Pooling", **({"Normalize": "2_Normalize"} if pool.unit else {})}
    return [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(kinds.items())
    ]


def _pooling(pool: Pool, width: int) -> dict[str, Any]:
    modes = {key: key == _MODES[pool.type] for key in (*_MODES.values(), *_OTHERS)}
    return {"word_embedding_dimension": width, **modes, "include_prompt": True}


def _read(beside: ProductInputs, name: str) -> Mapping[str, Any]:
    if name not in beside.companions:
        return {}
    try:
        return parse_json_object(beside.companions[name], f"{name} of the checkpoint")
    except FileError as error:
        raise SentenceError(str(error)) from None


PRODUCT = Product(
    "sentence-transformers", "sentence-transformers", frozenset({CONFIG, MODULES, POOLING}), _requires, make_files
)
