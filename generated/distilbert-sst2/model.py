"""distilbert-sst2: an encoder of 6 layers, 768 wide, over 30522 tokens.

66,955,010 parameters. Shapes: B batch, S new tokens, P past tokens, T = P + S in all.
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
    """12 heads of 64."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(768, 768)
        self.k = nn.Linear(768, 768)
        self.v = nn.Linear(768, 768)
        self.o = nn.Linear(768, 768)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q_heads = self.q(x).unflatten(2, (-1, 64)).transpose(1, 2)  # (B, 12, S, 64)
        k_heads = self.k(x).unflatten(2, (-1, 64)).transpose(1, 2)  # (B, 12, S, 64)
        v_heads = self.v(x).unflatten(2, (-1, 64)).transpose(1, 2)  # (B, 12, S, 64)
        mixed = F.scaled_dot_product_attention(q_heads, k_heads, v_heads, attn_mask=mask)  # (B, 12, S, 64)
        o = self.o(mixed.transpose(1, 2).flatten(2))  # (B, S, 768)
        return o


class MLP(nn.Module):
    """down(gelu(up x)), 3072 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(768, 3072)
        self.down = nn.Linear(3072, 768)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)  # (B, S, 3072)
        activated = F.gelu(up)  # (B, S, 3072)
        down = self.down(activated)  # (B, S, 768)
        return down


class Layer(nn.Module):
    """x = x + attention(x); x = attention_post_norm(x); x = x + mlp(x); x = mlp_post_norm(x)"""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.attention_post_norm = nn.LayerNorm(768, eps=1e-12)
        self.mlp = MLP()
        self.mlp_post_norm = nn.LayerNorm(768, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        attention = self.attention(x, mask)  # (B, S, 768)
        after_attention = x + attention  # (B, S, 768)
        attention_post_norm = self.attention_post_norm(after_attention)  # (B, S, 768)
        mlp = self.mlp(attention_post_norm)  # (B, S, 768)
        after_mlp = attention_post_norm + mlp  # (B, S, 768)
        mlp_post_norm = self.mlp_post_norm(after_mlp)  # (B, S, 768)
        return mlp_post_norm


@dataclass
class Output:
    """logits (B, 2); loss, with labels."""

    logits: Tensor
    loss: Tensor | None = None


torch.export.register_dataclass(Output, serialized_type_name="distilbert-sst2.Output")


class Model(nn.Module):
    """Token ids to logits: an encoder of 6 layers, 768 wide, over 30522 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30522, 768)
        self.positions = nn.Embedding(512, 768)
        self.embedding_norm = nn.LayerNorm(768, eps=1e-12)
        self.layers = nn.ModuleList([Layer() for _ in range(6)])
        self.dense = nn.Linear(768, 768)
        self.head = nn.Linear(768, 2)

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
        labels (B) are the class of each text;
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
        embedding = self.embedding(input_ids)  # (B, S, 768)
        positions = self.positions(position_ids)  # (B, S, 768)
        stream = embedding + positions  # (B, S, 768)
        x = self.embedding_norm(stream)  # (B, S, 768)
        for layer in layers:
            x = layer(x, mask)  # (B, S, 768)
        pool = first_token(x, attention_mask)  # (B, 768)
        dense = self.dense(pool)  # (B, 768)
        dense_activated = F.relu(dense)  # (B, 768)
        logits = self.head(dense_activated)  # (B, 2)
        loss = None
        if labels is not None:  # in fp32
            loss = F.cross_entropy(logits.float(), labels)
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
        """The model with the weights of a safetensors file, or a folder of them, laid out as distilbert-classes."""
        with torch.device("meta"):
            model = cls()
        tensors = open_tensors(Path(path))
        tensors = with_prefix(tensors, "distilbert.", but=UNPREFIXED)
        tensors = renamed(tensors, CHECKPOINT, IGNORED, layers=6)
        model.load_state_dict({name: t.to(device, dtype, copy=True) for name, t in tensors.items()}, assign=True)
        return model


# The parameter that each tensor of a checkpoint is; {i} is the layer.
CHECKPOINT = {
    "distilbert.embeddings.word_embeddings.weight": "embedding.weight",
    "distilbert.embeddings.position_embeddings.weight": "positions.weight",
    "distilbert.embeddings.LayerNorm.weight": "embedding_norm.weight",
    "distilbert.embeddings.LayerNorm.bias": "embedding_norm.bias",
    "pre_classifier.weight": "dense.weight",
    "pre_classifier.bias": "dense.bias",
    "classifier.weight": "head.weight",
    "classifier.bias": "head.bias",
    "distilbert.transformer.layer.{i}.attention.q_lin.weight": "layers.{i}.attention.q.weight",
    "distilbert.transformer.layer.{i}.attention.q_lin.bias": "layers.{i}.attention.q.bias",
    "distilbert.transformer.layer.{i}.attention.k_lin.weight": "layers.{i}.attention.k.weight",
    "distilbert.transformer.layer.{i}.attention.k_lin.bias": "layers.{i}.attention.k.bias",
    "distilbert.transformer.layer.{i}.attention.v_lin.weight": "layers.{i}.attention.v.weight",
    "distilbert.transformer.layer.{i}.attention.v_lin.bias": "layers.{i}.attention.v.bias",
    "distilbert.transformer.layer.{i}.attention.out_lin.weight": "layers.{i}.attention.o.weight",
    "distilbert.transformer.layer.{i}.attention.out_lin.bias": "layers.{i}.attention.o.bias",
    "distilbert.transformer.layer.{i}.sa_layer_norm.weight": "layers.{i}.attention_post_norm.weight",
    "distilbert.transformer.layer.{i}.sa_layer_norm.bias": "layers.{i}.attention_post_norm.bias",
    "distilbert.transformer.layer.{i}.ffn.lin1.weight": "layers.{i}.mlp.up.weight",
    "distilbert.transformer.layer.{i}.ffn.lin1.bias": "layers.{i}.mlp.up.bias",
    "distilbert.transformer.layer.{i}.ffn.lin2.weight": "layers.{i}.mlp.down.weight",
    "distilbert.transformer.layer.{i}.ffn.lin2.bias": "layers.{i}.mlp.down.bias",
    "distilbert.transformer.layer.{i}.output_layer_norm.weight": "layers.{i}.mlp_post_norm.weight",
    "distilbert.transformer.layer.{i}.output_layer_norm.bias": "layers.{i}.mlp_post_norm.bias",
}
UNPREFIXED = [
    "pre_classifier.weight",
    "pre_classifier.bias",
    "classifier.weight",
    "classifier.bias",
]
IGNORED = ["distilbert.embeddings.position_ids"]


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
