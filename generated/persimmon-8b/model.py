"""persimmon-8b: a causal decoder of 36 layers, 4096 wide, over 262144 tokens.

9,397,175,296 parameters. Shapes: B batch, S new tokens, P past tokens, T = P + S in all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair (x[i], x[i + R]) by its angle: (B, H, S, 2R), two of (B, S, R) -> (B, H, S, 2R)."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def rotate_first(width: int, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pairs of the first `width` coordinates and leaves the rest: (B, H, S, D) -> (B, H, S, D)."""
    return torch.cat((rotate(x[..., :width], cos, sin), x[..., width:]), dim=-1)


def query_positions(attention_mask: Tensor, tokens: int) -> Tensor:
    """Where the last `tokens` tokens stand among the real ones: (B, T) -> (B, tokens)."""
    new = torch.arange(tokens, device=attention_mask.device) + (attention_mask.shape[1] - tokens)
    return attention_mask.cumsum(1)[:, new] - 1


def key_positions(attention_mask: Tensor) -> Tensor:
    """Where each token stands among the real ones; padding stands where no query reaches: (B, T) -> (B, T)."""
    return (attention_mask.cumsum(1) - 1).masked_fill(attention_mask == 0, 2**30)


def visible(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """True where a query sees a key, itself and everything before it: (B, S), (B, T) -> (B, 1, S, T)."""
    return query_positions[:, None, :, None] >= key_positions[:, None, None, :]


def rotary_frequencies(theta: float, pairs: int, over: int) -> Tensor:
    """theta^(-2i/over) for i < pairs: the angle by which pair i turns from one position to the next."""
    return theta ** (-2 * torch.arange(pairs, dtype=torch.float32) / over)


def rotary_table(position_ids: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of every angle, in fp32: (B, S), (R,) -> two of (B, S, R)."""
    angles = position_ids[..., None] * frequencies.to(position_ids.device)
    return angles.cos(), angles.sin()


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of each token given those before it, in fp32; labels of -100 do not count."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100)


class Attention(nn.Module):
    """64 query heads of 64 read 64 key-value heads, q and k normed over the head."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(4096, 4096)
        self.q_norm = nn.LayerNorm(64, eps=1e-05)
        self.k = nn.Linear(4096, 4096)
        self.k_norm = nn.LayerNorm(64, eps=1e-05)
        self.v = nn.Linear(4096, 4096)
        self.o = nn.Linear(4096, 4096)

    def forward(
        self, x: Tensor, mask: Tensor, cos: Tensor, sin: Tensor, past_key: Tensor, past_value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        q = self.q(x)  # (B, S, 4096)
        q_heads = q.unflatten(2, (64, 64)).transpose(1, 2)  # (B, 64, S, 64)
        q_norm = self.q_norm(q_heads)  # (B, 64, S, 64)
        k = self.k(x)  # (B, S, 4096)
        k_heads = k.unflatten(2, (64, 64)).transpose(1, 2)  # (B, 64, S, 64)
        k_norm = self.k_norm(k_heads)  # (B, 64, S, 64)
        v = self.v(x)  # (B, S, 4096)
        v_heads = v.unflatten(2, (64, 64)).transpose(1, 2)  # (B, 64, S, 64)
        q_rotated = rotate_first(32, q_norm, cos, sin)  # (B, 64, S, 64)
        k_rotated = rotate_first(32, k_norm, cos, sin)  # (B, 64, S, 64)
        key = torch.cat((past_key, k_rotated), dim=2)  # (B, 64, T, 64)
        value = torch.cat((past_value, v_heads), dim=2)  # (B, 64, T, 64)
        mixed = F.scaled_dot_product_attention(q_rotated, key, value, attn_mask=mask, scale=0.125)  # (B, 64, S, 64)
        joined = mixed.transpose(1, 2).flatten(2)  # (B, S, 4096)
        o = self.o(joined)  # (B, S, 4096)
        return o, key, value


class MLP(nn.Module):
    """down(relu2(up x)), 16384 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4096, 16384)
        self.down = nn.Linear(16384, 4096)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)  # (B, S, 16384)
        activated = F.relu(up).square()  # (B, S, 16384)
        down = self.down(activated)  # (B, S, 4096)
        return down


class Layer(nn.Module):
    """x = x + attention(attention_norm(x)); x = x + mlp(mlp_norm(x))"""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(4096, eps=1e-05)
        self.attention = Attention()
        self.mlp_norm = nn.LayerNorm(4096, eps=1e-05)
        self.mlp = MLP()

    def forward(
        self, x: Tensor, mask: Tensor, cos: Tensor, sin: Tensor, past_key: Tensor, past_value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        attention_norm = self.attention_norm(x)  # (B, S, 4096)
        attention, key, value = self.attention(attention_norm, mask, cos, sin, past_key, past_value)  # (B, S, 4096)
        after_attention = x + attention  # (B, S, 4096)
        mlp_norm = self.mlp_norm(after_attention)  # (B, S, 4096)
        mlp = self.mlp(mlp_norm)  # (B, S, 4096)
        after_mlp = after_attention + mlp  # (B, S, 4096)
        return after_mlp, key, value


class Output(NamedTuple):
    """logits (B, S, vocab); past_key_values to pass in with the next tokens; loss where labels were given."""

    logits: Tensor
    past_key_values: tuple[tuple[Tensor, ...], ...]
    loss: Tensor | None


class Model(nn.Module):
    """Token ids to logits: a causal decoder of 36 layers, 4096 wide, over 262144 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(262144, 4096)
        self.layers = nn.ModuleList([Layer() for _ in range(36)])
        self.final_norm = nn.LayerNorm(4096, eps=1e-05)
        self.head = nn.Linear(4096, 262144, bias=False)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: tuple[tuple[Tensor, ...], ...] | None = None,
        labels: Tensor | None = None,
    ) -> Output:
        """Logits of each new token.

        input_ids (B, S); attention_mask (B, T), 0 at padding on either side; position_ids (B, S), by default counted
        from the mask; past_key_values as an earlier call returned them; labels (B, S) are the tokens themselves.
        """
        batch, tokens = input_ids.shape
        if past_key_values is None:
            past_key_values = self.empty_cache(batch)
        if attention_mask is None:
            attention_mask = input_ids.new_ones(batch, past_key_values[0][0].shape[2] + tokens)
        if position_ids is None:
            position_ids = query_positions(attention_mask, tokens).clamp(min=0)
        present = []
        queries_at = query_positions(attention_mask, input_ids.shape[1])  # (B, S)
        keys_at = key_positions(attention_mask)  # (B, T)
        mask = visible(queries_at, keys_at)  # (B, 1, S, T)
        cos, sin = rotary_table(position_ids, rotary_frequencies(25000.0, pairs=16, over=32))  # (B, S, 16)
        embedding = self.embedding(input_ids)  # (B, S, 4096)
        x = embedding
        for layer, past in zip(self.layers, past_key_values, strict=True):
            x, key, value = layer(x, mask, cos, sin, *past)  # (B, S, 4096)
            present.append((key, value))
        final_norm = self.final_norm(x)  # (B, S, 4096)
        head = self.head(final_norm)  # (B, S, 262144)
        loss = None if labels is None else next_token_loss(head, labels)
        return Output(head, tuple(present), loss)

    def empty_cache(self, batch: int) -> tuple[tuple[Tensor, ...], ...]:
        """A cache without tokens: for each layer keys and values, (B, heads, 0, head_dim)."""
        sizes = 36 * [((64, 64), (64, 64))]
        like = self.embedding.weight
        return tuple(tuple(like.new_empty(batch, heads, 0, dim) for heads, dim in layer) for layer in sizes)

    @torch.no_grad()
    def init_weights(self, std: float = 0.02) -> None:
        """Normal matrices, neutral gains, zero biases; what writes to the stream is smaller the more of it there is."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                writes = name.endswith((".down", ".o"))
                module.weight.normal_(std=std / 72**0.5 if writes else std)
            elif hasattr(module, "reset_parameters"):
                module.reset_parameters()
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype = torch.float32) -> Model:
        """The model with the weights of a safetensors file, or a folder of them, in the layout of persimmon."""
        with torch.device("meta"):
            model = cls().to(dtype)
        model.to_empty(device="cpu")
        tensors = open_tensors(Path(path))
        tensors = without_ignored(tensors, IGNORED)
        copy_packed(model, tensors, CHECKPOINT, TIED, layers=36)
        return model


# A checkpoint's tensor, the parameters packed in it, in how many groups, whether transposed; {i} is the layer.
CHECKPOINT = [
    ("model.embed_tokens.weight", ["embedding.weight"], 1, False),
    ("model.final_layernorm.weight", ["final_norm.weight"], 1, False),
    ("model.final_layernorm.bias", ["final_norm.bias"], 1, False),
    ("lm_head.weight", ["head.weight"], 1, False),
    ("model.layers.{i}.input_layernorm.weight", ["layers.{i}.attention_norm.weight"], 1, False),
    ("model.layers.{i}.input_layernorm.bias", ["layers.{i}.attention_norm.bias"], 1, False),
    ("model.layers.{i}.self_attn.q_layernorm.weight", ["layers.{i}.attention.q_norm.weight"], 1, False),
    ("model.layers.{i}.self_attn.q_layernorm.bias", ["layers.{i}.attention.q_norm.bias"], 1, False),
    ("model.layers.{i}.self_attn.k_layernorm.weight", ["layers.{i}.attention.k_norm.weight"], 1, False),
    ("model.layers.{i}.self_attn.k_layernorm.bias", ["layers.{i}.attention.k_norm.bias"], 1, False),
    ("model.layers.{i}.self_attn.dense.weight", ["layers.{i}.attention.o.weight"], 1, False),
    ("model.layers.{i}.self_attn.dense.bias", ["layers.{i}.attention.o.bias"], 1, False),
    ("model.layers.{i}.post_attention_layernorm.weight", ["layers.{i}.mlp_norm.weight"], 1, False),
    ("model.layers.{i}.post_attention_layernorm.bias", ["layers.{i}.mlp_norm.bias"], 1, False),
    ("model.layers.{i}.mlp.dense_h_to_4h.weight", ["layers.{i}.mlp.up.weight"], 1, False),
    ("model.layers.{i}.mlp.dense_h_to_4h.bias", ["layers.{i}.mlp.up.bias"], 1, False),
    ("model.layers.{i}.mlp.dense_4h_to_h.weight", ["layers.{i}.mlp.down.weight"], 1, False),
    ("model.layers.{i}.mlp.dense_4h_to_h.bias", ["layers.{i}.mlp.down.bias"], 1, False),
    (
        "model.layers.{i}.self_attn.query_key_value.weight",
        ["layers.{i}.attention.q.weight", "layers.{i}.attention.k.weight", "layers.{i}.attention.v.weight"],
        64,
        False,
    ),
    (
        "model.layers.{i}.self_attn.query_key_value.bias",
        ["layers.{i}.attention.q.bias", "layers.{i}.attention.k.bias", "layers.{i}.attention.v.bias"],
        64,
        False,
    ),
]
TIED: dict[str, str] = {}
IGNORED = [
    "model.layers.{i}.self_attn.rotary_emb.inv_freq",
]


def open_tensors(path: Path) -> dict[str, Callable[[], Tensor]]:
    """Every tensor of a safetensors file, or of the files of a folder, read when it is called."""
    from safetensors import safe_open

    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"no .safetensors file in {path}")
    opened = [safe_open(file, framework="pt") for file in files]
    return {name: partial(file.get_tensor, name) for file in opened for name in file.keys()}


def without_ignored(tensors: dict[str, Any], ignored: list[str]) -> dict[str, Any]:
    """The tensors less those known to be without effect; {i} stands for any layer."""
    patterns = [re.compile(re.escape(name).replace(r"\{i\}", r"\d+")) for name in ignored]
    return {name: read for name, read in tensors.items() if not any(p.fullmatch(name) for p in patterns)}


def check_names(wanted: Iterable[str], found: Iterable[str]) -> None:
    """Nothing may be missing from the checkpoint, and nothing left over."""
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing or extra:
        raise KeyError(f"checkpoint: missing {missing or 'nothing'}, not known {extra or 'nothing'}")


def fitting(tensor: Tensor, parameter: Tensor, name: str) -> Tensor:
    """The tensor, if it has the parameter's shape: copying would stretch one that has not."""
    if tensor.shape != parameter.shape:
        raise ValueError(f"checkpoint: {name} is {tuple(tensor.shape)}, wanted {tuple(parameter.shape)}")
    return tensor


@torch.no_grad()
def copy_packed(
    model: nn.Module,
    tensors: dict[str, Callable[[], Tensor]],
    rows: list[tuple[str, list[str], int, bool]],
    tied: dict[str, str],
    layers: int,
) -> None:
    """Fills the model through rows of (name in the file, parameters packed in it, groups, transposed).

    Within each group the parameters' rows follow one another: groups 1 is stacked, groups heads is head by head.
    """
    parameters = dict(model.named_parameters())
    table = {
        name.format(i=i): ([to.format(i=i) for to in targets], groups, transposed)
        for name, targets, groups, transposed in rows
        for i in range(layers)
    }
    check_names(table, tensors.keys() - tied.keys())
    for name, (targets, groups, transposed) in table.items():
        tensor = tensors[name]()
        tensor = tensor.T if transposed and tensor.dim() == 2 else tensor
        packed = torch.cat([parameters[target] for target in targets])
        sizes = [parameters[target].shape[0] // groups for target in targets]
        parts = fitting(tensor, packed, name).unflatten(0, (groups, -1)).split(sizes, dim=1)
        for target, part in zip(targets, parts, strict=True):
            parameters[target].copy_(part.flatten(0, 1))
    for name in tied.keys() & tensors.keys():
        if not torch.equal(tensors[name]().to(parameters[tied[name]].dtype), parameters[tied[name]]):
            raise ValueError(f"checkpoint: {name} differs from {tied[name]}, which it is tied to")
