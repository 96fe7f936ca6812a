"""transformer2017: a causal decoder of 6 layers, 512 wide, over 37000 tokens.

37,846,016 parameters. Shapes: B batch, S new tokens, P past tokens, T = P + S in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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


def sinusoidal(position_ids: Tensor, like: Tensor) -> Tensor:
    """Sines at even and cosines at odd coordinates of p / 10000^(2i/width): (B, S), (B, S, width) -> (B, S, width)."""
    width = like.shape[-1]
    exponents = torch.arange(0, width, 2, dtype=torch.float32, device=like.device) / width
    angles = position_ids[..., None] * 10000.0**-exponents
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(2).to(like.dtype)


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of each token given those before it, in fp32; labels of -100 do not count."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100)


class Attention(nn.Module):
    """8 query heads of 64 read 8 key-value heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(512, 512, bias=False)
        self.k = nn.Linear(512, 512, bias=False)
        self.v = nn.Linear(512, 512, bias=False)
        self.o = nn.Linear(512, 512, bias=False)

    def forward(self, x: Tensor, mask: Tensor, past_key: Tensor, past_value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = self.q(x)  # (B, S, 512)
        q_heads = q.unflatten(2, (8, 64)).transpose(1, 2)  # (B, 8, S, 64)
        k = self.k(x)  # (B, S, 512)
        k_heads = k.unflatten(2, (8, 64)).transpose(1, 2)  # (B, 8, S, 64)
        v = self.v(x)  # (B, S, 512)
        v_heads = v.unflatten(2, (8, 64)).transpose(1, 2)  # (B, 8, S, 64)
        key = torch.cat((past_key, k_heads), dim=2)  # (B, 8, T, 64)
        value = torch.cat((past_value, v_heads), dim=2)  # (B, 8, T, 64)
        mixed = F.scaled_dot_product_attention(q_heads, key, value, attn_mask=mask, scale=0.125)  # (B, 8, S, 64)
        joined = mixed.transpose(1, 2).flatten(2)  # (B, S, 512)
        o = self.o(joined)  # (B, S, 512)
        return o, key, value


class MLP(nn.Module):
    """down(relu(up x)), 2048 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(512, 2048)
        self.down = nn.Linear(2048, 512)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)  # (B, S, 2048)
        activated = F.relu(up)  # (B, S, 2048)
        down = self.down(activated)  # (B, S, 512)
        return down


class Layer(nn.Module):
    """x = x + attention(x); x = attention_post_norm(x); x = x + mlp(x); x = mlp_post_norm(x)"""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.attention_post_norm = nn.LayerNorm(512, eps=1e-06)
        self.mlp = MLP()
        self.mlp_post_norm = nn.LayerNorm(512, eps=1e-06)

    def forward(self, x: Tensor, mask: Tensor, past_key: Tensor, past_value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        attention, key, value = self.attention(x, mask, past_key, past_value)  # (B, S, 512)
        after_attention = x + attention  # (B, S, 512)
        attention_post_norm = self.attention_post_norm(after_attention)  # (B, S, 512)
        mlp = self.mlp(attention_post_norm)  # (B, S, 512)
        after_mlp = attention_post_norm + mlp  # (B, S, 512)
        mlp_post_norm = self.mlp_post_norm(after_mlp)  # (B, S, 512)
        return mlp_post_norm, key, value


class Output(NamedTuple):
    """logits (B, S, vocab); past_key_values to pass in with the next tokens; loss where labels were given."""

    logits: Tensor
    past_key_values: tuple[tuple[Tensor, ...], ...]
    loss: Tensor | None


class Model(nn.Module):
    """Token ids to logits: a causal decoder of 6 layers, 512 wide, over 37000 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(37000, 512)
        self.layers = nn.ModuleList([Layer() for _ in range(6)])
        self.head = nn.Linear(512, 37000, bias=False)
        self.head.weight = self.embedding.weight  # tied

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
        embedding = self.embedding(input_ids)  # (B, S, 512)
        scaled_embedding = embedding * 22.627416997969522  # (B, S, 512)
        positions = sinusoidal(position_ids, like=scaled_embedding)  # (B, S, 512)
        stream = scaled_embedding + positions  # (B, S, 512)
        x = stream
        for layer, past in zip(self.layers, past_key_values, strict=True):
            x, key, value = layer(x, mask, *past)  # (B, S, 512)
            present.append((key, value))
        head = self.head(x)  # (B, S, 37000)
        loss = None if labels is None else next_token_loss(head, labels)
        return Output(head, tuple(present), loss)

    def empty_cache(self, batch: int) -> tuple[tuple[Tensor, ...], ...]:
        """A cache without tokens: for each layer keys and values, (B, heads, 0, head_dim)."""
        sizes = 6 * [((8, 64), (8, 64))]
        like = self.embedding.weight
        return tuple(tuple(like.new_empty(batch, heads, 0, dim) for heads, dim in layer) for layer in sizes)

    @torch.no_grad()
    def init_weights(self, std: float = 0.02) -> None:
        """Normal matrices, neutral gains, zero biases; what writes to the stream is smaller the more of it there is."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                writes = name.endswith((".down", ".o"))
                module.weight.normal_(std=std / 12**0.5 if writes else std)
            elif hasattr(module, "reset_parameters"):
                module.reset_parameters()
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype = torch.float32) -> Model:
        """The model with the weights of a safetensors file, or a folder of them, under the names of its parameters."""
        with torch.device("meta"):
            model = cls().to(dtype)
        model.to_empty(device="cpu")
        model.head.weight = model.embedding.weight
        tensors = open_tensors(Path(path))
        copy_own(model, tensors)
        return model


def open_tensors(path: Path) -> dict[str, Callable[[], Tensor]]:
    """Every tensor of a safetensors file, or of the files of a folder, read when it is called."""
    from safetensors import safe_open

    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"no .safetensors file in {path}")
    opened = [safe_open(file, framework="pt") for file in files]
    return {name: partial(file.get_tensor, name) for file in opened for name in file.keys()}


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
def copy_own(model: nn.Module, tensors: dict[str, Callable[[], Tensor]]) -> None:
    """Fills the model from tensors that bear the names of its parameters."""
    parameters = dict(model.named_parameters())
    check_names(parameters, tensors)
    for name, parameter in parameters.items():
        parameter.copy_(fitting(tensors[name](), parameter, name))
