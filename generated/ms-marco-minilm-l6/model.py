"""ms-marco-minilm-l6: an encoder of 6 layers, 384 wide, over 30522 tokens.

22,713,601 parameters. Shapes: B batch, S new tokens, P past tokens, T = P + S in all.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


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


def first_token(x: Tensor, attention_mask: Tensor) -> Tensor:
    """The first token that is no padding, 0 where all are: (B, S, W), (B, S) -> (B, W)."""
    real = (attention_mask != 0).long()
    rows, at = torch.arange(x.shape[0], device=x.device), real.argmax(dim=1)
    return x[rows, at] * real[rows, at, None]


class Attention(nn.Module):
    """12 heads of 32."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(384, 384)
        self.k = nn.Linear(384, 384)
        self.v = nn.Linear(384, 384)
        self.o = nn.Linear(384, 384)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q_heads = self.q(x).unflatten(2, (-1, 32)).transpose(1, 2)  # (B, 12, S, 32)
        k_heads = self.k(x).unflatten(2, (-1, 32)).transpose(1, 2)  # (B, 12, S, 32)
        v_heads = self.v(x).unflatten(2, (-1, 32)).transpose(1, 2)  # (B, 12, S, 32)
        mixed = F.scaled_dot_product_attention(q_heads, k_heads, v_heads, attn_mask=mask)  # (B, 12, S, 32)
        o = self.o(mixed.transpose(1, 2).flatten(2))  # (B, S, 384)
        return o


class MLP(nn.Module):
    """down(gelu(up x)), 1536 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(384, 1536)
        self.down = nn.Linear(1536, 384)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)  # (B, S, 1536)
        activated = F.gelu(up)  # (B, S, 1536)
        down = self.down(activated)  # (B, S, 384)
        return down


class Layer(nn.Module):
    """x = x + attention(x); x = attention_post_norm(x); x = x + mlp(x); x = mlp_post_norm(x)"""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.attention_post_norm = nn.LayerNorm(384, eps=1e-12)
        self.mlp = MLP()
        self.mlp_post_norm = nn.LayerNorm(384, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        attention = self.attention(x, mask)  # (B, S, 384)
        after_attention = x + attention  # (B, S, 384)
        attention_post_norm = self.attention_post_norm(after_attention)  # (B, S, 384)
        mlp = self.mlp(attention_post_norm)  # (B, S, 384)
        after_mlp = attention_post_norm + mlp  # (B, S, 384)
        mlp_post_norm = self.mlp_post_norm(after_mlp)  # (B, S, 384)
        return mlp_post_norm


@dataclass
class Output:
    """logits (B, 1); loss, with labels."""

    logits: Tensor
    loss: Tensor | None = None


torch.export.register_dataclass(Output, serialized_type_name="ms-marco-minilm-l6.Output")


class Model(nn.Module):
    """Token ids to logits: an encoder of 6 layers, 384 wide, over 30522 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30522, 384)
        self.segments = nn.Embedding(2, 384)
        self.positions = nn.Embedding(512, 384)
        self.embedding_norm = nn.LayerNorm(384, eps=1e-12)
        self.layers = nn.ModuleList([Layer() for _ in range(6)])
        self.dense = nn.Linear(384, 384)
        self.head = nn.Linear(384, 1)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        checkpoint_layers: bool = False,
    ) -> Output:
        """Logits of each text.

        There is no cache: every token is given each time. input_ids (B, S); attention_mask (B, S), 0 at padding;
        position_ids (B, S), by default counted from the mask;
        token_type_ids (B, S), the segment of each token, by default 0;
        labels (B) are the score wanted of each text, 0 to 1;
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
        embedding = self.embedding(input_ids)  # (B, S, 384)
        segments = self.segments(token_type_ids)  # (B, S, 384)
        with_segments = embedding + segments  # (B, S, 384)
        positions = self.positions(position_ids)  # (B, S, 384)
        stream = with_segments + positions  # (B, S, 384)
        x = self.embedding_norm(stream)  # (B, S, 384)
        for layer in layers:
            x = layer(x, mask)  # (B, S, 384)
        pool = first_token(x, attention_mask)  # (B, 384)
        dense = self.dense(pool)  # (B, 384)
        dense_activated = F.tanh(dense)  # (B, 384)
        logits = self.head(dense_activated)  # (B, 1)
        loss = None
        if labels is not None:  # in fp32
            loss = F.binary_cross_entropy_with_logits(logits[:, 0].float(), labels.float())
        return Output(logits, loss=loss)

    @torch.no_grad()
    def init_weights(self, std: float = 0.02) -> None:
        """Normal matrices, neutral gains, zero biases; those into the residual stream are scaled by depth."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight.normal_(std=std / 12**0.5 if name.endswith((".down", ".o")) else std)
            elif hasattr(module, "reset_parameters"):
                module.reset_parameters()
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Self:
        """The model with the weights of a safetensors file, or a folder of them, in the layout of bert-classes."""
        with torch.device("meta"):
            model = cls()
        tensors = open_tensors(Path(path))
        tensors = with_new_endings(tensors, {"LayerNorm.beta": "LayerNorm.bias", "LayerNorm.gamma": "LayerNorm.weight"})
        tensors = with_prefix(tensors, "bert.", but=UNPREFIXED)
        tensors = renamed(tensors, CHECKPOINT, IGNORED, layers=6)
        model.load_state_dict({name: t.to(device, dtype, copy=True) for name, t in tensors.items()}, assign=True)
        return model


