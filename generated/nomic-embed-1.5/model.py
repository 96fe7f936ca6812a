"""nomic-embed-1.5: an encoder of 12 layers, 768 wide, over 30528 tokens.

136,731,648 parameters. Shapes: B batch, S new tokens, P past tokens, T = P + S in all.
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


def mean_of_tokens(x: Tensor, attention_mask: Tensor) -> Tensor:
    """The mean over the tokens that are no padding: (B, S, W), (B, S) -> (B, W)."""
    real = (attention_mask != 0).to(x.dtype)
    return (x * real[..., None]).sum(dim=1) / real.sum(dim=1, keepdim=True).clamp(min=1)


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
    """down(silu(gate x) * up x), 3072 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(768, 3072, bias=False)
        self.up = nn.Linear(768, 3072, bias=False)
        self.down = nn.Linear(3072, 768, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)  # (B, S, 3072)
        activated = F.silu(gate)  # (B, S, 3072)
        up = self.up(x)  # (B, S, 3072)
        gated = activated * up  # (B, S, 3072)
        down = self.down(gated)  # (B, S, 768)
        return down


class Layer(nn.Module):
    """x = x + attention(x); x = attention_post_norm(x); x = x + mlp(x); x = mlp_post_norm(x)"""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.attention_post_norm = nn.LayerNorm(768, eps=1e-12)
        self.mlp = MLP()
        self.mlp_post_norm = nn.LayerNorm(768, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor | None, cos: Tensor, sin: Tensor) -> Tensor:
        attention = self.attention(x, mask, cos, sin)  # (B, S, 768)
        after_attention = x + attention  # (B, S, 768)
        attention_post_norm = self.attention_post_norm(after_attention)  # (B, S, 768)
        mlp = self.mlp(attention_post_norm)  # (B, S, 768)
        after_mlp = attention_post_norm + mlp  # (B, S, 768)
        mlp_post_norm = self.mlp_post_norm(after_mlp)  # (B, S, 768)
        return mlp_post_norm


@dataclass
class Output:
    """last_hidden_state (B, S, 768); pooled (B, 768)."""

    last_hidden_state: Tensor
    pooled: Tensor


torch.export.register_dataclass(Output, serialized_type_name="nomic-embed-1.5.Output")


class Model(nn.Module):
    """Token ids to last_hidden_state and pooled: an encoder of 12 layers, 768 wide, over 30528 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30528, 768)
        self.segments = nn.Embedding(2, 768)
        self.embedding_norm = nn.LayerNorm(768, eps=1e-12)
        self.layers = nn.ModuleList([Layer() for _ in range(12)])
        self.register_buffer("rotary_frequencies", None, persistent=False)
        self.reset_constants()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        checkpoint_layers: bool = False,
    ) -> Output:
        """The hidden state of each token, and one vector of each text.

        There is no cache: every token is given each time. input_ids (B, S); attention_mask (B, S), 0 at padding;
        position_ids (B, S), by default counted from the mask;
        token_type_ids (B, S), the segment of each token, by default 0;
        checkpoint_layers computes each layer again in the backward pass.
        """
        unmasked = attention_mask is None
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        layers = [partial(checkpoint, each, use_reentrant=False) if checkpoint_layers else each for each in self.layers]
        queries_at = query_positions(attention_mask, input_ids.shape[1])  # (B, S)
        position_ids = queries_at.clamp(min=0) if position_ids is None else position_ids
        keys_at = key_positions(attention_mask)  # (B, S)
        mask = None if unmasked else visible_both_ways(queries_at, keys_at)  # (B, 1, S, S)
        cos, sin = rotary_table(position_ids, self.rotary_frequencies)  # (B, S, 32)
        embedding = self.embedding(input_ids)  # (B, S, 768)
        segments = self.segments(token_type_ids)  # (B, S, 768)
        with_segments = embedding + segments  # (B, S, 768)
        x = self.embedding_norm(with_segments)  # (B, S, 768)
        for layer in layers:
            x = layer(x, mask, cos, sin)  # (B, S, 768)
        pool = mean_of_tokens(x, attention_mask)  # (B, 768)
        unit = F.normalize(pool, dim=-1)  # (B, 768)
        return Output(x, unit)

    def reset_constants(self) -> None:
        """Computes the buffers anew, in fp32 whatever the parameters' type."""
        with self.embedding.weight.device:
            self.rotary_frequencies = rotary_frequencies(1000.0, pairs=32, over=64)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        super()._apply(*args, **kwargs)
        self.reset_constants()  # a move may have rounded them or left them empty
        return self

    @torch.no_grad()
    def init_weights(self, std: float = 0.02) -> None:
        """Normal matrices, neutral gains, zero biases; those into the residual stream are scaled by depth."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight.normal_(std=std / 24**0.5 if name.endswith((".down", ".o")) else std)
            elif hasattr(module, "reset_parameters"):
                module.reset_parameters()

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Self:
        """The model with the weights of a safetensors file, or a folder of them, in the layout of nomic-bert."""
        with torch.device("meta"):
            model = cls()
        tensors = open_tensors(Path(path))
        tensors = with_prefix(tensors, "nomic_bert.", but=[])
        tensors = renamed(tensors, {name: name for name in CHECKPOINT}, [], layers=12)
        tensors = unpacked(tensors, model.state_dict(), CHECKPOINT, layers=12)
        model.load_state_dict({name: t.to(device, dtype, copy=True) for name, t in tensors.items()}, assign=True)
        model.reset_constants()
        return model


# The parameters in each tensor of a checkpoint, their groups, and whether it is transposed; {i} is the layer.
CHECKPOINT = {
    "nomic_bert.embeddings.word_embeddings.weight": (["embedding.weight"], 1, False),
    "nomic_bert.embeddings.token_type_embeddings.weight": (["segments.weight"], 1, False),
    "nomic_bert.emb_ln.weight": (["embedding_norm.weight"], 1, False),
    "nomic_bert.emb_ln.bias": (["embedding_norm.bias"], 1, False),
    "nomic_bert.encoder.layers.{i}.attn.Wqkv.weight": (
        ["layers.{i}.attention.q.weight", "layers.{i}.attention.k.weight", "layers.{i}.attention.v.weight"],
        1,
        False,
    ),
    "nomic_bert.encoder.layers.{i}.attn.out_proj.weight": (["layers.{i}.attention.o.weight"], 1, False),
    "nomic_bert.encoder.layers.{i}.norm1.weight": (["layers.{i}.attention_post_norm.weight"], 1, False),
    "nomic_bert.encoder.layers.{i}.norm1.bias": (["layers.{i}.attention_post_norm.bias"], 1, False),
    "nomic_bert.encoder.layers.{i}.mlp.fc11.weight": (["layers.{i}.mlp.up.weight"], 1, False),
    "nomic_bert.encoder.layers.{i}.mlp.fc12.weight": (["layers.{i}.mlp.gate.weight"], 1, False),
    "nomic_bert.encoder.layers.{i}.mlp.fc2.weight": (["layers.{i}.mlp.down.weight"], 1, False),
    "nomic_bert.encoder.layers.{i}.norm2.weight": (["layers.{i}.mlp_post_norm.weight"], 1, False),
    "nomic_bert.encoder.layers.{i}.norm2.bias": (["layers.{i}.mlp_post_norm.bias"], 1, False),
}


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
