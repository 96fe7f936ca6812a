"""qwen3-reranker-0.6b: an encoder of 28 layers, 1024 wide, over 151669 tokens.

595,777,536 parameters. Shapes: B batch, S new tokens, P past tokens, T = P + S in all.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair (x[i], x[i + R]) by its angle: (B, H, S, 2R), two of (B, S, R) -> (B, H, S, 2R)."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


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


def last_token(x: Tensor, attention_mask: Tensor) -> Tensor:
    """The last token that is no padding, 0 where all are: (B, S, W), (B, S) -> (B, W)."""
    real = (attention_mask != 0).long()
    rows, at = torch.arange(x.shape[0], device=x.device), real.shape[1] - 1 - real.flip(1).argmax(dim=1)
    return x[rows, at] * real[rows, at, None]


class Attention(nn.Module):
    """16 query heads of 128 read 8 key-value heads, q and k normed over the head."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(1024, 2048, bias=False)
        self.q_norm = nn.RMSNorm(128, eps=1e-06)
        self.k = nn.Linear(1024, 1024, bias=False)
        self.k_norm = nn.RMSNorm(128, eps=1e-06)
        self.v = nn.Linear(1024, 1024, bias=False)
        self.o = nn.Linear(2048, 1024, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None, cos: Tensor, sin: Tensor) -> Tensor:
        q_heads = self.q(x).unflatten(2, (-1, 128)).transpose(1, 2)  # (B, 16, S, 128)
        q_norm = self.q_norm(q_heads)  # (B, 16, S, 128)
        k_heads = self.k(x).unflatten(2, (-1, 128)).transpose(1, 2)  # (B, 8, S, 128)
        k_norm = self.k_norm(k_heads)  # (B, 8, S, 128)
        v_heads = self.v(x).unflatten(2, (-1, 128)).transpose(1, 2)  # (B, 8, S, 128)
        q_rotated = rotate(q_norm, cos, sin)  # (B, 16, S, 128)
        k_rotated = rotate(k_norm, cos, sin)  # (B, 8, S, 128)
        mixed = F.scaled_dot_product_attention(
            q_rotated, k_rotated, v_heads, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )  # (B, 16, S, 128)
        o = self.o(mixed.transpose(1, 2).flatten(2))  # (B, S, 1024)
        return o


