"""Configurations of transformers for encoders, embedders and classifiers, and how its models are run.

Each is written out from the twin's resolved keys; what a family leaves no choice in is asserted. A pool that is no part
of a model's class, as sentence-transformers has it behind the model, is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from blockc.ir import Array

Keys = Mapping[str, Any]
Params = Mapping[str, Array]
Outputs = Callable[[Array], dict[str, Array]]  # tokens (B, S), rows without padding -> outputs by name
IDS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2}  # within the twin's vocabulary
PLAIN = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}
GATED = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_pytorch_tanh"}
NORM = ("type", "eps", "bias")
NAMES = {"last_hidden_state": "last_hidden_state", "pooler_output": "pooled", "prediction_logits": "logits"}


def _norm(keys: Keys) -> float:
    """The eps of all norms, which stand behind the sums and behind the embedding."""
    norm = keys["norm"]
    same = {key: norm[key] for key in NORM}
    assert (norm["type"], norm["bias"], norm["placement"]) == ("layer", True, "post")
    assert keys["embedding"]["norm"] == same
    transform = _head(keys).get("transform", {})
    assert transform.get("norm", same) == same
    return norm["eps"]


def _head(keys: Keys) -> Keys:
    return {} if keys["head"] == "none" else keys["head"]


def _labels(keys: Keys) -> dict[str, Any]:
    head = _head(keys)
    return {"num_labels": head["classes"]} if "classes" in head else {}


def _bert(keys: Keys) -> dict[str, Any]:
    """BERT's words."""
    a, mlp = keys["attention"], keys["mlp"]
    assert not a["causal"] and a["bias"] == ["q", "k", "v", "o"] and mlp["bias"] == ["up", "down"]
    assert a["heads"] == a["kv_heads"] and a["scale"] == a["head_dim"] ** -0.5 and "rope" not in a
    positions = keys["positions"]
    assert positions["type"] == "learned"
    return {
        "vocab_size": keys["vocab"], "hidden_size": keys["width"], "num_hidden_layers": keys["depth"],
        "num_attention_heads": a["heads"], "intermediate_size": mlp["width"], "hidden_act": PLAIN[mlp["type"]],
        "max_position_embeddings": keys["context"] + positions.get("offset", 0), "layer_norm_eps": _norm(keys),
        **_labels(keys), **IDS,
    }  # fmt: skip


def bert(keys: Keys) -> Any:
    from transformers import BertConfig

    assert "offset" not in keys["positions"]
    return BertConfig(**_bert(keys), type_vocab_size=keys["embedding"]["segments"])


def roberta(keys: Keys) -> Any:
    """Positions behind the number of the padding token, 1; the activation of the head is no choice."""
    from transformers import RobertaConfig

    assert keys["positions"]["offset"] == 2 and keys["head"]["transform"]["act"] == "gelu"
    return RobertaConfig(**_bert(keys), type_vocab_size=keys["embedding"]["segments"], pad_token_id=1)


def electra(keys: Keys) -> Any:
    """One logit for each token behind a matrix with the activation of the MLPs."""
    from transformers import ElectraConfig

    config = _bert(keys)
    assert config.pop("num_labels") == 1 and keys["head"]["bias"]
    assert keys["head"]["transform"] == {"act": keys["mlp"]["type"], "bias": True}
    return ElectraConfig(**config, embedding_size=keys["width"], type_vocab_size=keys["embedding"]["segments"])


def mpnet(keys: Keys) -> Any:
    """Positions from 2 on."""
    from transformers import MPNetConfig

    assert keys["positions"]["offset"] == 2 and "segments" not in keys["embedding"]
    buckets = keys["attention"]["relative_bias"]["buckets"]
    return MPNetConfig(**_bert(keys), relative_attention_num_buckets=buckets, pad_token_id=1)


