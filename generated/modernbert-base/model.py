"""modernbert-base: an encoder of 22 layers, 768 wide, over 50368 tokens.

149,655,232 parameters. Shapes: B batch, S new tokens, P past tokens, T = P + S in all.
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


def visible_both_ways(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """True where the key is not padding: (B, S), (B, T) -> (B, 1, S, T)."""
    return (key_positions < 2**30)[:, None, None, :].expand(-1, -1, query_positions.shape[1], -1)


def rotary_frequencies(theta: float, pairs: int, over: int) -> Tensor:
    """theta^(-2i/over) for i < pairs: the angle by which pair i turns from one position to the next."""
    return theta ** (-2 * torch.arange(pairs, dtype=torch.float32) / over)


def rotary_table(position_ids: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of every angle, in fp32: (B, S), (R,) -> two of (B, S, R)."""
    angles = position_ids[..., None] * frequencies
    return angles.cos(), angles.sin()


def visible_each_side(most: int, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """True where a key is no padding and at most so many places from the query: (B, S), (B, T) -> (B, 1, S, T)."""
    return (query_positions[:, None, :, None] - key_positions[:, None, None, :]).abs() <= most


class Attention(nn.Module):
    """12 heads of 64."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(768, 768, bias=False)
        self.k = nn.Linear(768, 768, bias=False)
        self.v = nn.Linear(768, 768, bias=False)
        self.o = nn.Linear(768, 768, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None, cos: Tensor, sin: Tensor) -> Tensor:
        q_heads = self.q(x).unflatten(2, (-1, 64)).transpose(1, 2)  # (B, 12, S, 64)
        k_heads = self.k(x).unflatten(2, (-1, 64)).transpose(1, 2)  # (B, 12, S, 64)
        v_heads = self.v(x).unflatten(2, (-1, 64)).transpose(1, 2)  # (B, 12, S, 64)
        q_rotated = rotate(q_heads, cos, sin)  # (B, 12, S, 64)
        k_rotated = rotate(k_heads, cos, sin)  # (B, 12, S, 64)
        mixed = F.scaled_dot_product_attention(q_rotated, k_rotated, v_heads, attn_mask=mask)  # (B, 12, S, 64)
        o = self.o(mixed.transpose(1, 2).flatten(2))  # (B, S, 768)
        return o


class MLP(nn.Module):
    """down(gelu(gate x) * up x), 1152 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(768, 1152, bias=False)
        self.up = nn.Linear(768, 1152, bias=False)
        self.down = nn.Linear(1152, 768, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)  # (B, S, 1152)
        activated = F.gelu(gate)  # (B, S, 1152)
        up = self.up(x)  # (B, S, 1152)
        gated = activated * up  # (B, S, 1152)
        down = self.down(gated)  # (B, S, 768)
        return down


class Layer(nn.Module):
    """x = x + attention(x); x = x + mlp(mlp_norm(x))"""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.mlp_norm = nn.LayerNorm(768, eps=1e-05, bias=False)
        self.mlp = MLP()

    def forward(self, x: Tensor, mask: Tensor | None, cos: Tensor, sin: Tensor) -> Tensor:
        attention = self.attention(x, mask, cos, sin)  # (B, S, 768)
        after_attention = x + attention  # (B, S, 768)
        mlp_norm = self.mlp_norm(after_attention)  # (B, S, 768)
        mlp = self.mlp(mlp_norm)  # (B, S, 768)
        after_mlp = after_attention + mlp  # (B, S, 768)
        return after_mlp


class LocalLayer(nn.Module):
    """x = x + attention(attention_norm(x)); x = x + mlp(mlp_norm(x))"""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(768, eps=1e-05, bias=False)
        self.attention = Attention()
        self.mlp_norm = nn.LayerNorm(768, eps=1e-05, bias=False)
        self.mlp = MLP()

    def forward(self, x: Tensor, mask: Tensor | None, cos: Tensor, sin: Tensor) -> Tensor:
        attention_norm = self.attention_norm(x)  # (B, S, 768)
        attention = self.attention(attention_norm, mask, cos, sin)  # (B, S, 768)
        after_attention = x + attention  # (B, S, 768)
        mlp_norm = self.mlp_norm(after_attention)  # (B, S, 768)
        mlp = self.mlp(mlp_norm)  # (B, S, 768)
        after_mlp = after_attention + mlp  # (B, S, 768)
        return after_mlp


@dataclass
class Output:
    """logits (B, S, vocab); loss, with labels."""

    logits: Tensor
    loss: Tensor | None = None


torch.export.register_dataclass(Output, serialized_type_name="modernbert-base.Output")


class Model(nn.Module):
    """Token ids to logits: an encoder of 22 layers, 768 wide, over 50368 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50368, 768)
        self.embedding_norm = nn.LayerNorm(768, eps=1e-05, bias=False)
        self.layers = nn.ModuleList([Layer() if i == 0 else LocalLayer() for i in range(22)])
        self.final_norm = nn.LayerNorm(768, eps=1e-05, bias=False)
        self.transform = nn.Linear(768, 768, bias=False)
        self.transform_norm = nn.LayerNorm(768, eps=1e-05, bias=False)
        self.head = nn.Linear(768, 50368)
        self.tie_weights()
        self.register_buffer("rotary_frequencies", None, persistent=False)
        self.register_buffer("rotary_2_frequencies", None, persistent=False)
        self.reset_constants()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        checkpoint_layers: bool = False,
    ) -> Output:
        """Logits of each token.

        There is no cache: every token is given each time. input_ids (B, S); attention_mask (B, S), 0 at padding;
        position_ids (B, S), by default counted from the mask;
        labels (B, S) are the token wanted at each place, -100 where none is;
        checkpoint_layers computes each layer again in the backward pass.
        """
        unmasked = attention_mask is None
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        layers = [partial(checkpoint, each, use_reentrant=False) if checkpoint_layers else each for each in self.layers]
        queries_at = query_positions(attention_mask, input_ids.shape[1])  # (B, S)
        position_ids = queries_at.clamp(min=0) if position_ids is None else position_ids
        keys_at = key_positions(attention_mask)  # (B, S)
        mask = None if unmasked else visible_both_ways(queries_at, keys_at)  # (B, 1, S, S)
        cos, sin = rotary_table(position_ids, self.rotary_frequencies)  # (B, S, 32)
        mask_64 = visible_each_side(64, queries_at, keys_at)  # (B, 1, S, S)
        cos_2, sin_2 = rotary_table(position_ids, self.rotary_2_frequencies)  # (B, S, 32)
        embedding = self.embedding(input_ids)  # (B, S, 768)
        x = self.embedding_norm(embedding)  # (B, S, 768)
        for i, layer in enumerate(layers):
            layer_mask, layer_cos, layer_sin = (mask, cos, sin) if i % 3 == 0 else (mask_64, cos_2, sin_2)
            x = layer(x, layer_mask, layer_cos, layer_sin)  # (B, S, 768)
        x = self.final_norm(x)  # (B, S, 768)
        x = self.transform(x)  # (B, S, 768)
        x = F.gelu(x)  # (B, S, 768)
        x = self.transform_norm(x)  # (B, S, 768)
        logits = self.head(x)  # (B, S, 50368)
        loss = None
        if labels is not None:  # in fp32; labels of -100 are ignored
            loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        return Output(logits, loss=loss)

    def tie_weights(self) -> None:
        """Makes both names one tensor again."""
        self.head.weight = self.embedding.weight

    def reset_constants(self) -> None:
        """Computes the buffers anew, in fp32 whatever the parameters' type."""
        with self.embedding.weight.device:
            self.rotary_frequencies = rotary_frequencies(160000.0, pairs=32, over=64)
            self.rotary_2_frequencies = rotary_frequencies(10000.0, pairs=32, over=64)

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
                module.weight.normal_(std=std / 44**0.5 if name.endswith((".down", ".o")) else std)
            elif hasattr(module, "reset_parameters"):
                module.reset_parameters()
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Self:
        """The model with the weights of a safetensors file, or a folder of them, laid out as modernbert-masked."""
        with torch.device("meta"):
            model = cls()
        tensors = open_tensors(Path(path))
        tensors = with_prefix(tensors, "model.", but=UNPREFIXED)
        tensors = without_tied(tensors, TIED)
        tensors = renamed(tensors, {name: name for name in CHECKPOINT}, [], layers=22)
        tensors = unpacked(tensors, model.state_dict(), CHECKPOINT, layers=22)
        tensors = {name: t.to(device, dtype, copy=True) for name, t in tensors.items()}
        tensors["head.weight"] = tensors["embedding.weight"]
        model.load_state_dict(tensors, assign=True)
        model.tie_weights()
        model.reset_constants()
        return model


# The parameters in each tensor of a checkpoint, their groups, and whether it is transposed; {i} is the layer.
CHECKPOINT = {
    "model.embeddings.tok_embeddings.weight": (["embedding.weight"], 1, False),
    "model.embeddings.norm.weight": (["embedding_norm.weight"], 1, False),
    "model.final_norm.weight": (["final_norm.weight"], 1, False),
    "head.dense.weight": (["transform.weight"], 1, False),
    "head.norm.weight": (["transform_norm.weight"], 1, False),
    "decoder.bias": (["head.bias"], 1, False),
    "model.layers.1.attn_norm.weight": (["layers.1.attention_norm.weight"], 1, False),
    "model.layers.2.attn_norm.weight": (["layers.2.attention_norm.weight"], 1, False),
    "model.layers.3.attn_norm.weight": (["layers.3.attention_norm.weight"], 1, False),
    "model.layers.4.attn_norm.weight": (["layers.4.attention_norm.weight"], 1, False),
    "model.layers.5.attn_norm.weight": (["layers.5.attention_norm.weight"], 1, False),
    "model.layers.6.attn_norm.weight": (["layers.6.attention_norm.weight"], 1, False),
    "model.layers.7.attn_norm.weight": (["layers.7.attention_norm.weight"], 1, False),
    "model.layers.8.attn_norm.weight": (["layers.8.attention_norm.weight"], 1, False),
    "model.layers.9.attn_norm.weight": (["layers.9.attention_norm.weight"], 1, False),
    "model.layers.10.attn_norm.weight": (["layers.10.attention_norm.weight"], 1, False),
    "model.layers.11.attn_norm.weight": (["layers.11.attention_norm.weight"], 1, False),
    "model.layers.12.attn_norm.weight": (["layers.12.attention_norm.weight"], 1, False),
    "model.layers.13.attn_norm.weight": (["layers.13.attention_norm.weight"], 1, False),
    "model.layers.14.attn_norm.weight": (["layers.14.attention_norm.weight"], 1, False),
    "model.layers.15.attn_norm.weight": (["layers.15.attention_norm.weight"], 1, False),
    "model.layers.16.attn_norm.weight": (["layers.16.attention_norm.weight"], 1, False),
    "model.layers.17.attn_norm.weight": (["layers.17.attention_norm.weight"], 1, False),
    "model.layers.18.attn_norm.weight": (["layers.18.attention_norm.weight"], 1, False),
    "model.layers.19.attn_norm.weight": (["layers.19.attention_norm.weight"], 1, False),
    "model.layers.20.attn_norm.weight": (["layers.20.attention_norm.weight"], 1, False),
    "model.layers.21.attn_norm.weight": (["layers.21.attention_norm.weight"], 1, False),
    "model.layers.{i}.attn.Wqkv.weight": (
        ["layers.{i}.attention.q.weight", "layers.{i}.attention.k.weight", "layers.{i}.attention.v.weight"],
        1,
        False,
    ),
    "model.layers.{i}.attn.Wo.weight": (["layers.{i}.attention.o.weight"], 1, False),
    "model.layers.{i}.mlp_norm.weight": (["layers.{i}.mlp_norm.weight"], 1, False),
    "model.layers.{i}.mlp.Wi.weight": (["layers.{i}.mlp.gate.weight", "layers.{i}.mlp.up.weight"], 1, False),
    "model.layers.{i}.mlp.Wo.weight": (["layers.{i}.mlp.down.weight"], 1, False),
}
UNPREFIXED = [
    "head.dense.weight",
    "head.norm.weight",
    "decoder.bias",
    "decoder.weight",
]
TIED = {"decoder.weight": "model.embeddings.tok_embeddings.weight"}


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


def unpacked(
    tensors: dict[str, Tensor], like: dict[str, Tensor], rows: dict[str, tuple[list[str], int, bool]], layers: int
) -> dict[str, Tensor]:
    """The tensors under the model's names, by (the names packed in each, in how many groups, whether transposed).

    Within each group the parameters' rows follow one another: groups 1 is stacked, groups heads is head by head.
    """
    state = {}
    for name, i in [(name, i) for name in rows for i in range(layers)]:
        (targets, groups, transposed), tensor = rows[name], tensors[name.format(i=i)]
        targets = [target.format(i=i) for target in targets]
        tensor = tensor.T if transposed and tensor.dim() == 2 else tensor
        shapes = [tuple(like[target].shape) for target in targets]
        shape = (sum(each[0] for each in shapes), *shapes[0][1:]) if len(shapes) > 1 else shapes[0]
        if tensor.shape != shape:
            raise ValueError(f"checkpoint: {name.format(i=i)} is {tuple(tensor.shape)}, wanted {shape}")
        parts = [tensor]
        if len(shapes) > 1:
            parts = tensor.unflatten(0, (groups, -1)).split([each[0] // groups for each in shapes], dim=1)
            parts = [part.flatten(0, 1) for part in parts]
        state.update({target: part.contiguous() for target, part in zip(targets, parts, strict=True)})
    return state