class MLP(nn.Module):
    """down(silu(gate x) * up x), 3072 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(1024, 3072, bias=False)
        self.up = nn.Linear(1024, 3072, bias=False)
        self.down = nn.Linear(3072, 1024, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)  # (B, S, 3072)
        activated = F.silu(gate)  # (B, S, 3072)
        up = self.up(x)  # (B, S, 3072)
        gated = activated * up  # (B, S, 3072)
        down = self.down(gated)  # (B, S, 1024)
        return down


class Layer(nn.Module):
    """x = x + attention(attention_norm(x)); x = x + mlp(mlp_norm(x))"""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(1024, eps=1e-06)
        self.attention = Attention()
        self.mlp_norm = nn.RMSNorm(1024, eps=1e-06)
        self.mlp = MLP()

    def forward(self, x: Tensor, mask: Tensor | None, cos: Tensor, sin: Tensor) -> Tensor:
        attention_norm = self.attention_norm(x)  # (B, S, 1024)
        attention = self.attention(attention_norm, mask, cos, sin)  # (B, S, 1024)
        after_attention = x + attention  # (B, S, 1024)
        mlp_norm = self.mlp_norm(after_attention)  # (B, S, 1024)
        mlp = self.mlp(mlp_norm)  # (B, S, 1024)
        after_mlp = after_attention + mlp  # (B, S, 1024)
        return after_mlp


@dataclass
class Output:
    """logits (B, 1); loss, with labels."""

    logits: Tensor
    loss: Tensor | None = None


torch.export.register_dataclass(Output, serialized_type_name="qwen3-reranker-0.6b.Output")


class Model(nn.Module):
    """Token ids to logits: an encoder of 28 layers, 1024 wide, over 151669 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(151669, 1024)
        self.layers = nn.ModuleList([Layer() for _ in range(28)])
        self.final_norm = nn.RMSNorm(1024, eps=1e-06)
        self.head = nn.Linear(1024, 1, bias=False)
        self.register_buffer("rotary_frequencies", None, persistent=False)
        self.reset_constants()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        checkpoint_layers: bool = False,
    ) -> Output:
        """Logits of each text.

        There is no cache: every token is given each time. input_ids (B, S); attention_mask (B, S), 0 at padding;
        position_ids (B, S), by default counted from the mask;
        labels (B) are the score wanted of each text, 0 to 1;
        checkpoint_layers computes each layer again in the backward pass.
        """
        unmasked = attention_mask is None
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        layers = [partial(checkpoint, each, use_reentrant=False) if checkpoint_layers else each for each in self.layers]
        queries_at = query_positions(attention_mask, input_ids.shape[1])  # (B, S)
        position_ids = queries_at.clamp(min=0) if position_ids is None else position_ids
        keys_at = key_positions(attention_mask)  # (B, S)
        mask = None if unmasked else visible(queries_at, keys_at)  # (B, 1, S, S)
        cos, sin = rotary_table(position_ids, self.rotary_frequencies)  # (B, S, 64)
        x = self.embedding(input_ids)  # (B, S, 1024)
        for layer in layers:
            x = layer(x, mask, cos, sin)  # (B, S, 1024)
        x = self.final_norm(x)  # (B, S, 1024)
        pool = last_token(x, attention_mask)  # (B, 1024)
        logits = self.head(pool)  # (B, 1)
        loss = None
        if labels is not None:  # in fp32
            loss = F.binary_cross_entropy_with_logits(logits[:, 0].float(), labels.float())
        return Output(logits, loss=loss)

    def reset_constants(self) -> None:
        """Computes the buffers anew, in fp32 whatever the parameters' type."""
        with self.embedding.weight.device:
            self.rotary_frequencies = rotary_frequencies(1000000.0, pairs=64, over=128)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        super()._apply(*args, **kwargs)
        self.reset_constants()  # a move may have rounded them or left them empty
        return self

    @torch.no_grad()
    def init_weights(self, std: float = 0.02) -> None:
        """Normal matrices, neutral gains, zero biases; those into the residual stream are scaled by depth."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight.normal_(std=std / 56**0.5 if name.endswith((".down", ".o")) else std)
            elif hasattr(module, "reset_parameters"):
                module.reset_parameters()

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Self:
        """The model with the weights of a safetensors file, or a folder of them, in the layout of llama-classes."""
        with torch.device("meta"):
            model = cls()
        tensors = open_tensors(Path(path))
        tensors = with_prefix(tensors, "model.", but=["score.weight", "lm_head.weight"])
        tensors = renamed(tensors, CHECKPOINT, IGNORED, layers=28)
        model.load_state_dict({name: t.to(device, dtype, copy=True) for name, t in tensors.items()}, assign=True)
        model.reset_constants()
        return model


# The parameter that each tensor of a checkpoint is; {i} is the layer.
CHECKPOINT = {
    "model.embed_tokens.weight": "embedding.weight",
    "model.norm.weight": "final_norm.weight",
    "score.weight": "head.weight",
    "model.layers.{i}.input_layernorm.weight": "layers.{i}.attention_norm.weight",
    "model.layers.{i}.self_attn.q_proj.weight": "layers.{i}.attention.q.weight",
    "model.layers.{i}.self_attn.k_proj.weight": "layers.{i}.attention.k.weight",
    "model.layers.{i}.self_attn.v_proj.weight": "layers.{i}.attention.v.weight",
    "model.layers.{i}.self_attn.o_proj.weight": "layers.{i}.attention.o.weight",
    "model.layers.{i}.self_attn.q_norm.weight": "layers.{i}.attention.q_norm.weight",
    "model.layers.{i}.self_attn.k_norm.weight": "layers.{i}.attention.k_norm.weight",
    "model.layers.{i}.post_attention_layernorm.weight": "layers.{i}.mlp_norm.weight",
    "model.layers.{i}.mlp.gate_proj.weight": "layers.{i}.mlp.gate.weight",
    "model.layers.{i}.mlp.up_proj.weight": "layers.{i}.mlp.up.weight",
    "model.layers.{i}.mlp.down_proj.weight": "layers.{i}.mlp.down.weight",
}
IGNORED = ["model.layers.{i}.self_attn.rotary_emb.inv_freq", "lm_head.weight"]


def open_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, or of the files of a folder, mapped into memory."""
    from safetensors.torch import load_file

    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"no .safetensors file in {path}")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def with_prefix(tensors: dict[str, Tensor], prefix: str, but: list[str]) -> dict[str, Tensor]:
    """The tensors with the prefix in their names, whether the file has it or not."""
    if any(name.startswith(prefix) for name in tensors):
        return tensors
    return {name if name in but else prefix + name: tensor for name, tensor in tensors.items()}


def renamed(tensors: dict[str, Tensor], names: dict[str, str], ignored: list[str], layers: int) -> dict[str, Tensor]:
    """The tensors under the model's names; {i} is the layer. Tensors in `ignored` may be present."""
    table = {name.format(i=i): to.format(i=i) for name, to in names.items() for i in range(layers)}
    others = {name.format(i=i) for name in ignored for i in range(layers)}
    missing, unknown = sorted(table.keys() - tensors.keys()), sorted(tensors.keys() - table.keys() - others)
    if missing or unknown:
        raise KeyError(f"checkpoint: missing {missing or 'nothing'}, not known {unknown or 'nothing'}")
    return {to: tensors[name] for name, to in table.items()}