# The parameter that each tensor of a checkpoint is; {i} is the layer.
CHECKPOINT = {
    "bert.embeddings.word_embeddings.weight": "embedding.weight",
    "bert.embeddings.position_embeddings.weight": "positions.weight",
    "bert.embeddings.token_type_embeddings.weight": "segments.weight",
    "bert.embeddings.LayerNorm.weight": "embedding_norm.weight",
    "bert.embeddings.LayerNorm.bias": "embedding_norm.bias",
    "bert.pooler.dense.weight": "dense.weight",
    "bert.pooler.dense.bias": "dense.bias",
    "classifier.weight": "head.weight",
    "classifier.bias": "head.bias",
    "bert.encoder.layer.{i}.attention.self.query.weight": "layers.{i}.attention.q.weight",
    "bert.encoder.layer.{i}.attention.self.query.bias": "layers.{i}.attention.q.bias",
    "bert.encoder.layer.{i}.attention.self.key.weight": "layers.{i}.attention.k.weight",
    "bert.encoder.layer.{i}.attention.self.key.bias": "layers.{i}.attention.k.bias",
    "bert.encoder.layer.{i}.attention.self.value.weight": "layers.{i}.attention.v.weight",
    "bert.encoder.layer.{i}.attention.self.value.bias": "layers.{i}.attention.v.bias",
    "bert.encoder.layer.{i}.attention.output.dense.weight": "layers.{i}.attention.o.weight",
    "bert.encoder.layer.{i}.attention.output.dense.bias": "layers.{i}.attention.o.bias",
    "bert.encoder.layer.{i}.attention.output.LayerNorm.weight": "layers.{i}.attention_post_norm.weight",
    "bert.encoder.layer.{i}.attention.output.LayerNorm.bias": "layers.{i}.attention_post_norm.bias",
    "bert.encoder.layer.{i}.intermediate.dense.weight": "layers.{i}.mlp.up.weight",
    "bert.encoder.layer.{i}.intermediate.dense.bias": "layers.{i}.mlp.up.bias",
    "bert.encoder.layer.{i}.output.dense.weight": "layers.{i}.mlp.down.weight",
    "bert.encoder.layer.{i}.output.dense.bias": "layers.{i}.mlp.down.bias",
    "bert.encoder.layer.{i}.output.LayerNorm.weight": "layers.{i}.mlp_post_norm.weight",
    "bert.encoder.layer.{i}.output.LayerNorm.bias": "layers.{i}.mlp_post_norm.bias",
}
UNPREFIXED = [
    "classifier.weight",
    "classifier.bias",
    "cls.seq_relationship.weight",
    "cls.seq_relationship.bias",
]
IGNORED = [
    "bert.embeddings.position_ids",
    "bert.pooler.dense.weight",
    "bert.pooler.dense.bias",
    "cls.seq_relationship.weight",
    "cls.seq_relationship.bias",
]


def open_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, or of the files of a folder, mapped into memory."""
    from safetensors.torch import load_file

    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"no .safetensors file in {path}")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def with_new_endings(tensors: dict[str, Tensor], endings: dict[str, str]) -> dict[str, Tensor]:
    """The tensors; names that end as in older files end as they do today."""
    for older, now in endings.items():
        tensors = {n.removesuffix(older) + now if n.endswith(older) else n: t for n, t in tensors.items()}
    return tensors


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
