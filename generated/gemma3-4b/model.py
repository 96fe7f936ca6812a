"""gemma3-4b: a causal decoder of 34 layers, 2560 wide, over 262208 tokens.

3,880,263,168 parameters. Shapes: B batch, S new tokens, P past tokens, T = P + S in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class OffsetRMSNorm(nn.Module):
    """y = x / rms(x) * (offset + weight), computed in fp32."""

    def __init__(self, width: int, eps: float, offset: float) -> None:
        super().__init__()
        self.eps, self.offset = eps, offset
        self.weight = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, 1.0 - self.offset)

    def forward(self, x: Tensor) -> Tensor:
        gain = self.offset + self.weight.float()
        return F.rms_norm(x.float(), gain.shape, gain, self.eps).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair (x[i], x[i + R]) by its angle: (B, H, S, 2R), two of (B, S, R) -> (B, H, S, 2R)."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def query_positions(attention_mask: Tensor, tokens: int) -> Tensor:
    """Where the last `tokens` tokens stand among the real ones: (B, T) -> (B, tokens)."""
    new = torch.arange(tokens, device=attention_mask.device) + (attention_mask.shape[1] - tokens)
    return attention_mask.cumsum(1)[:, new] - 1


def key_positions(attention_mask: Tensor) -> Tensor:
    """Where each token stands among the real ones; padding stands where no query reaches: (B, T) -> (B, T)."""
    return (attention_mask.cumsum(1) - 1).masked_fill(attention_mask == 0, 2**30)


def visible_within(window: int, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """True where a query sees a key, itself and the window - 1 before it: (B, S), (B, T) -> (B, 1, S, T)."""
    distance = query_positions[:, None, :, None] - key_positions[:, None, None, :]
    return (distance >= 0) & (distance < window)


def rotary_frequencies(theta: float, pairs: int, over: int) -> Tensor:
    """theta^(-2i/over) for i < pairs: the angle by which pair i turns from one position to the next."""
    return theta ** (-2 * torch.arange(pairs, dtype=torch.float32) / over)


def rotary_table(position_ids: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of every angle, in fp32: (B, S), (R,) -> two of (B, S, R)."""
    angles = position_ids[..., None] * frequencies.to(position_ids.device)
    return angles.cos(), angles.sin()