def shorten_distances(keys: Keys, model: Any) -> None:
    """MPNet's code has 32 buckets up to 128 as defaults of its function, which a twin's are less than."""
    encoder, bias = model.encoder, keys["attention"]["relative_bias"]
    bucket = type(encoder).relative_position_bucket

    def of_twin(distance: torch.Tensor, num_buckets: int) -> torch.Tensor:
        assert num_buckets == 32
        return bucket(distance, bias["buckets"], bias["max_distance"])

    encoder.relative_position_bucket = of_twin


def distilbert(keys: Keys) -> Any:
    """No segments; eps is no choice."""
    from transformers import DistilBertConfig

    config = _bert(keys)
    assert config.pop("layer_norm_eps") == 1e-12 and "segments" not in keys["embedding"]
    words = {
        "hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim", "hidden_act": "activation",
    }  # fmt: skip
    return DistilBertConfig(**{words.get(key, key): value for key, value in config.items()})


def nomic(keys: Keys) -> Any:
    """Rope and gated MLPs without a bias."""
    from transformers import NomicBertConfig

    a, mlp = keys["attention"], keys["mlp"]
    assert not a["causal"] and not a["bias"] and not mlp["bias"] and a["rope"]["pairing"] == "half"
    return NomicBertConfig(
        vocab_size=keys["vocab"], hidden_size=keys["width"], num_hidden_layers=keys["depth"],
        num_attention_heads=a["heads"], intermediate_size=mlp["width"], hidden_act=GATED[mlp["type"]],
        max_position_embeddings=keys["context"], layer_norm_eps=_norm(keys),
        type_vocab_size=keys["embedding"]["segments"], rope_parameters=_rope(a["rope"]), **IDS,
    )  # fmt: skip


def _rope(rope: Keys) -> dict[str, Any]:
    assert rope.keys() == {"theta", "pairing"}
    return {"rope_type": "default", "rope_theta": rope["theta"]}


def modernbert(keys: Keys) -> Any:
    """The first layer has no norm of its own, since that of the embedding stands before it."""
    from transformers import ModernBertConfig

    a, mlp, norm, layers = keys["attention"], keys["mlp"], keys["norm"], keys["layers"]
    local, transform = layers["kinds"]["local"]["attention"], keys["head"]["transform"]
    assert keys["embedding"]["norm"] == transform["norm"] == {key: norm[key] for key in NORM}
    assert not a["causal"] and norm["type"] == "layer" and keys["head"]["bias"] and "bias" not in transform
    assert keys["block"] == [{"residual": ["attention"]}, {"residual": ["mlp_norm", "mlp"]}]
    assert (layers["first"], layers["pattern"]) == (["bare"], ["local", "local", "full"])
    return ModernBertConfig(
        vocab_size=keys["vocab"], hidden_size=keys["width"], num_hidden_layers=keys["depth"],
        num_attention_heads=a["heads"], intermediate_size=mlp["width"], hidden_activation=GATED[mlp["type"]],
        max_position_embeddings=keys["context"], norm_eps=norm["eps"], norm_bias=norm["bias"],
        attention_bias=bool(a["bias"]), mlp_bias=bool(mlp["bias"]), classifier_activation=PLAIN[transform["act"]],
        local_attention=2 * local["window"]["each_side"],
        layer_types=["sliding_attention" if i % 3 else "full_attention" for i in range(keys["depth"])],
        rope_parameters={"full_attention": _rope(a["rope"]),
                         "sliding_attention": _rope({**a["rope"], **local["rope"]})},
        tie_word_embeddings=keys["head"]["tied"], pad_token_id=0, cls_token_id=1, sep_token_id=2, **IDS,
    )  # fmt: skip


