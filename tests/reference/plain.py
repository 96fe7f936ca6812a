"""Decoders that transformers does not have, in plain NumPy, read from tensors as their files name and pack them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from blockc.ir import Array

# B sequences, S tokens, H heads, K key-value heads, G = H / K, D numbers a head
Keys = Mapping[str, Any]
Tensors = Mapping[str, Array]
Logits = Callable[[Array], Array]


def _rms(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def _layer_norm(x: Array, weight: Array, eps: float) -> Array:
    apart = x - x.mean(-1, keepdims=True)
    return apart / np.sqrt((apart * apart).mean(-1, keepdims=True) + eps) * weight


def _turned(x_BSHD: Array, theta: float) -> Array:
    """The first half of each head against the second."""
    first, second = np.split(x_BSHD, 2, axis=-1)
    wave = theta ** -(np.arange(first.shape[-1]) / first.shape[-1])
    angle = (np.arange(x_BSHD.shape[1])[:, None] * wave)[:, None, :]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _slopes(heads: int) -> list[float]:
    """2^(-8/n), 2^(-16/n), ... where heads is a power of two n; else those of the one below it, then every other one
    of the next until there are enough  (Press et al. 2022)."""
    below = 2 ** int(math.log2(heads))
    own = [2 ** (-8 * h / below) for h in range(1, below + 1)]
    return own + [2 ** (-8 * h / (2 * below)) for h in range(1, 2 * below, 2)][: heads - below]


def _attended(q_BSHD: Array, k_BSHD: Array, v_BSHD: Array, slopes: list[float] | None = None) -> Array:
    """Each token reads itself and what came before; the heads side by side."""
    batch, steps, heads, size = q_BSHD.shape
    scores = np.einsum("bshd,bthd->bhst", q_BSHD, k_BSHD) / math.sqrt(size)
    if slopes is not None:
        behind = np.arange(steps)[:, None] - np.arange(steps)
        scores = scores - np.array(slopes)[:, None, None] * behind
    scores = np.where(np.tri(steps, dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares = shares / shares.sum(-1, keepdims=True)
    return np.einsum("bhst,bthd->bshd", shares, v_BSHD).reshape(batch, steps, heads * size)


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def _gated_decoder(keys: Keys) -> None:
    """The shape that InternLM 2 and Baichuan share: an RMSNorm before each branch, SwiGLU, nothing biased."""
    a, norm = keys["attention"], keys["norm"]
    assert (norm["type"], norm["placement"], keys["mlp"]["type"]) == ("rms", "pre", "swiglu") and "offset" not in norm
    assert not a["bias"] and not keys["mlp"]["bias"] and a["scale"] == a["head_dim"] ** -0.5 and "window" not in a
    assert "rope" not in a or (a["rope"].keys() == {"theta", "pairing"} and a["rope"]["pairing"] == "half")
    assert keys["head"] == {"tied": False} and keys["positions"] == "none"


def internlm2(keys: Keys, tensors: Tensors) -> Logits:
    """wqkv gives, for each key-value head, the queries that read it, then its key, then its value."""
    _gated_decoder(keys)
    a, eps = keys["attention"], keys["norm"]["eps"]
    kv_heads, size, theta = a["kv_heads"], a["head_dim"], a["rope"]["theta"]
    group = a["heads"] // kv_heads

    def logits(tokens: Array) -> Array:
        x = tensors["model.tok_embeddings.weight"][tokens]
        for i in range(keys["depth"]):
            at = {n.removeprefix(f"model.layers.{i}."): t for n, t in tensors.items()}
            packed = _rms(x, at["attention_norm.weight"], eps) @ at["attention.wqkv.weight"].T
            qkv = packed.reshape(*tokens.shape, kv_heads, group + 2, size)
            q = qkv[..., :group, :].reshape(*tokens.shape, kv_heads * group, size)
            k, v = (np.repeat(qkv[..., group + j, :], group, axis=2) for j in (0, 1))
            x = x + _attended(_turned(q, theta), _turned(k, theta), v) @ at["attention.wo.weight"].T
            h = _rms(x, at["ffn_norm.weight"], eps)
            gate, up = (h @ at[f"feed_forward.{w}.weight"].T for w in ("w1", "w3"))
            x = x + (_silu(gate) * up) @ at["feed_forward.w2.weight"].T
        return _rms(x, tensors["model.norm.weight"], eps) @ tensors["output.weight"].T

    return logits


def baichuan(keys: Keys, tensors: Tensors) -> Logits:
    """W_pack gives all queries, then all keys, then all values. The 7B turns by rope, the 13B has alibi."""
    _gated_decoder(keys)
    a, eps = keys["attention"], keys["norm"]["eps"]
    assert a["kv_heads"] == a["heads"] and ("rope" in a) != (a.get("alibi") == {"max_bias": 8})
    slopes = None if "rope" in a else _slopes(a["heads"])

    def logits(tokens: Array) -> Array:
        x = tensors["model.embed_tokens.weight"][tokens]
        for i in range(keys["depth"]):
            at = {n.removeprefix(f"model.layers.{i}."): t for n, t in tensors.items()}
            packed = _rms(x, at["input_layernorm.weight"], eps) @ at["self_attn.W_pack.weight"].T
            qkv = packed.reshape(*tokens.shape, 3, a["heads"], a["head_dim"])
            q, k, v = (qkv[:, :, j] for j in range(3))
            q, k = (_turned(y, a["rope"]["theta"]) if "rope" in a else y for y in (q, k))
            x = x + _attended(q, k, v, slopes) @ at["self_attn.o_proj.weight"].T
            h = _rms(x, at["post_attention_layernorm.weight"], eps)
            gate, up = (h @ at[f"mlp.{w}_proj.weight"].T for w in ("gate", "up"))
            x = x + (_silu(gate) * up) @ at["mlp.down_proj.weight"].T
        return _rms(x, tensors["model.norm.weight"], eps) @ tensors["lm_head.weight"].T

    return logits


def nanogpt(keys: Keys, tensors: Tensors) -> Logits:
    """GPT-2 with nn.Linear's matrices, GELU by erf, and no biases, in the norms neither."""
    a, norm, mlp = keys["attention"], keys["norm"], keys["mlp"]
    assert (norm["type"], norm["bias"], norm["placement"], mlp["type"]) == ("layer", False, "pre", "gelu")
    assert not a["bias"] and not mlp["bias"] and a["kv_heads"] == a["heads"] and a["scale"] == a["head_dim"] ** -0.5
    assert keys["positions"] == {"type": "learned"} and keys["head"] == {"tied": True}
    eps = norm["eps"]
    erf = np.vectorize(math.erf)

    def logits(tokens: Array) -> Array:
        table = tensors["transformer.wte.weight"]
        x = table[tokens] + tensors["transformer.wpe.weight"][: tokens.shape[1]]
        for i in range(keys["depth"]):
            at = {n.removeprefix(f"transformer.h.{i}."): t for n, t in tensors.items()}
            packed = _layer_norm(x, at["ln_1.weight"], eps) @ at["attn.c_attn.weight"].T
            q, k, v = (y.reshape(*tokens.shape, a["heads"], a["head_dim"]) for y in np.split(packed, 3, axis=-1))
            x = x + _attended(q, k, v) @ at["attn.c_proj.weight"].T
            h = _layer_norm(x, at["ln_2.weight"], eps) @ at["mlp.c_fc.weight"].T
            x = x + (h * (1 + erf(h / math.sqrt(2))) / 2) @ at["mlp.c_proj.weight"].T
        return _layer_norm(x, tensors["transformer.ln_f.weight"], eps) @ table.T

    return logits
