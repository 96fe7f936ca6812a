"""command-r-plus: a causal decoder of 64 layers, 12288 wide, over 256000 tokens.

103,810,674,688 parameters. Shapes: B batch, S new tokens, P past tokens, T = P + S in all.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Cache = tuple[Tensor, ...]  # the keys and values of a layer, each (B, heads, T, head_dim)


class HeadGain(nn.Module):
    """y = x * weight, a gain for each number of each head: (B, heads, S, head_dim)."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight[:, None]


def rotate_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair (x[2i], x[2i + 1]) by its angle: (B, H, S, 2R), two of (B, S, R) -> (B, H, S, 2R)."""
    a, b = x[..., ::2], x[..., 1::2]
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2).to(x.dtype)


def query_positions(attention_mask: Tensor, tokens: int) -> Tensor:
    """The positions of the last `tokens` tokens; padding is not counted: (B, T) -> (B, tokens)."""
    new = torch.arange(tokens, device=attention_mask.device) + (attention_mask.shape[1] - tokens)
    return attention_mask.cumsum(1)[:, new] - 1


def key_positions(attention_mask: Tensor) -> Tensor:
    """The position of each token; padding is not counted, and gets one that no query reaches: (B, T) -> (B, T)."""
    return (attention_mask.cumsum(1) - 1).masked_fill(attention_mask == 0, 2**30)


def visible(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """True where a query sees a key, itself and everything before it: (B, S), (B, T) -> (B, 1, S, T)."""
    return query_positions[:, None, :, None] >= key_positions[:, None, None, :]


def rotary_frequencies(theta: float, pairs: int, over: int) -> Tensor:
    """theta^(-2i/over) for i < pairs: the angle by which pair i turns from one position to the next."""
    return theta ** (-2 * torch.arange(pairs, dtype=torch.float32) / over)


def rotary_table(position_ids: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of every angle, in fp32: (B, S), (R,) -> two of (B, S, R)."""
    angles = position_ids[..., None] * frequencies
    return angles.cos(), angles.sin()


class Attention(nn.Module):
    """96 query heads of 128 read 8 key-value heads, q and k normed over the head."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(12288, 12288, bias=False)
        self.q_norm = HeadGain(96, 128)
        self.k = nn.Linear(12288, 1024, bias=False)
        self.k_norm = HeadGain(8, 128)
        self.v = nn.Linear(12288, 1024, bias=False)
        self.o = nn.Linear(12288, 12288, bias=False)

    def forward(
        self, x: Tensor, mask: Tensor | None, cos: Tensor, sin: Tensor, past: Cache | None, use_cache: bool
    ) -> tuple[Tensor, Cache | None]:
        q_heads = self.q(x).unflatten(2, (-1, 128)).transpose(1, 2)  # (B, 96, S, 128)
        q_bare_norm = F.layer_norm(q_heads, (128,), eps=1e-05)  # (B, 96, S, 128)
        q_norm = self.q_norm(q_bare_norm)  # (B, 96, S, 128)
        k_heads = self.k(x).unflatten(2, (-1, 128)).transpose(1, 2)  # (B, 8, S, 128)
        k_bare_norm = F.layer_norm(k_heads, (128,), eps=1e-05)  # (B, 8, S, 128)
        k_norm = self.k_norm(k_bare_norm)  # (B, 8, S, 128)
        v_heads = self.v(x).unflatten(2, (-1, 128)).transpose(1, 2)  # (B, 8, S, 128)
        q_rotated = rotate_interleaved(q_norm, cos, sin)  # (B, 96, S, 128)
        k_rotated = rotate_interleaved(k_norm, cos, sin)  # (B, 8, S, 128)
        key = k_rotated if past is None else torch.cat((past[0], k_rotated), dim=2)  # (B, 8, T, 128)
        value = v_heads if past is None else torch.cat((past[1], v_heads), dim=2)  # (B, 8, T, 128)
        mixed = F.scaled_dot_product_attention(
            q_rotated, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )  # (B, 96, S, 128)
        o = self.o(mixed.transpose(1, 2).flatten(2))  # (B, S, 12288)
        return o, (key, value) if use_cache else None


class MLP(nn.Module):
    """down(silu(gate x) * up x), 33792 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(12288, 33792, bias=False)
        self.up = nn.Linear(12288, 33792, bias=False)
        self.down = nn.Linear(33792, 12288, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)  # (B, S, 33792)
        activated = F.silu(gate)  # (B, S, 33792)
        up = self.up(x)  # (B, S, 33792)
        gated = activated * up  # (B, S, 33792)
        down = self.down(gated)  # (B, S, 12288)
        return down