def gemma(keys: Keys) -> Any:
    """Gemma 3 that sees both ways: within half a window on each side."""
    from transformers import Gemma3TextConfig

    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    far = keys["layers"]["kinds"]["global"]["attention"]
    assert keys["embedding"] == {"scale": "sqrt_width"} and not a["causal"] and not a["bias"]
    assert (norm["type"], norm["offset"], norm["placement"], far["window"]) == ("rms", 1, "sandwich", "none")
    pattern = keys["layers"]["pattern"]
    words = {"local": "sliding_attention", "global": "full_attention"}
    return Gemma3TextConfig(
        vocab_size=keys["vocab"], hidden_size=keys["width"], num_hidden_layers=keys["depth"],
        num_attention_heads=a["heads"], num_key_value_heads=a["kv_heads"], head_dim=a["head_dim"],
        intermediate_size=mlp["width"], hidden_activation=GATED[mlp["type"]], rms_norm_eps=norm["eps"],
        max_position_embeddings=keys["context"], query_pre_attn_scalar=round(a["scale"] ** -2),
        sliding_window=2 * a["window"]["each_side"], use_bidirectional_attention=True,
        layer_types=[words[pattern[i % len(pattern)]] for i in range(keys["depth"])],
        rope_parameters={"sliding_attention": _rope(a["rope"]),
                         "full_attention": _rope({**a["rope"], **far["rope"]})},
        pad_token_id=0, **IDS,
    )  # fmt: skip


def qwen3(keys: Keys) -> Any:
    """No padding token, so that the last token of a row is the last."""
    from transformers import Qwen3Config

    a, mlp, norm = keys["attention"], keys["mlp"], keys["norm"]
    assert not a["bias"] and a["qk_norm"]["eps"] == norm["eps"] and (norm["type"], norm["placement"]) == ("rms", "pre")
    return Qwen3Config(
        vocab_size=keys["vocab"], hidden_size=keys["width"], num_hidden_layers=keys["depth"],
        num_attention_heads=a["heads"], num_key_value_heads=a["kv_heads"], head_dim=a["head_dim"],
        intermediate_size=mlp["width"], hidden_act=GATED[mlp["type"]], rms_norm_eps=norm["eps"],
        max_position_embeddings=keys["context"], rope_parameters=_rope(a["rope"]), **_labels(keys), **IDS,
    )  # fmt: skip


# How they are run


def outputs_of(model: Any, keys: Keys) -> Outputs:
    """What a model of transformers gives, by our names. The second half of each row is its second segment."""
    segments = keys.get("embedding", {}).get("segments", 0) > 1
    offset = keys["positions"].get("offset", 0) if keys["positions"] != "none" else 0

    def run(tokens: Array) -> dict[str, Array]:
        steps = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
        given = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
        given |= {"token_type_ids": steps * 2 // tokens.shape[1]} if segments else {}
        given |= {"position_ids": steps + offset} if offset else {}  # else it takes a token for padding
        with torch.no_grad():
            made: dict[str, Any] = model(**{key: torch.tensor(array) for key, array in given.items()})
        held = {NAMES.get(key, key): value.numpy() for key, value in made.items() if torch.is_tensor(value)}
        logits = held.get("logits")
        if logits is not None and logits.shape == tokens.shape:  # one logit of each token
            held["logits"] = logits[..., None]
        return held

    return run


def with_pool(run: Outputs, keys: Keys, params: Params) -> Outputs:
    """The hidden states, and the pooled vector of rows without padding."""
    pool = keys["pool"]
    dense = pool.get("dense", [])
    assert isinstance(dense, list) and all(not each.keys() - {"width"} for each in dense)

    def pooled(tokens: Array) -> dict[str, Array]:
        hidden = run(tokens)["last_hidden_state"]
        vector = {"mean": hidden.mean(1), "first": hidden[:, 0], "last": hidden[:, -1]}[pool["type"]]
        for number in range(1, len(dense) + 1):
            vector = vector @ params[f"dense_{number}.weight"].T
        length = np.linalg.norm(vector, axis=-1, keepdims=True)
        return {"last_hidden_state": hidden, "pooled": vector / length if pool.get("unit") else vector}

    return pooled