def visible(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """True where a query sees a key, itself and everything before it: (B, S), (B, T) -> (B, 1, S, T)."""
    return query_positions[:, None, :, None] >= key_positions[:, None, None, :]


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of each token given those before it, in fp32; labels of -100 do not count."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100)


class Attention(nn.Module):
    """8 query heads of 256 read 4 key-value heads, q and k normed over the head."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(2560, 2048, bias=False)
        self.q_norm = OffsetRMSNorm(256, eps=1e-06, offset=1.0)
        self.k = nn.Linear(2560, 1024, bias=False)
        self.k_norm = OffsetRMSNorm(256, eps=1e-06, offset=1.0)
        self.v = nn.Linear(2560, 1024, bias=False)
        self.o = nn.Linear(2048, 2560, bias=False)

    def forward(
        self, x: Tensor, mask: Tensor, cos: Tensor, sin: Tensor, past_key: Tensor, past_value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        q = self.q(x)  # (B, S, 2048)
        q_heads = q.unflatten(2, (8, 256)).transpose(1, 2)  # (B, 8, S, 256)
        q_norm = self.q_norm(q_heads)  # (B, 8, S, 256)
        k = self.k(x)  # (B, S, 1024)
        k_heads = k.unflatten(2, (4, 256)).transpose(1, 2)  # (B, 4, S, 256)
        k_norm = self.k_norm(k_heads)  # (B, 4, S, 256)
        v = self.v(x)  # (B, S, 1024)
        v_heads = v.unflatten(2, (4, 256)).transpose(1, 2)  # (B, 4, S, 256)
        q_rotated = rotate(q_norm, cos, sin)  # (B, 8, S, 256)
        k_rotated = rotate(k_norm, cos, sin)  # (B, 4, S, 256)
        key = torch.cat((past_key, k_rotated), dim=2)  # (B, 4, T, 256)
        value = torch.cat((past_value, v_heads), dim=2)  # (B, 4, T, 256)
        mixed = F.scaled_dot_product_attention(
            q_rotated, key, value, attn_mask=mask, scale=0.0625, enable_gqa=True
        )  # (B, 8, S, 256)
        joined = mixed.transpose(1, 2).flatten(2)  # (B, S, 2048)
        o = self.o(joined)  # (B, S, 2560)
        return o, key, value


class MLP(nn.Module):
    """down(gelu_tanh(gate x) * up x), 10240 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(2560, 10240, bias=False)
        self.up = nn.Linear(2560, 10240, bias=False)
        self.down = nn.Linear(10240, 2560, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)  # (B, S, 10240)
        activated = F.gelu(gate, approximate="tanh")  # (B, S, 10240)
        up = self.up(x)  # (B, S, 10240)
        gated = activated * up  # (B, S, 10240)
        down = self.down(gated)  # (B, S, 2560)
        return down


class Layer(nn.Module):
    """x = x + attention_post_norm(attention(attention_norm(x))); x = x + mlp_post_norm(mlp(mlp_norm(x)))"""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = OffsetRMSNorm(2560, eps=1e-06, offset=1.0)
        self.attention = Attention()
        self.attention_post_norm = OffsetRMSNorm(2560, eps=1e-06, offset=1.0)
        self.mlp_norm = OffsetRMSNorm(2560, eps=1e-06, offset=1.0)
        self.mlp = MLP()
        self.mlp_post_norm = OffsetRMSNorm(2560, eps=1e-06, offset=1.0)

    def forward(
        self, x: Tensor, mask: Tensor, cos: Tensor, sin: Tensor, past_key: Tensor, past_value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        attention_norm = self.attention_norm(x)  # (B, S, 2560)
        attention, key, value = self.attention(attention_norm, mask, cos, sin, past_key, past_value)  # (B, S, 2560)
        attention_post_norm = self.attention_post_norm(attention)  # (B, S, 2560)
        after_attention = x + attention_post_norm  # (B, S, 2560)
        mlp_norm = self.mlp_norm(after_attention)  # (B, S, 2560)
        mlp = self.mlp(mlp_norm)  # (B, S, 2560)
        mlp_post_norm = self.mlp_post_norm(mlp)  # (B, S, 2560)
        after_mlp = after_attention + mlp_post_norm  # (B, S, 2560)
        return after_mlp, key, value


class Output(NamedTuple):
    """logits (B, S, vocab); past_key_values to pass in with the next tokens; loss where labels were given."""

    logits: Tensor
    past_key_values: tuple[tuple[Tensor, ...], ...]
    loss: Tensor | None


class Model(nn.Module):
    """Token ids to logits: a causal decoder of 34 layers, 2560 wide, over 262208 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(262208, 2560)
        self.layers = nn.ModuleList([Layer() for _ in range(34)])
        self.final_norm = OffsetRMSNorm(2560, eps=1e-06, offset=1.0)
        self.head = nn.Linear(2560, 262208, bias=False)
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
        mask_1024 = visible_within(1024, queries_at, keys_at)  # (B, 1, S, T)
        cos, sin = rotary_table(position_ids, rotary_frequencies(10000.0, pairs=128, over=256))  # (B, S, 128)
        mask = visible(queries_at, keys_at)  # (B, 1, S, T)
        cos_2, sin_2 = rotary_table(
            position_ids,
            rotary_frequencies(1000000.0, pairs=128, over=256) / 8.0,
        )  # (B, S, 128)
        embedding = self.embedding(input_ids)  # (B, S, 2560)
        scaled_embedding = embedding * 50.59644256269407  # (B, S, 2560)
        x = scaled_embedding
        for layer, layer_mask, layer_cos, layer_sin, past in zip(
            self.layers,
            (((mask_1024,) * 5 + (mask,)) * 6)[:34],
            (((cos,) * 5 + (cos_2,)) * 6)[:34],
            (((sin,) * 5 + (sin_2,)) * 6)[:34],
            past_key_values,
            strict=True,
        ):
            x, key, value = layer(x, layer_mask, layer_cos, layer_sin, *past)  # (B, S, 2560)
            present.append((key, value))
        final_norm = self.final_norm(x)  # (B, S, 2560)
        head = self.head(final_norm)  # (B, S, 262208)
        loss = None if labels is None else next_token_loss(head, labels)
        return Output(head, tuple(present), loss)

    def empty_cache(self, batch: int) -> tuple[tuple[Tensor, ...], ...]:
        """A cache without tokens: for each layer keys and values, (B, heads, 0, head_dim)."""
        sizes = 34 * [((4, 256), (4, 256))]
        like = self.embedding.weight
        return tuple(tuple(like.new_empty(batch, heads, 0, dim) for heads, dim in layer) for layer in sizes)

    @torch.no_grad()
    def init_weights(self, std: float = 0.02) -> None:
        """Normal matrices, neutral gains, zero biases; what writes to the stream is smaller the more of it there is."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                writes = name.endswith((".down", ".o"))
                module.weight.normal_(std=std / 68**0.5 if writes else std)
            elif hasattr(module, "reset_parameters"):
                module.reset_parameters()

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype = torch.float32) -> Model:
        """The model with the weights of a safetensors file, or a folder of them, in the layout of gemma3."""
        with torch.device("meta"):
            model = cls().to(dtype)
        model.to_empty(device="cpu")
        model.head.weight = model.embedding.weight
        tensors = open_tensors(Path(path))
        copy_renamed(model, tensors, CHECKPOINT, TIED, layers=34)
        return model


# What each tensor of a checkpoint is here; {i} is the layer.
CHECKPOINT = {
    "model.embed_tokens.weight": "embedding.weight",
    "model.norm.weight": "final_norm.weight",
    "model.layers.{i}.input_layernorm.weight": "layers.{i}.attention_norm.weight",
    "model.layers.{i}.self_attn.q_proj.weight": "layers.{i}.attention.q.weight",
    "model.layers.{i}.self_attn.k_proj.weight": "layers.{i}.attention.k.weight",
    "model.layers.{i}.self_attn.v_proj.weight": "layers.{i}.attention.v.weight",
    "model.layers.{i}.self_attn.o_proj.weight": "layers.{i}.attention.o.weight",
    "model.layers.{i}.self_attn.q_norm.weight": "layers.{i}.attention.q_norm.weight",
    "model.layers.{i}.self_attn.k_norm.weight": "layers.{i}.attention.k_norm.weight",
    "model.layers.{i}.post_attention_layernorm.weight": "layers.{i}.attention_post_norm.weight",
    "model.layers.{i}.pre_feedforward_layernorm.weight": "layers.{i}.mlp_norm.weight",
    "model.layers.{i}.mlp.gate_proj.weight": "layers.{i}.mlp.gate.weight",
    "model.layers.{i}.mlp.up_proj.weight": "layers.{i}.mlp.up.weight",
    "model.layers.{i}.mlp.down_proj.weight": "layers.{i}.mlp.down.weight",
    "model.layers.{i}.post_feedforward_layernorm.weight": "layers.{i}.mlp_post_norm.weight",
}
TIED: dict[str, str] = {"lm_head.weight": "embedding.weight"}


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
def copy_renamed(
    model: nn.Module, tensors: dict[str, Callable[[], Tensor]], names: dict[str, str], tied: dict[str, str], layers: int
) -> None:
    """Fills the model through a table of names in the file to parameters; {i} counts layers.

    A tied name may be in the file, and must then equal the parameter that it is tied to.
    """
    parameters = dict(model.named_parameters())
    table = {name.format(i=i): to.format(i=i) for name, to in names.items() for i in range(layers)}
    check_names(table, tensors.keys() - tied.keys())
    for name, target in table.items():
        parameters[target].copy_(fitting(tensors[name](), parameters[target], name))
    for name in tied.keys() & tensors.keys():
        if not torch.equal(tensors[name]().to(parameters[tied[name]].dtype), parameters[tied[name]]):
            raise ValueError(f"checkpoint: {name} differs from {tied[name]}, which it is tied to")