class Layer(nn.Module):
    """x = x + attention(norm(x)) + mlp(norm(x))"""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(12288, eps=1e-05, bias=False)
        self.attention = Attention()
        self.mlp = MLP()

    def forward(
        self, x: Tensor, mask: Tensor | None, cos: Tensor, sin: Tensor, past: Cache | None, use_cache: bool
    ) -> tuple[Tensor, Cache | None]:
        norm = self.norm(x)  # (B, S, 12288)
        attention, present = self.attention(norm, mask, cos, sin, past, use_cache)  # (B, S, 12288)
        mlp = self.mlp(norm)  # (B, S, 12288)
        attention_plus_mlp = attention + mlp  # (B, S, 12288)
        after_attention_and_mlp = x + attention_plus_mlp  # (B, S, 12288)
        return after_attention_and_mlp, present


@dataclass
class Output:
    """logits (B, S, vocab); past_key_values for the next call, with use_cache; loss, with labels."""

    logits: Tensor
    past_key_values: tuple[Cache, ...] | None = None
    loss: Tensor | None = None


torch.export.register_dataclass(Output, serialized_type_name="command-r-plus.Output")


class Model(nn.Module):
    """Token ids to logits: a causal decoder of 64 layers, 12288 wide, over 256000 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256000, 12288)
        self.layers = nn.ModuleList([Layer() for _ in range(64)])
        self.final_norm = nn.LayerNorm(12288, eps=1e-05, bias=False)
        self.head = nn.Linear(12288, 256000, bias=False)
        self.tie_weights()
        self.register_buffer("rotary_frequencies", None, persistent=False)
        self.reset_constants()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: tuple[Cache, ...] | None = None,
        labels: Tensor | None = None,
        use_cache: bool = False,
        logits_to_keep: int = 0,
        checkpoint_layers: bool = False,
    ) -> Output:
        """Logits of each new token, or of the last `logits_to_keep`; past_key_values for the next call if `use_cache`.

        attention_mask (B, T) is 0 at padding, on either side; position_ids (B, S) are by default counted from it;
        labels (B, S) are the tokens themselves; `checkpoint_layers` computes layers anew in the backward pass.
        """
        batch, tokens = input_ids.shape
        use_cache = use_cache or past_key_values is not None
        unmasked = attention_mask is None and past_key_values is None  # only later tokens are hidden
        if attention_mask is None:
            past_tokens = past_key_values[0][0].shape[2] if past_key_values else 0
            attention_mask = input_ids.new_ones(batch, past_tokens + tokens)
        layers = [partial(checkpoint, each, use_reentrant=False) if checkpoint_layers else each for each in self.layers]
        pasts, present = past_key_values or 64 * (None,), []
        queries_at = query_positions(attention_mask, input_ids.shape[1])  # (B, S)
        position_ids = queries_at.clamp(min=0) if position_ids is None else position_ids
        keys_at = key_positions(attention_mask)  # (B, T)
        mask = None if unmasked else visible(queries_at, keys_at)  # (B, 1, S, T)
        cos, sin = rotary_table(position_ids, self.rotary_frequencies)  # (B, S, 64)
        x = self.embedding(input_ids)  # (B, S, 12288)
        for layer, past in zip(layers, pasts, strict=True):
            x, cached = layer(x, mask, cos, sin, past, use_cache)  # (B, S, 12288)
            present.append(cached)
        x = self.final_norm(x)  # (B, S, 12288)
        logits = self.head(x[:, -logits_to_keep:])  # (B, S, 256000)
        logits = logits * 0.8333333333333334  # (B, S, 256000)
        loss = None
        if labels is not None:  # over the logits that are kept, in fp32; labels of -100 are ignored
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, -logits.shape[1] :][:, 1:].flatten())
        return Output(logits, tuple(present) if use_cache else None, loss)

    def tie_weights(self) -> None:
        """Makes both names one tensor again."""
        self.head.weight = self.embedding.weight

    def reset_constants(self) -> None:
        """Computes the buffers anew, in fp32 whatever the parameters' type."""
        with self.embedding.weight.device:
            self.rotary_frequencies = rotary_frequencies(75000000.0, pairs=64, over=128)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        tied = self.head.weight is self.embedding.weight
        super()._apply(*args, **kwargs)
        if tied and self.head.weight is not self.embedding.weight:  # a move may give each name a tensor of its own
            self.tie_weights()
        self.reset_constants()  # a move may have rounded them or left them empty
        return self

    @torch.no_grad()
    def init_weights(self, std: float = 0.02) -> None:
        """Normal matrices, neutral gains, zero biases; those into the residual stream are scaled by depth."""
        self.tie_weights()
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight.normal_(std=std / 128**0.5 if name.endswith((".down", ".o")) else std)
            elif hasattr(module, "reset_parameters"):
                module.reset_parameters()

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Self:
        """The model with the weights of a safetensors file, or a folder of them, in the layout of cohere."""
        with torch.device("meta"):
            model = cls()
        tensors = open_tensors(Path(path))
        tensors = without_tied(tensors, TIED)
        tensors = renamed(tensors, CHECKPOINT, [], layers=64)
        tensors = {name: t.to(device, dtype, copy=True) for name, t in tensors.items()}
        tensors["head.weight"] = tensors["embedding.weight"]
        model.load_state_dict(tensors, assign=True)
        model.tie_weights()
        model.reset_constants()
        return model


