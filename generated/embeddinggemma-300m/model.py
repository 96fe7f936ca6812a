"""embeddinggemma-300m: an encoder of 24 layers, 768 wide, over 262144 tokens.

307,581,696 parameters. Shapes: B batch, S new tokens, P past tokens, T = P + S in all.
"""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


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
    """The positions of the last `tokens` tokens; padding is not counted: (B, T) -> (B, tokens)."""
    new = torch.arange(tokens, device=attention_mask.device) + (attention_mask.shape[1] - tokens)
    return attention_mask.cumsum(1)[:, new] - 1


def key_positions(attention_mask: Tensor) -> Tensor:
    """The position of each token; padding is not counted, and gets one that no query reaches: (B, T) -> (B, T)."""
    return (attention_mask.cumsum(1) - 1).masked_fill(attention_mask == 0, 2**30)


def visible_each_side(most: int, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """True where a key is no padding and at most so many places from the query: (B, S), (B, T) -> (B, 1, S, T)."""
    return (query_positions[:, None, :, None] - key_positions[:, None, None, :]).abs() <= most


def rotary_frequencies(theta: float, pairs: int, over: int) -> Tensor:
    """theta^(-2i/over) for i < pairs: the angle by which pair i turns from one position to the next."""
    return theta ** (-2 * torch.arange(pairs, dtype=torch.float32) / over)


def rotary_table(position_ids: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of every angle, in fp32: (B, S), (R,) -> two of (B, S, R)."""
    angles = position_ids[..., None] * frequencies
    return angles.cos(), angles.sin()


def visible_both_ways(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """True where the key is not padding: (B, S), (B, T) -> (B, 1, S, T)."""
    return (key_positions < 2**30)[:, None, None, :].expand(-1, -1, query_positions.shape[1], -1)


def mean_of_tokens(x: Tensor, attention_mask: Tensor) -> Tensor:
    """The mean over the tokens that are no padding: (B, S, W), (B, S) -> (B, W)."""
    real = (attention_mask != 0).to(x.dtype)
    return (x * real[..., None]).sum(dim=1) / real.sum(dim=1, keepdim=True).clamp(min=1)


class Attention(nn.Module):
    """3 query heads of 256 read 1 key-value head, q and k normed over the head."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(768, 768, bias=False)
        self.q_norm = OffsetRMSNorm(256, eps=1e-06, offset=1.0)
        self.k = nn.Linear(768, 256, bias=False)
        self.k_norm = OffsetRMSNorm(256, eps=1e-06, offset=1.0)
        self.v = nn.Linear(768, 256, bias=False)
        self.o = nn.Linear(768, 768, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None, cos: Tensor, sin: Tensor) -> Tensor:
        q_heads = self.q(x).unflatten(2, (-1, 256)).transpose(1, 2)  # (B, 3, S, 256)
        q_norm = self.q_norm(q_heads)  # (B, 3, S, 256)
        k_heads = self.k(x).unflatten(2, (-1, 256)).transpose(1, 2)  # (B, 1, S, 256)
        k_norm = self.k_norm(k_heads)  # (B, 1, S, 256)
        v_heads = self.v(x).unflatten(2, (-1, 256)).transpose(1, 2)  # (B, 1, S, 256)
        q_rotated = rotate(q_norm, cos, sin)  # (B, 3, S, 256)
        k_rotated = rotate(k_norm, cos, sin)  # (B, 1, S, 256)
        mixed = F.scaled_dot_product_attention(
            q_rotated, k_rotated, v_heads, attn_mask=mask, enable_gqa=True
        )  # (B, 3, S, 256)
        o = self.o(mixed.transpose(1, 2).flatten(2))  # (B, S, 768)
        return o


class MLP(nn.Module):
    """down(gelu_tanh(gate x) * up x), 1152 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(768, 1152, bias=False)
        self.up = nn.Linear(768, 1152, bias=False)
        self.down = nn.Linear(1152, 768, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)  # (B, S, 1152)
        activated = F.gelu(gate, approximate="tanh")  # (B, S, 1152)
        up = self.up(x)  # (B, S, 1152)
        gated = activated * up  # (B, S, 1152)
        down = self.down(gated)  # (B, S, 768)
        return down


class Layer(nn.Module):
    """x = x + attention_post_norm(attention(attention_norm(x))); x = x + mlp_post_norm(mlp(mlp_norm(x)))"""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = OffsetRMSNorm(768, eps=1e-06, offset=1.0)
        self.attention = Attention()
        self.attention_post_norm = OffsetRMSNorm(768, eps=1e-06, offset=1.0)
        self.mlp_norm = OffsetRMSNorm(768, eps=1e-06, offset=1.0)
        self.mlp = MLP()
        self.mlp_post_norm = OffsetRMSNorm(768, eps=1e-06, offset=1.0)

    def forward(self, x: Tensor, mask: Tensor | None, cos: Tensor, sin: Tensor) -> Tensor:
        attention_norm = self.attention_norm(x)  # (B, S, 768)
        attention = self.attention(attention_norm, mask, cos, sin)  # (B, S, 768)
        attention_post_norm = self.attention_post_norm(attention)  # (B, S, 768)
        after_attention = x + attention_post_norm  # (B, S, 768)
        mlp_norm = self.mlp_norm(after_attention)  # (B, S, 768)
        mlp = self.mlp(mlp_norm)  # (B, S, 768)
        mlp_post_norm = self.mlp_post_norm(mlp)  # (B, S, 768)
        after_mlp = after_attention + mlp_post_norm  # (B, S, 768)
        return after_mlp


@dataclass
class Output:
    """last_hidden_state (B, S, 768); pooled (B, 768)."""

    last_hidden_state: Tensor
    pooled: Tensor


torch.export.register_dataclass(Output, serialized_type_name="embeddinggemma-300m.Output")


class Model(nn.Module):
    """Token ids to last_hidden_state and pooled: an encoder of 24 layers, 768 wide, over 262144 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(262144, 768)
        self.layers = nn.ModuleList([Layer() for _ in range(24)])
        self.final_norm = OffsetRMSNorm(768, eps=1e-06, offset=1.0)
        self.dense_1 = nn.Linear(768, 3072, bias=False)
        self.dense_2 = nn.Linear(3072, 768, bias=False)
        self.register_buffer("rotary_frequencies", None, persistent=False)
        self.register_buffer("rotary_2_frequencies", None, persistent=False)
        self.reset_constants()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        checkpoint_layers: bool = False,
    ) -> Output:
        """The hidden state of each token, and one vector of each text.

        There is no cache: every token is given each time. input_ids (B, S); attention_mask (B, S), 0 at padding;
        position_ids (B, S), by default counted from the mask;
        checkpoint_layers computes each layer again in the backward pass.
        """
        unmasked = attention_mask is None
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        layers = [partial(checkpoint, each, use_reentrant=False) if checkpoint_layers else each for each in self.layers]
        queries_at = query_positions(attention_mask, input_ids.shape[1])  # (B, S)
        position_ids = queries_at.clamp(min=0) if position_ids is None else position_ids
        keys_at = key_positions(attention_mask)  # (B, S)
        mask_256 = visible_each_side(256, queries_at, keys_at)  # (B, 1, S, S)
        cos, sin = rotary_table(position_ids, self.rotary_frequencies)  # (B, S, 128)
        mask = None if unmasked else visible_both_ways(queries_at, keys_at)  # (B, 1, S, S)
        cos_2, sin_2 = rotary_table(position_ids, self.rotary_2_frequencies)  # (B, S, 128)
        embedding = self.embedding(input_ids)  # (B, S, 768)
        x = embedding * 768**0.5  # (B, S, 768)
        for i, layer in enumerate(layers):
            layer_mask, layer_cos, layer_sin = (mask, cos_2, sin_2) if i % 6 == 5 else (mask_256, cos, sin)
            x = layer(x, layer_mask, layer_cos, layer_sin)  # (B, S, 768)
        x = self.final_norm(x)  # (B, S, 768)
        pool = mean_of_tokens(x, attention_mask)  # (B, 768)
        dense_1 = self.dense_1(pool)  # (B, 3072)
        dense_2 = self.dense_2(dense_1)  # (B, 768)
        unit = F.normalize(dense_2, dim=-1)  # (B, 768)
        return Output(x, unit)

    def reset_constants(self) -> None:
        """Computes the buffers anew, in fp32 whatever the parameters' type."""
        with self.embedding.weight.device:
            self.rotary_frequencies = rotary_frequencies(10000.0, pairs=128, over=256)
            self.rotary_2_frequencies = rotary_frequencies(1000000.0, pairs=128, over=256)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        super()._apply(*args, **kwargs)
        self.reset_constants()  # a move may have rounded them or left them empty
        return self

    @torch.no_grad()
    def init_weights(self, std: float = 0.02) -> None:
        """Normal matrices, neutral gains, zero biases; those into the residual stream are scaled by depth."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight.normal_(std=std / 48**0.5 if name.endswith((".down", ".o")) else std)
            elif hasattr(module, "reset_parameters"):
                module.reset_parameters()

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Self:
        """The model with the weights of a safetensors file, or a folder of them, in the layout of gemma3-base."""
        with torch.device("meta"):
            model = cls()
        tensors = open_tensors(Path(path)) | dense_modules(Path(path))
        tensors = with_prefix(tensors, "model.", but=["dense_1.weight", "dense_2.weight", "lm_head.weight"])
        tensors = renamed(tensors, CHECKPOINT, IGNORED, layers=24)
        model.load_state_dict({name: t.to(device, dtype, copy=True) for name, t in tensors.items()}, assign=True)
        model.reset_constants()
        return model


# The parameter that each tensor of a checkpoint is; {i} is the layer.
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
    "dense_1.weight": "dense_1.weight",
    "dense_2.weight": "dense_2.weight",
}
IGNORED = ["lm_head.weight"]


def open_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, or of the files of a folder, mapped into memory."""
    from safetensors.torch import load_file

    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"no .safetensors file in {path}")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def dense_modules(folder: Path) -> dict[str, Tensor]:
    """The tensors of the Dense modules of a sentence-transformers folder, dense_1.weight and so on."""
    from safetensors.torch import load_file

    listed = folder / "modules.json"
    modules = json.loads(listed.read_text(encoding="utf-8")) if listed.exists() else []
    paths = [folder / each["path"] for each in modules if each["type"].endswith(".Dense")]
    files = [load_file(path / "model.safetensors") for path in paths]
    return {name.replace("linear", f"dense_{i}"): t for i, file in enumerate(files, 1) for name, t in file.items()}


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