# The parameter that each tensor of a checkpoint is; {i} is the layer.
CHECKPOINT = {
    "model.embed_tokens.weight": "embedding.weight",
    "model.norm.weight": "final_norm.weight",
    "model.layers.{i}.input_layernorm.weight": "layers.{i}.norm.weight",
    "model.layers.{i}.self_attn.q_proj.weight": "layers.{i}.attention.q.weight",
    "model.layers.{i}.self_attn.k_proj.weight": "layers.{i}.attention.k.weight",
    "model.layers.{i}.self_attn.v_proj.weight": "layers.{i}.attention.v.weight",
    "model.layers.{i}.self_attn.o_proj.weight": "layers.{i}.attention.o.weight",
    "model.layers.{i}.self_attn.q_norm.weight": "layers.{i}.attention.q_norm.weight",
    "model.layers.{i}.self_attn.k_norm.weight": "layers.{i}.attention.k_norm.weight",
    "model.layers.{i}.mlp.gate_proj.weight": "layers.{i}.mlp.gate.weight",
    "model.layers.{i}.mlp.up_proj.weight": "layers.{i}.mlp.up.weight",
    "model.layers.{i}.mlp.down_proj.weight": "layers.{i}.mlp.down.weight",
}
TIED = {"lm_head.weight": "model.embed_tokens.weight"}


def open_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, or of the files of a folder, mapped into memory."""
    from safetensors.torch import load_file

    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"no .safetensors file in {path}")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def without_tied(tensors: dict[str, Tensor], tied: dict[str, str]) -> dict[str, Tensor]:
    """The tensors without those that are tied to another one, to which they must be equal."""
    for name, owner in tied.items():
        if name in tensors and owner in tensors and not torch.equal(tensors[name], tensors[owner]):
            raise ValueError(f"checkpoint: {name} differs from {owner}, which it is tied to")
    return {name: tensor for name, tensor in tensors.items() if name not in tied}


def renamed(tensors: dict[str, Tensor], names: dict[str, str], ignored: list[str], layers: int) -> dict[str, Tensor]:
    """The tensors under the model's names; {i} is the layer. Tensors in `ignored` may be present."""
    table = {name.format(i=i): to.format(i=i) for name, to in names.items() for i in range(layers)}
    others = {name.format(i=i) for name in ignored for i in range(layers)}
    missing, unknown = sorted(table.keys() - tensors.keys()), sorted(tensors.keys() - table.keys() - others)
    if missing or unknown:
        raise KeyError(f"checkpoint: missing {missing or 'nothing'}, not known {unknown or 'nothing'}")
    return {to: tensors[name] for name, to in table.items()}
